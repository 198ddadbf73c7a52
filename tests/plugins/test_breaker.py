"""The breaker (fault matrix H10): its rules as tables of attempts, which may overlap."""

from collections.abc import Callable

import pytest

from runtimeproxy.errors import Reason
from runtimeproxy.plugins.client import Breaker, BreakerState

COUNTED = (Reason.DEADLINE, Reason.BROKEN_ANSWER)
CLOSING = (None, Reason.REFUSED, Reason.UNIMPLEMENTED, Reason.ERROR_STATUS, Reason.BAD_ANSWER)
NEUTRAL = tuple(reason for reason in Reason if reason not in {*COUNTED, *CLOSING})
START = 1000.0
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def attempt(breaker: Breaker, reason: Reason | None, now: float = START) -> bool:
    """Make an attempt with this result; return whether it was admitted."""
    number = breaker.admit("a socket", now)
    if number is not None:
        breaker.end(number, reason, now)
    return number is not None


def opened() -> Breaker:
    breaker = Breaker()
    assert [attempt(breaker, Reason.DEADLINE) for _ in range(6)] == [True] * 5 + [False]
    return breaker


@pytest.mark.parametrize(
    ("reason", "more"), [*((reason, 5) for reason in CLOSING), *((reason, 1) for reason in NEUTRAL)]
)
def test_consecutive_failures_are_reset_only_by_answer(reason: Reason | None, more: int) -> None:
    breaker = Breaker()
    for ended in [*[Reason.DEADLINE] * 4, reason, *[Reason.BROKEN_ANSWER] * more]:
        assert breaker.state is CLOSED
        assert attempt(breaker, ended)
    assert breaker.state is OPEN


def test_openings_grow_up_to_five_minutes() -> None:
    breaker, now, waited = opened(), START, []
    for _ in range(12):
        waited.append(breaker.seconds)
        now += breaker.seconds
        assert (breaker.remaining_seconds(now - 1), attempt(breaker, None, now - 1)) == (1.0, False)
        assert attempt(breaker, Reason.DEADLINE, now)
        assert not attempt(breaker, None, now)
    assert waited == [30, 60, 90, 120, 150, 180, 210, 240, 270, 300, 300, 300]
    assert attempt(breaker, None, now + 300)
    for _ in range(5):
        attempt(breaker, Reason.DEADLINE, now + 300)
    assert (breaker.seconds, breaker.remaining_seconds(now + 301), breaker.remaining_seconds(now + 999)) == (30, 29, 0)


TRY = START + 30
FAILED = Reason.DEADLINE
OVERLAPPING: dict[str, tuple[Callable[[], Breaker], list[tuple[str, object, float, object]]]] = {
    "one attempt at a time is a trial": (
        opened,
        [("admit", "a socket", TRY, True), ("admit", "a socket", TRY, False), ("end", FAILED, TRY, OPEN)],
    ),
    "a trial without a counted result is followed by another": (
        opened,
        [("admit", "a socket", TRY, True), ("end", NEUTRAL[0], TRY, HALF_OPEN), ("admit", "a socket", TRY, True)],
    ),
    "an answer to the trial closes it": (
        opened,
        [("admit", "a socket", TRY, True), ("end", None, TRY, CLOSED), ("admit", "a socket", TRY, True)],
    ),
    "another server at the socket is tried immediately": (
        opened,
        [("admit", "another", START, True), ("admit", "another", START, False), ("end", None, START, CLOSED)],
    ),
    "attempts from before the opening do not count": (
        Breaker,
        [
            *[("admit", "a socket", START, True)] * 7,
            *[("end", FAILED, START, state) for state in [*[CLOSED] * 4, *[OPEN] * 3]],
            ("admit", "a socket", START + 29, False),
        ],
    ),
    "a late answer to such an attempt does not close it": (
        Breaker,
        [*[("admit", "a socket", START, True)] * 6, *[("end", FAILED, START, None)] * 5, ("end", None, START, OPEN)],
    ),
    "attempts at a server that was replaced do not count": (
        Breaker,
        [
            *[("admit", "a socket", START, True)] * 5,
            ("admit", "another", START, True),
            *[("end", FAILED, START, CLOSED)] * 6,
        ],
    ),
    "a row of failures is of one server": (
        Breaker,
        [
            *[("admit", "a socket", START, True), ("end", FAILED, START, CLOSED)] * 4,
            *[("admit", "another", START, True), ("end", FAILED, START, CLOSED)] * 4,
            *[("admit", "another", START, True), ("end", FAILED, START, OPEN)],
        ],
    ),
}
"""Each step: admit an attempt at a server, or end the oldest one, at a time; whether it was admitted, or the state."""


@pytest.mark.parametrize(("made", "steps"), OVERLAPPING.values(), ids=OVERLAPPING)
def test_attempts_may_overlap(made: Callable[[], Breaker], steps: list[tuple[str, object, float, object]]) -> None:
    breaker, running = made(), []
    for action, what, now, expected in steps:
        if action == "admit":
            number = breaker.admit(what, now)
            assert (number is not None) is expected
            running += [] if number is None else [number]
        else:
            assert what is None or isinstance(what, Reason)
            breaker.end(running.pop(0), what, now)
            assert expected in (None, breaker.state)
