"""Credit for DATA that the caller sends itself, at once: whole or not at all."""

import pytest

from runtimeproxy.wire import http2
from runtimeproxy.wire.flow import Outlet
from tests.wire.test_flow import started


@pytest.mark.parametrize(
    ("window", "stream_window", "length", "taken_"),
    [(10, 10, 10, True), (9, 10, 10, False), (10, 9, 10, False), (2**20, 2**20, http2.DEFAULT_FRAME_SIZE + 1, False)],
)
def test_credit_is_taken_whole_or_not_at_all(window: int, stream_window: int, length: int, taken_: bool) -> None:
    outlet = started()
    outlet.initial_window = stream_window
    outlet.govern(1)
    outlet.window = window
    assert outlet.take(1, length) == taken_
    assert outlet.window == window - (length if taken_ else 0)
    outlet.send_data(1, bytes(length), True, None, 0)
    assert outlet.waits(1) == (taken_ or length <= http2.DEFAULT_FRAME_SIZE)


def test_no_credit_is_taken_before_what_waits_nor_inside_a_frame() -> None:
    outlet = Outlet()
    outlet.govern(1)
    assert not outlet.take(1, 1)
    outlet.start()
    outlet.cut_through = True
    assert not outlet.take(1, 1)
    outlet.boundary()
    assert outlet.take(1, 1)
    outlet.open_stream_window(1, 2**17)
    outlet.send_data(1, bytes(2**17), True, None, 0)
    outlet.window = 1
    assert not outlet.take(1, 1)
