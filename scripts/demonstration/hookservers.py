"""The hook servers of the demo: the project's own, by the commands of a user.

``python -m scripts.demonstration.hookservers ROOT [flags]`` is the project's rdt on the tests' stand-in for resctrl,
because few machines have cache and bandwidth control; like the kernel it refuses what the hardware could not do.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from runtimeproxy_hooks import main
from runtimeproxy_hooks.lib.resctrl import Resctrl, Wish, parse_schemata, schemata
from runtimeproxy_hooks.servers.rdt import Rdt
from scripts.demonstration import processes
from tests.fakes.resctrl import StandIn

NODE_SETTINGS = "cpu-normalization-ratio: 1.25\n"
"""A CPU of this node counts as 1.25 units: quotas are divided by it."""


class HookServer(NamedTuple):
    """A hook server: the command that starts it, with the flags that a user would set, too."""

    command: list[str]
    name: str
    order: int

    @property
    def plugin(self) -> str:
        """Return its name in the proxy, which is that of its registration file."""
        return f"{self.order:02d}-{self.name}"

    def socket(self, folder: Path) -> Path:
        return folder / f"{self.order:02d}.sock"

    def command_line(self, folder: Path) -> list[str]:
        # The directory is removed with the demo, so no warning that a registration stays is needed.
        where = (f"--endpoint={self.socket(folder)}", f"--register-dir={processes.registrations(folder)}")
        return [*self.command, f"--order={self.order}", *where, "--unregister"]


def hook_servers(folder: Path, resctrl: Resctrl, *, without_cgroups: bool) -> list[HookServer]:
    """Write the node's settings, return the hook servers; ``without_cgroups`` keeps them off the real cgroups."""
    settings, cgroups = folder / "node.yaml", folder / "cgroup"
    settings.write_text(NODE_SETTINGS)
    cgroups.mkdir()
    node = (f"--node-config={settings}", *([f"--cgroup-root={cgroups}"] if without_cgroups else []))
    ours = processes.installed("runtimeproxy-hooks", "runtimeproxy_hooks")
    sharing = ("batchresource", "cpunormalization", "cpuset")
    return [
        HookServer([*ours, "gpu", "--failure-policy=Fail"], "gpu", 10),
        HookServer([*ours, *sharing, *node], "-".join(sharing), 20),
        HookServer([sys.executable, "-m", __name__, str(resctrl.root), *node], "rdt", 30),
    ]


def expected_schemata(resctrl: Resctrl, wish: Wish) -> str:
    """Return the expected schemata of a group with these limits."""
    return _text(parse_schemata(schemata(resctrl.machine(), wish)))


def found_schemata(resctrl: Resctrl, group: str, wish: Wish) -> str:
    """Return a group's schemata for the limited resources; "-" if the group does not exist."""
    if not resctrl.exists(group):
        return "-"
    found = parse_schemata((resctrl.root / group / "schemata").read_text())
    return _text({name: found.get(name, {}) for name in parse_schemata(schemata(resctrl.machine(), wish))})


def _text(limits: Mapping[str, Mapping[int, str]]) -> str:
    """Return schemata on one line, without the leading zeros that the kernel puts before masks."""
    values = {name: [f"{each}={value.lstrip('0')}" for each, value in by_id.items()] for name, by_id in limits.items()}
    return " ".join(f"{name}:{';'.join(each)}" for name, each in values.items())


if __name__ == "__main__":
    main(Rdt(StandIn(Path(sys.argv[1]))), argv=sys.argv[2:])
