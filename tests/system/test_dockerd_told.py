"""On real dockerd a hook server is told all that dockershim passes on, at every hook point, also after a restart."""

import http
from collections.abc import Iterator

import pytest

from tests.engines import images
from tests.engines.dockerd import BUSYBOX, Dockerd
from tests.fakes.cri_pb2 import ContainerConfig, LinuxContainerResources
from tests.fakes.dockershim import DockerError, Generation
from tests.system import docker_told, told
from tests.system.docker_node import GENERATIONS, DockerNode, Kubelet, as_new, running
from tests.system.docker_told import plain_pod, rich_pod
from tests.system.node import CPU, MIB, end, skipped

pytestmark = pytest.mark.engine

OOM_SCORE_ADJ = 900
# dockershim, unlike cri-dockerd, cannot raise memory above the swap limit that it set at create.
UPDATE = LinuxContainerResources(cpu_shares=400, memory_limit_in_bytes=48 * MIB)
POINTS = {
    "start": ("PreStartContainer", "PostStartContainer"),
    "update": ("PreUpdateContainerResources",),
    "stop": ("PostStopContainer",),
}
"""Command of the docker CLI -> what a hook server is told of it."""


@pytest.fixture(scope="module")
def shared(dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerNode]:
    with running(dockerd, tmp_path_factory.mktemp("node")) as made:
        yield made


@pytest.fixture
def node(shared: DockerNode) -> Iterator[DockerNode]:
    with as_new(shared) as made:
        yield made


@pytest.fixture(params=GENERATIONS, ids=lambda generation: generation.host)
def client(node: DockerNode, request: pytest.FixtureRequest) -> Iterator[Kubelet]:
    with node.client(request.param) as made:
        yield made


def full_container(name: str = "main") -> ContainerConfig:
    return docker_told.rich_container(name, oom_score_adj=OOM_SCORE_ADJ, cpuset_cpus=CPU, cpuset_mems="0")


def resized(container: ContainerConfig, generation: Generation) -> ContainerConfig:
    changed = told.updated(container, UPDATE)
    return docker_told.without_swap(changed) if generation.moves_swap else changed


def restart(node: DockerNode) -> None:
    node.proxy.kill()
    node.proxy.start()


def test_every_hook_point_is_told_everything(node: DockerNode, client: Kubelet) -> None:
    pod, container = rich_pod(node.engine), full_container()

    pod_id = client.run_pod(pod)
    assert node.told() == [("PreRunPodSandbox", told.of_pod(pod))]

    container_id = client.create(pod_id, container, pod)
    assert node.told() == [("PreCreateContainer", told.of_container(pod, container))]

    client.start(container_id)
    created = told.of_container(pod, container, container_id)
    assert node.told() == [("PreStartContainer", created), ("PostStartContainer", created)]

    client.update(container_id, UPDATE)
    after_update = told.of_container(pod, resized(container, client.shim.generation), container_id)
    assert node.told() == [("PreUpdateContainerResources", after_update)]

    client.stop(container_id)
    client.stop(container_id)
    assert node.told() == [("PostStopContainer", after_update)] * 2, "a second stop still has its information"

    client.stop_pod(pod_id)
    client.stop_pod(pod_id)
    assert node.told() == [("PostStopPodSandbox", told.of_pod(pod))], "who knows it is not told again"

    client.remove(container_id)
    client.remove_pod(pod_id)
    assert node.told() == [], "removing has no hook point"


def test_any_reference_tells_the_same(node: DockerNode) -> None:
    pod, container = rich_pod(node.engine), full_container()
    with node.client() as client:
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, container, pod)
        name = client.shim.inspect(container_id)["Name"].removeprefix("/")
        seen = told.of_container(pod, container, container_id)
        after_update = told.of_container(
            pod, told.updated(container, LinuxContainerResources(cpu_shares=400)), container_id
        )
        node.told()
        for reference, is_known in ((name, True), (container_id[:12], True), (f"/{name}", True), (name, False)):
            for command in (("start",), ("update", "--cpu-shares", "400"), ("stop", "-t", "0")):
                if not is_known:
                    restart(node)
                client.docker(*command, reference)
                if command[0] == "update":
                    seen = after_update
                assert node.told() == [(point, seen) for point in POINTS[command[0]]]
        pod_name = client.shim.inspect(pod_id)["Name"].removeprefix("/")
        for reference in (pod_name, pod_id[:12]):
            restart(node)  # a proxy that has told of a pod's stop does not tell of it again
            client.docker("stop", reference)
            assert node.told() == [("PostStopPodSandbox", told.of_pod(pod))]


def test_a_renamed_container_is_still_the_kubelets(node: DockerNode) -> None:
    pod, container = rich_pod(node.engine), full_container()
    with node.client() as client:
        container_id = client.create(client.run_pod(pod), container, pod)
        client.docker("rename", container_id, "renamed")
        created = told.of_container(pod, container, container_id)
        for again in (False, True):
            if again:
                restart(node)
            node.told()
            client.docker("stop", "renamed")
            assert node.told() == [("PostStopContainer", created)]


def test_a_name_that_is_taken(node: DockerNode, client: Kubelet) -> None:
    pod, container = rich_pod(node.engine), full_container()
    pod_id = client.run_pod(pod)
    first_id = client.create(pod_id, container, pod)
    with pytest.raises(DockerError, match="is already in use by container") as caught:
        client.create(pod_id, container, pod)
    assert first_id in caught.value.message
    # The shim has removed the container that had the name, so the kubelet's next try is a good one.
    node.told()
    second_id = client.create(pod_id, container, pod)
    client.stop(second_id)
    assert node.told() == [
        ("PreCreateContainer", told.of_container(pod, container)),
        ("PostStopContainer", told.of_container(pod, container, second_id)),
    ]


def test_what_the_kubelet_did_not_say_is_not_told(node: DockerNode, client: Kubelet) -> None:
    pod, container = plain_pod(node.engine), docker_told.plain_container()
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


def test_a_pod_with_the_skip_label_is_not_handed_to_hook_servers(node: DockerNode, client: Kubelet) -> None:
    pod, container = skipped(rich_pod(node.engine)), full_container()
    pod_id = client.run_pod(pod)
    container_id = client.create(pod_id, container, pod)
    client.start(container_id)
    client.update(container_id, UPDATE)
    assert client.told_by_first_act(container_id)["LEVEL"] == "info"
    restart(node)
    client.docker("restart", "-t", "0", container_id)
    end(client, pod_id, container_id)
    assert node.told() == []


def test_what_is_not_a_pods_is_not_handed_to_hook_servers(node: DockerNode) -> None:
    with node.client() as client:
        client.docker("run", "--rm", BUSYBOX, "true")
        client.docker("run", "-d", "--name", "plain", "--label", "app=web", BUSYBOX, "sleep", "1000")
        container_id = client.shim.inspect("plain")["Id"]
        for reference in ("plain", container_id, container_id[:12]):
            client.docker("update", "--cpu-shares", "300", reference)
            client.docker("stop", "-t", "0", reference)
            client.docker("start", reference)
        client.docker("rm", "-f", "plain")
    assert node.told() == []


def test_a_killed_proxy_knows_what_dockerd_knows(node: DockerNode, client: Kubelet) -> None:
    pod = rich_pod(node.engine)
    first, second = full_container("first"), full_container("second")
    pod_id = client.run_pod(pod)
    first_id, second_id = client.create(pod_id, first, pod), client.create(pod_id, second, pod)
    client.start(second_id)
    restart(node)
    node.told()

    client.start(first_id)
    created = told.of_container(pod, first, first_id)
    assert node.told() == [("PreStartContainer", created), ("PostStartContainer", created)]

    client.update(second_id, UPDATE)
    after_update = told.of_container(pod, resized(second, client.shim.generation), second_id)
    assert node.told() == [("PreUpdateContainerResources", after_update)]
    client.stop(second_id)
    assert node.told() == [("PostStopContainer", after_update)]
    client.stop(first_id)
    assert node.told() == [("PostStopContainer", created)]

    third = full_container("third")
    client.create(pod_id, third, pod)
    assert node.told() == [("PreCreateContainer", told.of_container(pod, third))]

    client.stop_pod(pod_id)
    assert node.told() == [("PostStopPodSandbox", told.of_pod(pod))]


def test_each_subject_is_read_alone_after_a_kill(node: DockerNode, client: Kubelet) -> None:
    pod, container = rich_pod(node.engine), full_container()
    pod_id = client.run_pod(pod)
    container_id = client.create(pod_id, container, pod)
    client.start(container_id)
    client.update(container_id, UPDATE)
    restart(node)
    node.told()
    # Only dockerd can tell of an update that an earlier proxy saw.
    client.stop(container_id)
    running_now = told.of_container(pod, resized(container, client.shim.generation), container_id)
    assert node.told() == [("PostStopContainer", running_now)]

    restart(node)
    client.stop_pod(pod_id)
    assert node.told() == [("PostStopPodSandbox", told.of_pod(pod))]


def test_after_a_kill_an_env_that_equals_the_images_is_taken_for_the_images(node: DockerNode) -> None:
    pod, container = rich_pod(node.engine), full_container()
    container.envs.add(key="PATH", value=images.IMAGE_ENVIRONMENT[0].removeprefix("PATH=").encode())
    with node.client() as client:
        container_id = client.create(client.run_pod(pod), container, pod)
        client.stop(container_id)
        created = told.of_container(pod, container, container_id)
        assert node.told()[-1] == ("PostStopContainer", created)
        restart(node)
        client.stop(container_id)
        del created.container_envs["PATH"]
        assert node.told() == [("PostStopContainer", created)]


def test_a_killed_dockerd_is_served_again(node: DockerNode) -> None:
    pod, container = rich_pod(node.engine), full_container()
    with node.client() as client:
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, container, pod)
        node.told()
        node.engine.kill()
        try:
            # On a connection of its own: the other client's ends with the daemon's, sooner or later.
            with node.client() as other, pytest.raises(DockerError) as caught:
                other.update(container_id, UPDATE)
        finally:
            node.engine.launch()
        assert caught.value.status == http.HTTPStatus.BAD_GATEWAY

        after_update = told.of_container(pod, resized(container, client.shim.generation), container_id)
        node.told()
        client.update(container_id, UPDATE)
        assert node.told() == [("PreUpdateContainerResources", after_update)]
        client.stop_pod(pod_id)
        assert node.told() == [("PostStopPodSandbox", told.of_pod(pod))]

        # The sandbox ended with its dockerd: a kubelet makes another one.
        pod.metadata.attempt += 1
        container.metadata.attempt += 1
        again = client.run_pod(pod)
        container_id = client.create(again, container, pod)
        client.start(container_id)
        created = told.of_container(pod, container, container_id)
        assert node.told() == [
            ("PreRunPodSandbox", told.of_pod(pod)),
            ("PreCreateContainer", told.of_container(pod, container)),
            ("PreStartContainer", created),
            ("PostStartContainer", created),
        ]
