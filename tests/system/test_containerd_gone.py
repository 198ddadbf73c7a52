"""A real containerd is killed with pods running: the call under way fails, and all is well once it is back (B1, B3)."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.engines import cri
from tests.engines.containerd import Containerd
from tests.fakes.cri_pb2 import ContainerConfig, LinuxContainerResources, PodSandboxConfig
from tests.system import told
from tests.system.node import Node, end, plain_pod, rich_container, rich_pod, running
from tests.system.proxy import WAIT_SECONDS, answers, wait_until
from tests.system.test_containerd_restart import pids

pytestmark = [pytest.mark.engine, pytest.mark.slow]

GRACE_SECONDS = 3600
READY, ASKED_TO_END = "ready", "asked to end"
DEAF = f"trap 'echo {ASKED_TO_END}' TERM; sleep {GRACE_SECONDS} & echo {READY}; while :; do wait; done"
"""Takes a stop's signal, says so, and goes on."""
UPDATE = LinuxContainerResources(cpu_quota=40_000)


@dataclass(frozen=True, slots=True)
class Running:
    """A pod with a container, made through the proxy."""

    pod: PodSandboxConfig
    container: ContainerConfig
    pod_id: str
    container_id: str

    def has_written(self, text: str) -> bool:
        """Tell whether a text is in the container's log."""
        return text in Path(self.pod.log_directory, self.container.log_path).read_text()

    def pids(self, containerd: Containerd) -> tuple[int, int]:
        """Ask containerd for the process ids of both."""
        with cri.CriClient(containerd.socket) as direct:
            return pids(direct, self.pod_id, self.container_id)


def run(node: Node) -> Running:
    """Run a pod with a container, and wait until it listens to signals."""
    pod, container = rich_pod(node.engine), rich_container()
    container.command[:] = ("/bin/sh", "-c", DEAF)
    with node.client() as client:
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, container, pod)
        client.start(container_id)
    made = Running(pod, container, pod_id, container_id)
    wait_until(lambda: made.has_written(READY), "the container runs")
    node.told()
    return made


def fails(call: Future[Any]) -> None:
    """Wait for the end of a call that loses its containerd."""
    with pytest.raises(grpc.RpcError) as raised:
        call.result(WAIT_SECONDS)
    assert raised.value.code() == grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def node(containerd: Containerd, tmp_path: Path) -> Iterator[Node]:
    with containerd.restored(), running(containerd, tmp_path) as made:
        yield made


@pytest.fixture
def caller() -> Iterator[ThreadPoolExecutor]:
    """Lend a thread for a call that is under way."""
    with ThreadPoolExecutor(1) as thread:
        yield thread


def test_pods_that_outlive_containerd_are_told_of_as_before(node: Node, caller: ThreadPoolExecutor) -> None:
    """A stop is under way: the container has got its signal."""
    made = run(node)
    its_own = made.pids(node.engine)
    with node.client() as client:
        stop = caller.submit(client.stop, made.container_id, GRACE_SECONDS)
        wait_until(lambda: made.has_written(ASKED_TO_END), "containerd stops it")
        node.engine.kill()
        fails(stop)
    with node.client() as client:
        fails(caller.submit(client.version))
        assert answers(node.proxy.socket)
    node.engine.launch()
    assert made.pids(node.engine) == its_own
    assert node.told() == [], "it was not stopped"
    with node.client() as client:
        client.update(made.container_id, UPDATE)  # the first call, and nobody tries again
        end(client, made.pod_id, made.container_id)
    updated = told.of_container(made.pod, told.updated(made.container, UPDATE), made.container_id)
    assert node.told() == [
        ("PreUpdateContainerResources", updated),
        ("PostStopContainer", updated),
        ("PostStopPodSandbox", told.of_pod(made.pod)),
    ]


def test_a_create_that_containerd_did_not_live_to_see_is_not_sent_again(node: Node, caller: ThreadPoolExecutor) -> None:
    """The kubelet's next one is good."""
    pod, container = plain_pod(node.engine), rich_container()
    with node.client() as client:
        pod_id = client.run_pod(pod)
        node.engine.halt()
        create = caller.submit(client.create, pod_id, container, pod)
        wait_until(lambda: bool(node.hooks.calls_of("PreCreateContainer")), "the hook server is asked")
        node.engine.kill()
        fails(create)
    node.engine.launch()
    node.told()
    with node.client() as client:
        assert not [made for made in client.containers() if made.pod_sandbox_id == pod_id]
        container_id = client.create(pod_id, container, pod)
        assert node.told() == [("PreCreateContainer", told.of_container(pod, container))]
        end(client, pod_id, container_id)
        assert ("PostStopContainer", told.of_container(pod, container, container_id)) in node.told()
