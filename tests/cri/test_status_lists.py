"""The lists of a CRI runtime, read item by item: only ids and metadata."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.core.call import Unreadable
from runtimeproxy.cri import status
from runtimeproxy.model.fields import ContainerInfo, PodInfo
from tests.amounts import examples
from tests.fakes import cri_pb2 as cri

POD = cri.PodSandbox(
    id="p1",
    metadata=cri.PodSandboxMetadata(name="web", uid="u-1", namespace="shop", attempt=3),
    state=cri.SANDBOX_NOTREADY,
    labels={"app": "web"},
    annotations={"n": "1"},
    runtime_handler="runc",
)
CONTAINER = cri.Container(
    id="c1",
    pod_sandbox_id="p1",
    metadata=cri.ContainerMetadata(name="main", attempt=2),
    state=cri.CONTAINER_EXITED,
    labels={"app": "web"},
)
PODS = cri.ListPodSandboxResponse(items=[POD, cri.PodSandbox(id="p2")]).SerializeToString()
CONTAINERS = [CONTAINER, cri.Container(id="c2", pod_sandbox_id="p1")]


def test_pods_are_named_by_id_and_metadata() -> None:
    found = [PodInfo("p1", "web", "u-1", "shop", 3), PodInfo("p2")]
    unknown = b"\x12\x01x" + PODS + b"\x08\x07\xfa\x3e\x03new"
    assert list(status.pods(PODS)) == list(status.pods(unknown)) == found


def test_containers_are_named_by_id_pod_and_metadata() -> None:
    found = list(status.containers(cri.ListContainersResponse(containers=CONTAINERS).SerializeToString()))
    assert found == [ContainerInfo("c1", "p1", "main", 2), ContainerInfo("c2", "p1")]
    assert list(status.pods(b"")) == list(status.containers(b"")) == []


def test_text_that_is_not_utf_8_where_nobody_looks_disturbs_nobody() -> None:
    item = CONTAINER.SerializeToString() + b"\x42\x08\x0a\x01k\x12\x03\xff\xfe\xfd"  # a label
    assert [found.id for found in status.containers(b"\x0a" + bytes((len(item),)) + item)] == ["c1"]


@pytest.mark.parametrize(
    "message",
    [b"\x0a", b"\x0a\x05\x0a", b"\x0a\x02\x0a\x07", b"\x0a\x03\x0a\x01\xff", b"\x0a\x00"],
    ids=["cut", "an item is cut", "an id is cut", "an id is no text", "an item has no id"],
)
def test_list_that_cannot_be_read(message: bytes) -> None:
    for read in (status.pods, status.containers):
        with pytest.raises(Unreadable):
            list(read(message))


def test_item_is_read_when_it_is_asked_for() -> None:
    items = status.pods(PODS + b"\x0a\x05")
    assert [next(items).id, next(items).id] == ["p1", "p2"]
    with pytest.raises(Unreadable):
        next(items)


@settings(max_examples=examples())
@given(st.binary(max_size=60), st.sampled_from((status.pods, status.containers)))
def test_any_bytes_are_read_or_unreadable(message: bytes, read: Callable[[bytes], Iterable[Any]]) -> None:
    with suppress(Unreadable):
        assert all(item.id for item in read(message))


def test_list_asks_for_all_or_for_one() -> None:
    wanted = cri.ListContainersRequest(filter=cri.ContainerFilter(id="c1"))
    assert cri.ListContainersRequest.FromString(status.list_request("c1")) == wanted
    assert status.list_request() == b""
