"""Since when a plugin cannot be reached, whether or not there are calls for it."""

import asyncio

import pytest

from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.plugins.reach import CHECK_SECONDS, PER_ITERATION, Absence, Reach
from tests.fakes.clock import virtual_time
from tests.fakes.plugins import FAIL, FakePlugins

pytestmark = virtual_time

ABSENT = "/run/a.sock: No such file or directory"


class Watched:
    """Plugins of which some are absent; the first check is made at second 0."""

    def __init__(self, *names: str) -> None:
        self.plugins = FakePlugins()
        self.clients = {name: self.plugins.add(name) for name in names}
        self.metrics = Metrics(asyncio.get_running_loop().time, "containerd")
        self.reach = Reach(asyncio.get_running_loop(), lambda: tuple(self.plugins.plugins), self.metrics)

    def make_absent(self, *names: str, why: str = ABSENT) -> None:
        for name, client in self.clients.items():
            client.absent = why if name in names else ""

    def events(self) -> list[tuple[str, ...]]:
        """Return kind and texts of the events."""
        rows, _ = self.metrics.events.read()
        return [(kind.value, *filter(None, texts.decode().split("\0"))) for _, _, kind, *_, texts in rows]

    async def after_check(self, *absent: str, why: str = ABSENT) -> dict[str, Absence]:
        """Return the absences after the next check, with these plugins absent."""
        self.make_absent(*absent, why=why)
        await asyncio.sleep(CHECK_SECONDS)
        return dict(self.reach.absences)


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
    lost = [("plugin_unreachable", name, ABSENT) for name in "ab"]
    assert watched.events() == [*lost, ("plugin_reachable", "b")]


async def test_many_plugins_are_checked_in_batches() -> None:
    names = [f"{number:03}" for number in range(2 * PER_ITERATION + 1)]
    watched = Watched(*names)
    watched.reach.start()
    for count in (1, 2):
        assert len(watched.metrics.gauges) == count * PER_ITERATION
        await asyncio.sleep(0)
    assert len(watched.metrics.gauges) == len(names)
