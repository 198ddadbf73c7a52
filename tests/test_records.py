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


def test_a_created_container_is_kept_as_asked_and_as_it_is_and_its_pod_stays() -> None:
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
def test_what_no_hook_changed_is_kept_once(adjustment: Adjustment) -> None:
    pod = records.created_pod(Subject(PodRecord(POD, POD)), adjustment, "p1").pod
    assert pod.original is pod.effective
    container = records.container_of(records.created_container(subject(), adjustment, "c1"))
    assert container.original is container.effective


@pytest.mark.parametrize(
    ("kubelets", "runs", "said", "put_in"),
    [
        pytest.param("/kube", "/kube", None, None, id="nobody changed it"),
        pytest.param("/kube", "/hooked", None, "/hooked", id="the pod's hooks did"),
        pytest.param("/kube", "/kube", "/own", "/own", id="this call's hooks did"),
        pytest.param("/kube", "/hooked", "/own", "/own", id="this call's hooks come last"),
        pytest.param("", "/hooked", None, "/hooked", id="the kubelet named none"),
    ],
)
def test_the_parent_that_is_put_into_a_create(kubelets: str, runs: str, said: str | None, put_in: str | None) -> None:
    pod = PodRecord(replace(POD, cgroup_parent=kubelets), replace(POD, cgroup_parent=runs))
    assert records.parent_to_put_in(pod, Adjustment(cgroup_parent=said)) == put_in


ASKED_POD = PodInfo(name="web", uid="u-1", labels={"qos": "BE"}, annotations={"n": "1"}, cgroup_parent="/kube/u-1")
"""What a container's create repeats of POD."""
HOOKED_POD = replace(POD, labels={"qos": "LS", "h": "1"}, annotations={"n": "1", "m": "2"}, cgroup_parent="/hooked")


@pytest.mark.parametrize(
    ("pod", "asked", "original", "effective"),
    [
        pytest.param(PodRecord(POD, POD), None, POD, POD, id="it tells nothing"),
        pytest.param(PodRecord(POD, POD), PodInfo(), POD, POD, id="it tells no names and no parent"),
        pytest.param(
            PodRecord(POD, POD),
            PodInfo(cgroup_parent="/new"),
            replace(POD, cgroup_parent="/new"),
            replace(POD, cgroup_parent="/new"),
            id="Docker tells a parent alone",
        ),
        pytest.param(
            PodRecord(POD, POD),
            replace(ASKED_POD, labels={}, annotations={"n": "2"}),
            replace(POD, labels={}, annotations={"n": "2"}),
            replace(POD, labels={}, annotations={"n": "2"}),
            id="the kubelet's newest word",
        ),
        pytest.param(
            PodRecord(POD, HOOKED_POD),
            replace(ASKED_POD, labels={"qos": "LSR"}, annotations={"n": "2"}, cgroup_parent="/new"),
            replace(POD, labels={"qos": "LSR"}, annotations={"n": "2"}, cgroup_parent="/new"),
            replace(HOOKED_POD, annotations={"n": "2", "m": "2"}),
            id="under what hooks have set",
        ),
        pytest.param(
            PodRecord(replace(POD, cgroup_parent=None), replace(POD, cgroup_parent=None)),
            ASKED_POD,
            POD,
            POD,
            id="an unknown parent is filled",
        ),
        pytest.param(
            PodRecord(replace(POD, cgroup_parent=None), replace(POD, cgroup_parent="/hooked")),
            ASKED_POD,
            POD,
            replace(POD, cgroup_parent="/hooked"),
            id="an unknown parent that a hook has set",
        ),
        pytest.param(
            PodRecord(replace(POD, cgroup_parent=None), replace(POD, cgroup_parent=None), read=True),
            ASKED_POD,
            POD,
            POD,
            id="read, and its parent is unknown",
        ),
        pytest.param(
            PodRecord(HOOKED_POD, HOOKED_POD, read=True),
            ASKED_POD,
            POD,
            replace(HOOKED_POD, labels={"qos": "BE", "h": "1"}),
            id="read: what the kubelet does not name may be a hook's",
        ),
        pytest.param(
            PodRecord(POD, POD, read=True),
            replace(ASKED_POD, cgroup_parent="/kube.slice/u_1.slice"),
            replace(POD, cgroup_parent="/kube.slice/u_1.slice"),
            replace(POD, cgroup_parent="/kube.slice/u_1.slice"),
            id="read, and the node's cgroup driver is another one now",
        ),
        pytest.param(
            PodRecord(POD, HOOKED_POD),
            replace(ASKED_POD, uid="u-2", cgroup_parent=""),
            PodInfo("p1", "web", "u-2", labels={"qos": "BE"}, annotations={"n": "1"}),
            PodInfo("p1", "web", "u-2", labels={"qos": "BE"}, annotations={"n": "1"}),
            id="the id is another pod's now",
        ),
    ],
)
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


def test_what_went_ahead_of_a_start_is_the_runtimes_alone() -> None:
    made = records.prepared(subject(), {"cpu_shares": 2}, NO_ADJUSTMENT)
    container = records.container_of(made)
    assert container.original == CONTAINER
    assert container.effective == replace(CONTAINER, resources=replace(ASKED, cpu_shares=2))
    assert records.prepared(subject(), {}, NO_ADJUSTMENT) == subject()


# -- update ------------------------------------------------------------------------------------------------------------


HALVED = replace(CONTAINER, resources=replace(ASKED, cpu_shares=512))
"""The container as it runs after a hook has halved its shares."""


def test_hooks_of_an_update_are_told_the_kubelets_values_overlaid_by_the_request() -> None:
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


DIFFERING: list[tuple[str, ContainerInfo, Resources | None, Mapping[str, Any] | None, Mapping[str, ResourceValue]]] = [
    ("the hook says nothing", HALVED, Resources(cpu_shares=800), None, {}),
    ("an echo of what runs", CONTAINER, Resources(cpu_quota=5000), {}, {}),
    ("an echo of what does not run", HALVED, Resources(cpu_quota=5000), {}, {"cpu_shares": 1024}),
    ("an echo of what the request sets", HALVED, Resources(cpu_shares=800), {}, {}),
    ("a change", CONTAINER, Resources(cpu_quota=5000), {"cpu_quota": 9000}, {"cpu_quota": 9000}),
    ("a change to what runs already", HALVED, None, {"cpu_shares": 512}, {}),
    (
        "a change of what the request sets to what runs",
        HALVED,
        Resources(cpu_shares=800),
        {"cpu_shares": 512},
        {"cpu_shares": 512},
    ),
    (
        "two changes, in the order of names",
        CONTAINER,
        None,
        {"oom_score_adj": 1, "cpu_quota": -1},
        {"cpu_quota": -1, "oom_score_adj": 1},
    ),
    ("a cleared cpuset", CONTAINER, None, {"cpuset_cpus": ""}, {"cpuset_cpus": ""}),
    (
        "a cleared cpuset that is clear",
        replace(CONTAINER, resources=replace(ASKED, cpuset_cpus="")),
        None,
        {"cpuset_cpus": ""},
        {},
    ),
    (
        "entries of maps",
        replace(CONTAINER, resources=replace(ASKED, unified={"a": "1"}, hugepage_limits={"2MB": 4})),
        Resources(unified={"b": "2"}),
        {"unified": {"a": "1", "b": "3", "c": "4"}, "hugepage_limits": {"2MB": 4}},
        {"unified": {"b": "3", "c": "4"}},
    ),
]
"""Name, how the container runs, what is asked for, what a whole echo is changed in (None: no answer), what differs."""


@pytest.mark.parametrize(
    ("runs", "asked", "changes", "differs"), [case[1:] for case in DIFFERING], ids=[case[0] for case in DIFFERING]
)
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


def test_a_confirmed_value_that_another_one_owns_is_left_alone() -> None:
    owned = ContainerRecord(CONTAINER, HALVED, (("cpu_shares", "one"),))
    known = Subject(PodRecord(POD, POD), owned)
    for plugin, differs in (("two", {}), ("one", {"cpu_shares": 1024})):
        repeated = Adjustment(confirmed=frozenset({"cpu_shares"}), confirmers=frozenset({("cpu_shares", plugin)}))
        assert records.differing(known, AskedUpdate("c1", None), repeated) == differs


def test_what_an_update_wants_is_what_was_asked_under_what_was_put_in() -> None:
    asked = AskedUpdate("c1", Resources(cpu_shares=2, cpuset_cpus="0", unified={"a": "1"}))
    said = SaidUpdate(asked, {"cpu_shares": 5, "cpuset_cpus": "", "unified": {"b": "2"}})
    assert said.wanted == {"cpu_shares": 5, "unified": {"a": "1", "b": "2"}}
    container = records.container_of(records.updated(subject(), said, NO_ADJUSTMENT))
    resources = container.effective.resources
    assert resources == replace(ASKED, cpu_shares=5, unified={"a": "1", "b": "2"})
    assert container.original.resources == replace(ASKED, cpu_shares=2, cpuset_cpus="0", unified={"a": "1"})


def test_what_no_hook_has_a_part_in_is_kept_once_after_an_update() -> None:
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


def test_what_hooks_have_changed_is_named_without_its_value() -> None:
    hooked = replace(
        CONTAINER, envs={"A": "2"}, annotations={"a": "1", "b": "2"}, resources=replace(ASKED, cpu_shares=5)
    )
    assert records.hooked(subject(effective=hooked)) == ["annotations.b", "envs.A", "resources.cpu_shares"]
    assert records.hooked(subject()) == records.hooked(Subject(subject().pod)) == []
