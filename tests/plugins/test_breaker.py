"""The breaker (fault matrix H10), whose attempts may overlap, and since when a plugin cannot be reached."""

import asyncio
from collections.abc import Callable

import pytest

from runtimeproxy.errors import Reason
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.plugins.client import Breaker, BreakerState
from runtimeproxy.plugins.reach import CHECK_SECONDS, PER_ITERATION, Absence, Reach
from tests.fakes.clock import virtual_time
from tests.fakes.plugins import FAIL, FakePlugins
from tests.observe.events import shown_of

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


Step = tuple[str, object, float, object]
"""Admit an attempt at a server, or end the oldest one, at a time; whether it was admitted, or the state."""
TRY, FAILED = START + 30, Reason.DEADLINE
BEGUN, ELSEWHERE = ("admit", "a socket", START, True), ("admit", "another", START, True)
TRIED, NOT_TRIED = ("admit", "a socket", TRY, True), ("admit", "a socket", TRY, False)
FAILS, OPENS = ("end", FAILED, START, CLOSED), ("end", FAILED, START, OPEN)
OVERLAPPING: dict[str, tuple[Callable[[], Breaker], list[Step]]] = {
    "one attempt at a time is a trial": (opened, [TRIED, NOT_TRIED, ("end", FAILED, TRY, OPEN)]),
    "another trial follows one without a counted result": (opened, [TRIED, ("end", NEUTRAL[0], TRY, HALF_OPEN), TRIED]),
    "an answer to the trial closes it": (opened, [TRIED, ("end", None, TRY, CLOSED), TRIED]),
    "another server at the socket is tried immediately": (
        opened,
        [ELSEWHERE, ("admit", "another", START, False), ("end", None, START, CLOSED)],
    ),
    "attempts from before the opening do not count": (
        Breaker,
        [*[BEGUN] * 7, *[FAILS] * 4, *[OPENS] * 3, ("admit", "a socket", START + 29, False)],
    ),
    "a late answer to such an attempt does not close it": (
        Breaker,
        [*[BEGUN] * 6, *[FAILS] * 4, OPENS, ("end", None, START, OPEN)],
    ),
    "attempts at a server that was replaced do not count": (Breaker, [*[BEGUN] * 5, ELSEWHERE, *[FAILS] * 6]),
    "failures in a row are of one server": (Breaker, [*[BEGUN, FAILS] * 4, *[ELSEWHERE, FAILS] * 4, ELSEWHERE, OPENS]),
}


@pytest.mark.parametrize(("made", "steps"), OVERLAPPING.values(), ids=OVERLAPPING)
def test_attempts_may_overlap(made: Callable[[], Breaker], steps: list[Step]) -> None:
    breaker, running = made(), []
    for action, what, now, expected in steps:
        if action == "admit":
            number = breaker.admit(what, now)
            assert (number is not None) is expected
            running += [] if number is None else [number]
        else:
            assert what is None or isinstance(what, Reason)
            breaker.end(running.pop(0), what, now)
            assert breaker.state is expected


ABSENT = "/run/a.sock: No such file or directory"


class Watched:
    """Plugins of which some are absent; the first check is made at second 0."""

    def __init__(self, *names: str) -> None:
        self.plugins = FakePlugins()
        self.clients = {name: self.plugins.add(name) for name in names}
        self.metrics = Metrics(asyncio.get_running_loop().time, "containerd")
        self.reach = Reach(asyncio.get_running_loop(), lambda: tuple(self.plugins.plugins), self.metrics)

    async def after_check(self, *absent: str, why: str = ABSENT) -> dict[str, Absence]:
        """Return the absences after the next check, with these plugins absent."""
        for name, client in self.clients.items():
            client.absent = why if name in absent else ""
        await asyncio.sleep(CHECK_SECONDS)
        return dict(self.reach.absences)


@virtual_time
async def test_absence_starts_at_first_of_two_failed_checks() -> None:
    watched = Watched("a", "b")
    watched.reach.start()
    assert await watched.after_check("a") == {}
    assert await watched.after_check("a", "b", why="?") == {"a": Absence(1.0, "?")}
    assert watched.metrics.gauges["hook_unreachable", ("a",)] == 1
    assert await watched.after_check("b") == {"b": Absence(2.0, ABSENT)}
    assert watched.metrics.gauges["hook_unreachable", ("a",)] == 0
    assert await watched.after_check("a") == {}
    assert await watched.after_check() == {}, "it was absent at one check"
    assert await watched.after_check("a") == {}
    del watched.plugins.plugins[0]
    assert await watched.after_check("a", "b") == {}
    watched.reach.stop()
    assert await watched.after_check("b") == {}, "b was absent at one check"


@virtual_time
async def test_absence_and_its_end_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    watched = Watched("a")
    watched.clients["b"] = watched.plugins.add("b", policy=FAIL)
    watched.reach.start()
    for absent in ("ab", "ab", "ab", "a", "a"):
        await watched.after_check(*absent)
    ignored, failing, back = caplog.messages
    to_do = "start it, or correct remote-endpoint (a path on the node, not one inside a pod), or remove the file"
    assert ignored == f"a.json: hook server unreachable: {ABSENT}; calls pass without it (policy Ignore): {to_do}"
    assert failing == f"b.json: hook server unreachable: {ABSENT}; its calls are refused (policy Fail): {to_do}"
    assert back == "b.json: hook server reachable after 3 s"
    events = [(event["kind"], event["hookServer"], event.get("text")) for event in shown_of(watched.metrics.events)]
    lost = [("plugin_unreachable", name, ABSENT) for name in "ab"]
    assert events == [*lost, ("plugin_reachable", "b", None)]


@virtual_time
async def test_many_plugins_are_checked_in_batches() -> None:
    names = [f"{number:03}" for number in range(2 * PER_ITERATION + 1)]
    watched = Watched(*names)
    watched.reach.start()
    for count in (1, 2):
        assert len(watched.metrics.gauges) == count * PER_ITERATION
        await asyncio.sleep(0)
    assert len(watched.metrics.gauges) == len(names)
