"""What runs short: descriptors, room on the disk, and somebody who reads the log (fault matrix P8)."""

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from runtimeproxy.plugins.breaker import FAILURES_IN_A_ROW
from tests.fakes.hookserver import HookServer
from tests.system.fronts import Failed, Front, Runtime
from tests.system.proxy import PROGRAM, WAIT_SECONDS, ProxyProcess, answers, until
from tests.system.test_process import refused

pytestmark = pytest.mark.slow

DESCRIPTORS = 64
CLIENTS = 64
"""More than can be served: each takes two descriptors."""
LIMITED = f'ulimit -n {DESCRIPTORS}; exec "$@"'
RECOVERY_SECONDS = 1.0
TRIES = 10
"""The figure is the proxy's; a try that another program on the machine disturbed is repeated."""
PIPE_BYTES = 4096


def limited(front: Front, folder: Path, **flags: str) -> ProxyProcess:
    """Return a proxy of few descriptors."""
    return front.process(folder, program=["bash", "-c", LIMITED, "limited", *PROGRAM], **flags)


@contextmanager
def idle_clients(path: Path) -> Iterator[None]:
    """Connect more clients than can be served, who ask nothing."""
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            stack.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
        yield


async def ended(proxy: ProxyProcess) -> None:
    """Have a proxy end well whose log has a line at error level, as it should."""
    process, proxy.process = proxy.process, None
    assert process is not None
    try:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, WAIT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()


async def test_without_descriptors_old_clients_go_on_and_new_ones_wait(
    front: Front, tmp_path: Path, runtime: Runtime
) -> None:
    proxy, waited = limited(front, tmp_path), []

    async def ping() -> None:
        async with front.sent(proxy.socket) as answer:
            await answer

    async with proxy, front.caller(proxy.socket) as caller:
        await caller.act("ping")
        while min(waited, default=RECOVERY_SECONDS) >= RECOVERY_SECONDS:
            assert len(waited) < TRIES, waited
            with idle_clients(proxy.socket):
                await until(lambda: proxy.output().count("accepting pauses") > len(waited), "no descriptor is left")
                for _ in range(5):
                    await caller.act("ping")
                late = asyncio.create_task(ping())
                await asyncio.sleep(0.2)
                assert not late.done()
            freed = time.monotonic()
            await asyncio.wait_for(late, WAIT_SECONDS)
            waited.append(time.monotonic() - freed)
        with idle_clients(proxy.socket):
            await until(lambda: proxy.output().count("accepting pauses") > len(waited), "no descriptor is left")
            runtime.upset("ping", delay_seconds=1.0)
            before = runtime.verbs().count("ping")
            under_way = asyncio.create_task(caller.act("ping"))
            await until(lambda: runtime.verbs().count("ping") > before, "the call is under way")
            await ended(proxy)
            await under_way
    told = proxy.output()
    assert "raise the limit of open files" in told
    assert "Traceback" not in told
    assert "not reachable" not in told, "the runtime is not to blame"


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
async def test_want_of_descriptors_is_not_laid_to_the_hook_server(
    front: Front, tmp_path: Path, runtime: Runtime, policy: str
) -> None:
    proxy, hooks = limited(front, tmp_path, hook_timeout="300ms"), HookServer(str(tmp_path / "hooks.sock"))
    proxy.register("hooks.json", hooks.socket_path, ("PreCreateContainer",), policy=policy)
    failing = pytest.raises(Failed, match="internal: the proxy itself lacks what it needs")
    async with hooks, proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        with idle_clients(proxy.socket):
            await until(lambda: "accepting pauses" in proxy.output(), "no descriptor is left")
            await asyncio.sleep(1.0)
            await until(lambda: len(os.listdir(f"/proc/{proxy.pid}/fd")) == DESCRIPTORS, "none is given back")
            for _ in range(FAILURES_IN_A_ROW + 1):
                with failing if policy == "Fail" else nullcontext():
                    await caller.create(pod_id)
        assert hooks.calls == []
        async with asyncio.timeout(WAIT_SECONDS):  # not as long as a breaker that has opened
            while not hooks.calls:
                with suppress(Failed):
                    await caller.create(pod_id)
        await ended(proxy)
    assert "PreCreateContainer: internal: the proxy itself lacks what it needs: Too many open files" in proxy.output()
    assert "unreachable" not in proxy.output()
    assert "keeps failing" not in proxy.output()


@contextmanager
def full_pipe(path: Path) -> Iterator[None]:
    """Make a pipe that nobody reads, and to which not even a line can be written."""
    os.mkfifo(path)
    unread = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    fcntl.fcntl(unread, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    assert os.write(unread, bytes(PIPE_BYTES)) == PIPE_BYTES
    try:
        yield
        assert os.read(unread, 2 * PIPE_BYTES) == bytes(PIPE_BYTES)
    finally:
        os.close(unread)


@pytest.mark.parametrize("where", ["unread pipe", "full disk"])
async def test_log_that_takes_nothing_holds_no_call_up(
    front: Front, tmp_path: Path, runtime: Runtime, where: str
) -> None:
    path = tmp_path / "stderr" if where == "unread pipe" else Path("/dev/full")
    proxy = front.process(tmp_path, program=["bash", "-c", f'exec "$@" 2>{path}', "unheard", *PROGRAM])
    with full_pipe(path) if where == "unread pipe" else nullcontext():
        proxy.launch()
        try:
            await until(lambda: answers(proxy.socket), "the proxy listens")
            async with front.caller(proxy.socket) as caller:
                for _ in range(20):
                    await caller.create(await caller.run_pod())
        finally:
            await ended(proxy)
    assert proxy.output() == ""


# ---- no room where the socket and its lock are


@contextmanager
def tiny_disk(folder: Path, *options: str) -> Iterator[Path]:
    """Mount a file system of its own."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(("mode=0700", *options)), "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # even if a proxy that did not end is still there


@pytest.mark.engine
@pytest.mark.parametrize("inodes", [1, 2], ids=["lock", "socket"])
async def test_start_without_room_for_its_files_ends_with_one_line(front: Front, tmp_path: Path, inodes: int) -> None:
    """The directory itself has an inode, then the lock, then the socket."""
    with tiny_disk(tmp_path / "full", f"nr_inodes={inodes}") as full:
        socket_path = full / "proxy.sock"
        line = await refused(front.process(tmp_path, koord_runtimeproxy_endpoint=str(socket_path)))
        assert not socket_path.exists()
    assert f"cannot listen on {socket_path}: No space left on device" in line
    assert "--koord-runtimeproxy-endpoint" in line


@pytest.mark.engine
async def test_disk_without_a_free_block_does_not_matter(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    """Only the process id in the lock is not to be had, which a second start would have named."""
    with tiny_disk(tmp_path / "full", "size=4k") as full:
        (full / "filler").write_bytes(bytes(4096))
        proxy = front.process(tmp_path, koord_runtimeproxy_endpoint=str(full / "proxy.sock"))
        async with proxy, front.caller(full / "proxy.sock") as caller:
            await caller.create(await caller.run_pod())
            assert "another runtimeproxy (pid unknown) listens" in await refused(proxy)
            await caller.act("ping")
