"""The lists of a CRI runtime, read item by item: names and ids, and nothing else of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.call import Unreadable
from runtimeproxy.cri import listing
from runtimeproxy.model import ContainerInfo, PodInfo
from tests.amounts import examples
from tests.fakes import cri_pb2 as cri

PODS = cri.ListPodSandboxResponse(
    items=[
        cri.PodSandbox(
            id="p1",
            metadata=cri.PodSandboxMetadata(name="web", uid="u-1", namespace="shop", attempt=3),
            state=cri.SANDBOX_NOTREADY,
            labels={"app": "web"},
            annotations={"n": "1"},
            runtime_handler="runc",
        ),
        cri.PodSandbox(id="p2"),
    ]
)
CONTAINERS = cri.ListContainersResponse(
    containers=[
        cri.Container(
            id="c1",
            pod_sandbox_id="p1",
            metadata=cri.ContainerMetadata(name="main", attempt=2),
            state=cri.CONTAINER_EXITED,
            labels={"app": "web"},
        ),
        cri.Container(id="c2", pod_sandbox_id="p1"),
    ]
)


def test_pods_are_named_by_id_and_metadata() -> None:
    assert list(listing.pods(PODS.SerializeToString())) == [PodInfo("p1", "web", "u-1", "shop", 3), PodInfo("p2")]


def test_containers_are_named_by_id_pod_and_metadata() -> None:
    found = list(listing.containers(CONTAINERS.SerializeToString()))
    assert found == [ContainerInfo("c1", "p1", "main", 2), ContainerInfo("c2", "p1")]


def test_an_empty_list_has_no_items() -> None:
    assert list(listing.pods(b"")) == list(listing.containers(b"")) == []


def test_what_nobody_knows_yet_is_passed_over() -> None:
    more = b"\x12\x01x" + PODS.SerializeToString() + b"\x08\x07\xfa\x3e\x03new"
    assert [pod.id for pod in listing.pods(more)] == ["p1", "p2"]


def test_a_text_that_is_not_utf_8_where_nobody_looks_disturbs_nobody() -> None:
    label = b"\x42\x08\x0a\x01k\x12\x03\xff\xfe\xfd"
    item = CONTAINERS.containers[0].SerializeToString() + label
    assert [found.id for found in listing.containers(b"\x0a" + bytes((len(item),)) + item)] == ["c1"]


@pytest.mark.parametrize(
    "message", [b"\x0a", b"\x0a\x05\x0a", b"\x0a\x02\x0a\x07", b"\x0a\x03\x0a\x01\xff", b"\x0a\x00"]
)
def test_a_list_that_cannot_be_read(message: bytes) -> None:
    """It is cut, an item is cut, an id is no text, or an item has none."""
    with pytest.raises(Unreadable):
        list(listing.pods(message))
    with pytest.raises(Unreadable):
        list(listing.containers(message))


@settings(max_examples=examples())
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_unreadable(message: bytes) -> None:
    for read in (listing.pods, listing.containers):
        try:
            assert all(item.id for item in read(message))
        except Unreadable:
            pass


def test_an_item_is_read_when_it_is_asked_for() -> None:
    items = listing.pods(PODS.SerializeToString() + b"\x0a\x05")
    assert [next(items).id, next(items).id] == ["p1", "p2"]
    with pytest.raises(Unreadable):
        next(items)


def test_a_list_asks_for_all_or_for_one() -> None:
    wanted = cri.ListContainersRequest(filter=cri.ContainerFilter(id="c1"))
    assert cri.ListContainersRequest.FromString(listing.containers_request("c1")) == wanted
    assert cri.ListContainersRequest.FromString(listing.containers_request()) == cri.ListContainersRequest()
    assert cri.ListPodSandboxRequest.FromString(listing.pods_request()) == cri.ListPodSandboxRequest()
