"""ListPodSandbox and ListContainers: their requests, and their responses read item by item.

Owns the requests of the two lists and what is read of an item: only its ids and metadata.
Must not know: who asks, what a verbose status says (``status``).
Invariant: nothing but ``Unreadable`` is raised, whatever the bytes, and its text has none of them. An item is parsed
only when it is asked for: a list of 16 MiB does not block the event loop.
"""

from collections.abc import Iterator
from typing import TypeVar

from google.protobuf.message import Message

from runtimeproxy.core.call import Unreadable
from runtimeproxy.cri import api_pb2
from runtimeproxy.cri.translate import decode
from runtimeproxy.errors import WireError
from runtimeproxy.model.values import ContainerInfo, PodInfo
from runtimeproxy.wire import protobuf

ITEMS = 1
"""Number of the field with the items, in both responses."""

_M = TypeVar("_M", bound=Message)


def pods_request(pod_id: str = "") -> bytes:
    """Make a ListPodSandboxRequest for all pods, or for one. Its filter has the id in the same field as
    ListContainersRequest, so the two are the same bytes.
    """
    return containers_request(pod_id)


def containers_request(container_id: str = "") -> bytes:
    """Make a ListContainersRequest for all containers, or for one."""
    if not container_id:
        return b""
    return api_pb2.ListContainersRequest(filter=api_pb2.ContainerFilter(id=container_id)).SerializeToString()


def pods(message: bytes) -> Iterator[PodInfo]:
    """Yield the pods of a ListPodSandboxResponse, with ids and metadata. Raises Unreadable."""
    for item in _items(api_pb2.PodSandbox, message):
        meta = item.metadata
        yield PodInfo(_id(item.id), meta.name, meta.uid, meta.namespace, meta.attempt)


def containers(message: bytes) -> Iterator[ContainerInfo]:
    """Yield the containers of a ListContainersResponse, with ids, pod ids and metadata. Raises Unreadable."""
    for item in _items(api_pb2.Container, message):
        yield ContainerInfo(_id(item.id), item.pod_sandbox_id, item.metadata.name, item.metadata.attempt)


def _items(kind: type[_M], message: bytes) -> Iterator[_M]:
    try:
        for field in protobuf.fields(message):
            if field.number == ITEMS and field.wire_type == protobuf.LENGTH_DELIMITED:
                yield decode(kind, message[field.value_start : field.end])
    except WireError as error:
        raise Unreadable(str(error)) from None


def _id(text: str) -> str:
    if not text:
        raise Unreadable("list with an item without an id")
    return text
