"""Pods that run on a real engine while the proxy is killed: what a hook server is told of them after, and before.

Owns the pods' lives, with a hook server's changes, and the comparison.
Must not know: which engine it is.
Invariant: every message after a kill is about what an earlier proxy has seen made.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from runtimeproxy.hookapi import api_pb2
from tests.amounts import REAL_RESTARTED_PODS
from tests.fakes import hookanswers
from tests.fakes.cri_pb2 import ContainerConfig, LinuxContainerResources, PodSandboxConfig
from tests.system.node import CPU, Hooked, end
from tests.system.proxy import wait_until

COMPLETE = "the runtime's state is known"
UPDATE = LinuxContainerResources(cpu_quota=40_000)


class Kubelet(Protocol):
    """What is asked alike of a client of CRI and of one of dockerd."""

    def run_pod(self, config: PodSandboxConfig) -> str: ...
    def create(self, pod_id: str, config: ContainerConfig, pod: PodSandboxConfig) -> str: ...
    def start(self, container_id: str) -> None: ...
    def update(self, container_id: str, resources: LinuxContainerResources) -> None: ...
    def stop(self, container_id: str) -> None: ...
    def remove(self, container_id: str) -> None: ...
    def stop_pod(self, pod_id: str) -> None: ...
    def remove_pod(self, pod_id: str) -> None: ...
    def pods(self) -> list[Any]: ...


N = TypeVar("N", bound=Hooked)


def _changed(response: Any) -> None:
    response.container_envs.update({"LEVEL": "hooked", "NEW": "1"})
    response.container_annotations["hook"] = "hooked"
    response.container_resources.cpu_shares //= 2
    response.container_resources.cpuset_cpus = CPU


def _kill(node: Hooked) -> None:
    """Kill the proxy, start it again, and wait until it knows what there is."""
    node.proxy.kill()
    written = len(node.proxy.output())
    node.proxy.start()
    wait_until(lambda: COMPLETE in node.proxy.output()[written:], "the state is read", node.proxy.output)
    node.told()


def compare(node: N, client: Kubelet, pod_of: Callable[[N, str], PodSandboxConfig], container: ContainerConfig) -> None:
    """Run pods through two kills of the proxy; ``pod_of`` makes a pod of a name."""
    node.hooks.on(
        "PreRunPodSandbox",
        hookanswers.reply(api_pb2.PodSandboxHookResponse(labels={"label": "hooked"}, annotations={"hook": "hooked"})),
    )
    node.hooks.on("PreCreateContainer", hookanswers.echo(_changed))
    made: list[tuple[str, str]] = []
    before: list[Any] = []
    for number in range(REAL_RESTARTED_PODS.now):
        pod = pod_of(node, f"pod-{number}")
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, container, pod)
        client.update(container_id, UPDATE)
        node.told()
        client.start(container_id)
        before.append(node.told()[-1][1])
        made.append((pod_id, container_id))
    assert before[0].container_envs["LEVEL"] == "hooked"
    assert before[0].container_resources.cpu_quota == UPDATE.cpu_quota
    _kill(node)
    for (_, container_id), message in zip(made, before, strict=True):
        client.stop(container_id)
        assert node.told() == [("PostStopContainer", message)]
    told = []
    for pod_id, _ in made:
        client.stop_pod(pod_id)
        told.append(node.told())
    assert [point for [(point, _)] in told] == ["PostStopPodSandbox"] * len(made)
    assert {message.labels["label"] for [(_, message)] in told} == {"hooked"}
    _kill(node)
    for (pod_id, container_id), seen in zip(made, told, strict=True):
        client.stop_pod(pod_id)
        assert node.told() == seen
        end(client, pod_id, container_id)
        node.told()
