"""An event loop with virtual time: the clock jumps to the next timer.

Time passes only when no callback is ready; a loop that would wait forever fails. It is for tests without sockets, since
external events have no virtual time.
"""

import asyncio
import selectors

import pytest


class _JumpingSelector(selectors.SelectSelector):
    """Advances the time where another selector would wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise AssertionError("the test waits for something that will never happen")
        self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


virtual_time = pytest.mark.virtual_time
"""Marks an async test, or a file of them, that runs on its own loop with virtual time (tests/conftest.py)."""
