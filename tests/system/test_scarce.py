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
from tests.system.fronts import Caller, Failed, Front, Runtime
from tests.system.proxy import PROGRAM, WAIT_SECONDS, ProxyProcess, answers, until

pytestmark = pytest.mark.slow

DESCRIPTORS = 64
CLIENTS = 64
"""More than can be served: each takes two descriptors."""
LIMITED = f'ulimit -n {DESCRIPTORS}; exec "$@"'
RECOVERY_SECONDS = 1.0
TRIES = 10
"""The figure is the proxy's; a try that another program on the machine disturbed is repeated."""
PIPE_BYTES = 4096


async def test_at_the_limit_of_descriptors_old_clients_go_on_and_new_ones_wait(
    front: Front, tmp_path: Path, runtime: Runtime
) -> None:
    proxy = front.process(tmp_path, program=["bash", "-c", LIMITED, "limited", *PROGRAM])
    waited = []
    async with proxy, front.caller(proxy.socket) as caller:
        await caller.act("ping")
        for number in range(1, TRIES + 1):
            with idle_clients(proxy.socket, CLIENTS):
                await until(lambda: proxy.output().count("accepting pauses") >= number, "no descriptor is left")  # noqa: B023
                for _ in range(5):
                    await caller.act("ping")
                late = asyncio.create_task(_ping(front, proxy.socket))
                await asyncio.sleep(0.2)
                assert not late.done()
            freed = time.monotonic()
            await asyncio.wait_for(late, WAIT_SECONDS)
            waited.append(time.monotonic() - freed)
            if waited[-1] < RECOVERY_SECONDS:
                break
        assert min(waited) < RECOVERY_SECONDS, waited
        await end(proxy)
    told = proxy.output()
    assert "raise the limit of open files" in told
    assert "Traceback" not in told
    assert "not reachable" not in told, "the runtime is not to blame"


async def test_at_the_limit_of_descriptors_the_end_is_told_and_cuts_no_call(
    front: Front, tmp_path: Path, runtime: Runtime
) -> None:
    proxy = front.process(tmp_path, program=["bash", "-c", LIMITED, "limited", *PROGRAM])
    proxy.environment["NOTIFY_SOCKET"] = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(WAIT_SECONDS)
        async with proxy, front.caller(proxy.socket) as caller:
            await caller.act("ping")
            runtime.upset("ping", delay_seconds=1.0)
            with idle_clients(proxy.socket, CLIENTS):
                await until(lambda: "accepting pauses" in proxy.output(), "no descriptor is left")
                before = runtime.verbs().count("ping")
                under_way = asyncio.create_task(caller.act("ping"))
                await until(lambda: runtime.verbs().count("ping") > before, "the call is under way")
                await end(proxy)
                await under_way
        assert [systemd.recv(100), systemd.recv(100)] == [b"READY=1", b"STOPPING=1"]


Hooked = tuple[ProxyProcess, HookServer]


@asynccontextmanager
async def hooked(front: Front, folder: Path, policy: str, **flags: str) -> AsyncIterator[Hooked]:
    """Run a proxy of few descriptors with a hook server that it has not dialled yet."""
    proxy = front.process(folder, program=["bash", "-c", LIMITED, "limited", *PROGRAM], **flags)
    async with HookServer(str(folder / "hooks.sock")) as hooks:
        proxy.register("hooks.json", hooks.socket_path, ("PreCreateContainer",), policy=policy)
        async with proxy:
            yield proxy, hooks
            await end(proxy)


async def all_used(proxy: ProxyProcess) -> None:
    """Wait until a proxy has no descriptor left, nor one that it gives back soon."""
    await until(lambda: "accepting pauses" in proxy.output(), "no descriptor is left")
    await asyncio.sleep(1.0)
    await until(lambda: len(os.listdir(f"/proc/{proxy.pid}/fd")) == DESCRIPTORS, "none is given back")


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
async def test_at_the_limit_of_descriptors_a_hook_call_waits_for_one(
    front: Front, tmp_path: Path, runtime: Runtime, policy: str
) -> None:
    async with hooked(front, tmp_path, policy) as (proxy, hooks), front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        with idle_clients(proxy.socket, CLIENTS):
            await all_used(proxy)
            create = asyncio.create_task(caller.create(pod_id))
            await asyncio.sleep(0.5)
            assert not create.done()
        await create
        assert [call.point.name for call in hooks.calls] == ["PreCreateContainer"]
    assert "failed" not in proxy.output()


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
async def test_a_want_of_descriptors_is_not_laid_to_the_hook_server(
    front: Front, tmp_path: Path, runtime: Runtime, policy: str
) -> None:
    limited = hooked(front, tmp_path, policy, hook_timeout="300ms")
    async with limited as (proxy, hooks), front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        with idle_clients(proxy.socket, CLIENTS):
            await all_used(proxy)
            for _ in range(FAILURES_IN_A_ROW + 1):
                await _created(caller, pod_id, policy)
        assert hooks.calls == []
        async with asyncio.timeout(WAIT_SECONDS):  # not as long as a breaker that has opened
            while not hooks.calls:
                with suppress(Failed):
                    await caller.create(pod_id)
    assert "PreCreateContainer: internal: the proxy itself lacks what it needs: Too many open files" in proxy.output()
    assert "unreachable" not in proxy.output()
    assert "keeps failing" not in proxy.output()


async def _created(caller: Caller, pod_id: str, policy: str) -> None:
    """Create a container that nobody can be asked about."""
    if policy == "Ignore":
        await caller.create(pod_id)
        return
    with pytest.raises(Failed, match="internal: the proxy itself lacks what it needs"):
        await caller.create(pod_id)


async def end(proxy: ProxyProcess) -> None:
    """Have a proxy end well whose log has a line at error level, as it should."""
    process, proxy.process = proxy.process, None
    assert process is not None
    try:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, WAIT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()


@contextmanager
def idle_clients(path: Path, count: int) -> Iterator[None]:
    """Connect so many clients that ask nothing."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
        yield


async def _ping(front: Front, path: Path) -> None:
    async with front.sent(path) as answer:
        await answer


async def test_a_log_that_nobody_reads_holds_no_call_up(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    """Not even the first line can be written."""
    fifo = tmp_path / "stderr"
    os.mkfifo(fifo)
    unread = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    fcntl.fcntl(unread, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    assert os.write(unread, bytes(PIPE_BYTES)) == PIPE_BYTES
    try:
        await _serves_unheard(front, front.process(tmp_path, program=with_stderr(str(fifo))))
        assert os.read(unread, 2 * PIPE_BYTES) == bytes(PIPE_BYTES)
    finally:
        os.close(unread)


async def test_a_log_on_a_full_disk_holds_no_call_up(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    await _serves_unheard(front, front.process(tmp_path, program=with_stderr("/dev/full")))


def with_stderr(path: str) -> list[str]:
    """Return the program with its log at a path."""
    return ["bash", "-c", f'exec "$@" 2>{path}', "unheard", *PROGRAM]


async def _serves_unheard(front: Front, proxy: ProxyProcess) -> None:
    """Run a proxy of which no line can be read: it makes calls, and ends well."""
    proxy.launch()
    assert proxy.process is not None
    try:
        await until(lambda: answers(proxy.socket), "the proxy listens")
        async with front.caller(proxy.socket) as caller:
            for _ in range(20):
                await caller.create(await caller.run_pod())
        proxy.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(proxy.process.wait, WAIT_SECONDS) == 0
    finally:
        proxy.process.kill()
        proxy.process.wait()
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
async def test_a_start_without_room_for_its_files_ends_with_one_clear_line(
    front: Front, tmp_path: Path, inodes: int
) -> None:
    """The directory itself has an inode, then the lock, then the socket."""
    with tiny_disk(tmp_path / "full", f"nr_inodes={inodes}") as full:
        socket_path = full / "proxy.sock"
        ended = await _run(front.process(tmp_path, koord_runtimeproxy_endpoint=str(socket_path)))
        assert not socket_path.exists()
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert f"cannot listen on {socket_path}: No space left on device" in line
    assert "--koord-runtimeproxy-endpoint" in line


@pytest.mark.engine
async def test_a_disk_without_a_free_block_is_no_matter(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    """Only the process id in the lock is not to be had, which a second start would have named."""
    with tiny_disk(tmp_path / "full", "size=4k") as full:
        (full / "filler").write_bytes(bytes(4096))
        proxy = front.process(tmp_path, koord_runtimeproxy_endpoint=str(full / "proxy.sock"))
        async with proxy, front.caller(full / "proxy.sock") as caller:
            await caller.create(await caller.run_pod())
            second = await _run(proxy)
            await caller.act("ping")
    assert second.returncode == 1
    assert "another runtimeproxy (pid unknown) listens" in second.stderr


async def _run(proxy: ProxyProcess) -> subprocess.CompletedProcess[str]:
    """Run a proxy that will not start."""
    return await asyncio.to_thread(
        subprocess.run,
        [*proxy.command, "--log-level=info"],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        env=proxy.environment,
    )
