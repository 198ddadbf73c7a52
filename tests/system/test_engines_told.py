"""On real engines a hook server is told all that a kubelet's words tell, at every hook point, also after a kill."""

from typing import Any

import pytest

from tests.fakes.cri_pb2 import ContainerConfig, LinuxContainerResources
from tests.system import told
from tests.system.docker_node import Kubelet
from tests.system.node import CPU, MIB, end, skipped
from tests.system.real import CONTAINERD, DOCKERD, OLD_CRI, OLD_SHIM, RealNode, on

pytestmark = [pytest.mark.engine, on(CONTAINERD, OLD_CRI, DOCKERD, OLD_SHIM)]

# dockershim, unlike cri-dockerd, cannot raise memory above the swap limit that it set at create.
UPDATE = LinuxContainerResources(cpu_shares=400, memory_limit_in_bytes=48 * MIB)


def full_container(node: RealNode, name: str = "main") -> ContainerConfig:
    return node.rich_container(name, oom_score_adj=900, cpuset_cpus=CPU, cpuset_mems="0")


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
