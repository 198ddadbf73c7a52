"""A stand-in koordlet works unchanged on real dockerd: its way to register, its echoes, its -1 and its empty cpuset.

What it does is told in hook-api ("Registration files", "What an answer means").
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import cgroups
from tests.engines.dockerd import Dockerd
from tests.fakes import hookanswers, registration
from tests.fakes.cri_pb2 import LinuxContainerResources
from tests.system.docker_node import DockerNode, Kubelet, running
from tests.system.docker_told import plain_container, plain_pod, rich_container, rich_pod
from tests.system.koordlet import POINTS, UNLIMITED, Koordlet, nobody, registered, see_each_answer
from tests.system.node import CPU, end, inside

pytestmark = pytest.mark.engine


@pytest.fixture
def node(dockerd: Dockerd, tmp_path: Path) -> Iterator[DockerNode]:
    with running(dockerd, tmp_path, nobody) as made:
        yield made


@pytest.fixture
def koordlet(node: DockerNode) -> Koordlet:
    return registered(node)


@pytest.fixture
def client(node: DockerNode) -> Iterator[Kubelet]:
    with node.client() as made:
        yield made


def test_it_sets_unlimited_and_clears_the_cpuset(node: DockerNode, koordlet: Koordlet, client: Kubelet) -> None:
    pod, container = rich_pod(node.engine), rich_container(cpuset_cpus=CPU)
    container.envs.add(key="LEVEL", value=b"debug")  # named twice: an echo must not change which one counts
    for point in POINTS:
        node.hooks.on(point, hookanswers.koordlet(**UNLIMITED, cpuset_cpus=""))

    pod_id = client.run_pod(pod)
    sandbox = client.host(pod_id)
    assert (sandbox["CpuQuota"], sandbox["CpuShares"], sandbox["Memory"]) == (-1, 700, 0)

    container_id = client.create(pod_id, container, pod)
    client.start(container_id)
    first = client.told_by_first_act(container_id)
    for setting, value in UNLIMITED.items():
        assert cgroups.parse(setting, first[setting]) == cgroups.expected(setting, value), setting
    assert first["LEVEL"] == "debug"
    assert client.host(container_id)["CpusetCpus"] == "", "the cpuset that the kubelet asked for is cleared"
    assert [point for point, _ in node.told()] == list(POINTS[:2])

    # The kubelet limits again, and koordlet lifts the limits again.
    client.update(
        container_id,
        LinuxContainerResources(cpu_quota=20000, cpu_shares=100, cpuset_cpus=CPU, memory_limit_in_bytes=1 << 26),
    )
    for setting, value in UNLIMITED.items():
        assert inside(client, container_id, setting) == cgroups.expected(setting, value), setting
    assert client.host(container_id)["CpusetCpus"] == ""
    assert [point for point, _ in node.told()] == ["PreUpdateContainerResources"]
    assert "left out" not in node.proxy.output()
    end(client, pod_id, container_id)


def test_a_whole_echo_changes_nothing(node: DockerNode, koordlet: Koordlet, client: Kubelet) -> None:
    pod, container = rich_pod(node.engine), rich_container(cpuset_cpus=CPU)
    seen = []
    with node.direct() as direct:
        for kubelet in (client, direct):
            pod_id = kubelet.run_pod(pod)
            container_id = kubelet.create(pod_id, container, pod)
            kubelet.start(container_id)
            kubelet.update(container_id, LinuxContainerResources(cpu_shares=300))
            seen.append(direct.inspected(pod_id, container_id))
            end(kubelet, pod_id, container_id)
    assert seen[0] == seen[1]
    assert [point for point, _ in node.told()] == list(POINTS)


def test_it_may_rewrite_its_file_at_any_time(node: DockerNode, koordlet: Koordlet, client: Kubelet) -> None:
    node.hooks.on("PreCreateContainer", hookanswers.koordlet(cpu_shares=700))
    pod = rich_pod(node.engine)
    koordlet.register()
    pod_id = client.run_pod(pod)
    for name in ("first", "second", "third"):
        koordlet.truncate()
        container_id = client.create(pod_id, rich_container(name), pod)
        koordlet.register()
        client.start(container_id)
        assert inside(client, container_id, "cpu_shares") == cgroups.expected("cpu_shares", 700), name
        client.update(container_id, LinuxContainerResources(cpu_shares=300))
    assert [point for point, _ in node.told()] == [POINTS[0], *POINTS[1:] * 3]


def test_an_empty_file_keeps_the_last_good_state(node: DockerNode, koordlet: Koordlet, client: Kubelet) -> None:
    koordlet.truncate()
    node.proxy.wait_for_log("registration rejected: koordlet.json")
    end(client, client.run_pod(rich_pod(node.engine)))
    assert [point for point, _ in node.told()] == ["PreRunPodSandbox"]
    assert registration.KOORDLET_EXTRA_POINT in node.proxy.output(), "the unknown point has its warning"


def test_each_of_its_answers_holds_inside_the_container(node: DockerNode, client: Kubelet) -> None:
    pod = plain_pod(node.engine)
    see_each_answer(node, client, client.run_pod(pod), pod, plain_container(), lifts=False)
