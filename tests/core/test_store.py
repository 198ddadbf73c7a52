"""The Store returns the records that were committed, by their ids."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from runtimeproxy.core import store as module
from runtimeproxy.core.store import FULL_ID_LENGTH, Store
from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Resources, Subject
from runtimeproxy.model.originals import OriginalValues, original_values_of, write

Act = Callable[[Store], object]


def pod(pod_id: str, name: str = "web") -> PodRecord:
    return PodRecord(PodInfo(name=name), PodInfo(pod_id, name))


def container(container_id: str, pod_id: str, name: str = "main") -> ContainerRecord:
    return ContainerRecord(ContainerInfo("", pod_id, name), ContainerInfo(container_id, pod_id, name))


def of(container_id: str, pod_id: str) -> Subject:
    return Subject(pod(pod_id), container(container_id, pod_id))


@pytest.fixture
def store() -> Store:
    """Return a Store with two pods, of one and of two containers."""
    store = Store()
    for subject in (Subject(pod("p1")), Subject(pod("p2")), of("c1", "p1"), of("c2", "p2"), of("c3", "p2")):
        store.commit(subject)
    return store


def ids_of(store: Store, pod_id: str) -> list[str]:
    return [record.effective.id for record in store.containers_of(pod_id)]


def test_records_are_found_by_exact_id(store: Store) -> None:
    assert store.ids() == {"p1", "p2", "c1", "c2", "c3"}
    assert store.containers_of("p2") == (container("c2", "p2"), container("c3", "p2"))
    assert (store.pod("p1"), store.container("c1")) == (pod("p1"), container("c1", "p1"))
    for near in ("p", "P1", "p1 ", "p11", "", "c", "C1", "c11"):
        assert store.pod(near) is store.container(near) is None
    assert store.pod("c1") is store.container("p1") is None
    assert store.containers_of("p3") == ()


def test_later_commit_replaces_record_unless_identical(store: Store) -> None:
    stored, owner = store.container("c2"), store.pod("p2")
    assert owner is not None
    store.commit(Subject(owner, stored))
    store.commit(Subject(owner))
    assert (store.container("c2") is stored, store.pod("p2") is owner) == (True, True)
    store.commit(Subject(pod("p1", "renamed")))
    store.commit(Subject(pod("p1", "an older value"), container("c1", "p1", "other")))
    assert store.pod("p1") == pod("p1", "renamed"), "a container's commit leaves a known pod alone"
    assert (store.container("c1"), store.counts()) == (container("c1", "p1", "other"), (2, 3))


def test_record_without_id_is_refused(store: Store) -> None:
    before = store.snapshot()
    nameless = container("", "p9")
    for subject, kind in (
        (Subject(pod("")), "pod"),
        (Subject(pod("p9"), nameless), "container"),
        (Subject(pod(""), nameless), "container"),
    ):
        with pytest.raises(ValueError, match=f"{kind} record without an id"):
            store.commit(subject)
    assert store.snapshot() == before


def test_forget_drops_no_other_record(store: Store) -> None:
    """A pod's containers stay: no runtime reports what the kubelet requested for them where a hook replaced it."""
    before = store.snapshot()
    store.forget("x")
    store.forget("c2")
    assert (store.ids(), ids_of(store, "p2"), store.counts()) == ({"p1", "c1", "p2", "c3"}, ["c3"], (2, 2))
    store.forget("p2")
    assert (store.ids(), ids_of(store, "p2"), store.counts()) == ({"p1", "c1", "c3"}, ["c3"], (1, 2))
    assert [record.effective.id for record in before.pods + before.containers] == ["p1", "p2", "c1", "c2", "c3"]
    store.commit(Subject(pod(""), container("c3", "p1")))  # its pod could not be read
    assert (ids_of(store, "p1"), ids_of(store, "p2"), store.counts()) == (["c1", "c3"], [], (1, 2))
    store.tombstone("p2")
    assert store.counts() == (1, 2)


def test_pod_with_changed_cgroup_parent_is_recorded(store: Store) -> None:
    queried = pod("p3")
    moved = PodRecord(queried.original, replace(queried.effective, cgroup_parent="/elsewhere"))
    info, plain = PodInfo("p3", cgroup_parent="/kube"), PodInfo("p3")
    read = PodRecord(info, info, read=True)  # unknown whether its cgroup parent was changed
    changed = [bool(store.changed_parents)]
    for record in (moved, queried, read, PodRecord(plain, plain, read=True), moved):
        store.commit(Subject(record))
        changed.append(bool(store.changed_parents))
    store.forget("p3")
    assert [*changed, bool(store.changed_parents)] == [False, True, False, True, False, True, False]


def test_full_id_is_found_by_unambiguous_prefix() -> None:
    store = Store()
    for pod_id, container_id in (("pa1", "ca1"), ("pa2", "ca2"), ("pb", "cb")):
        store.commit(of(container_id, pod_id))
    full_ids = {"pb": "pb", "p": "p", "pa": "pa", "pa1": "pa1", "ca1": "ca1", "x": "x", "": ""}
    assert {text: store.full_pod_id(text) for text in full_ids} == full_ids
    assert [store.full_container_id(text) for text in ("c", "ca2", "pb")] == ["c", "ca2", "pb"]
    store.tombstone("pa2")
    assert (store.full_pod_id("pa"), store.full_container_id("ca")) == ("pa1", "ca1")
    longest = "a" * FULL_ID_LENGTH
    store.commit(Subject(pod(f"{longest}b")))
    assert (store.full_pod_id(longest[1:]), store.full_pod_id(longest)) == (f"{longest}b", longest)


def test_record_with_tombstone_is_not_stored(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for any_id in ("c1", "unknown"):
        store.tombstone(any_id)
    store.tombstone("p2")
    assert store.ids() == {"p1"}, "a pod is buried with its containers"
    destroyed = [of(any_id, "p1") for any_id in ("c1", "unknown")] + [of(any_id, "p2") for any_id in ("c2", "c3")]
    for subject in (*destroyed, Subject(pod("p2")), Subject(pod("unknown"))):
        store.commit(subject)
    assert store.ids() == {"p1"}
    store.commit(of("c4", "p2"))
    assert (store.pod("p2"), store.container("c4")) == (None, container("c4", "p2"))
    earlier = store.moment()
    for any_id in ("p2", "c1"):
        store.tombstone(any_id)
    store.commit(Subject(pod("p2")), earlier)
    assert store.pod("p2") is None
    store.commit(Subject(pod("p2"), container("c1", "p2")), store.moment())
    assert (store.pod("p2"), store.container("c1")) == (pod("p2"), container("c1", "p2")), "a later call has the id"
    monkeypatch.setattr(module, "MAX_TOMBSTONES", 2)
    store, ids = Store(), ("p1", "p2", "p3")
    for pod_id in ids:
        store.tombstone(pod_id)
    for pod_id in ids:
        store.commit(Subject(pod(pod_id)))
    assert store.ids() == {"p1"}, "the number of tombstones is bounded"


def test_watch_notes_commits_drops_and_invalidations(store: Store) -> None:
    """Until its context ends, also by an exception."""
    store.invalidate("nobody watches yet")
    with suppress(KeyError), store.watch() as watch, store.watch() as second:
        assert store.watches
        assert (watch.retained, watch.invalidated) == (set(), set())
        store.commit(Subject(pod("p3")))
        store.commit(of("c1", "p1"))
        for any_id in ("p2", "nothing"):
            store.forget(any_id)
        store.invalidate("changed")
        raise KeyError
    assert not store.watches
    store.commit(Subject(pod("p4")))
    assert watch.retained == second.retained == {"p3", "c1", "p1"}, "with the pods of containers"
    assert watch.invalidated == second.invalidated == {"p2", "nothing", "changed"}


REQUESTED_POD = PodInfo("p9", "web", labels={"app": "web"}, cgroup_parent="/kube")
HOOKED_POD = replace(REQUESTED_POD, labels={"app": "hooked"}, cgroup_parent="/else")
REQUESTED = ContainerInfo("c9", "p9", "main", resources=Resources(cpu_quota=200))
HOOKED = replace(REQUESTED, resources=Resources(cpu_quota=100))
MOVED, SCALED = PodRecord(REQUESTED_POD, HOOKED_POD), ContainerRecord(REQUESTED, HOOKED, (("cpu_quota", "scaler"),))
PLAIN_POD, PLAIN = PodRecord(REQUESTED_POD, REQUESTED_POD), replace(REQUESTED, id="c8")


def retained(record: PodRecord | ContainerRecord) -> OriginalValues:
    made = original_values_of(record)
    assert made is not None
    return made


class Hooked(Store):
    def __init__(self) -> None:
        super().__init__()
        self.notified: list[str] = []
        self.on_change = self.notified.append
        self.commit(Subject(MOVED, SCALED))
        self.commit(Subject(MOVED, ContainerRecord(PLAIN, PLAIN)))


CHANGES: list[tuple[Act, list[str]]] = [
    (lambda store: store.commit(Subject(PLAIN_POD)), ["p9"]),
    (lambda store: store.commit(Subject(MOVED, SCALED)), ["c9"]),
    (lambda store: store.commit(Subject(store.pod("p9"), store.container("c9"))), []),  # type: ignore[arg-type]
    *[(lambda store: store.tombstone("c9"), ["c9"]), (lambda store: store.tombstone("c8"), [])],
    *[(lambda store: store.tombstone("p9"), ["c9", "p9"]), (lambda store: store.drop("p9"), ["p9"])],
    *[(lambda store: store.drop("nobody"), []), (lambda store: store.forget("c9"), [])],
]


@pytest.mark.parametrize(("change", "expected"), CHANGES)
def test_store_reports_changes_of_original_values(change: Act, expected: list[str]) -> None:
    hooked = Hooked()
    assert (hooked.original_values("p9"), hooked.original_values("c9")) == (retained(MOVED), retained(SCALED))
    assert hooked.original_values("c8") is hooked.original_values("nobody") is None
    assert hooked.ids_of_originals() == set(), "it is in the records"
    change(hooked)
    assert hooked.notified == ["c9", "p9", *expected]


def test_forgotten_record_is_restored_with_original_values() -> None:
    """Unless it is dropped, or its subject is destroyed."""
    hooked = Hooked()
    for any_id in ("p9", "c9", "c8"):
        hooked.forget(any_id)
    assert (hooked.ids(), hooked.ids_of_originals()) == (set(), {"p9", "c9"})
    pod, container = hooked.read_pod(HOOKED_POD), hooked.read_container(HOOKED)
    assert (pod, pod.read, container, container.owners) == (MOVED, False, SCALED, SCALED.owners)
    hooked.forget("c9")
    assert hooked.read_container(HOOKED) == SCALED, "nobody has committed it yet"
    hooked.commit(Subject(pod, container))
    assert (hooked.ids_of_originals(), hooked.changed_parents) == (set(), {"p9"})
    assert hooked.read_pod(REQUESTED_POD) is hooked.pod("p9")
    assert hooked.read_container(REQUESTED) is hooked.container("c9")
    for any_id in ("p9", "c9"):
        hooked.forget(any_id)
    hooked.notified.clear()
    hooked.drop("c9")
    hooked.tombstone("p9")
    assert (hooked.ids_of_originals(), hooked.notified) == (set(), ["c9", "p9"])
    read = hooked.read_container(HOOKED)
    assert (read, read.read) == (ContainerRecord(HOOKED, HOOKED), True)


@pytest.mark.parametrize(("earlier", "listens"), [(None, True), (None, False), (SCALED, True)])
def test_originals_are_kept_without_record_unless_present(earlier: ContainerRecord | None, listens: bool) -> None:
    store, notified = Store(), list[str]()
    store.on_change = notified.append if listens else None
    if earlier is not None:
        store.keep({"c9": write(retained(earlier))})
    later = replace(SCALED, effective=replace(HOOKED, resources=Resources(cpu_quota=50)))
    store.keep_originals(later, 1)
    assert store.original_values("c9") == retained(earlier or later)
    assert notified == ["c9"] * (listens and earlier is None)
    store.tombstone("c9")
    for record, released in ((ContainerRecord(REQUESTED, REQUESTED), 9), (SCALED, 0)):
        store.keep_originals(record, released)
        assert store.ids_of_originals() == set(), "it is destroyed, or no hook changed it"


def test_loaded_originals_stay_until_record_is_committed() -> None:
    store, notified = Store(), list[str]()
    store.keep({"p9": write(retained(MOVED)), "c9": write(retained(SCALED)), "c8": b"broken"})
    assert (store.ids_of_originals(), store.original_values("c8")) == ({"p9", "c9", "c8"}, None)
    store.drop("c8")
    assert store.original_values("c9") == retained(SCALED)
    assert store.read_pod(HOOKED_POD) == MOVED
    store.on_change = notified.append
    store.commit(Subject(PLAIN_POD, store.read_container(HOOKED)))
    assert store.ids_of_originals() == set()
    assert notified == ["c9", "p9"], "of the pod there is nothing to keep any more"
