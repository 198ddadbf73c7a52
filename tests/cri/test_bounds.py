"""What is counted of a connection: its verdicts, and answers that nobody reads (fault matrix X1)."""

import pytest

from runtimeproxy.cri.bounds import PIECE_BYTES, UNREAD_BYTES, Excess, Unread, verdict
from runtimeproxy.errors import WireError
from runtimeproxy.wire import http2


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Excess("kind", "text"), ("kind", 0xB)),
        (Excess("preface", "text", http2.PROTOCOL_ERROR), ("preface", 1)),
        (WireError("text"), ("protocol", 1)),
    ],
)
def test_the_verdict(error: WireError, expected: tuple[str, int]) -> None:
    assert verdict(error) == expected


def test_answers_that_nobody_reads_end_the_connection() -> None:
    unread = Unread()
    for _ in range(UNREAD_BYTES // 2 // (13 + PIECE_BYTES)):
        unread.add(13, delivered=False)
    unread.add(UNREAD_BYTES // 4, delivered=False)
    with pytest.raises(Excess, match="reads nothing") as raised:
        unread.add(UNREAD_BYTES // 4, delivered=False)
    assert raised.value.kind == "unread"


def test_answers_that_are_read_count_no_more() -> None:
    unread = Unread()
    for _ in range(10):
        unread.add(UNREAD_BYTES - PIECE_BYTES, delivered=False)
        unread.add(UNREAD_BYTES, delivered=True)
