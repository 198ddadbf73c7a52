"""Since when a plugin cannot be reached, whether or not calls ask it."""

import asyncio

from runtimeproxy.plugins.reach import AT_ONCE, LOOK_SECONDS, Absence, Reach
from tests.fakes.clock import virtual_time
from tests.fakes.plugins import FakePlugins

pytestmark = virtual_time

GONE = "/run/a.sock: No such file or directory"


class Watched:
    """Plugins of which some are gone; the first look is made at second 0."""

    def __init__(self, *names: str) -> None:
        self.plugins = FakePlugins()
        self.clients = {name: self.plugins.add(name) for name in names}
        self.reach = Reach(asyncio.get_running_loop(), lambda: tuple(self.plugins.plugins))

    def gone(self, *names: str, why: str = GONE) -> None:
        for name, client in self.clients.items():
            client.absent = why if name in names else ""

    async def after_look(self, *gone: str, why: str = GONE) -> dict[str, Absence]:
        """Return what is known after the next look, with these plugins gone."""
        self.gone(*gone, why=why)
        await asyncio.sleep(LOOK_SECONDS)
        return dict(self.reach.absences)


async def test_absence_counts_from_the_first_look_that_saw_it() -> None:
    watched = Watched("a", "b")
    watched.reach.start()
    assert watched.reach.absences == {}
    assert await watched.after_look("a") == {"a": Absence(5.0, GONE)}
    assert await watched.after_look("a", "b", why="?") == {"a": Absence(5.0, "?"), "b": Absence(10.0, "?")}
    assert await watched.after_look("b") == {"b": Absence(10.0, GONE)}
    assert await watched.after_look("a") == {"a": Absence(20.0, GONE)}
    watched.reach.stop()
    assert await watched.after_look() == {"a": Absence(20.0, GONE)}


async def test_plugin_that_is_no_longer_registered_is_forgotten() -> None:
    watched = Watched("a", "b")
    watched.gone("a", "b")
    watched.reach.start()
    del watched.plugins.plugins[0]
    assert await watched.after_look("a", "b") == {"b": Absence(0.0, GONE)}


async def test_many_plugins_are_looked_at_in_several_turns() -> None:
    names = [f"{number:03}" for number in range(2 * AT_ONCE + 1)]
    watched = Watched(*names)
    watched.gone(*names)
    watched.reach.start()
    for count in (1, 2):
        assert len(watched.reach.absences) == count * AT_ONCE
        await asyncio.sleep(0)
    assert set(watched.reach.absences) == set(names)


async def test_end_leaves_no_look_behind() -> None:
    watched = Watched(*[f"{number:03}" for number in range(AT_ONCE + 1)])
    watched.reach.start()
    watched.gone(*watched.clients)
    watched.reach.stop()
    await asyncio.sleep(2 * LOOK_SECONDS)
    assert watched.reach.absences == {}
