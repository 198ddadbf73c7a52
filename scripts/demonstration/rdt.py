"""The resctrl that the demo shows: the machine's own if it can be used, else the tests' stand-in; it prints which."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from runtimeproxy_hooks.lib.resctrl import Resctrl, Wish, parse_schemata, schemata
from scripts.demonstration.processes import interruption
from tests.fakes.resctrl import Hardware, StandIn

PROBE = "runtimeproxy-demo"


class Groups(NamedTuple):
    """The groups of a resctrl."""

    resctrl: Resctrl
    stood_in: bool

    def expected(self, wish: Wish) -> str:
        """Return the expected schemata of a group with these limits."""
        return _text(parse_schemata(schemata(self.resctrl.machine(), wish)))

    def schemata(self, group: str, wish: Wish) -> str:
        """Return a group's schemata for the limited resources; "-" if the group does not exist."""
        if not self.resctrl.exists(group):
            return "-"
        found = parse_schemata((self.resctrl.root / group / "schemata").read_text())
        wished = parse_schemata(schemata(self.resctrl.machine(), wish))
        return _text({name: found.get(name, {}) for name in wished})

    def tasks(self, group: str) -> set[int]:
        """Return the ids of the threads in a group; none if it does not exist."""
        exists = self.resctrl.exists(group)
        return set(map(int, (self.resctrl.root / group / "tasks").read_text().split())) if exists else set()

    @contextmanager
    def removed(self, names: Sequence[str]) -> Iterator[None]:
        """Remove what is left of these groups at the end of the block."""
        try:
            yield
        finally:
            with interruption.held():
                for name in names:
                    self.resctrl.remove(name)


def choose(folder: Path, runtime_is_fake: bool) -> Groups:
    """Return the machine's groups or a stand-in's in a folder; print which, and why not the machine's."""
    machine, hardware = Resctrl(), Hardware()
    reason = "no container really runs" if runtime_is_fake else _why_stand_in(machine)
    if not reason:
        print(f"RDT:     the machine's own, {machine.root}")
        return Groups(machine, stood_in=False)
    refuses = f"more than {hardware.closids} classes, masks with holes, unknown cache ids"
    print(f"RDT:     a STAND-IN of the tests ({reason}); like the kernel it refuses {refuses}")
    return Groups(StandIn(folder / "resctrl", hardware), stood_in=True)


def _why_stand_in(resctrl: Resctrl) -> str:
    """Return why a resctrl cannot be shown; "" if it can: it limits something and accepts one more group."""
    machine = resctrl.machine()
    if not machine:
        return "; ".join((f"{resctrl.root} offers neither L3 nor MB", *machine.notes))
    try:
        resctrl.make(PROBE)
        resctrl.remove(PROBE)
    except OSError as error:
        return f"{resctrl.root} takes no group: {error.strerror}"
    return ""


def _text(limits: Mapping[str, Mapping[int, str]]) -> str:
    """Return schemata on one line, without the leading zeros that the kernel puts before masks."""
    values = {name: [f"{each}={value.lstrip('0')}" for each, value in by_id.items()] for name, by_id in limits.items()}
    return " ".join(f"{name}:{';'.join(each)}" for name, each in values.items())
