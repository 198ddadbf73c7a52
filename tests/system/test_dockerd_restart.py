"""The proxy before a real dockerd is killed with pods running, and so is dockerd itself."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engines.dockerd import Dockerd
from tests.fakes.cri_pb2 import ContainerConfig, PodSandboxConfig
from tests.fakes.dockershim import Generation
from tests.system import docker_told, restarted, scaled, told
from tests.system.docker_node import GENERATIONS, DockerNode, Kubelet, running
from tests.system.keeping import on_tmpfs
from tests.system.node import end
from tests.system.proxy import WAIT_SECONDS, answers, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.slow]

READY, ASKED_TO_END = b"ready", b"asked to end"
DEAF = f"""
trap 'trap "exit 0" TERM; echo {ASKED_TO_END.decode()}' TERM
sleep 3600 & echo {READY.decode()}
while :; do wait; done
"""
"""Takes a stop's signal, says so, and goes on; a second one ends it: a dockerd that starts ends what it finds."""


@pytest.fixture
def node(dockerd: Dockerd, tmp_path: Path) -> Iterator[DockerNode]:
    with running(dockerd, tmp_path) as made:
        yield made


def pids(client: Kubelet, pod_id: str, container_id: str) -> tuple[int, int]:
    """Ask dockerd for the process ids of a pod and a container."""
    pod, container = client.shim.inspect(pod_id), client.shim.inspect(container_id)
    return pod["State"]["Pid"], container["State"]["Pid"]


@pytest.mark.parametrize("generation", GENERATIONS, ids=lambda generation: generation.host)
def test_after_a_kill_pods_run_on_and_every_hook_message_is_as_the_one_before(
    node: DockerNode, generation: Generation
) -> None:
    def pod_of(node: DockerNode, name: str) -> PodSandboxConfig:
        return docker_told.rich_pod(node.engine, name)

    with node.client(generation) as client:
        restarted.compare(node, client, pod_of, docker_told.rich_container(), pids)


@pytest.mark.parametrize("generation", GENERATIONS, ids=lambda generation: generation.host)
def test_a_quota_is_scaled_once_over_kills(dockerd: Dockerd, tmp_path: Path, generation: Generation) -> None:
    def container_of(name: str) -> ContainerConfig:
        container = docker_told.rich_container()
        container.metadata.name, container.linux.resources.cpu_quota = name, scaled.QUOTA
        return container

    with (
        on_tmpfs() as memory,
        running(dockerd, tmp_path, scaled.keeping(memory)) as node,
        node.client(generation) as client,
    ):
        scaled.over_kills(node, client, memory, docker_told.rich_pod(dockerd), container_of)


def test_pods_whose_dockerd_was_killed_are_told_of_as_before(node: DockerNode) -> None:
    """A stop is under way; if the proxy hears of the container's end before it is asked for again, it is told then."""
    pod, container = docker_told.rich_pod(node.engine), docker_told.rich_container()
    container.command[:] = ("/bin/sh", "-c", DEAF)
    with node.client() as client:
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, container, pod)
        client.start(container_id)
        wait_until(lambda: READY in written(node, container_id), "the container runs")
        node.told()
        with ThreadPoolExecutor(1) as thread:
            stop = thread.submit(client.shim.stop_container, container_id, 3600)
            wait_until(lambda: ASKED_TO_END in written(node, container_id), "dockerd stops it")
            node.engine.kill()
            try:
                with pytest.raises(ConnectionError):
                    stop.result(WAIT_SECONDS)
                assert answers(node.proxy.socket)
            finally:
                node.engine.launch()
    with node.client() as client:
        end(client, pod_id, container_id)  # no call of it is tried again
    *stops, pod_stop = node.told()
    ended = ("PostStopContainer", told.of_container(pod, container, container_id))
    assert stops in ([ended], 2 * [ended])
    assert pod_stop == ("PostStopPodSandbox", told.of_pod(pod))


def written(node: DockerNode, container_id: str) -> bytes:
    """Return what a container has written, by dockerd's own word."""
    return node.engine.request("GET", f"/containers/{container_id}/logs?stdout=1")
