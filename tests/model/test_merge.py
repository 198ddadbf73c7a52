"""Answers of hook servers are validated and combined (hook-api, "What an answer means").

Conflicts: hook-api, "Order and owners"; fault matrix H11. Bad values: hook-api, "Normal forms and checks"; fault matrix
H7, promise 3.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.model import fields
from runtimeproxy.model.fields import Adjustment, Conflict, ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources
from runtimeproxy.model.hookpoints import BY_NAME, HOOK_POINTS, HookPoint, Part, Stage, SubjectKind
from runtimeproxy.model.merge import applicable, applied, combine, difference, echo, validated
from tests.merge_cases import BAD, GOOD, NUMBERS, SENT, TIDY, of

RUN_POD, CREATE, START = (BY_NAME[name] for name in ("PreRunPodSandbox", "PreCreateContainer", "PreStartContainer"))
UPDATE = BY_NAME["PreUpdateContainerResources"]

Message = Resources | None
LABELS, NOTES, ENVS = {"app": "web"}, {"qos": "LS"}, {"PATH": "/bin", "EMPTY": ""}
POD = PodInfo("p1", "web", labels=LABELS, annotations=NOTES, cgroup_parent="/kubepods/pod1", resources=SENT)
CONTAINER = ContainerInfo("c1", "p1", "main", annotations={"hash": "1"}, resources=SENT, envs=ENVS)
POD_REQUEST, REQUEST = HookRequest(POD), HookRequest(POD, CONTAINER)
PLAIN = HookRequest(PodInfo(cgroup_parent="/pod"), ContainerInfo())
REQUESTS = pytest.mark.parametrize("sent", [POD_REQUEST, REQUEST], ids=["pod", "container"])


def changes(hook_point: HookPoint, request: HookRequest, answer: HookAnswer) -> Adjustment:
    return applicable(hook_point, difference(request, answer))


def querying(resources: Message) -> HookRequest:
    return HookRequest(POD, replace(CONTAINER, resources=resources))


CPUSETS: dict[str, Any] = {"cpuset_cpus": "0-3", "cpuset_mems": "0"}
RESOURCES: dict[str, tuple[Message, Message, Mapping[str, Any]]] = {
    "no message": (SENT, None, {}),
    "whole echo": (SENT, SENT, {}),
    "empty message": (SENT, Resources(), {}),
    # partial: a number that was sent is missing
    "partial: one number": (SENT, Resources(cpu_quota=-1), {"cpu_quota": -1}),
    "partial: a number that was not sent": (SENT, Resources(oom_score_adj=-998), {"oom_score_adj": -998}),
    "partial: the same number": (SENT, Resources(cpu_quota=50_000), {}),
    "partial: three of four numbers": (SENT, Resources(**{**NUMBERS, "cpu_quota": 0}), {}),
    "partial: huge page size of 0": (SENT, Resources(hugepage_limits={"4MB": 0}), {"hugepage_limits": {"4MB": 0}}),
    "partial: one unified key": (SENT, Resources(unified={"io.max": "x"}), {"unified": {"io.max": "x"}}),
    # echo: every number that was sent is there
    "echo: changed number": (SENT, Resources(**{**NUMBERS, **CPUSETS, "cpu_quota": -1}), {"cpu_quota": -1}),
    "echo: both cpusets cleared": (SENT, Resources(**NUMBERS), {"cpuset_cpus": "", "cpuset_mems": ""}),
    "echo: map keys not named stay": (SENT, replace(SENT, hugepage_limits={}, unified={}), {}),
    "echo: map key changed": (SENT, replace(SENT, unified={"memory.high": "1"}), {"unified": {"memory.high": "1"}}),
    # nothing sent by which an echo is known: every answer is partial
    "no number sent: cpuset stays": (Resources(cpuset_cpus="0-3"), Resources(cpu_quota=-1), {"cpu_quota": -1}),
    "no message sent": (None, Resources(cpu_shares=1024), {"cpu_shares": 1024}),
}
"""Resources sent, resources answered, fields changed."""


@pytest.mark.parametrize(("sent", "answered", "expected"), RESOURCES.values(), ids=RESOURCES)
def test_answer_changes_resources_by_echo_rules(sent: Message, answered: Message, expected: Mapping[str, Any]) -> None:
    assert changes(UPDATE, querying(sent), HookAnswer(resources=answered)).resources == expected


ENTRIES = {"hugepage_limits.1GB", "hugepage_limits.2MB", "unified.memory.high"}
NOT_SENT = {"oom_score_adj", "memory_swap_limit_in_bytes"}
ALL_CONFIRMED = {*fields.RESOURCE_FIELDS, *ENTRIES} - fields.MAP_FIELDS - NOT_SENT
CONFIRMED: list[tuple[Message, set[str]]] = [
    *[(None, set()), (Resources(), set()), (SENT, ALL_CONFIRMED)],
    *[(Resources(cpu_quota=50_000), {"cpu_quota"}), (Resources(cpu_quota=50_001), set())],
    (Resources(cpu_quota=-1, cpu_shares=512, cpuset_mems="0"), {"cpu_shares", "cpuset_mems"}),
    (Resources(unified={"memory.high": "max", "memory.min": "1"}), {"unified.memory.high"}),
    (Resources(unified={"memory.high": "1"}), set()),
]


def test_repeated_value_is_confirmed() -> None:
    for answered, confirmed in CONFIRMED:
        change = changes(UPDATE, REQUEST, HookAnswer(resources=answered))
        assert (change.confirmed, confirmed & change.resources.keys()) == (confirmed, set()), answered


@pytest.mark.parametrize(("name", "odd", "normal"), TIDY)
def test_odd_value_is_applied_in_normal_form(name: str, odd: Any, normal: Any) -> None:
    """If its normal form is empty it is not set: it clears nothing, and does not count as repeated."""
    sent = replace(SENT, cpuset_cpus="4")
    for answered in (Resources(**{name: odd}), replace(sent, **{name: odd})):
        change = changes(UPDATE, querying(sent), HookAnswer(resources=answered))
        assert change.resources == ({name: normal} if normal else {})
        assert name not in change.confirmed
        assert validated(change, REQUEST) == (change, ())
    for repeated, confirmed in ((odd, {name}), (normal, {name} if normal else set())):
        before, after = (Resources(**{name: value}) for value in (repeated, odd))
        change = changes(UPDATE, querying(before), HookAnswer(resources=after))
        assert (change.resources, change.confirmed) == ({}, confirmed)


def test_map_entries_set_keys_and_delete_none() -> None:
    sent, answered = {"a": "1", "b": "2", "gone": "1", "e": ""}, {"a": "1", "b": "3", "c": "4", "d": "", "e": ""}
    expected = {"b": "3", "c": "4", "d": ""}
    pod = HookRequest(replace(POD, labels=sent, annotations=sent))
    container = HookRequest(POD, replace(CONTAINER, annotations=sent, envs=sent))
    answer = HookAnswer(labels=answered, annotations=answered, envs=answered)
    assert changes(RUN_POD, pod, answer) == Adjustment(labels=expected, annotations=expected)
    assert changes(CREATE, container, answer) == Adjustment(annotations=expected, envs=expected)
    encoded = HookRequest(POD, replace(CONTAINER, envs=fields.Envs(b"PATH", lambda raw: ENVS, {})))
    assert difference(encoded, HookAnswer(envs={"PATH": "/bin"})).envs == {}
    assert difference(encoded, HookAnswer(envs={"PATH": "", "N": "1"})).envs == {"PATH": "", "N": "1"}


PARENTS = [
    *[("/pod", None, "", None), ("/pod", None, "/pod", None), ("/pod", None, "/other", "/other")],
    *[("", None, "/other", "/other"), ("/pod", "", "/pod", None), ("/pod", "", "/other", "/other")],
    *[("/pod", "/mine", "/mine", None), ("/pod", "/mine", "/pod", "/pod"), ("/pod", "/mine", "", None)],
]


def test_answer_changes_cgroup_parent() -> None:
    for pods, containers, answered, expected in PARENTS:
        pod = replace(POD, cgroup_parent=pods)
        container = None if containers is None else replace(CONTAINER, cgroup_parent=containers)
        hook_point, answer = RUN_POD if container is None else CREATE, HookAnswer(cgroup_parent=answered)
        assert changes(hook_point, HookRequest(pod, container), answer).cgroup_parent == expected, (pods, containers)


@pytest.mark.parametrize("hook_point", HOOK_POINTS, ids=lambda hook_point: str(hook_point.name))
def test_answer_changes_only_applicable_parts(hook_point: HookPoint) -> None:
    answered, resources = {"new": "1"}, Resources(cpu_shares=2, cpu_quota=50_000)
    answer = HookAnswer(labels=answered, annotations=answered, envs=answered, cgroup_parent="/new", resources=resources)
    change = changes(hook_point, POD_REQUEST if hook_point.subject is SubjectKind.POD else REQUEST, answer)
    assert {part for part in Part if getattr(change, part.value) not in ({}, None)} == hook_point.applies
    assert change.confirmed == ({"cpu_quota"} if Part.RESOURCES in hook_point.applies else set())
    assert bool(change) is (hook_point.stage is Stage.PRE)
    assert (change.owners, change.conflicts) == ({}, ())


BAD_IDS = [f"{number}-{field}" for number, (field, _) in enumerate(BAD)]
TOGETHER = [("cpu_period", "cpu_quota"), ("memory_limit_in_bytes", "memory_swap_limit_in_bytes")]
PARTNERS = {field: partner for pair in TOGETHER for field, partner in (pair, pair[::-1])}


@REQUESTS
@pytest.mark.parametrize("answer", GOOD, ids=repr)
def test_valid_answer_is_unchanged(answer: HookAnswer, sent: HookRequest) -> None:
    change = difference(sent, answer)
    assert validated(change, sent)[0] is change
    assert validated(change, sent)[1] == ()


@REQUESTS
@pytest.mark.parametrize(("field", "answer"), BAD, ids=BAD_IDS)
def test_bad_value_is_dropped_and_named_by_field_and_rule(field: str, answer: HookAnswer, sent: HookRequest) -> None:
    good, (broken,) = validated(difference(sent, answer), sent)
    assert broken.field == field
    assert re.match(rf"{field}: .*must ", str(broken))
    assert not good


def test_cgroup_parent_must_be_slice_under_systemd() -> None:
    request = HookRequest(replace(POD, cgroup_parent="/kubepods.slice/pod1.slice"))
    assert validated(difference(request, HookAnswer(cgroup_parent="/pod2.slice")), request)[1] == ()
    for answered in ("/pod2", "/pods.slice/pod2"):
        good, (broken,) = validated(difference(request, HookAnswer(cgroup_parent=answered)), request)
        assert str(broken).startswith("cgroup_parent: must be a .slice where one was sent")
        assert good.cgroup_parent is None


def test_bad_map_entry_and_partner_of_bad_field_are_dropped() -> None:
    pages, unified = {"": 1, "2MB": 9}, {"": "1", "cpu.weight": "9"}
    envs = {"A=B": "x", "C": "", "=": "y", "D": "\0"}
    change = Adjustment(envs=envs, resources={"hugepage_limits": pages, "unified": unified})
    remaining = {"hugepage_limits": {"2MB": 9}, "unified": {"cpu.weight": "9"}}
    fields = ["envs", "envs", "resources.hugepage_limits", "resources.unified"]
    cases = [(change, Adjustment(envs={"C": ""}, resources=remaining), fields)]
    for bad, partner in PARTNERS.items():
        change = Adjustment(resources={bad: -7}, confirmed=frozenset({partner, "cpu_shares"}))
        cases.append((change, Adjustment(confirmed=frozenset({"cpu_shares"})), [f"resources.{bad}"]))
        change = Adjustment(resources={bad: -7, partner: 1000, "cpu_shares": 5})
        cases.append((change, Adjustment(resources={"cpu_shares": 5}), [f"resources.{bad}"]))
    for change, expected, names in cases:
        good, broken = validated(change, PLAIN)
        assert (good, [rule.field for rule in broken]) == (expected, names), "each rule is reported once"


def test_rule_texts_contain_no_value() -> None:
    answers = [HookAnswer(labels={"": "s3cr3t"}), HookAnswer(annotations={"": "s3cr3t"})]
    answers += [HookAnswer(envs={"PASSWORD=s3cr3t": ""}), HookAnswer(envs={"PASSWORD": "s3cr3t\0"})]
    answers += [HookAnswer(cgroup_parent="s3cr3t"), of(cpuset_cpus="s3cr3t"), of(unified={"": "s3cr3t"})]
    for answer in [*answers, of(oom_score_adj=777_777)]:
        _, (broken,) = validated(difference(PLAIN, answer), PLAIN)
        assert not re.search("s3cr3t|777777", str(broken))


def added(*plugins: Adjustment) -> Adjustment:
    """Return the sum of plugins' changes; the plugins are called 1, 2 and so on."""
    adjustment = fields.NO_ADJUSTMENT
    for number, change in enumerate(plugins, 1):
        adjustment = combine(adjustment, f"{number}", change)
    return adjustment


def test_owners_and_confirmed_fields_add_up() -> None:
    resources = {"cpu_quota": -1, "cpuset_cpus": "", "hugepage_limits": {"2MB": 1}, "unified": {"a": "9"}}
    maps: dict[str, Any] = {"labels": {"l": "1"}, "annotations": {"a": "1"}, "envs": {"E": "1"}}
    change = Adjustment(**maps, cgroup_parent="/x", resources=resources, confirmed=frozenset({"cpu_shares"}))
    of_resources = {"cpu_quota", "cpuset_cpus", "hugepage_limits.2MB", "unified.a"}
    names = {"labels.l", "annotations.a", "envs.E", "cgroup_parent", *(f"resources.{name}" for name in of_resources)}
    confirmers = frozenset({("cpu_shares", "1")})
    assert added(change) == replace(change, owners=dict.fromkeys(names, "1"), confirmers=confirmers)
    later = Adjustment(resources={"cpu_quota": -1}, confirmed=frozenset({"cpu_shares"}))
    both = added(Adjustment(confirmed=frozenset({"cpu_quota"})), later)
    assert (both.resources, both.confirmed) == ({"cpu_quota": -1}, {"cpu_quota", "cpu_shares"})
    assert (both.confirmers, both.conflicts) == ({("cpu_quota", "1"), ("cpu_shares", "2")}, ())
    three = added(*(Adjustment(envs={"E": value}) for value in "abc"))
    assert (three.envs, three.owners) == ({"E": "c"}, {"envs.E": "3"})
    assert three.conflicts == (Conflict("envs.E", "1", "2"), Conflict("envs.E", "2", "3"))
    assert combine(three, "3", Adjustment(envs={"E": "d"})).conflicts == three.conflicts


def sets(**resources: Any) -> Adjustment:
    return Adjustment(resources=resources)


SIZES, LATER_SIZES = {"2MB": 1, "1GB": 1}, {"2MB": 2, "4MB": 3}
PAGES, LATER_PAGES, ALL_PAGES = (sets(hugepage_limits=sizes) for sizes in (SIZES, LATER_SIZES, SIZES | LATER_SIZES))
A, B, BOTH = {"a": "1"}, {"b": "2"}, {"a": "1", "b": "2"}
TWO_PARTS, LATER_PARTS = Adjustment(labels=A, envs=A), Adjustment(cgroup_parent="/x", annotations=B)
PARENT, ALL_ENVS = Adjustment(cgroup_parent="/a"), Adjustment(envs=BOTH)
ALL_PARTS = Adjustment(A, B, A, "/x")
MERGES: list[tuple[Adjustment, Adjustment, Adjustment | None, tuple[str, ...]]] = [
    *[(Adjustment(labels=A), Adjustment(labels={"a": "2"}), None, ("labels.a",)), (PARENT, PARENT, None, ())],
    (Adjustment(annotations=A), Adjustment(annotations={"a": ""}), None, ("annotations.a",)),
    *[(Adjustment(envs=A), Adjustment(envs=A), None, ()), (Adjustment(envs=A), Adjustment(envs=B), ALL_ENVS, ())],
    *[(PARENT, Adjustment(cgroup_parent="/b"), None, ("cgroup_parent",)), (TWO_PARTS, Adjustment(), TWO_PARTS, ())],
    (sets(cpu_quota=-1, cpu_shares=2), sets(cpu_quota=1000, cpu_shares=2), None, ("resources.cpu_quota",)),
    (sets(cpuset_cpus="1"), sets(cpuset_cpus=""), None, ("resources.cpuset_cpus",)),
    (PAGES, LATER_PAGES, ALL_PAGES, ("resources.hugepage_limits.2MB",)),
    (sets(unified=A), sets(unified=B), sets(unified=BOTH), ()),
    *[(TWO_PARTS, LATER_PARTS, ALL_PARTS, ()), (LATER_PARTS, TWO_PARTS, ALL_PARTS, ())],
]
"""The changes of two plugins, their combination unless it equals the second, fields in conflict."""


def test_later_plugin_wins() -> None:
    for first, second, expected, conflicts in MERGES:
        both = added(first, second)
        assert replace(both, owners={}, conflicts=()) == (second if expected is None else expected)
        assert both.conflicts == tuple(Conflict(field, loser="1", winner="2") for field in conflicts)
        assert all(both.owners[field] == "2" for field in conflicts)


def test_adjustment_applies_to_pod_or_container_only() -> None:
    resources: dict[str, Any] = {"cpu_quota": -1, "cpuset_cpus": "", "unified": {"cpu.weight": "9"}}
    maps = {"labels": {"app": "2"}, "annotations": {"new": "1"}, "envs": {"NEW": "1"}}
    change = Adjustment(**maps, cgroup_parent="/x", resources=resources)
    limits = replace(SENT, cpu_quota=-1, cpuset_cpus="", unified={"memory.high": "max", "cpu.weight": "9"})
    notes, envs = {"new": "1"}, {**ENVS, "NEW": "1"}
    pod = replace(POD, labels={"app": "2"}, annotations=NOTES | notes, cgroup_parent="/x", resources=limits)
    assert applied(POD_REQUEST, change) == HookRequest(pod)
    own = replace(CONTAINER, annotations={"hash": "1"} | notes, envs=envs, cgroup_parent="/x", resources=limits)
    assert applied(REQUEST, change) == HookRequest(POD, own)


ANY_ANSWERS = st.lists(st.sampled_from([*GOOD, *(answer for _, answer in BAD)]), min_size=1, max_size=6)


@given(ANY_ANSWERS)
def test_echo_changes_nothing_and_is_never_bad(answers: list[HookAnswer]) -> None:
    """Of a request with any values, also with those that no hook server may set."""
    limits = {name: value for answer in answers for name, value in fields.named(answer.resources).items()}
    notes = {key: value for answer in answers for key, value in answer.annotations.items()}
    parts: dict[str, Any] = {"annotations": notes, "cgroup_parent": answers[0].cgroup_parent}
    parts |= {"resources": Resources(**limits) if limits else None}
    pod, container = PodInfo(labels=answers[0].labels, **parts), ContainerInfo(envs=answers[0].envs, **parts)
    for hook_point in (RUN_POD, CREATE, START, UPDATE):
        request = HookRequest(pod, None if hook_point is RUN_POD else container)
        answer = echo(request)
        assert validated(difference(request, answer), request)[1] == ()
        assert not changes(hook_point, request, answer)
        assert applied(request, changes(hook_point, request, answer)) == request
