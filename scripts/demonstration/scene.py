"""The scene: a kubelet creates the pods, inspects, updates and removes them; the effects are printed and judged.

The column "true inside" was read by a process in the container, through the proxy; values of resctrl, which no
container sees, were read on the node. The proxy's own commands are called while the pods run.
"""

import subprocess
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from runtimeproxy_hooks.lib.resctrl import Resctrl
from scripts.demonstration import hookservers, processes
from scripts.demonstration.modes import Kubelet
from scripts.demonstration.pods import CONTAINER, Pod, Values
from scripts.demonstration.processes import DemoError
from scripts.figures import print_table
from tests.engines import cgroups

EXPLAINED = "batch"
"""The pod whose container is explained: all its values were set by one hook server."""
_FIELDS = ("cpu_quota", "cpu_shares", "memory_limit_in_bytes")
FIELDS = {"cri": _FIELDS, "docker": (*_FIELDS, "memory_swap_limit_in_bytes")}
"""The changed fields by mode: in Docker mode the swap limit follows the memory limit."""
COMMAND_SECONDS, READY_SECONDS = 20.0, 10.0
"""The time limit of a command, and of the proxy's reading of the runtime's state for new hook servers."""
INSIDE = ("true inside", "are true in the containers and on the node")
OF_A_FAKE = ("the fake shows", "reached the fake runtime, where no container really runs")
"""Names for the found values: the column's head, and the verdict on all of them."""


class Effect(NamedTuple):
    """What the kubelet requested, what a hook set ("" for nothing), what was found. Without a container it is the
    pod's."""

    pod: str
    container: str
    what: str
    requested: str
    hook: str
    inside: str

    @property
    def true(self) -> bool:
        """Return whether the hook's value was found, or the kubelet's if no hook set one."""
        return self.inside == (self.hook or self.requested)


class Scene(NamedTuple):
    """What the scene is played with."""

    mode: str
    folder: Path
    resctrl: Resctrl
    servers: Sequence[hookservers.HookServer]

    def play(self, kubelet: Kubelet, pods: Sequence[Pod]) -> list[Effect]:
        """Run the pods, inspect, update and inspect again, call the commands, stop and remove; return the effects.
        Raises DemoError if a command fails, and what the kubelet raises for a call that fails."""
        pod_ids = [kubelet.run_pod(pod) for pod in pods]
        made = [(pod, kubelet.create(pod_id, pod)) for pod, pod_id in zip(pods, pod_ids, strict=True)]
        for _, container_id in made:
            kubelet.start(container_id)
        effects = [
            effect for pod, container_id in made for effect in _inspect(kubelet, pod, container_id, self.resctrl)
        ]
        effects.extend(self._commands())
        for _, container_id in made:
            kubelet.stop(container_id)
            kubelet.remove(container_id)
        for pod_id in pod_ids:
            kubelet.stop_pod(pod_id)
            kubelet.remove_pod(pod_id)
        for pod in (pod for pod in pods if pod.wish):
            state = "still there" if self.resctrl.exists(pod.group) else "removed"
            effects.append(Effect(pod.name, "", "its group, after the pod's end", "-", "removed", state))
        return effects

    def _commands(self) -> Iterator[Effect]:
        """Call the proxy's own commands, and yield whether their output is right."""
        ready, _, _ = self._output("status", until="ready").partition(":")
        yield Effect("(proxy)", "", "runtimeproxy status", "-", "ready", ready)
        rows = [line.split() for line in self._output("hook", "ls").splitlines()]
        good = sum([server.plugin, "ok"] in (row[1:4:2] for row in rows) for server in self.servers)
        expected, found = f"{len(self.servers)} hook servers", f"{good} hook servers"
        yield Effect("(proxy)", "", "ok in runtimeproxy hook ls", "-", expected, found)
        rows = [line.split() for line in self._output("explain", f"default/{EXPLAINED}/{CONTAINER}").splitlines()]
        by = next(server.plugin for server in self.servers if "batchresource" in server.name)
        changed = ", ".join(row[0].removeprefix("resources.") for row in rows if row[1:] == ["changed", by])
        yield Effect(EXPLAINED, CONTAINER, "runtimeproxy explain: changed", "-", ", ".join(FIELDS[self.mode]), changed)

    def _output(self, *words: str, until: str = "") -> str:
        """Print a command with its output, and return that; first repeat it, for READY_SECONDS at most, until the
        output begins with ``until``. Raises DemoError if it fails."""
        endpoint = f"--admin-endpoint={processes.admin_socket(self.folder)}"
        command = [*processes.installed("runtimeproxy", "runtimeproxy"), *words, endpoint]
        call = partial(subprocess.run, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        deadline, done = time.monotonic() + READY_SECONDS, call(command, timeout=COMMAND_SECONDS)
        while not done.stdout.startswith(until) and time.monotonic() < deadline:
            done = call(command, timeout=COMMAND_SECONDS)
        print("\n$", processes.shown(command))
        print(done.stdout, end="", flush=True)
        if done.returncode not in (0, 1):  # 1: it found something, which the effects show
            raise DemoError(f"{processes.shown(command)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout


def _inspect(kubelet: Kubelet, pod: Pod, container_id: str, resctrl: Resctrl) -> Iterator[Effect]:
    if names := dict.fromkeys((*pod.envs, *pod.hook_envs)):
        # The environment of the main process, not of an exec, which may differ.
        entries = _read(kubelet, container_id, "/proc/1/environ").split("\0")
        inside = {key: value for key, _, value in (entry.partition("=") for entry in entries if entry)}
        for name in names:
            requested, hook = pod.envs.get(name, "-"), pod.hook_envs.get(name, "")
            yield Effect(pod.name, CONTAINER, f"env {name}", requested, hook, inside.get(name, "-"))
    yield from _cgroup(kubelet, pod, container_id, pod.requested, "")
    if pod.cpus and kubelet.cgroup(pod, container_id):
        status = _read(kubelet, container_id, "/proc/1/status").splitlines()
        cpus = next(line.split()[1] for line in status if line.startswith("Cpus_allowed_list:"))
        yield Effect(pod.name, CONTAINER, "Cpus_allowed_list of process 1", "-", pod.cpus, cpus)
    if pod.update:
        kubelet.update(container_id, pod.update)
        yield from _cgroup(kubelet, pod, container_id, pod.update, " after update")
    if not pod.wish:
        return
    rdt_class = kubelet.rdt_class(container_id)
    if rdt_class is not None:
        yield Effect(pod.name, CONTAINER, "rdt-class in the create", "-", pod.group, rdt_class or "-")
    expected = hookservers.expected_schemata(resctrl, pod.wish)
    found = hookservers.found_schemata(resctrl, pod.group, pod.wish)
    yield Effect(pod.name, "", "schemata of its group (stand-in)", "-", expected, found)
    if cgroup := kubelet.cgroup(pod, container_id):
        folders = (Path("/proc", str(pid), "task") for pid in cgroups.processes(cgroup))
        threads = {int(thread.name) for folder in folders if folder.exists() for thread in folder.iterdir()}
        tasks = set(map(int, (resctrl.root / pod.group / "tasks").read_text().split()))
        moved, every = len(threads & tasks), max(len(threads), 1)
        what = "threads in its group (stand-in), moved after the start"
        yield Effect(pod.name, CONTAINER, what, "-", f"{every} of {every}", f"{moved} of {len(threads)}")


def _cgroup(kubelet: Kubelet, pod: Pod, container_id: str, requested: Values, when: str) -> Iterator[Effect]:
    for setting, value in pod.hook.items():
        file = cgroups.inside_file(setting)
        inside = str(cgroups.parse(setting, _read(kubelet, container_id, file)))
        hook = str(cgroups.expected(setting, value))
        yield Effect(pod.name, CONTAINER, Path(file).name + when, str(requested.get(setting, "-")), hook, inside)


def _read(kubelet: Kubelet, container_id: str, path: str) -> str:
    exit_code, output = kubelet.run(container_id, "cat", path)
    if exit_code:
        raise DemoError(f"in a container, cat {path} ended with exit code {exit_code}; is the controller mounted?")
    return output.decode()


def report(effects: Sequence[Effect], *, fake: bool) -> bool:
    """Print the effects and the verdict; return whether each effect was found."""
    column, verdict = OF_A_FAKE if fake else INSIDE
    rows = [("pod", "container", "what", "the kubelet requested", "the hook set", column, "")]
    for effect in effects:
        pod, container, what, requested, hook, inside = effect
        rows.append((pod, container or "-", what, requested, hook or "-", inside, "ok" if effect.true else "NO"))
    print_table("What was requested, what was changed, what was found", rows)
    wrong = [" ".join(filter(None, effect[:3])) for effect in effects if not effect.true]
    print(f"\nFAILED: not as expected: {', '.join(wrong)}" if wrong else f"\nOK: {len(effects)} effects {verdict}.")
    return not wrong
