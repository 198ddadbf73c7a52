"""Answers of hook servers are judged and added up (hook-api, "What an answer means").

Two that set one field: hook-api, "Order and owners"; fault matrix H11. A bad value costs its own field or
entry alone: hook-api, "Normal forms and checks"; fault matrix H7, promise 3.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.hookpoints import BY_NAME, HOOK_POINTS, HookPoint, Part, Stage, SubjectKind
from runtimeproxy.merge import applied, by_field, combine, difference, echo, judged, limited
from runtimeproxy.model import (
    MAP_FIELDS,
    NO_ADJUSTMENT,
    RESOURCE_FIELDS,
    Adjustment,
    Conflict,
    ContainerInfo,
    HookAnswer,
    HookRequest,
    PodInfo,
    Resources,
)
from tests.merge_cases import BAD, ENTRY_CASES, GOOD, MERGE_CASES, RESOURCE_CASES, SENT, TIDY, of

RUN_POD = BY_NAME["PreRunPodSandbox"]
CREATE = BY_NAME["PreCreateContainer"]
START = BY_NAME["PreStartContainer"]
UPDATE = BY_NAME["PreUpdateContainerResources"]

LABELS, NOTES, ENVS = {"app": "web"}, {"qos": "LS"}, {"PATH": "/bin", "EMPTY": ""}
POD = PodInfo("p1", "web", labels=LABELS, annotations=NOTES, cgroup_parent="/kubepods/pod1", resources=SENT)
CONTAINER = ContainerInfo("c1", "p1", "main", annotations={"hash": "1"}, resources=SENT, envs=ENVS)
POD_REQUEST = HookRequest(POD)
REQUEST = HookRequest(POD, CONTAINER)


def changes(point: HookPoint, request: HookRequest, answer: HookAnswer) -> Adjustment:
    return limited(point, difference(request, answer))


def resources_request(sent: Resources | None) -> HookRequest:
    return HookRequest(POD, replace(CONTAINER, resources=sent))


# -- what an answer changes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "said", "expected"), [case[1:] for case in RESOURCE_CASES], ids=[case[0] for case in RESOURCE_CASES]
)
@pytest.mark.parametrize("point", [CREATE, START, UPDATE], ids=lambda point: str(point.name))
def test_resources_of_an_answer(
    point: HookPoint, sent: Resources | None, said: Resources | None, expected: Mapping[str, Any]
) -> None:
    assert changes(point, resources_request(sent), HookAnswer(resources=said)).resources == expected


@pytest.mark.parametrize(
    ("said", "confirmed"),
    [
        (None, set()),
        (Resources(), set()),
        (SENT, set(RESOURCE_FIELDS) - {"oom_score_adj", "memory_swap_limit_in_bytes"}),
        (Resources(cpu_quota=50_000), {"cpu_quota"}),
        (Resources(cpu_quota=50_001), set()),
        (Resources(cpu_quota=-1, cpu_shares=512, cpuset_mems="0"), {"cpu_shares", "cpuset_mems"}),
        (Resources(unified={"memory.high": "max"}), {"unified"}),
        (Resources(unified={"memory.high": "1"}), set()),
    ],
)
def test_a_repeated_value_is_confirmed(said: Resources | None, confirmed: set[str]) -> None:
    change = changes(UPDATE, REQUEST, HookAnswer(resources=said))
    assert change.confirmed == confirmed
    assert not confirmed & change.resources.keys()


@pytest.mark.parametrize("echoed", [False, True], ids=["partial", "echo"])
@pytest.mark.parametrize(("name", "odd", "normal"), TIDY)
def test_an_odd_value_is_taken_in_its_normal_form(name: str, odd: int | str, normal: int | str, echoed: bool) -> None:
    """Where nothing is left of it, it is not set: it clears nothing, and stands for nothing that was sent."""
    sent, value = replace(SENT, cpuset_cpus="4"), {name: odd}
    said = replace(sent, **value) if echoed else Resources(**value)  # type: ignore[arg-type]
    change = changes(UPDATE, resources_request(sent), HookAnswer(resources=said))
    assert change.resources == ({name: normal} if normal else {})
    assert name not in change.confirmed
    assert judged(change, REQUEST) == (change, ())


@pytest.mark.parametrize(("name", "odd", "normal"), TIDY)
def test_an_odd_value_may_repeat_what_was_sent(name: str, odd: int | str, normal: int | str) -> None:
    for sent, confirmed in ((odd, {name}), (normal, {name} if normal else set())):
        before, after = (Resources(**{name: value}) for value in (sent, odd))  # type: ignore[arg-type]
        change = changes(UPDATE, resources_request(before), HookAnswer(resources=after))
        assert (change.resources, change.confirmed) == ({}, confirmed)


@pytest.mark.parametrize(("sent", "said", "expected"), ENTRY_CASES)
def test_map_entries_set_their_keys_and_delete_none(
    sent: Mapping[str, str], said: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    pod = HookRequest(replace(POD, labels=sent, annotations=sent))
    container = HookRequest(POD, replace(CONTAINER, annotations=sent, envs=sent))
    answer = HookAnswer(labels=said, annotations=said, envs=said)
    assert changes(RUN_POD, pod, answer) == Adjustment(labels=expected, annotations=expected)
    assert changes(CREATE, container, answer) == Adjustment(annotations=expected, envs=expected)


@pytest.mark.parametrize(
    ("pods", "containers", "said", "expected"),
    [
        ("/pod", None, "", None),
        ("/pod", None, "/pod", None),
        ("/pod", None, "/other", "/other"),
        ("", None, "/other", "/other"),
        ("/pod", "", "", None),
        ("/pod", "", "/pod", None),
        ("/pod", "", "/other", "/other"),
        ("/pod", "/mine", "/mine", None),
        ("/pod", "/mine", "/pod", "/pod"),
        ("/pod", "/mine", "", None),
    ],
)
def test_cgroup_parent_of_an_answer(pods: str, containers: str | None, said: str, expected: str | None) -> None:
    pod = replace(POD, cgroup_parent=pods)
    container = None if containers is None else replace(CONTAINER, cgroup_parent=containers)
    point = RUN_POD if container is None else CREATE
    assert changes(point, HookRequest(pod, container), HookAnswer(cgroup_parent=said)).cgroup_parent == expected


@pytest.mark.parametrize("point", HOOK_POINTS, ids=lambda point: str(point.name))
def test_an_answer_changes_only_what_its_hook_point_applies_to(point: HookPoint) -> None:
    request = POD_REQUEST if point.subject is SubjectKind.POD else REQUEST
    said, resources = {"new": "1"}, Resources(cpu_shares=2, cpu_quota=50_000)
    answer = HookAnswer(labels=said, annotations=said, envs=said, cgroup_parent="/new", resources=resources)
    change = changes(point, request, answer)
    changed = {part for part in Part if getattr(change, part.value) not in ({}, None)}
    assert changed == point.applies
    assert change.confirmed == ({"cpu_quota"} if Part.RESOURCES in point.applies else set())
    assert bool(change) is (point.stage is Stage.PRE)
    assert change.owners == {}
    assert change.conflicts == ()


# -- what of an answer is bad ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", [POD_REQUEST, REQUEST], ids=["pod", "container"])
@pytest.mark.parametrize("answer", GOOD, ids=repr)
def test_a_good_answer(answer: HookAnswer, request_: HookRequest) -> None:
    change = difference(request_, answer)
    good, broken = judged(change, request_)
    assert good is change
    assert broken == ()


@pytest.mark.parametrize("request_", [POD_REQUEST, REQUEST], ids=["pod", "container"])
@pytest.mark.parametrize(("field", "answer"), BAD, ids=[f"{n}-{field}" for n, (field, _) in enumerate(BAD)])
def test_a_bad_value_names_its_field_and_rule_and_is_lost(
    field: str, answer: HookAnswer, request_: HookRequest
) -> None:
    good, (broken,) = judged(difference(request_, answer), request_)
    assert broken.field == field
    assert re.match(rf"{field}: .*must ", str(broken))
    assert not good


@pytest.mark.parametrize("answer", [answer for _, answer in BAD], ids=lambda _: "")
def test_an_odd_value_of_the_kubelet_may_be_repeated(answer: HookAnswer) -> None:
    sent = {name: getattr(answer, name) for name in ("annotations", "cgroup_parent", "resources")}
    pod = HookRequest(replace(POD, labels=answer.labels, **sent))
    container = HookRequest(POD, replace(CONTAINER, envs=answer.envs, **sent))
    assert judged(difference(pod, replace(answer, envs={})), pod)[1] == ()
    assert judged(difference(container, replace(answer, labels={})), container)[1] == ()


@pytest.mark.parametrize("said", ["/pod2", "/pods.slice/pod2"])
def test_where_systemd_makes_the_cgroups_a_parent_is_a_slice(said: str) -> None:
    request = HookRequest(replace(POD, cgroup_parent="/kubepods.slice/pod1.slice"))
    assert judged(difference(request, HookAnswer(cgroup_parent="/pod2.slice")), request)[1] == ()
    good, (broken,) = judged(difference(request, HookAnswer(cgroup_parent=said)), request)
    assert str(broken).startswith("cgroup_parent: must be a .slice where one was sent")
    assert good.cgroup_parent is None


# -- what a bad value costs -------------------------------------------------------------------------------------------

PLAIN = HookRequest(PodInfo(cgroup_parent="/pod"), ContainerInfo())
TOGETHER = [("cpu_period", "cpu_quota"), ("memory_limit_in_bytes", "memory_swap_limit_in_bytes")]
PARTNERS = {one: other for pair in TOGETHER for one, other in (pair, pair[::-1])}
GOOD_MAP = {"good": "1"}
GOOD_RESOURCES: dict[str, Any] = {
    "cpu_period": 100_000,
    "cpu_quota": 20_000,
    "cpu_shares": 2,
    "memory_limit_in_bytes": 2**20,
    "oom_score_adj": 5,
    "cpuset_cpus": "1",
    "cpuset_mems": "0",
    "hugepage_limits": {"2MB": 9},
    "unified": {"cpu.weight": "9"},
    "memory_swap_limit_in_bytes": 2**21,
}


def after(change: Adjustment) -> tuple[Adjustment, list[str]]:
    good, broken = judged(change, PLAIN)
    return good, [rule.field for rule in broken]


@pytest.mark.parametrize(("field", "bad"), BAD, ids=[f"{n}-{field}" for n, (field, _) in enumerate(BAD)])
def test_all_other_fields_of_the_answer_hold(field: str, bad: HookAnswer) -> None:
    change = difference(PLAIN, bad)
    maps: dict[str, Any] = {name: GOOD_MAP | dict(getattr(change, name)) for name in ("labels", "annotations", "envs")}
    entries = {name: GOOD_RESOURCES[name] | dict(change.resources.get(name, {})) for name in MAP_FIELDS}
    resources = {**GOOD_RESOURCES, **change.resources, **entries}
    resource = field.removeprefix("resources.")
    lost = {resource, PARTNERS.get(resource)} - entries.keys()
    good = Adjustment(
        **dict.fromkeys(maps, GOOD_MAP),
        cgroup_parent=None if field == "cgroup_parent" else "/good",
        resources={name: value for name, value in GOOD_RESOURCES.items() if name not in lost},
    )
    assert after(Adjustment(**maps, cgroup_parent=change.cgroup_parent or "/good", resources=resources)) == (
        good,
        [field],
    )


def test_a_bad_entry_costs_that_entry_and_is_told_once_a_rule() -> None:
    change = Adjustment(
        envs={"A=B": "x", "C": "", "=": "y", "D": "\0"},
        resources={"hugepage_limits": {"": 1, "2MB": 9}, "unified": {"": "1", "cpu.weight": "9"}},
    )
    good, fields = after(change)
    assert fields == ["envs", "envs", "resources.hugepage_limits", "resources.unified"]
    assert good == Adjustment(envs={"C": ""}, resources={"hugepage_limits": {"2MB": 9}, "unified": {"cpu.weight": "9"}})


@pytest.mark.parametrize("bad", PARTNERS)
def test_a_field_that_belongs_to_a_bad_one_is_confirmed_no_more(bad: str) -> None:
    change = Adjustment(resources={bad: -7}, confirmed=frozenset({PARTNERS[bad], "cpu_shares"}))
    assert after(change) == (Adjustment(confirmed=frozenset({"cpu_shares"})), [f"resources.{bad}"])


def test_no_rule_holds_a_value() -> None:
    canary = "s3cr3t"
    texts = [HookAnswer(labels={"": canary}), HookAnswer(annotations={"": canary}), HookAnswer(cgroup_parent=canary)]
    envs = [HookAnswer(envs={f"PASSWORD={canary}": ""}), HookAnswer(envs={"PASSWORD": f"{canary}\0"})]
    for answer in [*texts, *envs, of(cpuset_cpus=canary), of(unified={"": canary}), of(oom_score_adj=777_777)]:
        _, (broken,) = judged(difference(PLAIN, answer), PLAIN)
        assert canary not in str(broken)
        assert "777777" not in str(broken)


# -- how answers add up ----------------------------------------------------------------------------------------------


def test_combine_records_the_owner_of_each_field() -> None:
    change = Adjustment(
        labels={"l": "1"},
        annotations={"a": "1"},
        envs={"E": "1"},
        cgroup_parent="/x",
        resources={"cpu_quota": -1, "cpuset_cpus": "", "hugepage_limits": {"2MB": 1}, "unified": {"cpu.weight": "9"}},
        confirmed=frozenset({"cpu_shares"}),
    )
    fields = {"labels.l", "annotations.a", "envs.E", "cgroup_parent"}
    fields |= {
        f"resources.{name}" for name in ("cpu_quota", "cpuset_cpus", "hugepage_limits.2MB", "unified.cpu.weight")
    }
    confirmers = frozenset({("cpu_shares", "one")})
    owned = replace(change, owners=dict.fromkeys(fields, "one"), confirmers=confirmers)
    assert combine(NO_ADJUSTMENT, "one", change) == owned


def test_a_change_of_nothing_leaves_the_earlier_one() -> None:
    change = Adjustment(envs={"E": "1"}, cgroup_parent="/x", resources={"cpu_quota": -1})
    earlier = combine(NO_ADJUSTMENT, "one", change)
    assert combine(earlier, "two", NO_ADJUSTMENT) == earlier


def test_confirmed_fields_add_up_also_if_another_plugin_changed_them() -> None:
    earlier = combine(NO_ADJUSTMENT, "one", Adjustment(confirmed=frozenset({"cpu_quota"})))
    later = Adjustment(resources={"cpu_quota": -1}, confirmed=frozenset({"cpu_shares"}))
    both = combine(earlier, "two", later)
    assert both.confirmed == {"cpu_quota", "cpu_shares"}
    assert both.confirmers == {("cpu_quota", "one"), ("cpu_shares", "two")}
    assert both.resources == {"cpu_quota": -1}
    assert both.conflicts == ()


@pytest.mark.parametrize(
    ("first", "second", "expected", "conflicts"), [row[1:] for row in MERGE_CASES], ids=[row[0] for row in MERGE_CASES]
)
def test_the_later_plugin_wins(
    first: Adjustment, second: Adjustment, expected: Adjustment | None, conflicts: tuple[str, ...]
) -> None:
    both = combine(combine(NO_ADJUSTMENT, "one", first), "two", second)
    assert replace(both, owners={}, conflicts=()) == (expected or second)
    assert both.conflicts == tuple(Conflict(field, loser="one", winner="two") for field in conflicts)
    assert all(both.owners[field] == "two" for field in conflicts)


def test_three_plugins_on_one_field_are_two_conflicts() -> None:
    adjustment = NO_ADJUSTMENT
    for plugin, value in (("one", "1"), ("two", "2"), ("three", "3")):
        adjustment = combine(adjustment, plugin, Adjustment(envs={"E": value}))
    assert adjustment.envs == {"E": "3"}
    assert adjustment.owners == {"envs.E": "three"}
    assert adjustment.conflicts == (Conflict("envs.E", "one", "two"), Conflict("envs.E", "two", "three"))


def test_a_plugin_is_never_in_conflict_with_itself() -> None:
    earlier = combine(NO_ADJUSTMENT, "one", Adjustment(envs={"E": "1"}))
    assert combine(earlier, "one", Adjustment(envs={"E": "2"})).conflicts == ()


# -- what the next plugin sees ---------------------------------------------------------------------------------------

EVERYTHING = Adjustment(
    labels={"app": "2"},
    annotations={"new": "1"},
    envs={"NEW": "1"},
    cgroup_parent="/x",
    resources={"cpu_quota": -1, "cpuset_cpus": "", "unified": {"cpu.weight": "9"}},
)
CHANGED = replace(SENT, cpu_quota=-1, cpuset_cpus="", unified={"memory.high": "max", "cpu.weight": "9"})


def test_an_adjustment_applied_to_a_pod() -> None:
    labels, annotations = {"app": "2"}, {"qos": "LS", "new": "1"}
    changed = replace(POD, labels=labels, annotations=annotations, cgroup_parent="/x", resources=CHANGED)
    assert applied(POD_REQUEST, EVERYTHING) == HookRequest(changed)


def test_an_adjustment_applied_to_a_container_leaves_its_pod() -> None:
    annotations, envs = {"hash": "1", "new": "1"}, {"PATH": "/bin", "EMPTY": "", "NEW": "1"}
    changed = replace(CONTAINER, annotations=annotations, envs=envs, cgroup_parent="/x", resources=CHANGED)
    assert applied(REQUEST, EVERYTHING) == HookRequest(POD, changed)


def test_a_missing_resources_message_appears_only_if_something_is_set() -> None:
    none_sent = resources_request(None)
    with_env = replace(CONTAINER, resources=None, envs={**CONTAINER.envs, "A": "1"})
    assert applied(none_sent, Adjustment(envs={"A": "1"})).container == with_env
    with_shares = replace(CONTAINER, resources=Resources(cpu_shares=2))
    assert applied(none_sent, Adjustment(resources={"cpu_shares": 2})).container == with_shares


# -- for any request and any answer ----------------------------------------------------------------------------------

TEXT = st.text(max_size=3)
ENTRIES = st.dictionaries(st.sampled_from(["", "a", "b", "A=B"]), TEXT, max_size=3)
NUMBER = st.sampled_from([0, 0, -1, -2, 1, 1000])
RESOURCES = st.none() | st.builds(
    Resources,
    cpu_period=NUMBER,
    cpu_quota=NUMBER,
    cpu_shares=NUMBER,
    memory_limit_in_bytes=NUMBER,
    oom_score_adj=NUMBER,
    cpuset_cpus=st.sampled_from(["", "0", "1-0"]),
    cpuset_mems=st.sampled_from(["", "0"]),
    hugepage_limits=st.dictionaries(st.sampled_from(["2MB", "1GB"]), st.integers(0, 2)),
    unified=st.dictionaries(st.sampled_from(["a", "b"]), TEXT),
    memory_swap_limit_in_bytes=NUMBER,
)
PARENT = st.sampled_from(["", "/a", "/b", "odd"])
PODS = st.builds(PodInfo, labels=ENTRIES, annotations=ENTRIES, cgroup_parent=PARENT, resources=RESOURCES)
CONTAINERS = st.builds(ContainerInfo, annotations=ENTRIES, envs=ENTRIES, cgroup_parent=PARENT, resources=RESOURCES)
ANSWERS = st.builds(
    HookAnswer, labels=ENTRIES, annotations=ENTRIES, envs=ENTRIES, cgroup_parent=PARENT, resources=RESOURCES
)
QUESTIONS = st.one_of(
    st.tuples(st.just(RUN_POD), st.builds(HookRequest, PODS)),
    st.tuples(st.sampled_from([CREATE, START, UPDATE]), st.builds(HookRequest, PODS, CONTAINERS)),
)


@given(QUESTIONS)
def test_an_echo_changes_nothing_and_is_never_bad(question: tuple[HookPoint, HookRequest]) -> None:
    point, request = question
    answer = echo(request)
    assert judged(difference(request, answer), request)[1] == ()
    assert not changes(point, request, answer)
    assert applied(request, changes(point, request, answer)) == request


@given(QUESTIONS, ANSWERS)
def test_an_applied_answer_is_what_is_echoed(question: tuple[HookPoint, HookRequest], answer: HookAnswer) -> None:
    point, request = question
    change = changes(point, request, answer)
    then = applied(request, change)
    assert not changes(point, then, echo(then))
    assert bool(change) is (then != request)


@given(QUESTIONS, st.tuples(ANSWERS, ANSWERS, ANSWERS))
def test_three_plugins_give_the_same_result_every_time(
    question: tuple[HookPoint, HookRequest], answers: tuple[HookAnswer, ...]
) -> None:
    point, request = question

    def ask_all() -> tuple[HookRequest, Adjustment]:
        seen, adjustment = request, NO_ADJUSTMENT
        for plugin, answer in zip(("one", "two", "three"), answers, strict=True):
            change = changes(point, seen, answer)
            seen, adjustment = applied(seen, change), combine(adjustment, plugin, change)
        return seen, adjustment

    seen, adjustment = ask_all()
    assert ask_all() == (seen, adjustment)
    assert applied(request, adjustment) == seen


@given(QUESTIONS, ANSWERS)
def test_the_good_part_of_any_answer_breaks_no_rule(
    question: tuple[HookPoint, HookRequest], answer: HookAnswer
) -> None:
    _, request = question
    change = difference(request, answer)
    good, broken = judged(change, request)
    assert judged(good, request) == (good, ())
    assert by_field(good).items() <= by_field(change).items()
    assert good.confirmed <= change.confirmed
    assert (good == change) is (not broken)
