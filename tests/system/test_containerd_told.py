"""On real containerd a hook server is told all that is known, at every hook point, also after a restart."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import cri
from tests.engines.containerd import Containerd
from tests.fakes.cri_pb2 import (
    ContainerConfig,
    LinuxContainerResources,
    PodSandboxConfig,
    RunPodSandboxRequest,
    UpdateContainerResourcesRequest,
)
from tests.system import told
from tests.system.node import CPU, MIB, Node, end, plain_pod, rich_container, rich_pod, running, told_by_first_act

pytestmark = pytest.mark.engine

RUNTIME_HANDLER = "runc"
OOM_SCORE_ADJ = 900
UPDATE = LinuxContainerResources(cpu_shares=400, memory_limit_in_bytes=96 * MIB)
UPDATE_ANNOTATIONS = {"example.com/resized": "yes"}


@pytest.fixture
def node(containerd: Containerd, tmp_path: Path) -> Iterator[Node]:
    with running(containerd, tmp_path) as made:
        yield made


@pytest.fixture(params=cri.VERSIONS)
def client(node: Node, request: pytest.FixtureRequest) -> Iterator[cri.CriClient]:
    with node.client(request.param) as made:
        yield made


def full_container(name: str = "main") -> ContainerConfig:
    return rich_container(name, oom_score_adj=OOM_SCORE_ADJ, cpuset_cpus=CPU, cpuset_mems="0")


def run_pod(client: cri.CriClient, pod: PodSandboxConfig) -> str:
    request = RunPodSandboxRequest(config=pod, runtime_handler=RUNTIME_HANDLER)
    return str(client.call("RunPodSandbox", request).pod_sandbox_id)


def update(client: cri.CriClient, container_id: str) -> None:
    request = UpdateContainerResourcesRequest(container_id=container_id, linux=UPDATE, annotations=UPDATE_ANNOTATIONS)
    client.call("UpdateContainerResources", request)


def resized(container: ContainerConfig) -> ContainerConfig:
    changed = told.updated(container, UPDATE)
    changed.annotations.update(UPDATE_ANNOTATIONS)
    return changed


def test_every_hook_point_is_told_everything(node: Node, client: cri.CriClient) -> None:
    pod, container = rich_pod(node.engine), full_container()

    pod_id = run_pod(client, pod)
    assert node.told() == [("PreRunPodSandbox", told.of_pod(pod, RUNTIME_HANDLER))]

    container_id = client.create(pod_id, container, pod)
    assert node.told() == [("PreCreateContainer", told.of_container(pod, container))]

    client.start(container_id)
    created = told.of_container(pod, container, container_id)
    assert node.told() == [("PreStartContainer", created), ("PostStartContainer", created)]

    update(client, container_id)
    after_update = told.of_container(pod, resized(container), container_id)
    assert node.told() == [("PreUpdateContainerResources", after_update)]

    client.stop(container_id)
    client.stop(container_id)
    assert node.told() == [("PostStopContainer", after_update)] * 2, "a second Stop still has its information"

    client.stop_pod(pod_id)
    client.stop_pod(pod_id)
    assert node.told() == [("PostStopPodSandbox", told.of_pod(pod, RUNTIME_HANDLER))], "who knows it is not told again"

    client.remove(container_id)
    client.remove_pod(pod_id)
    assert node.told() == [], "removing has no hook point"


def test_what_the_kubelet_did_not_say_is_not_told(node: Node, client: cri.CriClient) -> None:
    pod, container = plain_pod(node.engine), cri.container_config("main")
    pod_id = client.run_pod(pod)
    container_id = client.create(pod_id, container, pod)
    end(client, pod_id, container_id)
    created = told.of_container(pod, container, container_id)
    assert not created.HasField("container_resources")
    assert not created.HasField("pod_resources")
    assert node.told() == [
        ("PreRunPodSandbox", told.of_pod(pod)),
        ("PreCreateContainer", told.of_container(pod, container)),
        ("PostStopContainer", created),
        ("PostStopPodSandbox", told.of_pod(pod)),
    ]


def test_a_pod_with_the_skip_label_is_not_handed_to_hook_servers(node: Node, client: cri.CriClient) -> None:
    pod, container = rich_pod(node.engine), full_container()
    pod.labels["runtimeproxy.koordinator.sh/skip-hookserver"] = "true"
    pod_id = run_pod(client, pod)
    container_id = client.create(pod_id, container, pod)
    client.start(container_id)
    update(client, container_id)
    assert told_by_first_act(pod)["LEVEL"] == "info"
    node.proxy.stop()
    node.proxy.start()
    end(client, pod_id, container_id)
    assert node.told() == []


def test_a_restarted_proxy_knows_what_the_runtime_knows(node: Node, client: cri.CriClient) -> None:
    pod = rich_pod(node.engine)
    first, second = full_container("first"), full_container("second")
    pod_id = run_pod(client, pod)
    first_id, second_id = client.create(pod_id, first, pod), client.create(pod_id, second, pod)
    client.start(second_id)
    node.told()
    node.proxy.stop()
    node.proxy.start()

    client.start(first_id)
    created = told.of_container(pod, first, first_id)
    assert node.told() == [("PreStartContainer", created), ("PostStartContainer", created)]

    update(client, second_id)
    assert node.told() == [
        ("PreUpdateContainerResources", told.of_container(pod, resized(second), second_id)),
    ]
    client.stop(second_id)
    assert node.told() == [("PostStopContainer", told.of_container(pod, resized(second), second_id))]
    client.stop(first_id)
    assert node.told() == [("PostStopContainer", created)]

    third = full_container("third")
    third_id = client.create(pod_id, third, pod)
    assert node.told() == [("PreCreateContainer", told.of_container(pod, third))]

    client.remove(third_id)
    client.stop_pod(pod_id)
    assert node.told() == [("PostStopPodSandbox", told.of_pod(pod, RUNTIME_HANDLER))]
    client.remove_pod(pod_id)


def test_each_subject_is_read_alone_after_a_restart(node: Node, client: cri.CriClient) -> None:
    pod, container = rich_pod(node.engine), full_container()
    pod_id = run_pod(client, pod)
    container_id = client.create(pod_id, container, pod)
    client.start(container_id)
    update(client, container_id)
    node.told()
    node.proxy.stop()
    node.proxy.start()

    # Only the runtime can tell of an update that an earlier proxy saw; it keeps no annotations of it.
    client.stop(container_id)
    running_now = told.of_container(pod, told.updated(container, UPDATE), container_id)
    assert node.told() == [("PostStopContainer", running_now)]

    node.proxy.stop()
    node.proxy.start()
    client.stop_pod(pod_id)
    assert node.told() == [("PostStopPodSandbox", told.of_pod(pod, RUNTIME_HANDLER))]
    end(client, pod_id, container_id)
