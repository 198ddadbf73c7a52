"""Real engines: hook servers are told all; what they change is true in the container, from its first instruction on."""

from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2
from tests.engines import cgroups
from tests.fakes.cri_pb2 import LinuxContainerResources
from tests.fakes.hookanswers import reply
from tests.system import told
from tests.system.keeping import file_of, on_tmpfs, rows
from tests.system.node import CPU, MIB, Values, assert_first_act, assert_in_force, cri_resources, end, resources_answer
from tests.system.proxy import wait_until
from tests.system.real import CONTAINERD, DOCKERD, OLD_CRI, OLD_SHIM, Kind, RealNode, on, running

pytestmark = pytest.mark.engine

THREE, ALL = on(CONTAINERD, OLD_CRI, DOCKERD), on(CONTAINERD, OLD_CRI, DOCKERD, OLD_SHIM)

# dockershim, unlike cri-dockerd, cannot raise memory above the swap limit that it set at create.
UPDATE = LinuxContainerResources(cpu_shares=400, memory_limit_in_bytes=48 * MIB)


@ALL
def test_every_hook_point_is_told_everything(node: RealNode, client: Any) -> None:
    """Also by a proxy that was killed and started anew, which costs no pod anything: it reads each subject alone."""
    pod, container = node.rich_pod(), node.rich_container(oom_score_adj=900, cpuset_cpus=CPU, cpuset_mems="0")
    pod_id = client.run_pod(pod)
    assert node.told() == [("PreRunPodSandbox", told.of_pod(pod))]
    container_id = client.create(pod_id, container, pod)
    assert node.told() == [("PreCreateContainer", told.of_container(pod, container))]
    client.start(container_id)
    created = told.of_container(pod, container, container_id)
    assert node.told() == [("PreStartContainer", created), ("PostStartContainer", created)]
    client.update(container_id, UPDATE)
    after_update = told.of_container(pod, node.updated(container, UPDATE), container_id)
    assert node.told() == [("PreUpdateContainerResources", after_update)]
    pids = node.pids(client, pod_id, container_id)
    node.restart()
    assert node.pids(client, pod_id, container_id) == pids
    client.stop(container_id)
    client.stop(container_id)
    assert node.told() == [("PostStopContainer", after_update)] * 2, "a second stop still has its information"
    node.restart()
    client.stop_pod(pod_id)
    client.stop_pod(pod_id)
    assert node.told() == [("PostStopPodSandbox", told.of_pod(pod))], "who knows it is not told again"
    client.remove(container_id)
    client.remove_pod(pod_id)
    assert node.told() == [], "removing has no hook point"


# ---- what hook servers change

AT_CREATE: Values = {"cpu_shares": 300, "cpu_quota": 20000, "cpuset_cpus": CPU, "memory_limit_in_bytes": 48 * MIB}
AT_START: Values = {"cpu_shares": 700, "cpu_quota": -1}
STARTED: Values = {"cpu_period": 100000, **AT_CREATE, **AT_START}
KUBELETS_UPDATE: Values = {"cpu_shares": 400, "memory_limit_in_bytes": 96 * MIB}
AT_UPDATE: Values = {"cpu_quota": 30000, "cpuset_cpus": CPU}
UPDATED: Values = {**STARTED, **KUBELETS_UPDATE, **AT_UPDATE}
ENVIRONMENT = {"LEVEL": "debug", "DEVICES": "0,1", "SENTENCE": "two words = three", "EMPTY": "", "PATH": "/bin"}


class Scene:
    """A pod and a container as the kubelet sends them, and as they are after the hooks before their create.

    The hook server acts at every Pre point; it gives a new pod another cgroup parent.
    """

    def __init__(self, node: RealNode) -> None:
        self.pod, self.container = node.rich_pod(), node.rich_container()
        self.parent = node.engine.cgroup_parent(self.pod.metadata.uid, "burstable")
        for_pod = api_pb2.PodSandboxHookResponse(
            labels={"app": "changed", "hook.example/label": "added"},
            annotations={"hook.example/pod": "added"},
            cgroup_parent=self.parent,
            resources=api_pb2.LinuxContainerResources(cpu_shares=300),
        )
        for_container = api_pb2.ContainerResourceHookResponse(
            container_annotations={"hook.example/container": "added"},
            container_envs={"LEVEL": "debug", "DEVICES": "0,1"},
            container_resources=api_pb2.LinuxContainerResources(**AT_CREATE),  # type: ignore[arg-type]
        )
        node.hooks.on("PreRunPodSandbox", reply(for_pod))
        node.hooks.on("PreCreateContainer", reply(for_container))
        node.hooks.on("PreStartContainer", resources_answer(AT_START))
        node.hooks.on("PreUpdateContainerResources", resources_answer(AT_UPDATE))
        self.pod_now = told.changed_pod(self.pod, for_pod)
        self.container_now = node.sent(told.changed_container(self.container, for_container))


@THREE
def test_changes_of_hooks_are_in_force_and_told(node: RealNode, client: Any) -> None:
    scene = Scene(node)
    pod_id = client.run_pod(scene.pod)
    assert node.told() == [("PreRunPodSandbox", told.of_pod(scene.pod))]
    assert node.pod_texts(client, pod_id) == (scene.pod_now.labels, scene.pod_now.annotations)
    assert node.pod_shares(client, pod_id) == 300
    assert cgroups.processes(scene.parent)
    assert not cgroups.processes(scene.pod.linux.cgroup_parent)

    container_id = client.create(pod_id, scene.container, scene.pod)
    assert node.told() == [("PreCreateContainer", told.of_container(scene.pod_now, scene.container))]
    assert node.annotations(client, container_id) == scene.container_now.annotations

    client.start(container_id)
    after_start = told.updated(scene.container_now, cri_resources(AT_START))
    assert node.told() == [
        ("PreStartContainer", told.of_container(scene.pod_now, scene.container_now, container_id)),
        ("PostStartContainer", told.of_container(scene.pod_now, after_start, container_id)),
    ]
    first = node.first_act(client, scene.pod, container_id)
    assert_first_act(first, STARTED)
    assert {name: first.get(name) for name in ENVIRONMENT} == ENVIRONMENT
    assert_in_force(client, container_id, scene.parent, STARTED)

    client.update(container_id, cri_resources(KUBELETS_UPDATE))
    # A hook that scales must scale the kubelet's own figures, not what it made of them before.
    asked = told.updated(scene.container_now, scene.container.linux.resources, anew=True)
    asked = node.sent(told.updated(asked, cri_resources(KUBELETS_UPDATE)))
    assert node.told() == [("PreUpdateContainerResources", told.of_container(scene.pod_now, asked, container_id))]
    assert_in_force(client, container_id, scene.parent, UPDATED)

    end(client, pod_id, container_id)
    after_update = node.sent(told.updated(scene.container_now, cri_resources(UPDATED)))
    assert node.told() == [
        ("PostStopContainer", told.of_container(scene.pod_now, after_update, container_id)),
        ("PostStopPodSandbox", told.of_pod(scene.pod_now)),
    ]


@THREE
def test_container_may_get_a_cgroup_parent_of_its_own(node: RealNode, client: Any) -> None:
    """The shim tells a proxy that comes later of it, too; containerd keeps the pod's."""
    pod, container = node.plain_pod(), node.rich_container()
    other = node.engine.cgroup_parent(pod.metadata.uid, "aside")
    node.hooks.on("PreCreateContainer", reply(api_pb2.ContainerResourceHookResponse(pod_cgroup_parent=other)))
    container_id = client.create(client.run_pod(pod), container, pod)
    client.start(container_id)
    assert_in_force(client, container_id, other, {"cpu_shares": 512, "cpu_quota": 50000})
    assert not list(cgroups.directories(f"{pod.linux.cgroup_parent}/{container_id}"))
    moved = told.of_container(pod, container, container_id)
    moved.pod_cgroup_parent = other
    node.told()
    client.stop(container_id)
    assert node.told() == [("PostStopContainer", moved)]
    node.restart(known=True)
    client.stop(container_id)
    assert node.told() == [("PostStopContainer", moved)]


@THREE
def test_pods_new_cgroup_parent_reaches_its_containers_without_a_hook(kind: Kind, engine: Any, tmp_path: Path) -> None:
    """Also those that are made after a kill of the proxy, and without any plugin."""
    with running(kind, engine, tmp_path, lambda node: node.register(["PreRunPodSandbox"])) as node:
        pod = node.plain_pod()
        parent = engine.cgroup_parent(pod.metadata.uid, "burstable")
        node.hooks.on("PreRunPodSandbox", reply(api_pb2.PodSandboxHookResponse(cgroup_parent=parent)))
        with node.client() as client:
            pod_id = client.run_pod(pod)
            container_ids = [client.create(pod_id, node.rich_container("first"), pod)]
            assert [point for point, _ in node.told()] == ["PreRunPodSandbox"]
            node.restart()
            container_ids.append(client.create(pod_id, node.rich_container("second"), pod))
            for container_id in container_ids:
                client.start(container_id)
                assert_in_force(client, container_id, parent, {"cpu_shares": 512})
            assert node.told() == []


@THREE
def test_what_hooks_changed_of_a_pod_outlives_a_kill(kind: Kind, engine: Any, tmp_path: Path) -> None:
    """What of a pod of containerd's is new is in the file of the kubelet's own values; dockerd's labels tell it."""
    keeps = kind.engine == "containerd"
    with on_tmpfs() as memory:
        flags = {"originals_dir": str(memory)} if keeps else {}
        with running(kind, engine, tmp_path, **flags) as node, node.client() as client:
            scene = Scene(node)
            pod_id = client.run_pod(scene.pod)
            file = file_of(memory, node.proxy.socket)
            wait_until(lambda: not keeps or pod_id in rows(file), "it is kept")
            node.restart()
            container_id = client.create(pod_id, scene.container, scene.pod)
            client.start(container_id)
            assert node.told()[0] == ("PreCreateContainer", told.of_container(scene.pod_now, scene.container))
            assert_in_force(client, container_id, scene.parent, STARTED)
