"""What became of a call that the runtime has not answered, by what the runtime has now (relay-rules C3).

Owns what of the runtime's state shows that a call was carried out.
Must not know: how the runtime is asked, when, what follows.
Invariant: a call counts as done only if what it asked for is so; all else is not known yet, so it may be asked again.
"""

from collections.abc import Iterable, Mapping

from runtimeproxy import records
from runtimeproxy.call import DONE, GONE, NOT_DONE, UNANSWERED, Reply
from runtimeproxy.cri import api_pb2
from runtimeproxy.hookpoints import Operation
from runtimeproxy.model import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Resources, ResourceValue
from runtimeproxy.store import Store

_PODS_DONE = {
    Operation.STOP_POD_SANDBOX: frozenset({api_pb2.SANDBOX_NOTREADY}),
    Operation.REMOVE_POD_SANDBOX: frozenset(),
}
_CONTAINERS_DONE = {
    Operation.START_CONTAINER: frozenset({api_pb2.CONTAINER_RUNNING, api_pb2.CONTAINER_EXITED}),
    Operation.STOP_CONTAINER: frozenset({api_pb2.CONTAINER_EXITED}),
    Operation.REMOVE_CONTAINER: frozenset(),
}
"""The states in which a call of this kind was carried out."""


def of_pod(operation: Operation, state: api_pb2.PodSandboxState | None) -> Reply:
    """Tell of a stop or a remove by the pod's state; None if there is no such pod."""
    if state is None:
        return GONE
    return DONE if state in _PODS_DONE[operation] else UNANSWERED


def of_container(operation: Operation, state: api_pb2.ContainerState | None) -> Reply:
    """Tell of a start, a stop or a remove by the container's state; None if there is no such container."""
    if state is None:
        return NOT_DONE if operation is Operation.START_CONTAINER else GONE
    return DONE if state in _CONTAINERS_DONE[operation] else UNANSWERED


def of_run_pod(asked: PodInfo, listed: Iterable[PodInfo], store: Store) -> Reply:
    """Tell of a RunPodSandbox by all pods that there are. Raises Unreadable."""
    for pod in listed:
        if records.same_pod(pod, asked):
            return _made(pod.id, store.pod(pod.id))
    return UNANSWERED


def of_create(asked: ContainerInfo, listed: Iterable[ContainerInfo], store: Store) -> Reply:
    """Tell of a CreateContainer by its pod's containers. Raises Unreadable."""
    for container in listed:
        if records.same_container(container, asked):
            return _made(container.id, store.container(container.id))
    return UNANSWERED


def _made(new_id: str, known: PodRecord | ContainerRecord | None) -> Reply:
    """Tell of what was made, by this call or by an earlier one."""
    if records.made_earlier(known):
        return NOT_DONE
    return Reply(agreed=True, message=api_pb2.Identified(id=new_id).SerializeToString())


def of_update(container: ContainerInfo | None, wanted: Mapping[str, ResourceValue]) -> Reply:
    """Tell of an UpdateContainerResources by the container as it is."""
    if container is None:
        return NOT_DONE
    return DONE if records.holds(container.resources, wanted) else UNANSWERED


def of_pod_update(pod: PodInfo | None, overhead: Resources | None, resources: Resources | None) -> Reply:
    """Tell of an UpdatePodSandboxResources by the pod as it is."""
    if pod is None:
        return NOT_DONE
    same = (overhead or pod.overhead, resources or pod.resources) == (pod.overhead, pod.resources)
    return DONE if same else UNANSWERED
