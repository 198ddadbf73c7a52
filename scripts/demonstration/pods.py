"""The scene's pods, the same in both modes: four, with a container each, and where they are on the node.

Owns what they ask for, their labels and annotations, and what the hook servers must make of them.
Must not know: the mode, in which order a kubelet makes its calls, how anything is found out.
Invariant: a pod's uid, and so its group in resctrl, was never there before.
"""

import json
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from runtimeproxy_hooks.resctrl import Wish

MIB = 1 << 20
CPU = str(min(os.sched_getaffinity(0)))
CONTAINER = "main"
COMMAND = ("sleep", "3600")
"""One process that starts no other: a stand-in for resctrl knows of no thread that comes after the move."""

Values = dict[str, int | str]


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod with its one container: what the kubelet asks for, and what the hook servers must make of it."""

    name: str
    kube_qos: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    envs: Mapping[str, str] = field(default_factory=dict)
    asked: Values = field(default_factory=dict)
    hook_envs: Mapping[str, str] = field(default_factory=dict)
    hook: Values = field(default_factory=dict)
    cpus: str = ""
    """On which CPUs the container's first process must be, "" where no hook says."""
    update: Values = field(default_factory=dict)
    """What the kubelet asks for later, by UpdateContainerResources."""
    wish: Wish | None = None
    """What its group in resctrl must limit."""
    uid: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    @property
    def group(self) -> str:
        """Name its group in resctrl."""
        return f"koordlet-{self.uid}"


def new_pods() -> tuple[Pod, ...]:
    """Return the scene's pods, never seen before."""
    return _gpu(), _pinned(), _batch(), _cache()


def _gpu() -> Pod:
    return Pod(
        "gpu",
        "burstable",
        annotations={"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [{"minor": 0}, {"minor": 1}]})},
        envs={"LOG_LEVEL": "info", "NVIDIA_VISIBLE_DEVICES": "none"},
        asked={"cpu_quota": 50000, "cpu_period": 100000},
        hook_envs={"NVIDIA_VISIBLE_DEVICES": "0,1"},
        hook={"cpu_quota": 40000},  # 50000 by the ratio in the node's settings, 1.25; likewise the 80000 of batch
    )


def _pinned() -> Pod:
    return Pod(
        "pinned",
        "guaranteed",
        labels={"koordinator.sh/qosClass": "LSR"},
        annotations={"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": CPU})},
        asked={"cpu_quota": 50000, "cpu_period": 100000},
        hook={"cpuset_cpus": CPU, "cpu_quota": -1},
        cpus=CPU,
    )


def _batch() -> Pod:
    amounts = {
        "requests": {"kubernetes.io/batch-cpu": "500"},
        "limits": {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "64Mi"},
    }
    return Pod(
        "batch",
        "besteffort",
        labels={"koordinator.sh/qosClass": "BE"},
        annotations={"node.koordinator.sh/extended-resource-spec": json.dumps({"containers": {CONTAINER: amounts}})},
        asked={"cpu_shares": 2, "cpu_quota": 50000, "cpu_period": 100000, "memory_limit_in_bytes": 128 * MIB},
        hook={"cpu_shares": 512, "cpu_quota": 80000, "memory_limit_in_bytes": 64 * MIB},
        update={"cpu_shares": 100, "cpu_quota": 20000},
    )


def _cache() -> Pod:
    wish = {"llc": {"schemata": {"range": [0, 30]}}, "mb": {"schemata": {"percent": 20}}}
    return Pod(
        "cache",
        "burstable",
        annotations={"node.koordinator.sh/resctrl": json.dumps(wish)},
        wish=Wish(l3=(0, 30), mb=20),
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a kubelet's pods are on the node: ``parent`` takes a pod's uid and its class of Kubernetes."""

    parent: Callable[[str, str], str]
    real: bool = True
    """Whether containers really run."""

    def cgroup_parent(self, pod: Pod) -> str:
        """Name a pod's cgroup parent."""
        return self.parent(pod.uid, pod.kube_qos)

    def cgroup(self, pod: Pod, container_id: str) -> str:
        """Name a container's cgroup; "" where no container really runs."""
        return f"{self.cgroup_parent(pod)}/{container_id}" if self.real else ""
