"""The hook servers of the demo: the project's own by the commands of a user, and one that notes the calls."""

import sys
from pathlib import Path
from typing import NamedTuple

from scripts.demonstration import processes
from scripts.demonstration.rdt import Groups

NODE_SETTINGS = "cpu-normalization-ratio: 1.25\n"
"""A CPU of this node counts as 1.25 units: quotas are divided by it."""


class HookServer(NamedTuple):
    """One hook server: the command that starts it, and the flags that a user would give it, too."""

    command: list[str]
    name: str
    """Its own name."""
    order: int
    flags: tuple[str, ...] = ()

    @property
    def plugin(self) -> str:
        """Return its name in the proxy, which is that of its registration file."""
        return f"{self.order:02d}-{self.name}"

    def socket(self, folder: Path) -> Path:
        return folder / f"{self.order:02d}.sock"

    def command_line(self, folder: Path) -> list[str]:
        # The directory is removed with the demo, so no warning that a registration stays is needed.
        where = (f"--endpoint={self.socket(folder)}", f"--register-dir={processes.registrations(folder)}")
        return [*self.command, *self.flags, f"--order={self.order}", *where, "--unregister"]


def hook_servers(folder: Path, groups: Groups, *, without_cgroups: bool) -> list[HookServer]:
    """Write the node's settings, return the hook servers; ``without_cgroups`` keeps them off the real cgroups."""
    settings, cgroups = folder / "node.yaml", folder / "cgroup"
    settings.write_text(NODE_SETTINGS)
    cgroups.mkdir()
    node = (f"--node-config={settings}", *([f"--cgroup-root={cgroups}"] if without_cgroups else []))
    ours = processes.installed("runtimeproxy-hooks", "runtimeproxy_hooks")
    sharing = ("batchresource", "cpunormalization", "cpuset")
    stand_in = [sys.executable, "-m", "scripts.demonstration.standin", str(groups.resctrl.root)]
    notes = [sys.executable, "-m", "scripts.demonstration.notes"]
    return [
        HookServer([*ours, "gpu"], "gpu", 10, ("--failure-policy=Fail",)),
        HookServer([*ours, *sharing], "-".join(sharing), 20, node),
        HookServer(stand_in if groups.stood_in else [*ours, "rdt"], "rdt", 30, node),
        HookServer(notes, "notes", 90, (f"--call-log={call_log(folder)}",)),
    ]


def call_log(folder: Path) -> Path:
    return folder / "calls.jsonl"
