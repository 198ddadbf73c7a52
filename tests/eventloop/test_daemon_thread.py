"""Work that may block for ever, in a daemon thread."""

import asyncio
import subprocess
import sys
import threading

import pytest

from runtimeproxy.relay.eventloop import run_in_daemon_thread

PATIENCE_SECONDS = 20


async def test_result_is_returned_and_the_loop_goes_on_meanwhile() -> None:
    went_on = threading.Event()
    asyncio.get_running_loop().call_soon(went_on.set)
    assert await run_in_daemon_thread(lambda: went_on.wait(PATIENCE_SECONDS)) is True


async def test_error_of_the_work_is_raised() -> None:
    def fail() -> None:
        raise OSError(5, "input/output error")

    with pytest.raises(OSError, match="input/output error"):
        await run_in_daemon_thread(fail)


async def test_work_that_nobody_waits_for_any_more_ends_unheard() -> None:
    gate = threading.Event()
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run_in_daemon_thread(gate.wait)
    gate.set()
    await asyncio.sleep(0.05)
    assert faults == []


ENDS = """
import asyncio, threading, time
from runtimeproxy.relay.eventloop import run_in_daemon_thread

async def main():
    asyncio.create_task(run_in_daemon_thread(threading.Event().wait))
    asyncio.create_task(run_in_daemon_thread(behind_the_end.wait))
    await asyncio.sleep(0.1)

behind_the_end = threading.Event()
asyncio.run(main())
behind_the_end.set()
time.sleep(0.1)
"""


def test_end_of_the_process_waits_for_no_work() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, timeout=PATIENCE_SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
