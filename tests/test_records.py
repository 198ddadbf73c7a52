"""What a call makes of a record: the kubelet's values and the hooks' stay apart, whatever comes in which order."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy import records
from runtimeproxy.merge import difference
from runtimeproxy.model import (
    NO_ADJUSTMENT,
    Adjustment,
    ContainerInfo,
    ContainerRecord,
    HookAnswer,
    HookRequest,
    PodInfo,
    PodRecord,
    Resources,
    ResourceValue,
    Subject,
)
from runtimeproxy.records import AskedUpdate, SaidUpdate

POD = PodInfo(name="web", uid="u-1", labels={"qos": "BE"}, annotations={"n": "1"}, cgroup_parent="/kube/u-1")
ASKED = Resources(cpu_shares=1024, cpuset_cpus="0-3")
CONTAINER = ContainerInfo(id="c1", pod_id="p1", name="main", annotations={"a": "1"}, envs={"A": "1"}, resources=ASKED)


def subject(
    original: ContainerInfo = CONTAINER, effective: ContainerInfo | None = None, pod: PodRecord | None = None
) -> Subject:
    """Return a container with its pod; the effective values are the original ones unless they are given."""
    return Subject(pod or PodRecord(POD, POD), ContainerRecord(original, effective or original))


# -- what is told ------------------------------------------------------------------------------------------------------


def test_the_effective_values_are_told() -> None:
    hooked_pod, hooked = replace(POD, cgroup_parent="/hooked"), replace(CONTAINER, envs={"A": "2"})
    pod = PodRecord(POD, hooked_pod)
    assert records.told(Subject(pod)) == HookRequest(hooked_pod)
    assert records.told(subject(effective=hooked, pod=pod)) == HookRequest(hooked_pod, hooked)


def test_a_container_is_there_in_a_containers_call() -> None:
    whole = subject()
    assert records.container_of(whole) is whole.container
    with pytest.raises(AssertionError):
        records.container_of(Subject(whole.pod))


# -- create ------------------------------------------------------------------------------------------------------------


def test_a_created_pod_is_kept_as_asked_and_as_it_is() -> None:
    asked = Subject(PodRecord(POD, POD))
    made = records.created_pod(asked, Adjustment(labels={"l": "2"}, cgroup_parent="/hooked"), "p1")
    assert made.container is None
    assert made.pod.original == replace(POD, id="p1")
    assert made.pod.effective == replace(POD, id="p1", labels={"qos": "BE", "l": "2"}, cgroup_parent="/hooked")


def test_a_created_container_is_kept_as_asked_and_as_it_is() -> None:
    asked = subject(replace(CONTAINER, id=""))
    adjustment = Adjustment(
        envs={"B": "2"},
        annotations={"a": "3"},
        resources={"cpu_shares": 2},
        cgroup_parent="/own",
        owners={"resources.cpu_shares": "one"},
    )
    made = records.created_container(asked, adjustment, "c1")
    assert made.pod is asked.pod
    assert records.container_of(made).owners == (("cpu_shares", "one"),)
    assert records.container_of(made).original == CONTAINER
    assert records.container_of(made).effective == replace(
        CONTAINER,
        envs={"A": "1", "B": "2"},
        annotations={"a": "3"},
        resources=Resources(cpu_shares=2, cpuset_cpus="0-3"),
        cgroup_parent="/own",
    )


@pytest.mark.parametrize("adjustment", [NO_ADJUSTMENT, Adjustment(confirmed=frozenset({"cpu_shares"}))])
def test_a_record_that_no_hook_changed_is_kept_once(adjustment: Adjustment) -> None:
    pod = records.created_pod(Subject(PodRecord(POD, POD)), adjustment, "p1").pod
    assert pod.original is pod.effective
    container = records.container_of(records.created_container(subject(), adjustment, "c1"))
    assert container.original is container.effective


PARENTS: dict[str, tuple[str, str, str | None, str | None]] = {
    "nobody changed it": ("/kube", "/kube", None, None),
    "the pod's hooks did": ("/kube", "/hooked", None, "/hooked"),
    "this call's hooks did": ("/kube", "/kube", "/own", "/own"),
    "this call's hooks come last": ("/kube", "/hooked", "/own", "/own"),
    "the kubelet named none": ("", "/hooked", None, "/hooked"),
}


@pytest.mark.parametrize(("kubelets", "runs", "said", "put_in"), PARENTS.values(), ids=PARENTS)
def test_the_parent_that_is_put_into_a_create(kubelets: str, runs: str, said: str | None, put_in: str | None) -> None:
    pod = PodRecord(replace(POD, cgroup_parent=kubelets), replace(POD, cgroup_parent=runs))
    assert records.parent_to_put_in(pod, Adjustment(cgroup_parent=said)) == put_in


HOOKED_POD = replace(POD, labels={"qos": "LS", "h": "1"}, annotations={"n": "1", "m": "2"}, cgroup_parent="/hooked")


def at(parent: str | None, pod: PodInfo = POD, **fields: Any) -> PodInfo:
    return replace(pod, cgroup_parent=parent, **fields)


AS_KUBELET, AS_HOOKED, AS_READ = PodRecord(POD, POD), PodRecord(POD, HOOKED_POD), PodRecord(POD, POD, read=True)
UNKNOWN, SLICE = at(None), "/kube.slice/u_1.slice"
OTHER_POD = PodInfo("p1", "web", "u-2", labels={"qos": "BE"}, annotations={"n": "1"})
NEWEST = {"labels": {}, "annotations": {"n": "2"}}
IN_POD: dict[str, tuple[PodRecord, PodInfo | None, PodInfo, PodInfo]] = {
    "it tells nothing": (AS_KUBELET, None, POD, POD),
    "it tells no names and no parent": (AS_KUBELET, PodInfo(), POD, POD),
    "Docker tells a parent alone": (AS_KUBELET, PodInfo(cgroup_parent="/new"), at("/new"), at("/new")),
    "the kubelet's newest word": (AS_KUBELET, replace(POD, **NEWEST), replace(POD, **NEWEST), replace(POD, **NEWEST)),
    "under what hooks have set": (
        AS_HOOKED,
        at("/new", labels={"qos": "LSR"}, annotations={"n": "2"}),
        at("/new", labels={"qos": "LSR"}, annotations={"n": "2"}),
        replace(HOOKED_POD, annotations={"n": "2", "m": "2"}),
    ),
    "an unknown parent is filled": (PodRecord(UNKNOWN, UNKNOWN), POD, POD, POD),
    "an unknown parent that a hook has set": (PodRecord(UNKNOWN, at("/hooked")), POD, POD, at("/hooked")),
    "read, and its parent is unknown": (PodRecord(UNKNOWN, UNKNOWN, read=True), POD, POD, POD),
    "read: what the kubelet does not name may be a hook's": (
        PodRecord(HOOKED_POD, HOOKED_POD, read=True),
        POD,
        POD,
        replace(HOOKED_POD, labels={"qos": "BE", "h": "1"}),
    ),
    "read, and the node's cgroup driver is another one now": (AS_READ, at(SLICE), at(SLICE), at(SLICE)),
    "the id is another pod's now": (AS_HOOKED, at("", uid="u-2"), OTHER_POD, OTHER_POD),
}


@pytest.mark.parametrize(("pod", "asked", "original", "effective"), IN_POD.values(), ids=IN_POD)
def test_the_pod_of_a_container_that_is_created(
    pod: PodRecord, asked: PodInfo | None, original: PodInfo, effective: PodInfo
) -> None:
    known = PodRecord(replace(pod.original, id="p1"), replace(pod.effective, id="p1"), pod.read)
    made = records.in_pod(known, asked, CONTAINER)
    assert (made.pod.original, made.pod.effective) == (replace(original, id="p1"), replace(effective, id="p1"))
    assert made.pod.read is (pod.read and not made.renewed)
    assert made.renewed is (pod.read or (original, effective) != (pod.original, pod.effective))
    assert made.container == ContainerRecord(CONTAINER, CONTAINER)


@pytest.mark.parametrize(
    ("pods", "containers", "known"),
    [(None, "/kube", "/kube"), ("/hooked", "/kube", "/hooked"), ("", "/kube", ""), (None, "", None)],
)
def test_a_pod_runs_where_its_container_does_if_nobody_tells(
    pods: str | None, containers: str, known: str | None
) -> None:
    pod, container = replace(POD, cgroup_parent=pods), replace(CONTAINER, cgroup_parent=containers)
    read = records.was_read(PodRecord(pod, pod, read=True), ContainerRecord(container, container))
    assert (read.pod.original.cgroup_parent, read.pod.effective.cgroup_parent) == (known, known)
    assert (read.pod.read, read.renewed) == (True, pods != known)


# -- start -------------------------------------------------------------------------------------------------------------


def test_an_extra_update_is_in_the_runtimes_values_alone() -> None:
    made = records.prepared(subject(), {"cpu_shares": 2}, NO_ADJUSTMENT)
    container = records.container_of(made)
    assert container.original == CONTAINER
    assert container.effective == replace(CONTAINER, resources=replace(ASKED, cpu_shares=2))
    assert records.prepared(subject(), {}, NO_ADJUSTMENT) == subject()


# -- update ------------------------------------------------------------------------------------------------------------


HALVED = replace(CONTAINER, resources=replace(ASKED, cpu_shares=512))
"""The container as it runs after a hook has halved its shares."""


def test_hooks_of_an_update_are_told_the_kubelets_values() -> None:
    effective = replace(HALVED, annotations={"a": "hook"}, envs={"A": "hook"})
    asked = AskedUpdate("c1", Resources(memory_limit_in_bytes=5), {"n": "2"})
    told = records.told_of_update(subject(effective=effective), asked)
    assert told.pod == POD
    assert told.container == replace(
        effective,
        annotations={"a": "hook", "n": "2"},
        resources=replace(ASKED, memory_limit_in_bytes=5),
    )


def test_an_update_without_resources_of_a_container_without_any() -> None:
    bare = subject(replace(CONTAINER, resources=None))
    asked = AskedUpdate("c1", None)
    told = records.told_of_update(bare, asked)
    assert told == records.told(bare)
    assert records.differing(bare, asked, NO_ADJUSTMENT) == {}
    assert records.updated(bare, SaidUpdate(asked), NO_ADJUSTMENT) == bare


def held(**fields: Any) -> ContainerInfo:
    """Return a container that runs with other resources."""
    return replace(CONTAINER, resources=replace(ASKED, **fields))


CHANGED_MAPS = {"unified": {"a": "1", "b": "3", "c": "4"}, "hugepage_limits": {"2MB": 4}}
TWO = {"cpu_quota": -1, "oom_score_adj": 1}
DIFFERING: dict[str, tuple[ContainerInfo, Resources | None, Mapping[str, Any] | None, Mapping[str, ResourceValue]]] = {
    "the hook says nothing": (HALVED, Resources(cpu_shares=800), None, {}),
    "an echo of what runs": (CONTAINER, Resources(cpu_quota=5000), {}, {}),
    "an echo of what does not run": (HALVED, Resources(cpu_quota=5000), {}, {"cpu_shares": 1024}),
    "an echo of what the request sets": (HALVED, Resources(cpu_shares=800), {}, {}),
    "a change": (CONTAINER, Resources(cpu_quota=5000), {"cpu_quota": 9000}, {"cpu_quota": 9000}),
    "a change to what runs already": (HALVED, None, {"cpu_shares": 512}, {}),
    "a change of what is set to what runs": (HALVED, Resources(cpu_shares=8), {"cpu_shares": 512}, {"cpu_shares": 512}),
    "two changes, in the order of names": (CONTAINER, None, dict(reversed(TWO.items())), TWO),
    "a cleared cpuset": (CONTAINER, None, {"cpuset_cpus": ""}, {"cpuset_cpus": ""}),
    "a cleared cpuset that is clear": (held(cpuset_cpus=""), None, {"cpuset_cpus": ""}, {}),
    "entries of maps": (
        held(unified={"a": "1"}, hugepage_limits={"2MB": 4}),
        Resources(unified={"b": "2"}),
        CHANGED_MAPS,
        {"unified": {"b": "3", "c": "4"}},
    ),
}
"""How the container runs, what is asked for, what a whole echo is changed in (None: no answer), what differs."""


@pytest.mark.parametrize(("runs", "asked", "changes", "differs"), DIFFERING.values(), ids=DIFFERING)
def test_only_what_the_runtime_would_not_hold_is_put_into_an_update(
    runs: ContainerInfo,
    asked: Resources | None,
    changes: Mapping[str, Any] | None,
    differs: Mapping[str, ResourceValue],
) -> None:
    known, update = subject(effective=runs), AskedUpdate("c1", asked)
    told = records.told_of_update(known, update)
    assert told.container is not None
    assert told.container.resources is not None
    answer = HookAnswer(resources=None if changes is None else replace(told.container.resources, **changes))
    found = records.differing(known, update, difference(told, answer))
    assert found == differs
    assert list(found) == sorted(found)


def test_an_update_holds_what_was_put_in_over_what_was_asked() -> None:
    asked = AskedUpdate("c1", Resources(cpu_shares=2, cpuset_cpus="0", unified={"a": "1"}))
    said = SaidUpdate(asked, {"cpu_shares": 5, "cpuset_cpus": "", "unified": {"b": "2"}})
    container = records.container_of(records.updated(subject(), said, NO_ADJUSTMENT))
    resources = container.effective.resources
    assert resources == replace(ASKED, cpu_shares=5, unified={"a": "1", "b": "2"})
    assert container.original.resources == replace(ASKED, cpu_shares=2, cpuset_cpus="0", unified={"a": "1"})


def test_a_record_without_hooks_is_kept_once_after_an_update() -> None:
    asked = SaidUpdate(AskedUpdate("c1", Resources(cpu_shares=2), {"n": "2"}))
    container = records.container_of(records.updated(subject(), asked, NO_ADJUSTMENT))
    assert container.original is container.effective
    assert container.original == replace(
        CONTAINER, resources=replace(ASKED, cpu_shares=2), annotations={"a": "1", "n": "2"}
    )


def test_a_confirmed_value_of_a_container_without_resources_is_put_in() -> None:
    bare = subject(CONTAINER, replace(CONTAINER, resources=None))
    adjustment = Adjustment(confirmed=frozenset({"cpu_shares"}))
    assert records.differing(bare, AskedUpdate("c1", None), adjustment) == {"cpu_shares": 1024}
    nothing = subject(replace(CONTAINER, resources=None))
    assert records.differing(nothing, AskedUpdate("c1", None), adjustment) == {}


def test_hooked_fields_are_named_without_their_values() -> None:
    hooked = replace(
        CONTAINER, envs={"A": "2"}, annotations={"a": "1", "b": "2"}, resources=replace(ASKED, cpu_shares=5)
    )
    assert records.hooked(subject(effective=hooked)) == ["annotations.b", "envs.A", "resources.cpu_shares"]
    assert records.hooked(subject()) == records.hooked(Subject(subject().pod)) == []


# -- whose a field is, over time ---------------------------------------------------------------------------------------

BY_ONE = {"resources.cpu_shares": "one", "resources.cpuset_cpus": "one"}
SET_BY_ONE = Adjustment(resources={"cpu_shares": 512, "cpuset_cpus": "7", "unified": {"a": "1"}}, owners=BY_ONE)


def owned() -> Subject:
    """Return a container that hook server "one" set something of."""
    return records.created_container(subject(), SET_BY_ONE, "c1")


@pytest.mark.parametrize(
    ("confirmers", "taken_back"),
    [({"two"}, {}), ({"one"}, {"cpu_shares": 1024}), ({"one", "two"}, {"cpu_shares": 1024})],
)
def test_a_plugin_that_repeats_takes_back_only_what_it_set(
    confirmers: set[str], taken_back: dict[str, ResourceValue]
) -> None:
    repeated = Adjustment(
        confirmed=frozenset({"cpu_shares"}), confirmers=frozenset(("cpu_shares", name) for name in confirmers)
    )
    assert records.differing(owned(), AskedUpdate("c1", None), repeated) == taken_back


def test_the_owners_of_what_a_container_has_follow_what_is_set() -> None:
    def owners(made: Subject) -> dict[str, str]:
        return dict(records.container_of(made).owners)

    assert owners(owned()) == {"cpu_shares": "one", "cpuset_cpus": "one"}
    by_two = Adjustment(resources={"cpuset_cpus": "6"}, owners={"resources.cpuset_cpus": "two"})
    started = records.prepared(owned(), {"cpuset_cpus": "6"}, by_two)
    assert owners(started) == {"cpu_shares": "one", "cpuset_cpus": "two"}
    of_kubelet = SaidUpdate(AskedUpdate("c1", Resources(cpuset_cpus="1")))
    assert owners(records.updated(started, of_kubelet, NO_ADJUSTMENT)) == {"cpu_shares": "one"}
    taken_back = SaidUpdate(AskedUpdate("c1", None), {"cpu_shares": 1024})
    assert owners(records.updated(started, taken_back, NO_ADJUSTMENT)) == {"cpuset_cpus": "two"}


def test_an_update_keeps_the_kubelets_values_and_the_runtimes_apart() -> None:
    known = subject(effective=HALVED)
    asked = AskedUpdate("c1", Resources(cpu_shares=800, cpuset_cpus="0-1"), {"n": "2"})
    said = SaidUpdate(asked, {"cpu_shares": 400, "cpuset_cpus": ""}, {"hook": "3"})
    made = records.updated(known, said, Adjustment())
    assert made.pod is known.pod
    container = records.container_of(made)
    assert container.original == replace(
        CONTAINER, resources=replace(ASKED, cpu_shares=800, cpuset_cpus="0-1"), annotations={"a": "1", "n": "2"}
    )
    # "" was released in the place of the request's "0-1": in CRI that is "not set", so the runtime's stays.
    assert container.effective == replace(
        CONTAINER, resources=replace(ASKED, cpu_shares=400), annotations={"a": "1", "n": "2", "hook": "3"}
    )


def test_a_hook_that_scales_never_scales_twice() -> None:
    known = subject()
    for asked in (Resources(cpu_shares=1024), Resources(memory_limit_in_bytes=5), None, Resources(cpu_shares=1024)):
        update = AskedUpdate("c1", asked)
        told = records.told_of_update(known, update)
        assert told.container is not None
        assert told.container.resources is not None
        half = replace(told.container.resources, cpu_shares=told.container.resources.cpu_shares // 2)
        adjustment = difference(told, HookAnswer(resources=half))
        said = SaidUpdate(update, records.differing(known, update, adjustment))
        known = records.updated(known, said, adjustment)
        resources = records.container_of(known).effective.resources
        assert resources is not None
        assert resources.cpu_shares == 512
