"""The breaker (fault matrix H10): its numbers by hand, everything else by a model with attempts in any order."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtimeproxy.errors import Reason
from runtimeproxy.plugins.client import Breaker, BreakerState
from tests.amounts import examples

SICK = (Reason.DEADLINE, Reason.BROKEN_ANSWER)
WELL = (None, Reason.REFUSED, Reason.UNIMPLEMENTED, Reason.ERROR_STATUS, Reason.BAD_ANSWER)
NOTHING = tuple(reason for reason in Reason if reason not in {*SICK, *WELL})
START = 1000.0


def ask(breaker: Breaker, reason: Reason | None, now: float = START) -> bool:
    """Make an attempt with this result; return whether it was admitted."""
    attempt = breaker.admit("a socket", now)
    if attempt is not None:
        breaker.end(attempt, reason, now)
    return attempt is not None


def opened() -> Breaker:
    breaker = Breaker()
    assert [ask(breaker, Reason.DEADLINE) for _ in range(6)] == [True] * 5 + [False]
    return breaker


@pytest.mark.parametrize(("reason", "more"), [*((reason, 5) for reason in WELL), *((reason, 1) for reason in NOTHING)])
def test_only_an_answer_ends_a_row_of_failures(reason: Reason | None, more: int) -> None:
    breaker = Breaker()
    for ended in [*[Reason.DEADLINE] * 4, reason, *[Reason.BROKEN_ANSWER] * more]:
        assert breaker.state is BreakerState.CLOSED
        assert ask(breaker, ended)
    assert breaker.state is BreakerState.OPEN


def test_each_opening_is_longer_up_to_five_minutes() -> None:
    breaker, now, waited = opened(), START, []
    for _ in range(12):
        waited.append(breaker.seconds)
        now += breaker.seconds
        assert (breaker.seconds_left(now - 1), ask(breaker, None, now - 1)) == (1.0, False)
        assert ask(breaker, Reason.DEADLINE, now)
        assert not ask(breaker, None, now)
    assert waited == [30, 60, 90, 120, 150, 180, 210, 240, 270, 300, 300, 300]
    assert ask(breaker, None, now + 300)
    for _ in range(5):
        ask(breaker, Reason.DEADLINE, now + 300)
    assert breaker.seconds == 30


REASONS = st.sampled_from([None, *Reason])


class Model(RuleBasedStateMachine):
    """Attempts that overlap in any way, compared with a plain record of those that have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker()
        self.now = START
        self.server = 0
        self.running: list[int] = []
        """Attempts of this server admitted since the state changed."""
        self.stale: list[int] = []
        self.row: list[Reason] = []
        """The failures that count, since the last answer."""
        self.openings = 0
        self.opened_at: float | None = None
        self.tried = False

    def _changed(self) -> None:
        self.stale += self.running
        self.running.clear()

    def _forget(self) -> None:
        self.row.clear()
        self.openings = 0

    @property
    def expected_seconds(self) -> float:
        return min(30.0 * self.openings, 300.0)

    @rule()
    def attempt(self) -> None:
        number = self.breaker.admit(self.server, self.now)
        if self.opened_at is not None and self.now >= self.opened_at + self.expected_seconds:
            self.opened_at, self.tried = None, True
            self._changed()
        waits = self.opened_at is not None or (self.tried and bool(self.running))
        assert (number is None) == waits
        if number is not None:
            self.running.append(number)

    @rule(seconds=st.sampled_from([0.1, 10.0, 30.0, 59.9, 300.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def replace(self) -> None:
        """Put another server at the socket; the next attempt meets it."""
        self.server += 1
        self._changed()
        self._forget()
        if self.opened_at is not None:
            self.opened_at, self.tried = None, True
        self.attempt()

    @rule(count=st.integers(1, 5), reason=st.sampled_from(SICK))
    def fail(self, count: int, reason: Reason) -> None:
        """Fail some times in a row, which would be rare by chance."""
        for _ in range(count):
            self.attempt()
            if self.running:
                self._end(len(self.running) - 1, reason)

    @precondition(lambda self: self.opened_at is not None)
    @rule(less=st.sampled_from([0.0, 0.0, 0.1]))
    def wait_until_it_is_tried(self, less: float) -> None:
        assert self.opened_at is not None
        self.now = max(self.now, self.opened_at + self.expected_seconds - less)
        self.attempt()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), reason=REASONS)
    def end(self, data: st.DataObject, reason: Reason | None) -> None:
        self._end(data.draw(st.integers(0, len(self.running) - 1)), reason)

    def _end(self, which: int, reason: Reason | None) -> None:
        number = self.running.pop(which)
        self.breaker.end(number, reason, self.now)
        if reason in WELL:
            self._forget()
            if self.tried:
                self._changed()
            self.tried = False
        elif reason in SICK:
            assert reason is not None
            self.row.append(reason)
            if self.tried or len(self.row) == 5:
                self.openings += 1
                self.opened_at, self.tried = self.now, False
                self._changed()

    @precondition(lambda self: self.stale)
    @rule(data=st.data(), reason=REASONS)
    def end_late(self, data: st.DataObject, reason: Reason | None) -> None:
        number = self.stale.pop(data.draw(st.integers(0, len(self.stale) - 1)))
        self.breaker.end(number, reason, self.now)

    @invariant()
    def is_in_the_expected_state(self) -> None:
        state = (
            BreakerState.OPEN
            if self.opened_at is not None
            else BreakerState.HALF_OPEN
            if self.tried
            else BreakerState.CLOSED
        )
        assert self.breaker.state is state
        left = 0.0
        if self.opened_at is not None:
            assert self.breaker.seconds == self.expected_seconds
            left = max(0.0, self.opened_at + self.expected_seconds - self.now)
        assert self.breaker.seconds_left(self.now) == pytest.approx(left)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=examples(50), stateful_step_count=40)
