"""The scene's pods, the same in both modes: four with a container each, and what the hook servers must change."""

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from runtimeproxy_hooks.lib.resctrl import Wish
from scripts.figures import MIB
from tests.engines import cri
from tests.engines.engine import Engine
from tests.fakes.cri_pb2 import ContainerConfig, LinuxContainerResources, PodSandboxConfig

CPU = str(min(os.sched_getaffinity(0)))
CONTAINER = "main"
COMMAND = ("sleep", "3600")
"""One process that starts no other: a stand-in for resctrl does not see threads that start after the move."""

Values = dict[str, int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod with its one container: what the kubelet requests, and what the hook servers must change."""

    name: str
    kube_qos: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    envs: Mapping[str, str] = field(default_factory=dict)
    requested: Values = field(default_factory=dict)
    hook_envs: Mapping[str, str] = field(default_factory=dict)
    hook: Values = field(default_factory=dict)
    update: Values = field(default_factory=dict)
    """What the kubelet requests later, by UpdateContainerResources."""
    wish: Wish | None = None
    """What its group in resctrl must limit."""
    uid: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    def config(self, engine: Engine | None) -> PodSandboxConfig:
        """Return its config on an engine, or on a fake runtime."""
        return cri.pod_config(
            self.name,
            self.uid,
            cgroup_parent=self.cgroup_parent(engine),
            log_directory=str(engine.directory("logs")) if engine else "/var/log/pods",
            labels=self.labels,
            annotations=self.annotations,
        )

    def cgroup_parent(self, engine: Engine | None) -> str:
        return engine.cgroup_parent(self.uid, self.kube_qos) if engine else f"/kubepods/{self.kube_qos}/pod{self.uid}"

    def container(self) -> ContainerConfig:
        envs = [(name, value.encode()) for name, value in self.envs.items()]
        resources = LinuxContainerResources(**self.requested) if self.requested else None
        return cri.container_config(CONTAINER, command=COMMAND, envs=envs, resources=resources)

    @property
    def group(self) -> str:
        """Return the name of its group in resctrl."""
        return f"koordlet-{self.uid}"


_GPUS = {"gpu": [{"minor": 0}, {"minor": 1}]}
_BATCH = {
    "requests": {"kubernetes.io/batch-cpu": "500"},
    "limits": {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "64Mi"},
}
_CACHE = {"llc": {"schemata": {"range": [0, 30]}}, "mb": {"schemata": {"percent": 20}}}
_HALF: Values = {"cpu_quota": 50000, "cpu_period": 100000}
"""Half a CPU, which the ratio in the node's settings, 1.25, turns into 40000; the 80000 of batch follow likewise."""


def new_pods() -> tuple[Pod, ...]:
    """Return new pods for the scene, with uids of their own."""
    gpu = Pod(
        name="gpu",
        kube_qos="burstable",
        annotations={"scheduling.koordinator.sh/device-allocated": json.dumps(_GPUS)},
        envs={"LOG_LEVEL": "info", "NVIDIA_VISIBLE_DEVICES": "none"},
        requested=_HALF,
        hook_envs={"NVIDIA_VISIBLE_DEVICES": "0,1"},
        hook={"cpu_quota": 40000},
    )
    pinned = Pod(
        name="pinned",
        kube_qos="guaranteed",
        labels={"koordinator.sh/qosClass": "LSR"},
        annotations={"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": CPU})},
        requested=_HALF,
        hook={"cpuset_cpus": CPU, "cpu_quota": -1},
    )
    batch = Pod(
        name="batch",
        kube_qos="besteffort",
        labels={"koordinator.sh/qosClass": "BE"},
        annotations={"node.koordinator.sh/extended-resource-spec": json.dumps({"containers": {CONTAINER: _BATCH}})},
        requested={"cpu_shares": 2, **_HALF, "memory_limit_in_bytes": 128 * MIB},
        hook={"cpu_shares": 512, "cpu_quota": 80000, "memory_limit_in_bytes": 64 * MIB},
        update={"cpu_shares": 100, "cpu_quota": 20000},
    )
    annotations = {"node.koordinator.sh/resctrl": json.dumps(_CACHE)}
    cache = Pod(name="cache", kube_qos="burstable", annotations=annotations, wish=Wish(l3=(0, 30), mb=20))
    return gpu, pinned, batch, cache
