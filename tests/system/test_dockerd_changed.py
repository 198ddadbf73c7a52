"""On real dockerd what hook servers change is true inside the container, from its first instruction on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import cgroups
from tests.engines.dockerd import Dockerd
from tests.fakes import hookanswers, registration
from tests.fakes.dockershim import DOCKERSHIM
from tests.system import told
from tests.system.docker_node import DockerNode, Kubelet, as_new, running
from tests.system.docker_told import plain_pod, rich_container, rich_pod, without_swap
from tests.system.node import MIB, end, register
from tests.system.scene import (
    AT_START,
    AT_UPDATE,
    KUBELETS_UPDATE,
    STARTED,
    UPDATED,
    ContainerAnswer,
    PodAnswer,
    Scene,
    Values,
    act,
    assert_first_act,
    assert_in_force,
    cri_resources,
    of_update,
    resources_answer,
)

pytestmark = pytest.mark.engine

ENVIRONMENT = {"LEVEL": "debug", "DEVICES": "0,1", "SENTENCE": "two words = three", "EMPTY": ""}


@pytest.fixture(scope="module")
def shared(dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerNode]:
    with running(dockerd, tmp_path_factory.mktemp("node")) as made:
        yield made


@pytest.fixture
def node(shared: DockerNode) -> Iterator[DockerNode]:
    with as_new(shared) as made:
        yield made


@pytest.fixture
def client(node: DockerNode) -> Iterator[Kubelet]:
    with node.client() as made:
        yield made


@pytest.fixture
def scene(node: DockerNode) -> Scene:
    """Let a hook act at every Pre point; in Docker mode a swap limit goes with each memory limit."""
    pod = rich_pod(node.engine)
    made = act(node.hooks, pod, rich_container(), node.engine.cgroup_parent(pod.metadata.uid, "burstable"))
    return Scene(made.pod, made.container, made.pod_now, without_swap(made.container_now))


def restart(node: DockerNode) -> None:
    node.proxy.kill()
    node.proxy.start()
    node.told()


def test_a_pod_that_a_hook_changes(node: DockerNode, client: Kubelet, scene: Scene) -> None:
    pod_id = client.run_pod(scene.pod)
    assert node.told() == [("PreRunPodSandbox", told.of_pod(scene.pod))]
    labels, annotations = scene.pod_now.labels, scene.pod_now.annotations
    assert client.labels(pod_id) == {
        **labels,
        **{f"annotation.{key}": value for key, value in annotations.items()},
        "io.kubernetes.container.name": "POD",
        "io.kubernetes.docker.type": "podsandbox",
    }
    assert cgroups.processes(scene.parent)
    assert not cgroups.processes(scene.pod.linux.cgroup_parent)
    assert cgroups.read(f"{scene.parent}/{pod_id}", "cpu_shares") == cgroups.expected("cpu_shares", 300)
    end(client, pod_id)
    assert node.told() == [("PostStopPodSandbox", told.of_pod(scene.pod_now))]


def test_a_container_that_hooks_change(node: DockerNode, client: Kubelet, scene: Scene) -> None:
    pod_id = client.run_pod(scene.pod)
    node.told()
    container_id = client.create(pod_id, scene.container, scene.pod)
    assert node.told() == [("PreCreateContainer", told.of_container(scene.pod_now, scene.container))]
    assert client.labels(container_id)["annotation.hook.example/container"] == "added"

    client.start(container_id)
    after_start = told.updated(scene.container_now, cri_resources(AT_START))
    assert node.told() == [
        ("PreStartContainer", told.of_container(scene.pod_now, scene.container_now, container_id)),
        ("PostStartContainer", told.of_container(scene.pod_now, after_start, container_id)),
    ]
    first = client.told_by_first_act(container_id)
    assert_first_act(first, STARTED)
    assert {name: first.get(name) for name in ENVIRONMENT} == ENVIRONMENT
    assert_in_force(client, container_id, scene.parent, STARTED)


def test_an_update_that_a_hook_changes(node: DockerNode, client: Kubelet, scene: Scene) -> None:
    pod_id = client.run_pod(scene.pod)
    container_id = client.create(pod_id, scene.container, scene.pod)
    client.start(container_id)
    node.told()

    client.update(container_id, cri_resources(KUBELETS_UPDATE))
    asked = without_swap(of_update(scene, KUBELETS_UPDATE))
    assert node.told() == [("PreUpdateContainerResources", told.of_container(scene.pod_now, asked, container_id))]
    assert_in_force(client, container_id, scene.parent, UPDATED)

    end(client, pod_id, container_id)
    after_update = without_swap(told.updated(scene.container_now, cri_resources(UPDATED)))
    assert node.told() == [
        ("PostStopContainer", told.of_container(scene.pod_now, after_update, container_id)),
        ("PostStopPodSandbox", told.of_pod(scene.pod_now)),
    ]


def test_a_container_may_get_a_cgroup_parent_of_its_own(node: DockerNode, client: Kubelet) -> None:
    pod, container = plain_pod(node.engine), rich_container()
    other = node.engine.cgroup_parent(pod.metadata.uid, "aside")
    node.hooks.on("PreCreateContainer", hookanswers.reply(ContainerAnswer(pod_cgroup_parent=other)))
    pod_id = client.run_pod(pod)
    container_id = client.create(pod_id, container, pod)
    client.start(container_id)
    assert_in_force(client, container_id, other, {"cpu_shares": 512, "cpu_quota": 50000})
    assert not list(cgroups.directories(f"{pod.linux.cgroup_parent}/{container_id}"))
    moved = told.of_container(pod, container, container_id)
    moved.pod_cgroup_parent = other
    node.told()
    client.stop(container_id)
    assert node.told() == [("PostStopContainer", moved)]
    restart(node)
    client.stop(container_id)
    assert node.told() == [("PostStopContainer", moved)]


def test_a_pods_new_cgroup_parent_reaches_its_containers_without_a_hook(dockerd: Dockerd, tmp_path: Path) -> None:
    pod = plain_pod(dockerd)
    parent = dockerd.cgroup_parent(pod.metadata.uid, "burstable")

    def for_pods_only(node: DockerNode) -> None:
        register(node, ["PreRunPodSandbox"])

    with running(dockerd, tmp_path, for_pods_only) as node, node.client() as client:
        node.hooks.on("PreRunPodSandbox", hookanswers.reply(PodAnswer(cgroup_parent=parent)))
        pod_id = client.run_pod(pod)
        first, second = rich_container("first"), rich_container("second")
        container_ids = [client.create(pod_id, first, pod)]
        restart(node)
        container_ids.append(client.create(pod_id, second, pod))
        for container_id in container_ids:
            client.start(container_id)
            assert_in_force(client, container_id, parent, {"cpu_shares": 512})


def test_a_pods_new_cgroup_parent_outlives_a_kill(node: DockerNode, client: Kubelet, scene: Scene) -> None:
    pod_id = client.run_pod(scene.pod)
    restart(node)
    container_id = client.create(pod_id, scene.container, scene.pod)
    client.start(container_id)
    assert node.told()[0] == ("PreCreateContainer", told.of_container(scene.pod_now, scene.container))
    assert_in_force(client, container_id, scene.parent, STARTED)


def test_hooks_change_what_was_made_before_a_kill(node: DockerNode, client: Kubelet) -> None:
    pod, container = rich_pod(node.engine), rich_container()
    container_id = client.create(client.run_pod(pod), container, pod)
    restart(node)
    node.hooks.on("PreStartContainer", resources_answer(AT_START))
    node.hooks.on("PreUpdateContainerResources", resources_answer(AT_UPDATE))
    client.start(container_id)
    assert_first_act(client.told_by_first_act(container_id), AT_START)
    client.update(container_id, cri_resources(KUBELETS_UPDATE))
    assert_in_force(client, container_id, pod.linux.cgroup_parent, {**AT_START, **KUBELETS_UPDATE, **AT_UPDATE})


def test_after_a_kill_a_hooks_values_are_taken_for_the_kubelets(
    node: DockerNode, client: Kubelet, scene: Scene
) -> None:
    pod_id = client.run_pod(scene.pod)
    container_id = client.create(pod_id, scene.container, scene.pod)
    client.start(container_id)
    restart(node)
    client.update(container_id, cri_resources({"cpu_shares": 400}))
    seen = told.updated(scene.container_now, cri_resources({**STARTED, "cpu_shares": 400}))
    assert node.told() == [("PreUpdateContainerResources", told.of_container(scene.pod_now, seen, container_id))]


# -- memory ------------------------------------------------------------------------------------------------------------

# The kubelet's limit is 64 MiB, and its swap limit is that, too: no swap.
MEMORY: dict[str, tuple[str, Values, tuple[int, int]]] = {
    "more at create": ("PreCreateContainer", {"memory_limit_in_bytes": 80 * MIB}, (80, 80)),
    "less at create": ("PreCreateContainer", {"memory_limit_in_bytes": 32 * MIB}, (32, 32)),
    "unlimited at create": ("PreCreateContainer", {"memory_limit_in_bytes": -1}, (0, 0)),
    "swap at create": ("PreCreateContainer", {"memory_swap_limit_in_bytes": 96 * MIB}, (64, 96)),
    "both at create": (
        "PreCreateContainer",
        {"memory_limit_in_bytes": 32 * MIB, "memory_swap_limit_in_bytes": -1},
        (32, -1),
    ),
    "more at start": ("PreStartContainer", {"memory_limit_in_bytes": 80 * MIB}, (80, 80)),
    "less at start": ("PreStartContainer", {"memory_limit_in_bytes": 32 * MIB}, (32, 32)),
    "unlimited at start": ("PreStartContainer", {"memory_limit_in_bytes": -1}, (64, 64)),
    "swap at start": ("PreStartContainer", {"memory_swap_limit_in_bytes": 96 * MIB}, (64, 96)),
    "more at update": ("PreUpdateContainerResources", {"memory_limit_in_bytes": 80 * MIB}, (80, 80)),
    "less at update": ("PreUpdateContainerResources", {"memory_limit_in_bytes": 32 * MIB}, (32, 32)),
    "unlimited at update": ("PreUpdateContainerResources", {"memory_limit_in_bytes": -1}, (48, 48)),
}
"""A change at a hook point -> what dockerd has in the end, memory and swap in MiB; the kubelet updates to 48 MiB."""


def test_swap_goes_with_memory(node: DockerNode, client: Kubelet) -> None:
    pod = plain_pod(node.engine)
    pod_id = client.run_pod(pod)
    for number, (point, values, (memory, swap)) in enumerate(MEMORY.values()):
        node.hooks.answers.clear()
        node.hooks.on(point, resources_answer(values))
        container_id = client.create(pod_id, rich_container(f"main-{number}"), pod)
        client.start(container_id)
        if point == "PreUpdateContainerResources":
            client.update(container_id, cri_resources({"memory_limit_in_bytes": 48 * MIB}))
        host = client.host(container_id)
        assert host["Memory"] == memory * MIB, (point, values)
        if node.engine.get("/info")["SwapLimit"]:  # else the kernel does not account for swap
            assert host["MemorySwap"] == (swap if swap < 0 else swap * MIB), (point, values)
        assert_in_force(client, container_id, pod.linux.cgroup_parent, {"memory_limit_in_bytes": host["Memory"] or -1})
        client.remove(container_id)


def test_a_hook_raises_memory_where_dockershim_leaves_the_swap_limit_alone(node: DockerNode) -> None:
    node.hooks.on("PreUpdateContainerResources", resources_answer({"memory_limit_in_bytes": 80 * MIB}))
    pod = plain_pod(node.engine)
    with node.client(DOCKERSHIM) as client:
        container_id = client.create(client.run_pod(pod), rich_container(), pod)
        client.update(container_id, cri_resources({"memory_limit_in_bytes": 48 * MIB}))
        assert client.host(container_id)["Memory"] == 80 * MIB


# -- what hooks leave alone --------------------------------------------------------------------------------------------


def test_what_no_hook_touches_is_as_without_a_proxy(node: DockerNode, client: Kubelet) -> None:
    pod, container = rich_pod(node.engine), rich_container()
    seen = []
    for kubelet in (client, node.direct()):
        with kubelet:
            pod_id = kubelet.run_pod(pod)
            container_id = kubelet.create(pod_id, container, pod)
            kubelet.start(container_id)
            kubelet.update(container_id, cri_resources(KUBELETS_UPDATE))
            running_now = kubelet.inspected(pod_id, container_id)
            kubelet.stop(container_id)
            kubelet.stop_pod(pod_id)
            seen.append((running_now, kubelet.inspected(pod_id, container_id)))
            end(kubelet, pod_id, container_id)
    assert seen[0] == seen[1]
    assert {point for point, _ in node.told()} == set(registration.ALL_POINTS)
