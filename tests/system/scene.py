"""A pod whose hook servers act at every Pre point, and what is in force inside its container because of them.

The values are comparable at any moment: each later step names what it changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtimeproxy.hookapi import api_pb2
from tests.engines import cgroups
from tests.fakes import hookanswers
from tests.fakes.cri_pb2 import ContainerConfig, LinuxContainerResources, PodSandboxConfig
from tests.system import told
from tests.system.node import CPU, MIB, inside
from tests.system.real import RealNode

Values = Mapping[str, int | str]
PodAnswer = api_pb2.PodSandboxHookResponse
ContainerAnswer = api_pb2.ContainerResourceHookResponse

AT_CREATE: Values = {"cpu_shares": 300, "cpu_quota": 20000, "cpuset_cpus": CPU, "memory_limit_in_bytes": 48 * MIB}
AT_START: Values = {"cpu_shares": 700, "cpu_quota": -1}
STARTED: Values = {"cpu_period": 100000, **AT_CREATE, **AT_START}
KUBELETS_UPDATE: Values = {"cpu_shares": 400, "memory_limit_in_bytes": 96 * MIB}
AT_UPDATE: Values = {"cpu_quota": 30000, "cpuset_cpus": CPU}
UPDATED: Values = {**STARTED, **KUBELETS_UPDATE, **AT_UPDATE}


def resources_answer(values: Values) -> hookanswers.Answer:
    """Answer these resources and nothing else."""
    resources = api_pb2.LinuxContainerResources(**values)  # type: ignore[arg-type]
    return hookanswers.reply(ContainerAnswer(container_resources=resources))


def cri_resources(values: Values) -> LinuxContainerResources:
    return LinuxContainerResources(**values)  # type: ignore[arg-type]


def assert_in_force(client: Any, container_id: str, parent: str, values: Values) -> None:
    """Compare what the container sees, and what the host sees of it under this cgroup parent."""
    expected = {setting: cgroups.expected(setting, value) for setting, value in values.items()}
    assert {setting: inside(client, container_id, setting) for setting in values} == expected
    assert {setting: cgroups.read(f"{parent}/{container_id}", setting) for setting in values} == expected


def assert_first_act(told_inside: Mapping[str, str], values: Values) -> None:
    for setting, value in values.items():
        assert cgroups.parse(setting, told_inside[setting]) == cgroups.expected(setting, value), setting


@dataclass(frozen=True, slots=True)
class Scene:
    """A pod and a container as the kubelet sends them, and as they are after the hooks before their create."""

    pod: PodSandboxConfig
    container: ContainerConfig
    pod_now: PodSandboxConfig
    container_now: ContainerConfig

    @property
    def parent(self) -> str:
        return self.pod_now.linux.cgroup_parent


def act(node: RealNode) -> Scene:
    """Let a node's hook server act at every Pre point; it gives a new pod another cgroup parent."""
    pod, container, hooks = node.rich_pod(), node.rich_container(), node.hooks
    parent = node.engine.cgroup_parent(pod.metadata.uid, "burstable")
    for_pod = PodAnswer(
        labels={"app": "changed", "hook.example/label": "added"},
        annotations={"hook.example/pod": "added"},
        cgroup_parent=parent,
        resources=api_pb2.LinuxContainerResources(cpu_shares=300),
    )
    for_container = ContainerAnswer(
        container_annotations={"hook.example/container": "added"},
        container_envs={"LEVEL": "debug", "DEVICES": "0,1"},
        container_resources=api_pb2.LinuxContainerResources(**AT_CREATE),  # type: ignore[arg-type]
    )
    hooks.on("PreRunPodSandbox", hookanswers.reply(for_pod))
    hooks.on("PreCreateContainer", hookanswers.reply(for_container))
    hooks.on("PreStartContainer", resources_answer(AT_START))
    hooks.on("PreUpdateContainerResources", resources_answer(AT_UPDATE))
    container_now = node.sent(told.changed_container(container, for_container))
    return Scene(pod, container, told.changed_pod(pod, for_pod), container_now)


def of_update(scene: Scene, asked: Values) -> ContainerConfig:
    """Return the container that a hook server is told of at an update.

    A hook that scales must scale the kubelet's own figures, not what it made of them before.
    """
    seen = ContainerConfig.FromString(scene.container_now.SerializeToString())
    seen.linux.resources.CopyFrom(scene.container.linux.resources)
    seen.linux.resources.MergeFrom(cri_resources(asked))
    return seen
