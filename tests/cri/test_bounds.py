"""The bounds of a connection: what each one lets pass, and the counting (facts/reliability 1.7 and X1)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.cri import bounds
from runtimeproxy.cri.bounds import (
    EARLY_ENDS,
    PIECE_BYTES,
    UNREAD_BYTES,
    Bound,
    Budget,
    Budgets,
    Excess,
    Unread,
    verdict,
)
from runtimeproxy.errors import WireError
from runtimeproxy.wire import http2

EVERY = [value for value in vars(bounds).values() if isinstance(value, Bound)]
SMALL = Bound("small", "small frames", burst=10, a_second=5, a_stream=2)


@dataclass
class Node:
    """A clock, and a number of streams."""

    seconds: float = 100.0
    streams: int = 7

    def clock(self) -> float:
        return self.seconds

    def opened(self) -> int:
        return self.streams

    def budget(self, bound: Bound = SMALL, times: int = 1) -> Budget:
        return Budget(bound, self.clock, self.opened, times)


def taken(budget: Budget, most: int = 10_000_000) -> int:
    """Return how many are left, and take them."""
    for count in range(most):
        try:
            budget.take()
        except Excess:
            return count
    return most


def test_a_burst_passes_and_the_next_one_ends_the_connection() -> None:
    budget = Node().budget()
    assert taken(budget) == 10
    with pytest.raises(Excess, match="too many small frames") as raised:
        budget.take()
    assert verdict(raised.value) == ("small", 0xB)


@pytest.mark.parametrize(
    ("seconds", "streams", "expected"),
    [(0, 0, 0), (0.19, 0, 0), (0.2, 0, 1), (1, 0, 5), (0, 1, 2), (1, 2, 9), (3600, 0, 10), (0, 1000, 10)],
)
def test_time_and_streams_give_more_up_to_a_burst(seconds: float, streams: int, expected: int) -> None:
    node = Node()
    budget = node.budget()
    for _ in range(10):
        budget.take()
    node.seconds += seconds
    node.streams += streams
    assert taken(budget) == expected


def test_what_was_given_once_is_not_given_again() -> None:
    node = Node()
    budget = node.budget()
    for _ in range(10):
        budget.take()
    node.seconds += 1
    for _ in range(5):
        budget.take()
    node.seconds += 0.4
    assert taken(budget) == 2


def test_the_runtime_may_send_more() -> None:
    node = Node()
    budget = node.budget(times=10)
    for _ in range(100):
        budget.take()
    node.seconds += 1
    assert taken(budget) == 50


@given(
    st.sampled_from(EVERY),
    st.integers(1, 25),
    st.floats(0.01, 1.0, exclude_min=True),
)
def test_no_rate_below_the_bounds_ends_a_connection(bound: Bound, pieces: int, share: float) -> None:
    node = Node()
    budget = node.budget(bound)
    size = max(bound.burst // 20, 1)
    for _ in range(pieces):
        for _ in range(size):
            budget.take()
        node.seconds += size / bound.a_second / share


class Legal(NamedTuple):
    """``count`` at once in each of so many turns, a time apart, each with new streams."""

    take: Callable[[Budgets], None]
    count: int
    streams: int = 0
    turns: int = 1
    seconds: float = 0.0


LEGAL = {
    "10,000 cancels at once": Legal(lambda budgets: budgets.early.take(), 10_000, streams=10_000),
    "1,000 cancels a second for a minute": Legal(
        lambda budgets: budgets.early.take(), 1_000, streams=1_000, turns=60, seconds=1
    ),
    "10,000 PINGs a second for a minute, as grpc-go may send them beside one long answer": Legal(
        lambda budgets: budgets.frame(http2.PING), 1, turns=600_000, seconds=0.0001
    ),
    "two credits for each of 10,000 calls at once": Legal(
        lambda budgets: budgets.frame(http2.WINDOW_UPDATE), 20_000, streams=10_000
    ),
}


@pytest.mark.parametrize("legal", LEGAL.values(), ids=LEGAL)
def test_legal_use_ends_nothing(legal: Legal) -> None:
    node = Node()
    budgets = Budgets(Budget(EARLY_ENDS, node.clock), node.clock, node.opened)
    for _ in range(legal.turns):
        node.streams += legal.streams
        for _ in range(legal.count):
            legal.take(budgets)
        node.seconds += legal.seconds


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (http2.PRIORITY, "priorities"),
        (http2.SETTINGS, "settings"),
        (http2.PING, "pings"),
        (http2.GOAWAY, "goaways"),
        (http2.WINDOW_UPDATE, "window_updates"),
        (0xEE, "unknown_frames"),
        (0x10, "unknown_frames"),
    ],
)
@pytest.mark.parametrize("times", [1, bounds.RUNTIME_TIMES])
def test_each_kind_of_frame_has_its_own_bound(kind: int, name: str, times: int) -> None:
    node = Node()
    budgets = Budgets(Budget(EARLY_ENDS, node.clock), node.clock, node.opened, times)
    (bound,) = [bound for bound in EVERY if bound.kind == name]
    for _ in range(bound.burst * times):
        budgets.frame(kind)
    with pytest.raises(Excess) as raised:
        budgets.frame(kind)
    assert raised.value.kind == name
    for other in {http2.PRIORITY, http2.SETTINGS, http2.PING, http2.GOAWAY, http2.WINDOW_UPDATE} - {kind}:
        budgets.frame(other)
    for budget in (budgets.early, budgets.late, budgets.empty):
        budget.take()


def test_no_two_bounds_have_one_name() -> None:
    assert len({bound.kind for bound in EVERY}) == len(EVERY) == 9


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
