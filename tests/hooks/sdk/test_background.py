"""The event loop in the background: errors and its end; test_serving.py shows results and cancelling."""

import asyncio
import threading
from collections.abc import AsyncIterator, Generator
from concurrent.futures import CancelledError, Future

import pytest

from runtimeproxy_hooks.sdk.background import BackgroundLoop

LONG_SECONDS = 20.0


@pytest.mark.parametrize(
    ("error", "seen"), [(KeyError("a"), KeyError), (SystemExit(3), RuntimeError), (KeyboardInterrupt(), RuntimeError)]
)
def test_error_comes_back_and_the_loop_goes_on(error: BaseException, seen: type[Exception]) -> None:
    loop = BackgroundLoop()

    async def fail() -> None:
        raise error

    for _ in range(2):
        with pytest.raises(seen):
            loop.submit(fail()).result(LONG_SECONDS)
    loop.close(LONG_SECONDS)


def test_end_cancels_what_runs_and_closes_generators() -> None:
    loop = BackgroundLoop()
    began, closed = threading.Event(), threading.Event()

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            closed.set()

    async def wait() -> None:
        async for _ in numbers():
            began.set()
            await asyncio.Event().wait()

    running = loop.submit(wait())
    assert began.wait(LONG_SECONDS)
    for _ in range(2):
        loop.close(LONG_SECONDS)
    with pytest.raises(CancelledError):
        running.result(LONG_SECONDS)
    assert closed.is_set()


def test_blocked_loop_does_not_hold_its_end_up() -> None:
    loop = BackgroundLoop()
    began, released = threading.Event(), threading.Event()

    async def block() -> None:
        began.set()
        released.wait(LONG_SECONDS)

    running = loop.submit(block())
    assert began.wait(LONG_SECONDS)
    loop.close(0.05)
    assert not running.done()
    released.set()
    running.result(LONG_SECONDS)
    loop.close(LONG_SECONDS)


@pytest.mark.parametrize("after", [False, True])
def test_late_coroutine_is_not_left_waiting(monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    """The loop may have looked for the last time: then it never sees what it is handed."""
    loop = BackgroundLoop()
    unseen: Future[None] = Future()
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", lambda coroutine, _: coroutine.close() or unseen)

    class Never:
        def __await__(self) -> Generator[None, None, None]:
            raise AssertionError

    if after:
        loop.close(LONG_SECONDS)
    waited_for = loop.submit(Never())
    loop.close(LONG_SECONDS)
    with pytest.raises(CancelledError):
        waited_for.result(LONG_SECONDS)
