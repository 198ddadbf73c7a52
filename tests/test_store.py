"""The Store keeps what was committed under its id, and nothing else."""

from dataclasses import replace

import pytest

from runtimeproxy.model import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Subject
from runtimeproxy.store import Store


def pod(pod_id: str, name: str = "web") -> PodRecord:
    info = PodInfo(id=pod_id, name=name)
    return PodRecord(PodInfo(name=name), info)


def container(container_id: str, pod_id: str, name: str = "main") -> ContainerRecord:
    info = ContainerInfo(id=container_id, pod_id=pod_id, name=name)
    return ContainerRecord(ContainerInfo(pod_id=pod_id, name=name), info)


@pytest.fixture
def store() -> Store:
    """Two pods, of one and of two containers."""
    store = Store()
    store.commit(Subject(pod("p1")))
    store.commit(Subject(pod("p2")))
    store.commit(Subject(pod("p1"), container("c1", "p1")))
    store.commit(Subject(pod("p2"), container("c2", "p2")))
    store.commit(Subject(pod("p2"), container("c3", "p2")))
    return store


def test_a_new_store_knows_nothing() -> None:
    store = Store()
    assert store.pod("p1") is None
    assert store.container("c1") is None
    assert store.containers_of("p1") == ()
    assert store.snapshot() == ((), ())
    assert store.counts() == (0, 0)


def test_records_are_found_by_their_exact_id(store: Store) -> None:
    assert store.pod("p1") == pod("p1")
    assert store.container("c1") == container("c1", "p1")
    for near in ("p", "P1", "p1 ", "p11", "", "c1"):
        assert store.pod(near) is None
    for near in ("c", "C1", "c11", "", "p1"):
        assert store.container(near) is None


def test_a_later_commit_replaces_the_record(store: Store) -> None:
    store.commit(Subject(pod("p1", "renamed")))
    store.commit(Subject(pod("p1", "an older value"), container("c1", "p1", "other")))
    assert store.pod("p1") == pod("p1", "renamed"), "a container's commit leaves a known pod alone"
    assert store.container("c1") == container("c1", "p1", "other")
    assert store.counts() == (2, 3)


def test_a_container_is_kept_without_its_pod_if_the_pod_has_no_id() -> None:
    store = Store()
    store.commit(Subject(pod(""), container("c1", "p1")))
    assert store.container("c1") == container("c1", "p1")
    assert store.counts() == (0, 1)


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        (Subject(pod("")), "pod record without an id"),
        (Subject(pod("p9"), container("", "p9")), "container record without an id"),
        (Subject(pod(""), container("", "")), "container record without an id"),
    ],
)
def test_a_record_without_an_id_is_refused_whole(store: Store, subject: Subject, text: str) -> None:
    before = store.snapshot()
    with pytest.raises(ValueError, match=text):
        store.commit(subject)
    assert store.snapshot() == before


def test_containers_of_a_pod_come_oldest_first(store: Store) -> None:
    assert store.containers_of("p2") == (container("c2", "p2"), container("c3", "p2"))
    assert store.containers_of("p1") == (container("c1", "p1"),)


def test_forgetting_a_pod_drops_its_containers_and_no_others(store: Store) -> None:
    store.forget_pod("p2")
    assert store.snapshot() == ((pod("p1"),), (container("c1", "p1"),))


def test_forgetting_a_pod_drops_its_containers_even_if_the_pod_is_not_known() -> None:
    store = Store()
    store.commit(Subject(pod(""), container("c1", "p1")))
    store.forget_pod("p1")
    assert store.counts() == (0, 0)


def test_forgetting_a_container_keeps_its_pod(store: Store) -> None:
    store.forget_container("c2")
    assert store.container("c2") is None
    assert store.pod("p2") == pod("p2")
    assert store.containers_of("p2") == (container("c3", "p2"),)


def test_forgetting_what_is_not_known_changes_nothing(store: Store) -> None:
    before = store.snapshot()
    store.forget_pod("nobody")
    store.forget_container("nothing")
    assert store.snapshot() == before


def test_a_snapshot_does_not_change_with_the_store(store: Store) -> None:
    before = store.snapshot()
    store.forget_pod("p1")
    assert before.pods == (pod("p1"), pod("p2"))
    assert [record.effective.id for record in before.containers] == ["c1", "c2", "c3"]
    assert store.counts().pods == 1
    assert store.counts().containers == 2


def test_it_tells_whether_a_hook_gave_any_pod_another_cgroup_parent(store: Store) -> None:
    asked = pod("p3")
    moved = PodRecord(asked.original, replace(asked.effective, cgroup_parent="/elsewhere"))
    assert not store.has_moved_pods
    store.commit(Subject(moved))
    assert store.has_moved_pods
    store.commit(Subject(asked))
    assert not store.has_moved_pods
    store.commit(Subject(moved))
    store.forget_pod("p3")
    assert not store.has_moved_pods
