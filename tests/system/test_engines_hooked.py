"""On real engines hook servers are told all that a kubelet's words tell; what they change is true in the container.

From its first instruction on, and also after a kill of the proxy.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.engines import cgroups
from tests.fakes import hookanswers, registration
from tests.fakes.cri_pb2 import ContainerConfig, LinuxContainerResources
from tests.system import told
from tests.system.docker_node import Kubelet
from tests.system.keeping import file_of, on_tmpfs, rows
from tests.system.node import CPU, MIB, end, register, skipped
from tests.system.proxy import wait_until
from tests.system.real import CONTAINERD, DOCKERD, OLD_CRI, OLD_SHIM, Kind, RealNode, kill, on, running
from tests.system.scene import (
    AT_START,
    AT_UPDATE,
    KUBELETS_UPDATE,
    STARTED,
    UPDATED,
    ContainerAnswer,
    PodAnswer,
    Scene,
    act,
    assert_first_act,
    assert_in_force,
    cri_resources,
    of_update,
    resources_answer,
)

pytestmark = pytest.mark.engine

THREE, ALL = on(CONTAINERD, OLD_CRI, DOCKERD), on(CONTAINERD, OLD_CRI, DOCKERD, OLD_SHIM)

# dockershim, unlike cri-dockerd, cannot raise memory above the swap limit that it set at create.
UPDATE = LinuxContainerResources(cpu_shares=400, memory_limit_in_bytes=48 * MIB)


def full_container(node: RealNode, name: str = "main") -> ContainerConfig:
    return node.rich_container(name, oom_score_adj=900, cpuset_cpus=CPU, cpuset_mems="0")


@ALL
def test_every_hook_point_is_told_everything(node: RealNode, client: Any) -> None:
    pod, container = node.rich_pod(), full_container(node)

    pod_id = node.run(client, pod)
    assert node.told() == [("PreRunPodSandbox", told.of_pod(pod, node.handler))]

    container_id = client.create(pod_id, container, pod)
    assert node.told() == [("PreCreateContainer", told.of_container(pod, container))]

    client.start(container_id)
    created = told.of_container(pod, container, container_id)
    assert node.told() == [("PreStartContainer", created), ("PostStartContainer", created)]

    node.resize(client, container_id, UPDATE)
    after_update = told.of_container(pod, node.resized(container, UPDATE), container_id)
    assert node.told() == [("PreUpdateContainerResources", after_update)]

    client.stop(container_id)
    client.stop(container_id)
    assert node.told() == [("PostStopContainer", after_update)] * 2, "a second stop still has its information"

    client.stop_pod(pod_id)
    client.stop_pod(pod_id)
    assert node.told() == [("PostStopPodSandbox", told.of_pod(pod, node.handler))], "who knows it is not told again"

    client.remove(container_id)
    client.remove_pod(pod_id)
    assert node.told() == [], "removing has no hook point"


@ALL
def test_what_the_kubelet_did_not_say_is_not_told(node: RealNode, client: Any) -> None:
    pod, container = node.plain_pod(), node.plain_container()
    pod_id = client.run_pod(pod)
    container_id = client.create(pod_id, container, pod)
    end(client, pod_id, container_id)
    created = told.of_container(pod, container, container_id)
    assert not created.HasField("pod_resources")
    assert not created.container_envs
    assert node.told() == [
        ("PreRunPodSandbox", told.of_pod(pod)),
        ("PreCreateContainer", told.of_container(pod, container)),
        ("PostStopContainer", created),
        ("PostStopPodSandbox", told.of_pod(pod)),
    ]


@ALL
def test_pod_with_the_skip_label_is_not_handed_to_hook_servers(node: RealNode, client: Any) -> None:
    pod, container = skipped(node.rich_pod()), full_container(node)
    pod_id = node.run(client, pod)
    container_id = client.create(pod_id, container, pod)
    client.start(container_id)
    node.resize(client, container_id, UPDATE)
    assert node.first_act(client, pod, container_id)["LEVEL"] == "info"
    node.proxy.kill()
    node.proxy.start()
    if isinstance(client, Kubelet):
        client.docker("restart", "-t", "0", container_id)
    end(client, pod_id, container_id)
    assert node.told() == []


@ALL
def test_each_subject_is_read_alone_after_a_kill(node: RealNode, client: Any) -> None:
    pod, container = node.rich_pod(), full_container(node)
    pod_id = node.run(client, pod)
    container_id = client.create(pod_id, container, pod)
    client.start(container_id)
    node.resize(client, container_id, UPDATE)
    node.restart()

    # Only the engine can tell of an update that an earlier proxy saw; it keeps no annotations of it.
    client.stop(container_id)
    running_now = told.of_container(pod, node.updated(container, UPDATE), container_id)
    assert node.told() == [("PostStopContainer", running_now)]

    node.restart()
    client.stop_pod(pod_id)
    assert node.told() == [("PostStopPodSandbox", told.of_pod(pod, node.handler))]


# ---- what hook servers change

ENVIRONMENT = {"LEVEL": "debug", "DEVICES": "0,1", "SENTENCE": "two words = three", "EMPTY": "", "PATH": "/bin"}


@pytest.fixture
def scene(node: RealNode) -> Scene:
    """Let a hook act at every Pre point."""
    return act(node)


@THREE
def test_pod_that_a_hook_changes(node: RealNode, client: Any, scene: Scene) -> None:
    pod_id = client.run_pod(scene.pod)
    assert node.told() == [("PreRunPodSandbox", told.of_pod(scene.pod))]
    assert node.pod_texts(client, pod_id) == (scene.pod_now.labels, scene.pod_now.annotations)
    assert node.pod_resources(client, pod_id)["cpu_shares"] == 300
    assert cgroups.processes(scene.parent)
    assert not cgroups.processes(scene.pod.linux.cgroup_parent)
    end(client, pod_id)
    assert node.told() == [("PostStopPodSandbox", told.of_pod(scene.pod_now))]


@THREE
def test_container_that_hooks_change(node: RealNode, client: Any, scene: Scene) -> None:
    pod_id = client.run_pod(scene.pod)
    node.told()
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


@THREE
def test_update_that_a_hook_changes(node: RealNode, client: Any, scene: Scene) -> None:
    pod_id = client.run_pod(scene.pod)
    container_id = client.create(pod_id, scene.container, scene.pod)
    client.start(container_id)
    node.told()

    client.update(container_id, cri_resources(KUBELETS_UPDATE))
    asked = node.sent(of_update(scene, KUBELETS_UPDATE))
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
    node.hooks.on("PreCreateContainer", hookanswers.reply(ContainerAnswer(pod_cgroup_parent=other)))
    container_id = client.create(client.run_pod(pod), container, pod)
    client.start(container_id)
    assert_in_force(client, container_id, other, {"cpu_shares": 512, "cpu_quota": 50000})
    assert not list(cgroups.directories(f"{pod.linux.cgroup_parent}/{container_id}"))
    moved = told.of_container(pod, container, container_id)
    moved.pod_cgroup_parent = other
    node.told()
    client.stop(container_id)
    assert node.told() == [("PostStopContainer", moved)]
    kill(node)
    client.stop(container_id)
    assert node.told() == [("PostStopContainer", moved)]


@THREE
def test_pods_new_cgroup_parent_reaches_its_containers_without_a_hook(kind: Kind, engine: Any, tmp_path: Path) -> None:
    """Also those that are made after a kill of the proxy, and without any plugin."""
    with running(kind, engine, tmp_path, lambda node: register(node, ["PreRunPodSandbox"])) as node:
        pod = node.plain_pod()
        parent = engine.cgroup_parent(pod.metadata.uid, "burstable")
        node.hooks.on("PreRunPodSandbox", hookanswers.reply(PodAnswer(cgroup_parent=parent)))
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
            scene = act(node)
            pod_id = client.run_pod(scene.pod)
            file = file_of(memory, node.proxy.socket)
            wait_until(lambda: not keeps or pod_id in rows(file), "it is kept")
            node.restart()
            container_id = client.create(pod_id, scene.container, scene.pod)
            client.start(container_id)
            assert node.told()[0] == ("PreCreateContainer", told.of_container(scene.pod_now, scene.container))
            assert_in_force(client, container_id, scene.parent, STARTED)


@THREE
def test_hooks_change_what_was_made_before_a_kill(node: RealNode, client: Any) -> None:
    pod = node.rich_pod()
    container_id = client.create(client.run_pod(pod), node.rich_container(), pod)
    node.restart()
    node.hooks.on("PreStartContainer", resources_answer(AT_START))
    node.hooks.on("PreUpdateContainerResources", resources_answer(AT_UPDATE))
    client.start(container_id)
    assert_first_act(node.first_act(client, pod, container_id), AT_START)
    client.update(container_id, cri_resources(KUBELETS_UPDATE))
    assert_in_force(client, container_id, pod.linux.cgroup_parent, {**AT_START, **KUBELETS_UPDATE, **AT_UPDATE})


@THREE
def test_what_no_hook_touches_is_as_without_a_proxy(node: RealNode, client: Any) -> None:
    pod, container = node.rich_pod(), node.rich_container(cpuset_cpus=CPU)
    with node.direct() as direct:
        seen = [node.lived(each, pod, container, cri_resources(KUBELETS_UPDATE)) for each in (client, direct)]
    assert seen[0] == seen[1]
    assert {point for point, _ in node.told()} == set(registration.ALL_POINTS)
