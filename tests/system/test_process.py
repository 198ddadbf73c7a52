"""The proxy as a process: one owner of the socket, a hard and a soft end, a socket from its supervisor."""

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes import cri_pb2, hookanswers
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime, Injection
from tests.system import clients
from tests.system.clients import Client
from tests.system.h2client import H2Client
from tests.system.proxy import PROGRAM, WAIT_SECONDS, ProxyProcess, answers

DRAIN_SECONDS = 5


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    async with FakeRuntime(str(tmp_path / "runtime.sock")) as fake:
        yield fake


async def test_the_sockets_mode_is_0600_whatever_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        async with ProxyProcess(tmp_path) as proxy:
            assert stat.S_IMODE(proxy.socket.stat().st_mode) == 0o600
        assert not proxy.socket.exists()
    finally:
        os.umask(umask)


async def test_a_second_start_is_refused_and_the_first_ones_calls_go_on(tmp_path: Path, runtime: FakeRuntime) -> None:
    async with ProxyProcess(tmp_path) as proxy, Client(proxy.socket) as client:
        stream = client.both("/an.unknown.Service/Chat")
        await stream.write(b"before")
        assert await stream.read() == b"before"
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
        await stream.write(b"after")
        assert await stream.read() == b"after"
        assert proxy.socket.stat().st_ino == inode
        await client.run_pod()


async def test_it_starts_again_after_sigkill(tmp_path: Path, runtime: FakeRuntime) -> None:
    async with ProxyProcess(tmp_path) as proxy:
        await asyncio.to_thread(proxy.kill)
        assert proxy.socket.exists()
        assert not answers(proxy.socket)
        await asyncio.to_thread(proxy.start)
        async with Client(proxy.socket) as client:
            await client.run_pod()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_after_the_held_call(
    tmp_path: Path, runtime: FakeRuntime, number: signal.Signals
) -> None:
    proxy = ProxyProcess(tmp_path, drain_timeout=f"{DRAIN_SECONDS}s")
    async with HookServer(str(tmp_path / "hooks.sock"), default=hookanswers.after(0.5)) as hooks:
        proxy.register("slow.json", hooks.socket_path, ["PreRunPodSandbox"])
        await asyncio.to_thread(proxy.start)
        assert proxy.process is not None
        async with Client(proxy.socket) as client:
            held = asyncio.ensure_future(client.run_pod())
            await hooks.wait_for_calls("PreRunPodSandbox")
            proxy.process.send_signal(number)
            assert await held in runtime.state.pods
        code = await asyncio.to_thread(proxy.process.wait, WAIT_SECONDS)
    proxy.check(code)
    assert not proxy.socket.exists()


async def test_the_drain_ends_although_a_call_does_not(tmp_path: Path, runtime: FakeRuntime) -> None:
    runtime.inject("RunPodSandbox", Injection(delay_seconds=60))
    proxy = ProxyProcess(tmp_path, drain_timeout="500ms")
    await asyncio.to_thread(proxy.start)
    async with H2Client(proxy.socket) as client:
        message = cri_pb2.RunPodSandboxRequest(config=clients.pod()).SerializeToString()
        _, answer = await client.open("/runtime.v1.RuntimeService/RunPodSandbox", message)
        while not runtime.requests("RunPodSandbox"):
            await asyncio.sleep(0.01)
        begun = time.monotonic()
        await asyncio.to_thread(proxy.stop)
        assert time.monotonic() - begun < DRAIN_SECONDS
        with pytest.raises(ConnectionError):
            await answer


# ---- a socket that is handed over (LISTEN_FDS)

SUPERVISED = 'exec 3<&"$1"; shift; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
"""What systemd does for a unit with a socket: the listener is file descriptor 3, the variables name the process."""


async def test_a_restart_under_a_supervisor_refuses_no_connection(tmp_path: Path, runtime: FakeRuntime) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "proxy.sock"))
        listener.listen(64)
        os.set_inheritable(listener.fileno(), True)
        program = ["bash", "-c", SUPERVISED, "supervisor", str(listener.fileno()), *PROGRAM]
        proxy = ProxyProcess(tmp_path, program=program, pass_fds=[listener.fileno()])
        for _ in range(2):
            # Nobody accepts yet: the connection waits in the listener, which lives on.
            async with H2Client(proxy.socket) as early:
                _, answer = await early.open("/runtime.v1.RuntimeService/Version", b"")
                await asyncio.to_thread(proxy.start)
                assert (await asyncio.wait_for(answer, WAIT_SECONDS)).status == 0
            await asyncio.to_thread(proxy.stop)
            assert proxy.socket.exists()
            assert answers(proxy.socket)


# ---- the documented command lines, as they are written

NAMESPACE = """
mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /etc
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


COMMANDS = [
    [],
    [
        "--remote-runtime-service-endpoint=/var/run/containerd/containerd.sock",
        "--remote-image-service-endpoint=/var/run/containerd/containerd.sock",
    ],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=["no parameter", "endpoints"])
async def test_the_documented_command_lines_work_on_the_default_paths(tmp_path: Path, arguments: list[str]) -> None:
    async with InItsNamespace(tmp_path, *arguments) as proxy:
        hook_socket = proxy.root / "run/hooks.sock"
        async with (
            FakeRuntime(str(proxy.root / "run/containerd/containerd.sock")) as runtime,
            HookServer(str(hook_socket)) as hooks,
            Client(proxy.socket) as client,
        ):
            proxy.registrations = proxy.root / "etc/runtime/hookserver.d"
            proxy.register("koordlet.json", "/run/hooks.sock", ["PreCreateContainer"])
            await asyncio.to_thread(proxy.wait_for_registration, "koordlet.json")
            await client.create(await client.run_pod())
            await client.call("ListImages")
            assert [received.method for received in runtime.received] == [
                "RunPodSandbox",
                "CreateContainer",
                "ListImages",
            ]
            assert len(hooks.calls) == 1


async def test_the_docker_command_says_that_it_is_not_in_this_version_yet(tmp_path: Path) -> None:
    arguments = ["--backend-runtime-mode=Docker", "--remote-runtime-service-endpoint=/var/run/docker.sock"]
    proxy = InItsNamespace(tmp_path, *arguments)
    proxy.launch()
    assert proxy.process is not None
    code = await asyncio.to_thread(proxy.process.wait, WAIT_SECONDS)
    proxy.check(code, expected=2)
    assert len(proxy.output().splitlines()) == 1
    assert "not in this version yet" in proxy.output()
