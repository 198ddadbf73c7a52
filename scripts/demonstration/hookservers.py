"""The hook servers of the demo: the project's own by the commands of a user, and the one that notes the calls.

Owns their command lines, their order and the node's settings.
Must not know: what they do, how programs are started.
Invariant: each has a name of its own, an order, and its socket and files in the demo's folder.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.demonstration import processes
from scripts.demonstration.rdt import Groups

COMMAND = "runtimeproxy-hooks"
NODE_SETTINGS = "cpu-normalization-ratio: 1.25\n"
"""A CPU of this node counts as 1.25 of the unit: quotas are divided by it."""


@dataclass(frozen=True, slots=True)
class HookServer:
    """One hook server: the command that starts it, and the flags that a user would give it, too."""

    command: tuple[str, ...]
    hooks: tuple[str, ...]
    order: int
    flags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name it as it names itself."""
        return "-".join(self.hooks)

    @property
    def plugin(self) -> str:
        """Name it as the proxy does, after its registration file."""
        return f"{self.order:02d}-{self.name}"

    def socket(self, folder: Path) -> Path:
        """Name its socket."""
        return folder / f"{self.order:02d}.sock"

    def command_line(self, folder: Path) -> list[str]:
        """Return all of its command line."""
        # The directory goes with the demo: that a registration would stay there is nothing to warn of.
        where = (f"--endpoint={self.socket(folder)}", f"--register-dir={processes.registrations(folder)}")
        own = (*where, "--unregister")
        return [*self.command, *self.flags, f"--order={self.order}", *own]

    def shown(self, folder: Path) -> str:
        """Return the command as a user would type it, who leaves socket and registration where they belong."""
        return processes.shown([*self.command, *self.flags, f"--order={self.order}"], folder)


def hook_servers(folder: Path, groups: Groups, *, without_cgroups: bool) -> list[HookServer]:
    """Return the hook servers, and write the node's settings; ``without_cgroups`` keeps them off the machine's."""
    settings, cgroups = folder / "node.yaml", folder / "cgroup"
    settings.write_text(NODE_SETTINGS)
    cgroups.mkdir()
    node = (f"--node-config={settings}", *([f"--cgroup-root={cgroups}"] if without_cgroups else []))
    sharing = ("batchresource", "cpunormalization", "cpuset")
    stand_in = _module("standin", str(groups.resctrl.root))
    return [
        HookServer(_ours("gpu"), ("gpu",), 10, ("--failure-policy=Fail",)),
        HookServer(_ours(*sharing), sharing, 20, node),
        HookServer(stand_in if groups.stood_in else _ours("rdt"), ("rdt",), 30, node),
        HookServer(_module("notes"), ("notes",), 90, (f"--call-log={call_log(folder)}",)),
    ]


def _ours(*hooks: str) -> tuple[str, ...]:
    installed = Path(sys.executable).parent / COMMAND
    program: Sequence[str] = [str(installed)] if installed.exists() else [sys.executable, "-m", "runtimeproxy_hooks"]
    return (*program, *hooks)


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"scripts.demonstration.{name}", *arguments)


def call_log(folder: Path) -> Path:
    """Name the file that the calls are noted in."""
    return folder / "calls.jsonl"
