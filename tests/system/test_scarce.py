"""What runs short: descriptors, and somebody who reads the log (facts/reliability P8)."""

import asyncio
import fcntl
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.system.fronts import Front, Runtime
from tests.system.proxy import PROGRAM, WAIT_SECONDS, answers, until

pytestmark = pytest.mark.slow

DESCRIPTORS = 64
CLIENTS = 64
"""More than can be served: each takes two descriptors."""
LIMITED = f'ulimit -n {DESCRIPTORS}; exec "$@"'
RECOVERY_SECONDS = 1.0
TRIES = 3
"""The figure is the proxy's; a try that another program on the machine disturbed is repeated."""
PIPE_BYTES = 4096


@pytest.fixture
async def runtime(front: Front, tmp_path: Path) -> AsyncIterator[Runtime]:
    async with front.runtime(str(tmp_path / "runtime.sock")) as fake:
        yield fake


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
        assert proxy.process is not None
        proxy.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(proxy.process.wait, WAIT_SECONDS) == 0
        proxy.process = None  # its log has a line at error level, as it should
    told = proxy.output()
    assert "raise the limit of open files" in told
    assert "Traceback" not in told
    assert "not reachable" not in told, "the runtime is not to blame"


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
    proxy = front.process(tmp_path, program=["bash", "-c", f'exec "$@" 2>{fifo}', "unread", *PROGRAM])
    proxy.launch()
    assert proxy.process is not None
    try:
        await until(lambda: answers(proxy.socket), "the proxy listens")
        async with front.caller(proxy.socket) as caller:
            for _ in range(20):
                await caller.create(await caller.run_pod())
        proxy.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(proxy.process.wait, WAIT_SECONDS) == 0
        assert os.read(unread, 2 * PIPE_BYTES) == bytes(PIPE_BYTES)
    finally:
        proxy.process.kill()
        proxy.process.wait()
        os.close(unread)
