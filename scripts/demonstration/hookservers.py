"""The hook servers of the demo: the project's own by the commands of a user, and two that this module runs.

``python -m scripts.demonstration.hookservers notes FILE [flags]`` appends a JSON line to FILE for each hook call, with
names and never a value. ``... rdt ROOT [flags]`` is the project's own rdt on the tests' stand-in for resctrl.
"""

import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

from runtimeproxy_hooks import ContainerContext, Hook, PodContext, main
from runtimeproxy_hooks.servers.rdt import Rdt
from scripts.demonstration import processes
from scripts.demonstration.rdt import Groups
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


def hook_servers(folder: Path, groups: Groups, *, without_cgroups: bool) -> list[HookServer]:
    """Write the node's settings, return the hook servers; ``without_cgroups`` keeps them off the real cgroups."""
    settings, cgroups = folder / "node.yaml", folder / "cgroup"
    settings.write_text(NODE_SETTINGS)
    cgroups.mkdir()
    node = (f"--node-config={settings}", *([f"--cgroup-root={cgroups}"] if without_cgroups else []))
    ours = processes.installed("runtimeproxy-hooks", "runtimeproxy_hooks")
    sharing = ("batchresource", "cpunormalization", "cpuset")
    here = [sys.executable, "-m", __name__]
    rdt = [*here, "rdt", str(groups.resctrl.root)] if groups.stood_in else [*ours, "rdt"]
    return [
        HookServer([*ours, "gpu", "--failure-policy=Fail"], "gpu", 10),
        HookServer([*ours, *sharing, *node], "-".join(sharing), 20),
        HookServer([*rdt, *node], "rdt", 30),
        HookServer([*here, "notes", str(call_log(folder))], "notes", 90),
    ]


def call_log(folder: Path) -> Path:
    return folder / "calls.jsonl"


class Notes(Hook):
    """Notes each call at every hook point, and changes nothing."""

    def __init__(self, file: str) -> None:
        self._log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def pre_run_pod_sandbox(self, pod: PodContext) -> None:
        self._note(pod.hook_point, f"{pod.namespace}/{pod.name}", "")

    post_stop_pod_sandbox = pre_run_pod_sandbox

    def pre_create_container(self, container: ContainerContext) -> None:
        pod = f"{container.pod.namespace}/{container.pod.name}"
        self._note(container.hook_point, pod, container.name)

    pre_start_container = post_start_container = pre_create_container
    pre_update_container_resources = post_stop_container = pre_create_container

    def _note(self, point: str, pod: str, container: str) -> None:
        entry = {"point": point, "pod": pod, "container": container}
        os.write(self._log, f"{json.dumps(entry)}\n".encode())  # one write: methods run in several threads


if __name__ == "__main__":
    name, argument, *flags = sys.argv[1:]
    main(Notes(argument) if name == "notes" else Rdt(StandIn(Path(argument))), argv=flags)
