"""The scene: a kubelet makes the pods, looks inside, updates and ends them.

Owns the order of the kubelet's calls, how often each hook point must be called, and how each effect is found out.
Must not know: the mode, whether resctrl is the machine's, how the programs were started.
Invariant: what is "true inside" was read by a process in the container, through the proxy; of resctrl, which no
container sees, on the node.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from runtimeproxy_hooks.resctrl import Wish
from scripts.demonstration.pods import CONTAINER, Pod, Values
from scripts.demonstration.processes import DemoError
from scripts.demonstration.rdt import Groups
from scripts.demonstration.report import Effect
from tests.engines import cgroups

EXPECTED_CALLS = {
    "PreRunPodSandbox": 4,
    "PreCreateContainer": 4,
    "PreStartContainer": 4,
    "PostStartContainer": 4,
    "PreUpdateContainerResources": 1,
    "PostStopContainer": 4,
    "PostStopPodSandbox": 4,
}


class Kubelet(Protocol):
    """Makes a kubelet's calls in one mode; resources are by CRI's names."""

    def run_pod(self, pod: Pod) -> str:
        """Run the pod's sandbox; return its id."""

    def create(self, pod_id: str, pod: Pod) -> str:
        """Create the pod's container; return its id."""

    def start(self, container_id: str) -> None:
        """Start a container."""

    def run(self, container_id: str, *command: str) -> tuple[int, bytes]:
        """Run a command in a container; return its exit code and its output."""

    def rdt_class(self, container_id: str) -> str | None:
        """Return the class that the runtime was told at the create, None where runtimes have no word for it."""

    def update(self, container_id: str, resources: Values) -> None:
        """Change resources."""

    def stop(self, container_id: str) -> None:
        """Stop a container."""

    def remove(self, container_id: str) -> None:
        """Remove a container."""

    def stop_pod(self, pod_id: str) -> None:
        """Stop the pod's sandbox."""

    def remove_pod(self, pod_id: str) -> None:
        """Remove the pod's sandbox."""

    def cgroup(self, pod: Pod, container_id: str) -> str:
        """Name a container's cgroup; "" where no container really runs."""


def play(kubelet: Kubelet, pods: Sequence[Pod], groups: Groups) -> list[Effect]:
    """Run the pods, look inside, update, look again, stop and remove; return what was found.

    Raises DemoError if a command in a container fails, and what the kubelet raises for a call that fails.
    """
    pod_ids = [kubelet.run_pod(pod) for pod in pods]
    made = [(pod, kubelet.create(pod_id, pod)) for pod, pod_id in zip(pods, pod_ids, strict=True)]
    for _, container_id in made:
        kubelet.start(container_id)
    effects = [effect for pod, container_id in made for effect in _look(kubelet, pod, container_id, groups)]
    for _, container_id in made:
        kubelet.stop(container_id)
        kubelet.remove(container_id)
    for pod_id in pod_ids:
        kubelet.stop_pod(pod_id)
        kubelet.remove_pod(pod_id)
    return effects + [effect for pod in pods for effect in _look_after(pod, groups)]


def _look(kubelet: Kubelet, pod: Pod, container_id: str, groups: Groups) -> Iterator[Effect]:
    yield from _environment(kubelet, pod, container_id)
    yield from _cgroup(kubelet, pod, container_id, pod.asked, "")
    if pod.cpus and kubelet.cgroup(pod, container_id):
        status = _read(kubelet, container_id, "/proc/1/status").splitlines()
        inside = next(line.split()[1] for line in status if line.startswith("Cpus_allowed_list:"))
        yield Effect(pod.name, CONTAINER, "Cpus_allowed_list of process 1", "-", pod.cpus, inside)
    if pod.update:
        kubelet.update(container_id, pod.update)
        yield from _cgroup(kubelet, pod, container_id, pod.update, " after update")
    if pod.wish:
        yield from _rdt(kubelet, pod, container_id, pod.wish, groups)


def _environment(kubelet: Kubelet, pod: Pod, container_id: str) -> Iterator[Effect]:
    names = dict.fromkeys((*pod.envs, *pod.hook_envs))
    if not names:
        return
    # The main process' own, not that of an exec: the two differ if a runtime gives an exec another one.
    entries = _read(kubelet, container_id, "/proc/1/environ").split("\0")
    inside = {key: value for key, _, value in (entry.partition("=") for entry in entries if entry)}
    for name in names:
        asked, hook = pod.envs.get(name, "-"), pod.hook_envs.get(name, "")
        yield Effect(pod.name, CONTAINER, f"env {name}", asked, hook, inside.get(name, "-"))


def _cgroup(kubelet: Kubelet, pod: Pod, container_id: str, asked: Values, when: str) -> Iterator[Effect]:
    for setting, value in pod.hook.items():
        file = cgroups.inside_file(setting)
        inside = str(cgroups.parse(setting, _read(kubelet, container_id, file)))
        hook = str(cgroups.expected(setting, value))
        yield Effect(pod.name, CONTAINER, Path(file).name + when, str(asked.get(setting, "-")), hook, inside)


def _rdt(kubelet: Kubelet, pod: Pod, container_id: str, wish: Wish, groups: Groups) -> Iterator[Effect]:
    told = kubelet.rdt_class(container_id)
    if told is not None:
        yield Effect(pod.name, CONTAINER, "rdt-class in the create", "-", pod.group, told or "-")
    said = groups.schemata(pod.group, wish)
    yield Effect(pod.name, "", f"schemata of its group{groups.label}", "-", groups.expected(wish), said)
    cgroup = kubelet.cgroup(pod, container_id)
    if cgroup:
        threads = _threads(cgroup)
        held, every = len(threads & groups.tasks(pod.group)), max(len(threads), 1)
        what = f"threads in its group{groups.label}, moved after the start"
        yield Effect(pod.name, CONTAINER, what, "-", f"{every} of {every}", f"{held} of {len(threads)}")


def _threads(cgroup: str) -> set[int]:
    """Return the ids of all threads of a cgroup, as the node sees them."""
    processes = (Path("/proc", str(pid), "task") for pid in cgroups.processes(cgroup))
    return {int(thread.name) for process in processes if process.exists() for thread in process.iterdir()}


def _look_after(pod: Pod, groups: Groups) -> Iterator[Effect]:
    if pod.wish:
        left = "still there" if groups.exists(pod.group) else "removed"
        yield Effect(pod.name, "", "its group, after the pod's end", "-", "removed", left)


def _read(kubelet: Kubelet, container_id: str, path: str) -> str:
    exit_code, output = kubelet.run(container_id, "cat", path)
    if exit_code:
        raise DemoError(f"in a container, cat {path} ended with exit code {exit_code}; is the controller mounted?")
    return output.decode()
