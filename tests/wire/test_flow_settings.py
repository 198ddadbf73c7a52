"""What a peer's INITIAL_WINDOW_SIZE costs where thousands of streams are hop by hop (fault matrix X1)."""

from collections.abc import Iterator
from typing import Any

import pytest

from runtimeproxy.errors import WireError
from runtimeproxy.wire import http2
from tests.wire.test_flow import data_of, started


class Walked(dict[int, int]):
    """Counts how often all of it is looked at."""

    walks = 0

    def __iter__(self) -> Iterator[int]:
        self.walks += 1
        return super().__iter__()

    def keys(self) -> Any:
        self.walks += 1
        return super().keys()

    def values(self) -> Any:
        self.walks += 1
        return super().values()


def test_a_new_initial_window_costs_nothing_for_each_stream() -> None:
    """There may be thousands of both: each is only looked at once, when all that came has been read."""
    outlet = started()
    outlet.apply_settings([(http2.INITIAL_WINDOW_SIZE, 0)])
    streams = range(1, 2_000, 2)
    for stream in streams:
        outlet.govern(stream)
        outlet.send_data(stream, b"ab", True, None, 0)
    outlet._stream_windows = windows = Walked(outlet._stream_windows)
    for _ in range(1_000):
        outlet.apply_settings([(http2.INITIAL_WINDOW_SIZE, 1)])
        outlet.apply_settings([(http2.INITIAL_WINDOW_SIZE, 0)])
    assert (windows.walks, outlet.out) == (0, [])
    outlet.apply_settings([(http2.INITIAL_WINDOW_SIZE, 1)])
    outlet.catch_up()
    assert data_of(outlet) == [(stream, 1, False) for stream in streams]


def test_a_window_of_a_stream_that_has_ended_counts_no_more() -> None:
    outlet = started()
    outlet.govern(1)
    outlet.open_stream_window(1, http2.MAX_WINDOW - http2.DEFAULT_WINDOW)
    outlet.ungovern(1)
    outlet.govern(3)
    outlet.open_stream_window(3, 1)
    outlet.apply_settings([(http2.INITIAL_WINDOW_SIZE, http2.MAX_WINDOW - 1)])
    with pytest.raises(WireError, match=r"2\^31-1"):
        outlet.apply_settings([(http2.INITIAL_WINDOW_SIZE, http2.MAX_WINDOW)])
