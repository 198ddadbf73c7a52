"""A stand-in koordlet works unchanged on real containerd: its way to register, its echoes, its -1 and its empty cpuset.

What it does is told in hook-api ("Registration files", "What an answer means").
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import cgroups, cri
from tests.engines.containerd import Containerd
from tests.fakes import hookanswers, registration
from tests.fakes.cri_pb2 import LinuxContainerResources
from tests.system.koordlet import POINTS, UNLIMITED, Koordlet, nobody, registered, see_each_answer
from tests.system.node import CPU, Node, end, inside, plain_pod, rich_container, rich_pod, running, told_by_first_act

pytestmark = pytest.mark.engine


@pytest.fixture
def node(containerd: Containerd, tmp_path: Path) -> Iterator[Node]:
    with running(containerd, tmp_path, nobody) as made:
        yield made


@pytest.fixture
def koordlet(node: Node) -> Koordlet:
    return registered(node)


@pytest.fixture(params=cri.VERSIONS)
def client(node: Node, request: pytest.FixtureRequest) -> Iterator[cri.CriClient]:
    with node.client(request.param) as made:
        yield made


def test_it_sets_unlimited_and_clears_the_cpuset(node: Node, koordlet: Koordlet, client: cri.CriClient) -> None:
    pod, container = rich_pod(node.engine), rich_container(cpuset_cpus=CPU)
    container.envs.add(key="LEVEL", value=b"debug")  # named twice: an echo must not change which one counts
    node.hooks.on("PreRunPodSandbox", hookanswers.koordlet(cpu_quota=-1, cpu_shares=700, memory_limit_in_bytes=-1))
    node.hooks.on("PreCreateContainer", hookanswers.koordlet(**UNLIMITED, cpuset_cpus=""))
    node.hooks.on("PreUpdateContainerResources", hookanswers.koordlet(**UNLIMITED, cpuset_cpus=""))

    pod_id = client.run_pod(pod)
    sandbox = json.loads(client.pod_status(pod_id).info["info"])["config"]["linux"]["resources"]
    assert (sandbox["cpu_quota"], sandbox["cpu_shares"]) == (-1, 700)
    assert "memory_limit_in_bytes" not in sandbox, "no limit is 0"
    assert sandbox["cpu_period"] == 100000

    container_id = client.create(pod_id, container, pod)
    client.start(container_id)
    first = told_by_first_act(pod)
    for setting, value in UNLIMITED.items():
        assert cgroups.parse(setting, first[setting]) == cgroups.expected(setting, value), setting
    spec = json.loads(client.status(container_id).info["info"])["runtimeSpec"]["linux"]["resources"]
    assert "cpus" not in spec["cpu"], "the cpuset that the kubelet asked for is cleared"
    assert client.environment(container_id)["LEVEL"] == b"debug"

    # The kubelet limits again, and koordlet lifts the limits again.
    client.update(container_id, LinuxContainerResources(cpu_quota=20000, cpu_shares=100, memory_limit_in_bytes=1 << 26))
    for setting, value in UNLIMITED.items():
        assert inside(client, container_id, setting) == cgroups.expected(setting, value), setting
    assert [point for point, _ in node.told()] == list(POINTS)
    end(client, pod_id, container_id)


def test_a_whole_echo_changes_nothing(node: Node, koordlet: Koordlet, client: cri.CriClient) -> None:
    pod, container = rich_pod(node.engine), rich_container(cpuset_cpus=CPU)
    hooked_pod = client.run_pod(pod)
    hooked = client.create(hooked_pod, container, pod)
    client.start(hooked)
    assert [point for point, _ in node.told()] == ["PreRunPodSandbox", "PreCreateContainer"]
    with cri.CriClient(node.engine.socket) as direct:
        pod.metadata.attempt += 1
        container.metadata.attempt += 1
        other_pod = direct.run_pod(pod)
        other = direct.create(other_pod, container, pod)
        assert comparable(client.status(hooked)) == comparable(direct.status(other))
        end(direct, other_pod, other)
    end(client, hooked_pod, hooked)


def comparable(status: object) -> dict[str, object]:
    """Return the parts of a status that a request decides."""
    info = json.loads(status.info["info"])  # type: ignore[attr-defined]
    spec = info["runtimeSpec"]
    info["config"]["metadata"].pop("attempt")
    info["config"].pop("log_path")
    return {"config": info["config"], "resources": spec["linux"]["resources"], "env": spec["process"]["env"]}


def test_it_may_rewrite_its_file_at_any_time(node: Node, koordlet: Koordlet, client: cri.CriClient) -> None:
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
    end(client, pod_id)


def test_an_empty_file_keeps_the_last_good_state(node: Node, koordlet: Koordlet, client: cri.CriClient) -> None:
    koordlet.truncate()
    node.proxy.wait_for_log("registration rejected: koordlet.json")
    pod = rich_pod(node.engine)
    end(client, client.run_pod(pod))
    assert [point for point, _ in node.told()] == ["PreRunPodSandbox"]
    assert registration.KOORDLET_EXTRA_POINT in node.proxy.output(), "the unknown point has its warning"


def test_each_of_its_answers_holds_inside_the_container(node: Node) -> None:
    pod = plain_pod(node.engine)
    with node.client() as client:
        pod_id = client.run_pod(pod)
        see_each_answer(node, client, pod_id, pod, cri.container_config("c"), lifts=True)
