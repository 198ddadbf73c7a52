"""The scene: a kubelet creates the pods, inspects, updates and removes them; the effects are printed and judged.

The column "true inside" was read by a process in the container, through the proxy; values of resctrl, which no
container sees, were read on the node. The proxy's own commands are called while the pods run.
"""

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from runtimeproxy_hooks.lib.resctrl import Resctrl, parse_schemata, schemata
from scripts.demonstration import commands
from scripts.demonstration.modes import Client, Mode
from scripts.demonstration.pods import CONTAINER, Pod, Values
from scripts.demonstration.processes import DemoError
from scripts.figures import print_table
from tests.engines import cgroups
from tests.engines.cri import CriClient
from tests.engines.engine import Engine
from tests.fakes.cri_pb2 import LinuxContainerResources

RDT_CLASS = "io.kubernetes.cri.rdt-class"
EXPLAINED = "batch"
"""The pod whose container is explained: all its values were set by one hook server."""
COMMAND_SECONDS, READY_SECONDS = 20.0, 10.0
"""The time limit of a command, and of the proxy's reading of the runtime's state for new hook servers."""


class Effect(NamedTuple):
    """What the kubelet requested, what a hook set, what was found; "-" for nothing. Without a container it is the
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
        return self.inside == (self.requested if self.hook == "-" else self.hook)


class Scene(NamedTuple):
    """What the scene is played with; ``engine`` is None if the runtime is a fake, ``servers`` are names."""

    mode: Mode
    kubelet: Client
    engine: Engine | None
    folder: Path
    resctrl: Resctrl
    servers: Sequence[str]

    def play(self, pods: Sequence[Pod]) -> list[Effect]:
        """Run the pods, inspect, update and inspect again, call the commands, stop and remove; return the effects.
        Raises DemoError if a command fails, and what the kubelet raises for a call that fails."""
        made, effects = [], list[Effect]()
        for pod, config in ((pod, pod.config(self.engine)) for pod in pods):
            pod_id = self.kubelet.run_pod(config)
            container_id = self.kubelet.create(pod_id, pod.container(), config)
            self.kubelet.start(container_id)
            made.append((pod, pod_id, container_id))
        for pod, _, container_id in made:
            effects += self._inspect(pod, container_id)
        effects += self._commands()
        for _, pod_id, container_id in made:
            self.kubelet.stop(container_id)
            self.kubelet.remove(container_id)
            self.kubelet.stop_pod(pod_id)
            self.kubelet.remove_pod(pod_id)
        for pod in (pod for pod in pods if pod.wish):
            state = "still there" if self.resctrl.exists(pod.group) else "removed"
            effects.append(Effect(pod.name, "-", "its group, after the pod's end", "-", "removed", state))
        return effects

    # ---- a container

    def _inspect(self, pod: Pod, container_id: str) -> Iterator[Effect]:
        # The environment of the main process, not of an exec, which may differ.
        entries = self._read(container_id, "/proc/1/environ").split("\0") if pod.envs or pod.hook_envs else []
        inside = {key: value for key, _, value in (entry.partition("=") for entry in entries if entry)}
        for name in dict.fromkeys((*pod.envs, *pod.hook_envs)):
            values = (each.get(name, "-") for each in (pod.envs, pod.hook_envs, inside))
            yield Effect(pod.name, CONTAINER, f"env {name}", *values)
        yield from self._cgroup(pod, container_id, pod.requested, "")
        if self.engine and (desired := pod.hook.get("cpuset_cpus")):
            status = self._read(container_id, "/proc/1/status").splitlines()
            cpus = next(line.split()[1] for line in status if line.startswith("Cpus_allowed_list:"))
            yield Effect(pod.name, CONTAINER, "Cpus_allowed_list of process 1", "-", str(desired), cpus)
        if pod.update:
            self.kubelet.update(container_id, LinuxContainerResources(**pod.update))
            yield from self._cgroup(pod, container_id, pod.update, " after update")
        if pod.wish:
            yield from self._group(pod, container_id)

    def _cgroup(self, pod: Pod, container_id: str, requested: Values, when: str) -> Iterator[Effect]:
        for setting, value in pod.hook.items():
            file = cgroups.inside_file(setting)
            inside = str(cgroups.parse(setting, self._read(container_id, file)))
            hook = str(cgroups.expected(setting, value))
            yield Effect(pod.name, CONTAINER, Path(file).name + when, str(requested.get(setting, "-")), hook, inside)

    def _read(self, container_id: str, path: str) -> str:
        done = self.kubelet.exec_sync(container_id, "cat", path)
        if done.exit_code:
            raise DemoError(f"in a container, cat {path} ended with {done.exit_code}; is the controller mounted?")
        return str(done.stdout.decode())

    def _group(self, pod: Pod, container_id: str) -> Iterator[Effect]:
        """Yield the effects in the stand-in for resctrl, where the pod has a group."""
        assert pod.wish is not None
        if isinstance(self.kubelet, CriClient):
            rdt_class = self.kubelet.status(container_id).status.annotations.get(RDT_CLASS, "-")
            yield Effect(pod.name, CONTAINER, "rdt-class in the create", "-", pod.group, rdt_class)
        limits = parse_schemata(schemata(self.resctrl.machine(), pod.wish))
        group = self.resctrl.root / pod.group
        found = parse_schemata((group / "schemata").read_text()) if group.exists() else {}
        inside = _limits({name: found.get(name, {}) for name in limits})
        yield Effect(pod.name, "-", "schemata of its group (stand-in)", "-", _limits(limits), inside)
        if self.engine:
            pids = cgroups.processes(f"{pod.cgroup_parent(self.engine)}/{container_id}")
            folders = [Path(f"/proc/{pid}/task") for pid in pids]
            threads = {int(thread.name) for folder in folders if folder.exists() for thread in folder.iterdir()}
            moved, every = len(threads & self.resctrl.tasks(pod.group)), max(len(threads), 1)
            what = "threads in its group (stand-in), moved after the start"
            yield Effect(pod.name, CONTAINER, what, "-", f"{every} of {every}", f"{moved} of {len(threads)}")

    # ---- the proxy

    def _commands(self) -> Iterator[Effect]:
        """Call the proxy's own commands, and yield whether their output is right."""
        ready, _, _ = self._output("status", until="ready").partition(":")
        yield Effect("(proxy)", "-", "runtimeproxy status", "-", "ready", ready)
        rows = [line.split() for line in self._output("hook", "ls").splitlines()]
        good = sum([name, "ok"] in (row[1:4:2] for row in rows) for name in self.servers)
        expected, found = f"{len(self.servers)} hook servers", f"{good} hook servers"
        yield Effect("(proxy)", "-", "ok in runtimeproxy hook ls", "-", expected, found)
        rows = [line.split() for line in self._output("explain", f"default/{EXPLAINED}/{CONTAINER}").splitlines()]
        changed = [row[0].removeprefix("resources.") for row in rows if row[1:] == ["changed", commands.BATCH]]
        what = "runtimeproxy explain: changed"
        yield Effect(EXPLAINED, CONTAINER, what, "-", self.mode.changed, ", ".join(changed))

    def _output(self, *words: str, until: str = "") -> str:
        """Print a command with its output, and return that; first repeat it, for READY_SECONDS at most, until the
        output begins with ``until``. Raises DemoError if it fails."""
        command, deadline = commands.of_proxy(self.folder, *words), time.monotonic() + READY_SECONDS
        while True:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS
            )
            if done.stdout.startswith(until) or time.monotonic() > deadline:
                break
        print("\n$", commands.shown(command))
        print(done.stdout, end="", flush=True)
        if done.returncode not in (0, 1):  # 1: it found something, which the effects show
            raise DemoError(f"{commands.shown(command)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout


def _limits(found: Mapping[str, Mapping[int, str]]) -> str:
    """Return schemata on one line, without the leading zeros that the kernel puts before masks."""
    values = {name: [f"{each}={value.lstrip('0')}" for each, value in by_id.items()] for name, by_id in found.items()}
    return " ".join(f"{name}:{';'.join(each)}" for name, each in values.items())


def report(effects: Sequence[Effect], *, fake: bool) -> bool:
    """Print the effects and the verdict; return whether each effect was found."""
    column, verdict = "true inside", "are true in the containers and on the node"
    if fake:
        column, verdict = "the fake shows", "reached the fake runtime, where no container really runs"
    head = ("pod", "container", "what", "the kubelet requested", "the hook set", column, "")
    rows = [(*effect, "ok" if effect.true else "NO") for effect in effects]
    print_table("What was requested, what was changed, what was found", [head, *rows])
    wrong = [" ".join(word for word in effect[:3] if word != "-") for effect in effects if not effect.true]
    print(f"\nFAILED: not as expected: {', '.join(wrong)}" if wrong else f"\nOK: {len(effects)} effects {verdict}.")
    return not wrong
