"""Pods that run on a real engine while the proxy is killed: what a hook server is told of them after, and before.

Owns the pods' lives, with a hook server's changes, and the comparison.
Must not know: which engine it is.
Invariant: every message after a kill is about what an earlier proxy has seen made; nothing that runs ends with a proxy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from runtimeproxy.hookapi import api_pb2
from tests.amounts import REAL_RESTARTED_PODS
from tests.fakes import hookanswers
from tests.fakes.cri_pb2 import ContainerConfig, LinuxContainerResources, PodSandboxConfig
from tests.system.node import CPU, Hooked, end
from tests.system.node import Kubelet as Ending
from tests.system.proxy import STATE_KNOWN, wait_until

UPDATE = LinuxContainerResources(cpu_quota=40_000)


class Kubelet(Ending, Protocol):
    """What is asked alike of a client of CRI and of one of dockerd."""

    def run_pod(self, config: PodSandboxConfig) -> str: ...
    def create(self, pod_id: str, config: ContainerConfig, pod: PodSandboxConfig) -> str: ...
    def start(self, container_id: str) -> None: ...
    def update(self, container_id: str, resources: LinuxContainerResources) -> None: ...


N = TypeVar("N", bound=Hooked)
K = TypeVar("K", bound=Kubelet)


@dataclass(frozen=True, slots=True)
class Life:
    """A pod with a container that runs, and what a hook server is to be told of it by a later proxy.

    A stop tells what the start has told. An update tells the kubelet's own values, and no engine knows them any more
    where a hook has set others: those stand in their place.
    """

    pod_id: str
    container_id: str
    update: Any
    stop: Any


def _change(response: Any) -> None:
    response.container_envs.update({"LEVEL": "hooked", "NEW": "1"})
    response.container_annotations["hook"] = "hooked"
    _change_resources(response)


def _change_resources(message: Any) -> None:
    message.container_resources.cpu_shares //= 2
    message.container_resources.cpuset_cpus = CPU


def kill(node: Hooked) -> None:
    """Kill the proxy, start it again, and wait until it knows what there is."""
    node.proxy.kill()
    written = len(node.proxy.output())
    node.proxy.start()
    wait_until(lambda: STATE_KNOWN in node.proxy.output()[written:], "the state is read", node.proxy.output)
    node.told()


def _begin(node: Hooked, client: Kubelet, pod: PodSandboxConfig, container: ContainerConfig) -> Life:
    pod_id = client.run_pod(pod)
    container_id = client.create(pod_id, container, pod)
    node.told()
    client.update(container_id, UPDATE)
    client.start(container_id)
    (_, update), _, (_, started) = node.told()
    assert started.container_envs["LEVEL"] == "hooked"
    assert started.container_resources.cpu_quota == UPDATE.cpu_quota
    _change_resources(update)
    return Life(pod_id, container_id, update, started)


def compare(
    node: N,
    client: K,
    pod_of: Callable[[N, str], PodSandboxConfig],
    container: ContainerConfig,
    pids_of: Callable[[K, str, str], tuple[int, int]],
) -> None:
    """Run pods through two kills of the proxy.

    ``pod_of`` makes a pod of a name; ``pids_of`` asks the engine for the process ids of a pod and a container.
    """
    node.hooks.on(
        "PreRunPodSandbox",
        hookanswers.reply(api_pb2.PodSandboxHookResponse(labels={"label": "hooked"}, annotations={"hook": "hooked"})),
    )
    node.hooks.on("PreCreateContainer", hookanswers.echo(_change))
    names = [f"pod-{number}" for number in range(REAL_RESTARTED_PODS.now)]
    lives = [_begin(node, client, pod_of(node, name), container) for name in names]
    pids = [pids_of(client, life.pod_id, life.container_id) for life in lives]
    assert len({pid for both in pids for pid in both} - {0}) == 2 * len(lives)
    kill(node)
    assert [pids_of(client, life.pod_id, life.container_id) for life in lives] == pids
    for life in lives:
        client.update(life.container_id, UPDATE)
        client.stop(life.container_id)
        assert node.told() == [("PreUpdateContainerResources", life.update), ("PostStopContainer", life.stop)]
    told = []
    for life in lives:
        client.stop_pod(life.pod_id)
        told.append(node.told())
    assert [point for [(point, _)] in told] == ["PostStopPodSandbox"] * len(lives)
    assert {message.labels["label"] for [(_, message)] in told} == {"hooked"}
    kill(node)
    for life, seen in zip(lives, told, strict=True):
        client.stop_pod(life.pod_id)
        assert node.told() == seen
        end(client, life.pod_id, life.container_id)
        node.told()
