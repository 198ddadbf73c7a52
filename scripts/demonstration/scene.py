"""The scene: a kubelet creates the pods, inspects, updates and removes them.

The column "true inside" was read by a process in the container, through the proxy; values of resctrl, which no
container sees, were read on the node.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from scripts.demonstration.kubelets import Kubelet
from scripts.demonstration.pods import CONTAINER, Pod, Values
from scripts.demonstration.processes import DemoError
from scripts.demonstration.rdt import Groups
from scripts.demonstration.report import Effect
from tests.engines import cgroups

EXPECTED_CALLS = {
    **dict.fromkeys(("PreRunPodSandbox", "PreCreateContainer", "PreStartContainer", "PostStartContainer"), 4),
    "PreUpdateContainerResources": 1,
    **dict.fromkeys(("PostStopContainer", "PostStopPodSandbox"), 4),
}
"""How often each hook point must be called."""


def play(
    kubelet: Kubelet, pods: Sequence[Pod], groups: Groups, ask: Callable[[], Iterable[Effect]] = tuple
) -> list[Effect]:
    """Run the pods, inspect, update, inspect again, ``ask`` others about them, stop and remove; return what was found.
    Raises DemoError if a command in a container fails, and what the kubelet raises for a call that fails."""
    pod_ids = [kubelet.run_pod(pod) for pod in pods]
    made = [(pod, kubelet.create(pod_id, pod)) for pod, pod_id in zip(pods, pod_ids, strict=True)]
    for _, container_id in made:
        kubelet.start(container_id)
    effects = [effect for pod, container_id in made for effect in _look(kubelet, pod, container_id, groups)]
    effects.extend(ask())
    for _, container_id in made:
        kubelet.stop(container_id)
        kubelet.remove(container_id)
    for pod_id in pod_ids:
        kubelet.stop_pod(pod_id)
        kubelet.remove_pod(pod_id)
    for pod in pods:
        if pod.wish:
            left = "still there" if groups.resctrl.exists(pod.group) else "removed"
            effects.append(Effect(pod.name, "", "its group, after the pod's end", "-", "removed", left))
    return effects


def _look(kubelet: Kubelet, pod: Pod, container_id: str, groups: Groups) -> Iterator[Effect]:
    if names := dict.fromkeys((*pod.envs, *pod.hook_envs)):
        # The environment of the main process, not of an exec, which may differ.
        entries = _read(kubelet, container_id, "/proc/1/environ").split("\0")
        inside = {key: value for key, _, value in (entry.partition("=") for entry in entries if entry)}
        for name in names:
            asked, hook = pod.envs.get(name, "-"), pod.hook_envs.get(name, "")
            yield Effect(pod.name, CONTAINER, f"env {name}", asked, hook, inside.get(name, "-"))
    yield from _cgroup(kubelet, pod, container_id, pod.asked, "")
    if pod.cpus and kubelet.cgroup(pod, container_id):
        status = _read(kubelet, container_id, "/proc/1/status").splitlines()
        cpus = next(line.split()[1] for line in status if line.startswith("Cpus_allowed_list:"))
        yield Effect(pod.name, CONTAINER, "Cpus_allowed_list of process 1", "-", pod.cpus, cpus)
    if pod.update:
        kubelet.update(container_id, pod.update)
        yield from _cgroup(kubelet, pod, container_id, pod.update, " after update")
    if pod.wish:
        yield from _rdt(kubelet, pod, container_id, groups)


def _cgroup(kubelet: Kubelet, pod: Pod, container_id: str, asked: Values, when: str) -> Iterator[Effect]:
    for setting, value in pod.hook.items():
        file = cgroups.inside_file(setting)
        inside = str(cgroups.parse(setting, _read(kubelet, container_id, file)))
        hook = str(cgroups.expected(setting, value))
        yield Effect(pod.name, CONTAINER, Path(file).name + when, str(asked.get(setting, "-")), hook, inside)


def _rdt(kubelet: Kubelet, pod: Pod, container_id: str, groups: Groups) -> Iterator[Effect]:
    assert pod.wish is not None
    told = kubelet.rdt_class(container_id)
    if told is not None:
        yield Effect(pod.name, CONTAINER, "rdt-class in the create", "-", pod.group, told or "-")
    expected, said = groups.expected(pod.wish), groups.schemata(pod.group, pod.wish)
    yield Effect(pod.name, "", f"schemata of its group{groups.label}", "-", expected, said)
    if cgroup := kubelet.cgroup(pod, container_id):
        folders = (Path("/proc", str(pid), "task") for pid in cgroups.processes(cgroup))
        threads = {int(thread.name) for folder in folders if folder.exists() for thread in folder.iterdir()}
        held, every = len(threads & groups.tasks(pod.group)), max(len(threads), 1)
        what = f"threads in its group{groups.label}, moved after the start"
        yield Effect(pod.name, CONTAINER, what, "-", f"{every} of {every}", f"{held} of {len(threads)}")


def _read(kubelet: Kubelet, container_id: str, path: str) -> str:
    exit_code, output = kubelet.run(container_id, "cat", path)
    if exit_code:
        raise DemoError(f"in a container, cat {path} ended with exit code {exit_code}; is the controller mounted?")
    return output.decode()
