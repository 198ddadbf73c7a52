"""The proxy as a process: signals, rights, systemd, the documented command lines (fault matrix P7, X7)."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from runtimeproxy.settings.version import VERSION
from runtimeproxy_hooks.__main__ import ALL, HOOKS
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.hooks.sdk import processes
from tests.system.fronts import CRI, DOCKER, Failed, Front, Runtime
from tests.system.proxy import PROGRAM, ROOT, WAIT_SECONDS, ProxyProcess, answers, handed_over

pytestmark = pytest.mark.slow

FIGURES = ('operation="RunPodSandbox",outcome="agreed"} 1', f'build_info{{version="{VERSION}",python="', "draining 0")


async def test_signals_log_metrics_or_end_proxy(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    """SIGHUP and SIGUSR2, which are commands of other daemons, do not end the proxy.

    SIGTERM waits for calls and tunnels; a second signal ends that. Docker mode serves new clients meanwhile.
    """
    proxy = front.process(tmp_path, drain_timeout="60s", hook_budget="60s")
    proxy.register("hung.json", hooks.socket_path, ["PreRunPodSandbox"], timeout="60s")
    async with proxy, front.caller(proxy.socket) as caller:

        async def signalled(number: signal.Signals, *logged: str) -> None:
            os.kill(proxy.pid, number)
            for text in logged:
                await asyncio.to_thread(proxy.wait_for_log, text)

        await caller.run_pod()
        for number in (signal.SIGHUP, signal.SIGUSR2):
            await signalled(number, f"{number.name}: reg")
        await signalled(signal.SIGUSR1, *FIGURES)
        stream = await caller.open_stream()
        hooks.calls.clear()
        hooks.default = hookanswers.hang()
        held = asyncio.ensure_future(caller.run_pod())
        await hooks.wait_for_calls("PreRunPodSandbox")
        is_docker = front is DOCKER
        await signalled(signal.SIGTERM, f"{'continuing to serve' if is_docker else 'draining'} for at most")
        if is_docker:
            async with front.caller(proxy.socket) as newer:
                await newer.act("ping")
        assert not held.done()
        await signalled(signal.SIGINT)
        for end in (held, asyncio.ensure_future(stream.read())):
            with pytest.raises(Failed):
                await asyncio.wait_for(end, WAIT_SECONDS)
        process, proxy.process = proxy.process, None
        assert process is not None
        proxy.check(await asyncio.to_thread(process.wait, WAIT_SECONDS))
        assert not proxy.socket.exists()
    assert "drained in" in proxy.output()


@pytest.mark.engine
async def test_proxy_needs_no_capability_no_network_and_no_stdin(
    front: Front, tmp_path: Path, runtime: Runtime
) -> None:
    bare = ["unshare", "--net", "setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    program = [*bare, "bash", "-c", 'exec "$@" <&-', "closed", *PROGRAM]
    async with front.process(tmp_path, program=program) as proxy, front.caller(proxy.socket) as caller:
        status, limits = (Path(f"/proc/{proxy.pid}/{name}").read_text() for name in ("status", "limits"))
        assert re.search(r"^CapEff:\s*0+$", status, re.MULTILINE)
        assert re.search(r"^Max core file size +0 +0 ", limits, re.MULTILINE)
        await caller.run_pod()


# ---- systemd


def test_systemd_is_notified_once_clients_can_connect(front: Front, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(WAIT_SECONDS)
        proxy = front.process(tmp_path)
        proxy.environment |= {"NOTIFY_SOCKET": f"{tmp_path}/notify", "WATCHDOG_USEC": "200000"}
        proxy.launch()
        try:
            assert systemd.recv(100) == b"READY=1"
            assert answers(proxy.socket)
            assert {systemd.recv(100) for _ in range(3)} == {b"WATCHDOG=1", b"STATUS=serving, 0 hook servers"}
        finally:
            proxy.stop()
        while systemd.recv(100) != b"STOPPING=1":
            pass


def test_handed_over_socket_of_runtime_is_refused(tmp_path: Path) -> None:
    with handed_over(tmp_path / "given.sock") as handed:
        os.link(tmp_path / "given.sock", tmp_path / "runtime's.sock")
        proxy = ProxyProcess(tmp_path, **handed, remote_image_service_endpoint=str(tmp_path / "runtime's.sock"))
        proxy.launch()
        assert proxy.process is not None
        assert proxy.process.wait(WAIT_SECONDS) == 1
    line = f"--remote-image-service-endpoint ({tmp_path}/runtime's.sock) is the socket that the proxy itself listens on"
    assert f"{line} ({tmp_path}/given.sock): change it, or --koord-runtimeproxy-endpoint or" in proxy.output()


# ---- the documented command lines, unchanged

NAMESPACE = """
mount -t tmpfs -o mode=755 tmpfs /run && mount -t tmpfs tmpfs /etc
mkdir -p /run/containerd /etc/runtime/hookserver.d
exec "$@"
"""
"""The mounts of /run and /etc exist only in the new process's namespace."""
CONSOLE_SCRIPT = f"#!{sys.executable}\nimport sys\nfrom runtimeproxy import cli\nsys.exit(cli.koord_runtime_proxy())\n"
"""A script as pip writes it for the entry point of setup.cfg."""
DOCKERD = ["--backend-runtime-mode=Docker", "--remote-runtime-service-endpoint=/var/run/docker.sock"]
CONTAINERDS_IMAGES = "--remote-image-service-endpoint=/var/run/containerd/containerd.sock"
COMMANDS: dict[str, tuple[Front, list[str]]] = {
    "no parameter": (CRI, []),
    "endpoints": (CRI, [CONTAINERDS_IMAGES.replace("image", "runtime"), CONTAINERDS_IMAGES]),
    "docker": (DOCKER, DOCKERD),
    "docker without its endpoint": (DOCKER, DOCKERD[:1]),
    "docker with an image endpoint": (DOCKER, [*DOCKERD, CONTAINERDS_IMAGES]),
}


class InItsNamespace(ProxyProcess):
    """``koord-runtime-proxy`` on the default paths, which the test reaches through ``/proc/PID/root``."""

    def start(self) -> None:
        self.launch()
        self.root = Path(f"/proc/{self.pid}/root")
        self.socket = self.root / "run/koord-runtimeproxy/runtimeproxy.sock"
        self.wait_until_it_listens()


@pytest.mark.engine  # it needs a mount namespace
@pytest.mark.parametrize(("front", "arguments"), COMMANDS.values(), ids=COMMANDS)
async def test_documented_command_lines_work_on_default_paths(
    front: Front, tmp_path: Path, arguments: list[str]
) -> None:
    proxy, script = InItsNamespace(tmp_path), tmp_path / "koord-runtime-proxy"
    script.write_text(CONSOLE_SCRIPT)
    script.chmod(0o755)
    proxy.command = ["unshare", "--mount", "sh", "-c", NAMESPACE, "namespace", str(script), *arguments]
    async with proxy:
        hook_socket = proxy.root / "run/hooks.sock"
        async with (
            front.runtime(str(proxy.root / front.default_socket)) as runtime,
            HookServer(str(hook_socket)) as hooks,
            front.caller(proxy.socket) as caller,
        ):
            proxy.registrations = proxy.root / "etc/runtime/hookserver.d"
            proxy.register("koordlet.json", "/run/hooks.sock", ["PreCreateContainer"])
            await asyncio.to_thread(proxy.wait_for_log, "registration koordlet.json ")
            await caller.create(await caller.run_pod())
            await caller.act("images")
            assert [len(runtime.arrived(verb)) for verb in ("run_pod", "create", "images")] == [1, 1, 1]
            assert len(hooks.calls) == 1


# ---- the project's own hook servers

OWN_PATHS = {"coresched": ["core-sched-state"], "rdt": ["resctrl-root"], ALL: ["core-sched-state", "resctrl-root"]}
"""The flags of a hook's paths, which are the machine's by default."""


@pytest.mark.parametrize("name", [*sorted(HOOKS), ALL])
def test_hook_server_passes_hook_verify(tmp_path: Path, name: str) -> None:
    flags = [f"--{flag}={tmp_path}/{flag}" for flag in OWN_PATHS.get(name, [])]
    with processes.running(tmp_path, *flags, program=("-m", "runtimeproxy_hooks", name)) as program:
        command = [sys.executable, "-m", "runtimeproxy", "hook", "verify", str(program.socket)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
        assert program.end(15) == 0
    assert "Traceback" not in program.log
