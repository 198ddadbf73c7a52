"""The record after a call: the kubelet's values and the hooks' stay separate, in any order of calls."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy.model import fields, merge
from runtimeproxy.model.fields import Adjustment, ContainerInfo, ContainerRecord, PodInfo, PodRecord, Resources, Subject
from runtimeproxy.model.merge import EffectiveUpdate, RequestedUpdate, difference

POD = PodInfo(name="web", uid="u-1", labels={"qos": "BE"}, annotations={"n": "1"}, cgroup_parent="/kube/u-1")
REQUESTED = Resources(cpu_shares=1024, cpuset_cpus="0-3")
CONTAINER = ContainerInfo("c1", "p1", "main", annotations={"a": "1"}, envs={"A": "1"}, resources=REQUESTED)
BARE = replace(CONTAINER, resources=None)
NOTHING = RequestedUpdate("c1", None)
ECHOED_SHARES = frozenset({"cpu_shares"})


def subject(original: ContainerInfo = CONTAINER, effective: ContainerInfo | None = None) -> Subject:
    """Return a container with its pod; the effective values are the original ones unless they are given."""
    return Subject(PodRecord(POD, POD), ContainerRecord(original, effective or original))


def running(**fields: Any) -> ContainerInfo:
    return replace(CONTAINER, resources=replace(REQUESTED, **fields))


HALVED = running(cpu_shares=512)


def test_unused_pod_resources_are_recorded_as_reported() -> None:
    """Also after later creates of containers: the runtime continues to report them."""
    pod = replace(POD, resources=Resources(cpu_quota=7))
    made = merge.created_pod(Subject(PodRecord(pod, pod)), fields.NO_ADJUSTMENT, "p1", {"cpu_shares": 2}).pod
    in_new = merge.in_pod(made, at("/new"), CONTAINER).pod
    unknown = replace(made, effective=replace(made.effective, cgroup_parent=None))
    in_read = merge.subject_of_read(unknown, ContainerRecord(CONTAINER, replace(CONTAINER, cgroup_parent="/k"))).pod
    for record in (made, in_new, in_read):
        assert record.reported == Resources(cpu_quota=7, cpu_shares=2)
        assert record.effective is not record.original, "it has values to keep"
    assert made.effective == replace(pod, id="p1")


PARENT = {"cgroup_parent"}
CHANGED = replace(running(cpu_shares=512, cpu_quota=5000), envs={"A": "1", "B": "2"}, annotations={"a": "1", "h": "1"})
OWNERS = (("cpu_quota", "one"), ("cpu_shares", "two"))
MADE = Subject(PodRecord(POD, POD), ContainerRecord(CONTAINER, CHANGED, OWNERS))
"""A container as a create requests it, with the changes of two hook servers."""


def test_repeated_create_has_reported_container() -> None:
    has = replace(running(cpu_shares=512), envs={"A": "0", "PATH": "/bin"})
    made = merge.as_reported(MADE, ContainerRecord(has, has, read=True))
    assert made.container == ContainerRecord(replace(CONTAINER, envs={"A": "1", "PATH": "/bin"}), has)
    assert merge.container_of(made).owners == (("cpu_shares", "two"),)
    assert merge.missing_fields(MADE, made) == {"envs.A", "envs.B", "annotations.h", "resources.cpu_quota"}


def memory(limit: int, swap: int) -> ContainerInfo:
    return running(memory_limit_in_bytes=limit, memory_swap_limit_in_bytes=swap)


SWAPS = [((8, 8), (9, 0), (9, 9)), ((8, 8), (9, 10), (9, 10)), ((8, 8), (0, 0), (0, 0)), ((0, 0), (9, 0), (9, 0))]
REPORTED = [
    # A runtime's report of a swap limit that equals the memory limit is read as not set.
    *[(memory(*requested), memory(*requested), memory(*has), memory(*made)) for requested, has, made in SWAPS],
    *[(CONTAINER, memory(*requested), memory(*has), memory(*made)) for requested, has, made in SWAPS],
    (memory(8, 8), memory(8, 9), memory(8, 0), memory(8, 8)),
    (CONTAINER, HALVED, BARE, CONTAINER),
]
"""A create's original and effective values, those that the runtime reports, those that are known then."""


def test_repeated_create_fills_unreported_resources() -> None:
    for original, effective, has, made in REPORTED:
        created = Subject(PodRecord(POD, POD), ContainerRecord(original, effective))
        reported = merge.as_reported(created, ContainerRecord(has, has, read=True))
        assert reported.container == ContainerRecord(original, made), (original, effective, has)


@pytest.mark.parametrize("parent", [None, "/kube/u-1", "/hooked"])
def test_repeated_create_has_reported_pod(parent: str | None) -> None:
    """Whether the kubelet's cgroup parent is that of a pod is unknown if it is not reported."""
    has = at(parent, id="p1", labels={"qos": "LS"})
    made = merge.as_reported(Subject(PodRecord(POD, HOOKED_POD)), PodRecord(has, has, read=True))
    assert made == Subject(PodRecord(POD if parent else UNKNOWN, has))
    assert not made.pod.read
    retained = merge.without_parent(Subject(PodRecord(POD, replace(HOOKED_POD, labels={"qos": "LS"}))))
    assert retained == PodRecord(POD, replace(HOOKED_POD, cgroup_parent=POD.cgroup_parent, labels={"qos": "LS"}))
    assert merge.without_parent(MADE) is MADE.container


SLICES = [
    *[("/a.slice/a-b.slice", "/a-b.slice", set()), ("/a.slice/a-b.slice", "/c.slice/a-b.slice", set())],
    *[("/a.slice/a-b.slice", "/a.slice/a-c.slice", PARENT), ("/a.slice/a-b.slice", "/a-b", PARENT)],
]


def test_slice_may_be_reported_with_another_path() -> None:
    """A container may have its own."""
    for requested, has, missing in SLICES:
        made, reported = (Subject(PodRecord(POD, at(parent))) for parent in (requested, has))
        assert merge.missing_fields(made, reported) == missing
    pod = PodRecord(POD, at("/kube.slice/kube-a.slice"))
    for has, missing in (("", PARENT), ("/hook.slice/hook-a.slice", set())):
        own = (replace(CONTAINER, cgroup_parent=parent) for parent in ("/hook-a.slice", has))
        made, reported = (Subject(pod, ContainerRecord(CONTAINER, info)) for info in own)
        assert merge.missing_fields(made, reported) == missing


@pytest.mark.parametrize("reports", [None, Resources(cpu_shares=3), REQUESTED])
@pytest.mark.parametrize("unused", [{}, {"cpu_shares": 3}])
def test_repeated_pod_has_resources_in_force(reports: Resources | None, unused: dict[str, Any]) -> None:
    """CRI-O reports none; those that the runtime reports and does not use are not in force."""
    overhead = Resources(cpu_shares=1)
    desired = replace(POD, overhead=overhead, resources=REQUESTED)
    made = merge.created_pod(Subject(PodRecord(desired, desired)), fields.NO_ADJUSTMENT, "p1", unused)
    has = replace(made.pod.original, overhead=None, resources=reports)
    pod = merge.as_reported(made, PodRecord(has, has, read=True)).pod
    assert pod.effective == replace(has, overhead=overhead, resources=REQUESTED if unused else reports or REQUESTED)
    assert pod.reported == (reports if unused else None)


def test_unhooked_record_is_one_object() -> None:
    queried = EffectiveUpdate(RequestedUpdate("c1", Resources(cpu_shares=2), {"n": "2"}))
    for adjustment in (fields.NO_ADJUSTMENT, Adjustment(confirmed=ECHOED_SHARES)):
        pod = merge.created_pod(Subject(PodRecord(POD, POD)), adjustment, "p1").pod
        made = merge.container_of(merge.created_container(subject(), adjustment, "c1"))
        updated = merge.container_of(merge.updated(subject(), queried, adjustment))
        assert all(record.original is record.effective for record in (pod, made, updated))
        assert updated.original == replace(running(cpu_shares=2), annotations={"a": "1", "n": "2"})


PARENTS = [
    *[("/kube", "/kube", None, None), ("/kube", "/hooked", None, "/hooked"), ("/kube", "/kube", "/own", "/own")],
    *[("/kube", "/hooked", "/own", "/own"), ("", "/hooked", None, "/hooked")],
]
"""The kubelet's and the pod's cgroup parent, that of this call's hooks, and the one to set."""


def test_create_gets_cgroup_parent_of_hooks() -> None:
    for kubelets, runs, text, put_in in PARENTS:
        pod = PodRecord(at(kubelets), at(runs))
        assert merge.cgroup_parent_to_set(pod, Adjustment(cgroup_parent=text)) == put_in, (kubelets, runs, text)


HOOKED_POD = replace(POD, labels={"qos": "LS", "h": "1"}, annotations={"n": "1", "m": "2"}, cgroup_parent="/hooked")


def at(parent: str | None, **fields: Any) -> PodInfo:
    return replace(POD, cgroup_parent=parent, **fields)


def of(resources: Resources) -> PodInfo:
    return replace(POD, resources=resources)


AS_KUBELET, AS_HOOKED, AS_READ = PodRecord(POD, POD), PodRecord(POD, HOOKED_POD), PodRecord(POD, POD, read=True)
UNKNOWN, SLICE = at(None), at("/kube.slice/u_1.slice")
REPLACING_POD = PodInfo("p1", "web", "u-2", labels={"qos": "BE"}, annotations={"n": "1"})
NEWEST, MOVED = replace(POD, labels={}, annotations={"n": "2"}), at("/new", labels={"qos": "X"}, annotations={"n": "2"})
UNDER_HOOKS = replace(HOOKED_POD, annotations={"n": "2", "m": "2"})
NOT_NAMED = replace(HOOKED_POD, labels={"qos": "BE", "h": "1"})
SMALL, LARGE = Resources(cpu_shares=100, cpu_quota=1000), Resources(cpu_shares=200, cpu_quota=2000)
FIVE = of(replace(SMALL, cpu_shares=5))
RESIZED = replace(POD, overhead=SMALL, resources=LARGE)
"""The pod after a resize: the newest sum, and an overhead."""
IN_POD: dict[str, tuple[PodRecord, PodInfo | None, PodInfo, PodInfo]] = {
    "it sets nothing": (AS_KUBELET, None, POD, POD),
    "it sets no names and no parent": (AS_KUBELET, PodInfo(), POD, POD),
    "Docker sets a parent alone": (AS_KUBELET, PodInfo(cgroup_parent="/new"), at("/new"), at("/new")),
    "the kubelet's newest values": (AS_KUBELET, NEWEST, NEWEST, NEWEST),
    "under what hooks have set": (AS_HOOKED, MOVED, MOVED, UNDER_HOOKS),
    "an unknown parent is filled": (PodRecord(UNKNOWN, UNKNOWN), POD, POD, POD),
    "an unknown parent that a hook has set": (PodRecord(UNKNOWN, at("/hooked")), POD, POD, at("/hooked")),
    "read, and its parent is unknown": (PodRecord(UNKNOWN, UNKNOWN, read=True), POD, POD, POD),
    "read: what is not named may be a hook's": (PodRecord(HOOKED_POD, HOOKED_POD, read=True), POD, POD, NOT_NAMED),
    "read, and the node's cgroup driver is another one now": (AS_READ, SLICE, SLICE, SLICE),
    "newest resources": (PodRecord(of(SMALL), of(SMALL)), RESIZED, RESIZED, RESIZED),
    "newest resources after a restart": (PodRecord(of(SMALL), of(SMALL), read=True), RESIZED, RESIZED, RESIZED),
    "newest under a hook's": (PodRecord(of(SMALL), FIVE), of(LARGE), of(LARGE), of(replace(LARGE, cpu_shares=5))),
    "no resources": (PodRecord(of(SMALL), of(SMALL)), POD, of(SMALL), of(SMALL)),
    "the id is another pod's now": (AS_HOOKED, at("", uid="u-2"), REPLACING_POD, REPLACING_POD),
}


@pytest.mark.parametrize(("pod", "queried", "original", "effective"), IN_POD.values(), ids=IN_POD)
def test_create_updates_pod(pod: PodRecord, queried: PodInfo | None, original: PodInfo, effective: PodInfo) -> None:
    record = PodRecord(replace(pod.original, id="p1"), replace(pod.effective, id="p1"), pod.read)
    made = merge.in_pod(record, queried, CONTAINER)
    assert (made.pod.original, made.pod.effective) == (replace(original, id="p1"), replace(effective, id="p1"))
    assert made.pod.read is (pod.read and not made.renewed)
    assert made.renewed is (pod.read or (original, effective) != (pod.original, pod.effective))
    assert made.container == ContainerRecord(CONTAINER, CONTAINER)


READ_PARENTS = [(None, "/kube", "/kube"), ("/hooked", "/kube", "/hooked"), ("", "/kube", ""), (None, "", None)]


@pytest.mark.parametrize(("pods", "containers", "expected"), READ_PARENTS)
def test_read_container_sets_unreported_cgroup_parent(pods: str | None, containers: str, expected: str | None) -> None:
    pod, container = replace(POD, cgroup_parent=pods), replace(CONTAINER, cgroup_parent=containers)
    read = merge.subject_of_read(PodRecord(pod, pod, read=True), ContainerRecord(container, container))
    assert (read.pod.original.cgroup_parent, read.pod.effective.cgroup_parent) == (expected, expected)
    assert (read.pod.read, read.renewed) == (True, pods != expected)


SHARES, QUOTA = Resources(cpu_shares=800), Resources(cpu_quota=5000)
MAPS: dict[str, Any] = {"unified": {"a": "1", "b": "3", "c": "4"}, "hugepage_limits": {"2MB": 4}}
WITH_MAPS = running(unified={"a": "1"}, hugepage_limits={"2MB": 4})
TWO = {"cpu_quota": -1, "oom_score_adj": 1}
CLEARED = {"cpuset_cpus": ""}
DIFFERING: dict[str, tuple[ContainerInfo, Resources | None, Mapping[str, Any] | None, Mapping[str, Any]]] = {
    "the hook says nothing": (HALVED, SHARES, None, {}),
    "an echo of what runs": (CONTAINER, QUOTA, {}, {}),
    "an echo of what does not run": (HALVED, QUOTA, {}, {"cpu_shares": 1024}),
    "an echo of what the request sets": (HALVED, SHARES, {}, {}),
    "a change": (CONTAINER, QUOTA, {"cpu_quota": 9000}, {"cpu_quota": 9000}),
    "a change to what runs already": (HALVED, None, {"cpu_shares": 512}, {}),
    "a change of what is set to what runs": (HALVED, SHARES, {"cpu_shares": 512}, {"cpu_shares": 512}),
    "two changes, in the order of names": (CONTAINER, None, dict(reversed(TWO.items())), TWO),
    "a cleared cpuset": (CONTAINER, None, CLEARED, CLEARED),
    "a cleared cpuset that is clear": (running(cpuset_cpus=""), None, CLEARED, {}),
    "entries of maps": (WITH_MAPS, Resources(unified={"b": "2"}), MAPS, {"unified": {"b": "3", "c": "4"}}),
}
"""The effective container, the request, the changes in a complete echo (None: no answer), the fields to add."""


def test_update_adds_only_fields_that_differ_in_runtime() -> None:
    for name, (runs, queried, changes, differs) in DIFFERING.items():
        container, update = subject(effective=runs), RequestedUpdate("c1", queried)
        notified = merge.update_hook_request(container, update)
        assert notified.container is not None
        assert notified.container.resources is not None
        resources = None if changes is None else replace(notified.container.resources, **changes)
        differing = merge.differing(container, update, difference(notified, fields.HookAnswer(resources=resources)))
        assert (differing, list(differing)) == (differs, sorted(differing)), name
    bare = subject(BARE)
    assert merge.update_hook_request(bare, NOTHING) == merge.hook_view(bare)
    assert merge.differing(bare, NOTHING, fields.NO_ADJUSTMENT) == {}
    assert merge.updated(bare, EffectiveUpdate(NOTHING), fields.NO_ADJUSTMENT) == bare
    repeated = Adjustment(confirmed=ECHOED_SHARES)
    assert merge.differing(bare, NOTHING, repeated) == {}
    assert merge.differing(subject(CONTAINER, BARE), NOTHING, repeated) == {"cpu_shares": 1024}


OF_KUBELET = running(unified={"a": "0", "b": "0"})
BY_ONE = {"resources.cpu_shares": "one", "resources.cpuset_cpus": "one", "resources.unified.a": "one"}
SET_BY_ONE = Adjustment(resources={"cpu_shares": 512, "cpuset_cpus": "7", "unified": {"a": "1"}}, owners=BY_ONE)
OWNED = merge.created_container(subject(OF_KUBELET), SET_BY_ONE, "c1")
TAKEN_BACK = {"cpu_shares": 1024, "unified": {"a": "0"}}
REPEATED = frozenset({"cpu_shares", "unified.a", "unified.b"})


def test_repeated_value_withdraws_only_own_changes() -> None:
    for confirmers, taken_back in (({"two"}, {}), ({"one"}, TAKEN_BACK), ({"one", "two"}, TAKEN_BACK)):
        by = frozenset((field, name) for name in confirmers for field in REPEATED)
        assert merge.differing(OWNED, NOTHING, Adjustment(confirmed=REPEATED, confirmers=by)) == taken_back
    assert merge.differing(OWNED, NOTHING, Adjustment(resources={"unified": {"b": "2"}})) == {"unified": {"b": "2"}}


MEMORY, SWAP = "memory_limit_in_bytes", "memory_swap_limit_in_bytes"


@pytest.mark.parametrize(("swap", "owners"), [(200, {MEMORY: "one", SWAP: "one"}), (100, {MEMORY: "one"})])
def test_swap_limit_has_owner_of_memory_limit(swap: int, owners: dict[str, str]) -> None:
    record = ContainerRecord(memory(100, 100), memory(200, swap), ((MEMORY, "one"),))
    assert merge.owners_of(record) == owners
    container = Subject(subject().pod, record)
    assert merge.hooked_fields(container) == {f"resources.{name}": owner for name, owner in owners.items()}
    assert merge.hooked_fields(Subject(container.pod)) == {}
    echo_by_two = Adjustment(confirmed=frozenset({SWAP}), confirmers=frozenset({(SWAP, "two")}))
    assert merge.differing(container, NOTHING, echo_by_two) == {}


def test_container_owners_follow_set_fields() -> None:
    by_two = Adjustment(resources={"cpuset_cpus": "6"}, owners={"resources.cpuset_cpus": "two"})
    started = merge.prepared(OWNED, {"cpuset_cpus": "6"}, by_two)
    of_kubelet = EffectiveUpdate(RequestedUpdate("c1", Resources(cpuset_cpus="1", unified={"b": "1"})))
    taken_back = EffectiveUpdate(NOTHING, {"cpu_shares": 1024, "unified": {"a": "0"}})
    updated, repeated = (merge.updated(started, update, fields.NO_ADJUSTMENT) for update in (of_kubelet, taken_back))
    assert [dict(merge.container_of(made).owners) for made in (OWNED, started, updated, repeated)] == [
        {"cpu_shares": "one", "cpuset_cpus": "one", "unified.a": "one"},
        {"cpu_shares": "one", "cpuset_cpus": "two", "unified.a": "one"},
        {"cpu_shares": "one", "unified.a": "one"},
        {"cpuset_cpus": "two"},
    ]
    for read in (True, False):
        container = Subject(subject().pod, replace(merge.container_of(subject()), read=read))
        started = merge.prepared(container, {"cpu_shares": 2}, fields.NO_ADJUSTMENT)
        updated = merge.updated(started, EffectiveUpdate(NOTHING), fields.NO_ADJUSTMENT)
        assert [merge.container_of(made).read for made in (started, updated)] == [read, read]
