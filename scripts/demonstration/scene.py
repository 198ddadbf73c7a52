"""The scene, the same in both modes: a pod with two containers, as a kubelet makes, updates and ends it.

Owns the pod, its containers, the annotations, and which effect each must have inside.
Must not know: the mode, whether the runtime is real, how the programs were started.
Invariant: what is "true inside" was read by a process in the container, through the proxy.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from scripts.demonstration.processes import DemoError
from scripts.demonstration.report import Effect
from tests.engines import cgroups

MIB = 1 << 20
CPUSET = str(min(os.sched_getaffinity(0)))
POD = "demo"
LABELS = {"koordinator.sh/qosClass": "BE"}
ANNOTATIONS = {
    "scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [{"minor": 0}, {"minor": 1}]}),
    "scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": CPUSET}),
    "node.koordinator.sh/extended-resource-spec": json.dumps(
        {
            "containers": {
                "main": {
                    "requests": {"kubernetes.io/batch-cpu": "500"},
                    "limits": {"kubernetes.io/batch-memory": "64Mi"},
                },
                "side": {
                    "requests": {"kubernetes.io/batch-cpu": "250"},
                    "limits": {"kubernetes.io/batch-memory": "32Mi"},
                },
            }
        }
    ),
}
EXPECTED_CALLS = {
    "PreRunPodSandbox": 1,
    "PreCreateContainer": 2,
    "PreStartContainer": 2,
    "PostStartContainer": 2,
    "PreUpdateContainerResources": 1,
    "PostStopContainer": 2,
    "PostStopPodSandbox": 1,
}

Values = dict[str, int | str]


@dataclass(frozen=True, slots=True)
class Part:
    """A container of the scene: what the kubelet asks for, and what the hook server must make of it."""

    name: str
    envs: dict[str, str]
    asked: Values
    hook: Values
    update: Values = field(default_factory=dict)
    """What the kubelet asks for later, by UpdateContainerResources."""


HOOK_ENVS = {"NVIDIA_VISIBLE_DEVICES": "0,1"}
PARTS = (
    Part(
        "main",
        {"LOG_LEVEL": "info", "NVIDIA_VISIBLE_DEVICES": "none"},
        {"cpu_shares": 2, "cpu_quota": 50000, "cpu_period": 100000, "memory_limit_in_bytes": 128 * MIB},
        {"cpu_shares": 512, "cpu_quota": -1, "cpuset_cpus": CPUSET, "memory_limit_in_bytes": 64 * MIB},
        {"cpu_quota": 20000, "cpu_shares": 100},
    ),
    Part(
        "side",
        {"LOG_LEVEL": "debug"},
        {},
        {"cpu_shares": 256, "cpu_quota": -1, "cpuset_cpus": CPUSET, "memory_limit_in_bytes": 32 * MIB},
    ),
)


class Kubelet(Protocol):
    """Makes a kubelet's calls in one mode, on the scene's pod; resources are by CRI's names."""

    def run_pod(self) -> str:
        """Run the pod's sandbox; return its id."""

    def create(self, pod_id: str, part: Part) -> str:
        """Create a container; return its id."""

    def start(self, container_id: str) -> None:
        """Start a container."""

    def run(self, container_id: str, *command: str) -> tuple[int, bytes]:
        """Run a command in a container; return its exit code and its output."""

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


def play(kubelet: Kubelet) -> list[Effect]:
    """Run the pod, look inside, update, look again, stop and remove; return what was found.

    Raises DemoError if a command in a container fails, and what the kubelet raises for a call that fails.
    """
    pod_id = kubelet.run_pod()
    containers = [(part, kubelet.create(pod_id, part)) for part in PARTS]
    for _, container_id in containers:
        kubelet.start(container_id)
    effects = [effect for part, container_id in containers for effect in _look(kubelet, part, container_id)]
    effects += [effect for part, container_id in containers for effect in _update(kubelet, part, container_id)]
    for _, container_id in containers:
        kubelet.stop(container_id)
        kubelet.remove(container_id)
    kubelet.stop_pod(pod_id)
    kubelet.remove_pod(pod_id)
    return effects


def _look(kubelet: Kubelet, part: Part, container_id: str) -> Iterator[Effect]:
    # The main process' own, not that of an exec: the two differ if a runtime gives an exec another one.
    environment = _environment(_read(kubelet, container_id, "/proc/1/environ"))
    for name in {**part.envs, **HOOK_ENVS}:
        inside = environment.get(name, "-")
        yield Effect(part.name, f"env {name}", part.envs.get(name, "-"), HOOK_ENVS.get(name, ""), inside)
    yield from _cgroup(kubelet, part, container_id, part.asked, "")


def _update(kubelet: Kubelet, part: Part, container_id: str) -> Iterator[Effect]:
    if part.update:
        kubelet.update(container_id, part.update)
        yield from _cgroup(kubelet, part, container_id, part.update, " after update")


def _cgroup(kubelet: Kubelet, part: Part, container_id: str, asked: Values, when: str) -> Iterator[Effect]:
    for setting, value in part.hook.items():
        file = cgroups.inside_file(setting)
        inside = str(cgroups.parse(setting, _read(kubelet, container_id, file)))
        hook = str(cgroups.expected(setting, value))
        yield Effect(part.name, Path(file).name + when, str(asked.get(setting, "-")), hook, inside)


def _environment(content: str) -> dict[str, str]:
    return {key: value for key, _, value in (entry.partition("=") for entry in content.split("\0") if entry)}


def _read(kubelet: Kubelet, container_id: str, path: str) -> str:
    exit_code, output = kubelet.run(container_id, "cat", path)
    if exit_code:
        raise DemoError(f"in a container, cat {path} ended with exit code {exit_code}; is the controller mounted?")
    return output.decode()
