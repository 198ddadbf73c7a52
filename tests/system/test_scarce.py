"""What runs short: descriptors, room on the disk, and somebody who reads the log (fault matrix P8)."""

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from runtimeproxy.plugins.breaker import FAILURES_IN_A_ROW
from tests.fakes.hookserver import HookServer
from tests.system.fronts import Failed, Front, Runtime
from tests.system.proxy import PROGRAM, WAIT_SECONDS, ProxyProcess, answers, until
from tests.system.test_process import refused
from tests.system.times import in_rounds

pytestmark = pytest.mark.slow

DESCRIPTORS = CLIENTS = 64
"""Of so many clients not all can be served: each takes two descriptors."""
RECOVERY_SECONDS = 1.0


def limited(front: Front, folder: Path, **flags: str) -> ProxyProcess:
    """Return a proxy of few descriptors."""
    program = ["bash", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "limited", *PROGRAM]
    return front.process(folder, program=program, **flags)


@asynccontextmanager
async def exhausted(proxy: ProxyProcess) -> AsyncIterator[None]:
    """Connect more clients than can be served, who ask nothing, until no descriptor is left."""
    pauses = proxy.output().count("accepting pauses")
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            stack.enter_context(socket.socket(socket.AF_UNIX)).connect(str(proxy.socket))
        await until(lambda: proxy.output().count("accepting pauses") > pauses, "no descriptor is left")
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
    proxy = limited(front, tmp_path)

    async def ping() -> None:
        async with front.sent(proxy.socket) as answer:
            await answer

    async def recovery() -> float:
        async with exhausted(proxy):
            for _ in range(5):
                await caller.act("ping")
            late = asyncio.create_task(ping())
            await asyncio.sleep(0.2)
            assert not late.done()
        freed = time.monotonic()
        await asyncio.wait_for(late, WAIT_SECONDS)
        return time.monotonic() - freed

    async with proxy, front.caller(proxy.socket) as caller:
        await caller.act("ping")
        await in_rounds(RECOVERY_SECONDS, recovery)
        async with exhausted(proxy):
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


async def test_want_of_descriptors_is_not_laid_to_the_hook_server(
    front: Front, tmp_path: Path, runtime: Runtime
) -> None:
    proxy, hooks = limited(front, tmp_path, hook_timeout="300ms"), HookServer(str(tmp_path / "hooks.sock"))
    proxy.register("hooks.json", hooks.socket_path, ("PreCreateContainer",), policy="Fail")
    async with hooks, proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        async with exhausted(proxy):
            await asyncio.sleep(1.0)
            await until(lambda: len(os.listdir(f"/proc/{proxy.pid}/fd")) == DESCRIPTORS, "none is given back")
            for _ in range(FAILURES_IN_A_ROW + 1):
                with pytest.raises(Failed, match="internal: the proxy itself lacks what it needs"):
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


async def test_log_that_nobody_reads_holds_no_call_up(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    """Not even a line can be written to it."""
    path, full = tmp_path / "stderr", bytes(4096)
    os.mkfifo(path)
    with open(os.open(path, os.O_RDWR | os.O_NONBLOCK), "r+b", buffering=0) as unread:
        fcntl.fcntl(unread, fcntl.F_SETPIPE_SZ, len(full))
        assert unread.write(full) == len(full)
        proxy = front.process(tmp_path, program=["bash", "-c", f'exec "$@" 2>{path}', "unheard", *PROGRAM])
        proxy.launch()
        try:
            await until(lambda: answers(proxy.socket), "the proxy listens")
            async with front.caller(proxy.socket) as caller:
                for _ in range(20):
                    await caller.create(await caller.run_pod())
        finally:
            await ended(proxy)
        assert unread.read(2 * len(full)) == full


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
