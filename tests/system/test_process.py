"""The proxy as a process: one owner of the socket, a hard and a soft end, a socket from its supervisor."""

import asyncio
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.cri_front import CRI
from tests.system.docker_front import DOCKER
from tests.system.fronts import POD, Front, Runtime
from tests.system.proxy import PROGRAM, WAIT_SECONDS, ProxyProcess, answers, until

pytestmark = pytest.mark.slow

DRAIN_SECONDS = 5


async def test_the_sockets_mode_is_0600_whatever_the_umask(front: Front, tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        async with front.process(tmp_path) as proxy:
            assert stat.S_IMODE(proxy.socket.stat().st_mode) == 0o600
        assert not proxy.socket.exists()
    finally:
        os.umask(umask)


async def test_a_second_start_is_refused_and_the_first_ones_calls_go_on(
    front: Front, tmp_path: Path, runtime: Runtime
) -> None:
    async with front.process(tmp_path) as proxy, front.caller(proxy.socket) as caller:
        stream = await caller.chat()
        await stream.say(b"before")
        assert await stream.hear() == b"before"
        inode = proxy.socket.stat().st_ino
        second = await asyncio.to_thread(
            subprocess.run,
            [*proxy.command, "--log-level=info"],
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            env=proxy.environment,
        )
        assert second.returncode == 1
        assert f"pid {proxy.pid}" in second.stderr
        assert str(proxy.socket) in second.stderr
        assert len(second.stderr.splitlines()) == 1
        await stream.say(b"after")
        assert await stream.hear() == b"after"
        assert proxy.socket.stat().st_ino == inode
        await caller.run_pod()


async def test_it_starts_again_after_sigkill(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    async with front.process(tmp_path) as proxy:
        await asyncio.to_thread(proxy.kill)
        assert proxy.socket.exists()
        assert not answers(proxy.socket)
        await asyncio.to_thread(proxy.start)
        async with front.caller(proxy.socket) as caller:
            await caller.run_pod()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_after_the_held_call(
    front: Front, tmp_path: Path, runtime: Runtime, number: signal.Signals
) -> None:
    proxy = front.process(tmp_path, drain_timeout=f"{DRAIN_SECONDS}s")
    async with HookServer(str(tmp_path / "hooks.sock"), default=hookanswers.after(0.2)) as hooks:
        proxy.register("slow.json", hooks.socket_path, ["PreRunPodSandbox"])
        await asyncio.to_thread(proxy.start)
        assert proxy.process is not None
        async with front.caller(proxy.socket) as caller:
            held = asyncio.ensure_future(caller.send("run_pod", caller.pod_request(POD)))
            await hooks.wait_for_calls("PreRunPodSandbox")
            proxy.process.send_signal(number)
            assert caller.id_in("run_pod", await held) in runtime.pod_ids()
        code = await asyncio.to_thread(proxy.process.wait, WAIT_SECONDS)
    proxy.check(code)
    assert not proxy.socket.exists()


async def test_other_daemons_signals_do_not_end_it_and_one_has_the_figures_logged(
    front: Front, tmp_path: Path, runtime: Runtime
) -> None:
    async with front.process(tmp_path) as proxy, front.caller(proxy.socket) as caller:
        for number in (signal.SIGHUP, signal.SIGUSR2):
            os.kill(proxy.pid, number)
            await until(lambda: f"{number.name}: reg" in proxy.output(), "it says so", proxy.output)  # noqa: B023
        await caller.run_pod()
        os.kill(proxy.pid, signal.SIGUSR1)
        wanted = 'calls{operation="RunPodSandbox",outcome="agreed"} 1'
        await until(lambda: wanted in proxy.output(), "the figures are logged", proxy.output)


@pytest.mark.engine
async def test_it_needs_no_capability_and_no_network_and_leaves_no_core_file(
    front: Front, tmp_path: Path, runtime: Runtime
) -> None:
    program = ["unshare", "--net", "setpriv", "--bounding-set=-all", "--inh-caps=-all", *PROGRAM]
    async with front.process(tmp_path, program=program) as proxy, front.caller(proxy.socket) as caller:
        status, limits = (Path(f"/proc/{proxy.pid}/{name}").read_text() for name in ("status", "limits"))
        assert re.search(r"^CapEff:\s*0+$", status, re.MULTILINE)
        assert re.search(r"^Max core file size +0 +0 ", limits, re.MULTILINE)
        await caller.run_pod()


async def test_it_stops_well_if_it_was_started_without_standard_files(
    front: Front, tmp_path: Path, runtime: Runtime
) -> None:
    program = ["bash", "-c", 'exec "$@" <&-', "closed", *PROGRAM]
    async with front.process(tmp_path, program=program) as proxy, front.caller(proxy.socket) as caller:
        await caller.run_pod()


async def test_the_drain_ends_although_a_call_does_not(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    runtime.upset("run_pod", delay_seconds=60)
    proxy = front.process(tmp_path, drain_timeout="500ms")
    await asyncio.to_thread(proxy.start)
    async with (
        front.caller(proxy.socket) as caller,
        front.sent(proxy.socket, "run_pod", caller.pod_request(POD)) as answer,
    ):
        await until(lambda: bool(runtime.asked("run_pod")), "the runtime has the request")
        begun = time.monotonic()
        await asyncio.to_thread(proxy.stop)
        assert time.monotonic() - begun < DRAIN_SECONDS
        with pytest.raises(ConnectionError):
            await answer


@pytest.mark.engine
async def test_the_drain_goes_on_where_the_socket_cannot_be_removed(
    front: Front, tmp_path: Path, runtime: Runtime
) -> None:
    runtime.upset("run_pod", delay_seconds=1)
    proxy = front.process(tmp_path, program=["unshare", "--mount", *PROGRAM])
    await asyncio.to_thread(proxy.start)
    assert proxy.process is not None
    async with front.caller(proxy.socket) as caller:
        call = asyncio.ensure_future(caller.send("run_pod", caller.pod_request(POD)))
        await until(lambda: bool(runtime.asked("run_pod")), "the runtime has the request")
        # What something is mounted on is busy for whoever sees the mount.
        mount = ["nsenter", "--mount", f"--target={proxy.pid}", "mount", "--bind", str(proxy.socket), str(proxy.socket)]
        await asyncio.to_thread(subprocess.run, mount, check=True)
        proxy.process.send_signal(signal.SIGTERM)
        assert caller.id_in("run_pod", await call) in runtime.pod_ids()
    code = await asyncio.to_thread(proxy.process.wait, WAIT_SECONDS)
    proxy.check(code)
    assert proxy.socket.is_socket()
    assert proxy.output().count(f"{proxy.socket} stays: it cannot be removed (Device or resource busy)") == 1


# ---- a socket that is handed over (LISTEN_FDS)

SUPERVISED = 'exec 3<&"$1"; shift; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
"""What systemd does for a unit with a socket: the listener is file descriptor 3, the variables name the process."""


async def test_a_restart_under_a_supervisor_refuses_no_connection(
    front: Front, tmp_path: Path, runtime: Runtime
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "proxy.sock"))
        listener.listen(64)
        os.set_inheritable(listener.fileno(), True)
        program = ["bash", "-c", SUPERVISED, "supervisor", str(listener.fileno()), *PROGRAM]
        proxy = front.process(tmp_path, program=program, pass_fds=[listener.fileno()])
        for _ in range(2):
            # Nobody accepts yet: the connection waits in the listener, which lives on.
            async with front.sent(proxy.socket) as early:
                await asyncio.to_thread(proxy.start)
                await asyncio.wait_for(early, WAIT_SECONDS)
            await asyncio.to_thread(proxy.stop)
            assert proxy.socket.exists()
            assert answers(proxy.socket)
        assert "LISTEN_FDS" not in proxy.output()


@pytest.mark.parametrize("flag", ["remote_runtime_service_endpoint", "remote_image_service_endpoint"])
def test_a_handed_over_socket_that_is_the_runtimes_is_not_dialled(tmp_path: Path, flag: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "given.sock"))
        listener.listen(64)
        os.link(tmp_path / "given.sock", tmp_path / "runtime's.sock")
        program = ["bash", "-c", SUPERVISED, "supervisor", str(listener.fileno()), *PROGRAM]
        endpoint = {flag: str(tmp_path / "runtime's.sock")}
        proxy = ProxyProcess(tmp_path, program=program, pass_fds=[listener.fileno()], **endpoint)
        proxy.launch()
        assert proxy.process is not None
        assert proxy.process.wait(WAIT_SECONDS) == 1
    told = f"--{flag.replace('_', '-')} ({tmp_path}/runtime's.sock) is the socket that the proxy itself listens on"
    assert f"{told} ({tmp_path}/given.sock): change it, or --koord-runtimeproxy-endpoint or" in proxy.output()


def test_a_handed_over_socket_is_told_by_its_own_name(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "given.sock"))
        listener.listen(64)
        program = ["bash", "-c", SUPERVISED, "supervisor", str(listener.fileno()), *PROGRAM]
        with ProxyProcess(tmp_path, program=program, pass_fds=[listener.fileno()]) as proxy:
            proxy.wait_for_log(f"listening on {tmp_path}/given.sock for the runtime at {proxy.runtime}")
            proxy.wait_for_log(f"nobody listens on --koord-runtimeproxy-endpoint={proxy.socket}\n")


# ---- the documented command lines, as they are written

NAMESPACE = """
mount -t tmpfs -o mode=755 tmpfs /run && mount -t tmpfs tmpfs /etc
mkdir -p /run/containerd /etc/runtime/hookserver.d
exec "$@"
"""
"""The machine's own /run and /etc stay as they are: the mounts are the new process's alone."""
CONSOLE_SCRIPT = f"""#!{sys.executable}
import sys
from runtimeproxy.cli import koord_runtime_proxy
sys.exit(koord_runtime_proxy())
"""
"""What pip writes for the entry point of setup.cfg."""


class InItsNamespace(ProxyProcess):
    """``koord-runtime-proxy`` on the default paths, which are seen from here through ``/proc/PID/root``."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        super().__init__(folder)
        script = folder / "koord-runtime-proxy"
        script.write_text(CONSOLE_SCRIPT)
        script.chmod(0o755)
        self.command = ["unshare", "--mount", "sh", "-c", NAMESPACE, "namespace", str(script), *arguments]

    def start(self) -> None:
        """Start it; its socket is below its own root."""
        self.launch()
        self.root = Path(f"/proc/{self.pid}/root")
        self.socket = self.root / "run/koord-runtimeproxy/runtimeproxy.sock"
        self.wait_until_it_listens()


MODE = "--backend-runtime-mode=Docker"
CONTAINERD = "--remote-runtime-service-endpoint=/var/run/containerd/containerd.sock"
CONTAINERDS_IMAGES = "--remote-image-service-endpoint=/var/run/containerd/containerd.sock"
DOCKERD = "--remote-runtime-service-endpoint=/var/run/docker.sock"
IGNORED = "--remote-image-service-endpoint is ignored"
COMMANDS: dict[str, tuple[Front, list[str], int]] = {
    "no parameter": (CRI, [], 0),
    "endpoints": (CRI, [CONTAINERD, CONTAINERDS_IMAGES], 0),
    "docker": (DOCKER, [MODE, DOCKERD], 0),
    "docker without its endpoint": (DOCKER, [MODE], 0),
    "docker with an image endpoint": (DOCKER, [MODE, DOCKERD, CONTAINERDS_IMAGES], 1),
}
"""Parameters, and how many warnings there are of what is ignored."""


@pytest.mark.parametrize(("front", "arguments", "ignored"), COMMANDS.values(), ids=COMMANDS)
async def test_the_documented_command_lines_work_on_the_default_paths(
    front: Front, tmp_path: Path, arguments: list[str], ignored: int
) -> None:
    async with InItsNamespace(tmp_path, *arguments) as proxy:
        hook_socket = proxy.root / "run/hooks.sock"
        async with (
            front.runtime(str(proxy.root / front.default_socket)) as runtime,
            HookServer(str(hook_socket)) as hooks,
            front.caller(proxy.socket) as caller,
        ):
            proxy.registrations = proxy.root / "etc/runtime/hookserver.d"
            proxy.register("koordlet.json", "/run/hooks.sock", ["PreCreateContainer"])
            await asyncio.to_thread(proxy.wait_for_registration, "koordlet.json")
            await caller.create(await caller.run_pod())
            await caller.act("images")
            assert runtime.verbs() == ["run_pod", "create", "images"]
            assert len(hooks.calls) == 1
        told = [line for line in proxy.output().splitlines() if "image-service-endpoint" in line]
        assert [IGNORED in line and " WARNING " in line for line in told] == [True] * ignored, told
