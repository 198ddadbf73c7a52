"""What a bad value in an answer costs: its own field, or its own entry, and nothing else.

That is fault matrix H7 and promise 3.

That is hook-api, "Normal forms and checks".
"""

from typing import Any

import pytest
from hypothesis import given

from runtimeproxy.hookpoints import HookPoint
from runtimeproxy.merge import by_field, difference, judged
from runtimeproxy.model import Adjustment, ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources
from tests.merge_cases import BAD
from tests.test_merge import ANSWERS, QUESTIONS

REQUEST = HookRequest(PodInfo(cgroup_parent="/pod"), ContainerInfo())
PARTNERS = {
    "cpu_period": "cpu_quota",
    "cpu_quota": "cpu_period",
    "memory_limit_in_bytes": "memory_swap_limit_in_bytes",
    "memory_swap_limit_in_bytes": "memory_limit_in_bytes",
}
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
    good, broken = judged(change, REQUEST)
    return good, [rule.field for rule in broken]


@pytest.mark.parametrize(("field", "bad"), BAD, ids=[f"{n}-{field}" for n, (field, _) in enumerate(BAD)])
def test_all_other_fields_of_the_answer_hold(field: str, bad: HookAnswer) -> None:
    change = difference(REQUEST, bad)
    maps: dict[str, Any] = {name: GOOD_MAP | dict(getattr(change, name)) for name in ("labels", "annotations", "envs")}
    entries = {
        name: GOOD_RESOURCES[name] | dict(change.resources.get(name, {})) for name in ("hugepage_limits", "unified")
    }
    whole = Adjustment(
        **maps,
        cgroup_parent=change.cgroup_parent or "/good",
        resources={**GOOD_RESOURCES, **change.resources, **entries},
    )
    resource = field.removeprefix("resources.")
    lost = {resource, PARTNERS.get(resource)} - entries.keys()
    assert after(whole) == (
        Adjustment(
            labels=GOOD_MAP,
            annotations=GOOD_MAP,
            envs=GOOD_MAP,
            cgroup_parent=None if field == "cgroup_parent" else "/good",
            resources={name: value for name, value in GOOD_RESOURCES.items() if name not in lost},
        ),
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
def test_what_is_one_field_with_a_bad_one_is_confirmed_no_more(bad: str) -> None:
    change = Adjustment(resources={bad: -7}, confirmed=frozenset({PARTNERS[bad], "cpu_shares"}))
    assert after(change) == (Adjustment(confirmed=frozenset({"cpu_shares"})), [f"resources.{bad}"])


def test_no_rule_holds_a_value() -> None:
    canary = "s3cr3t"
    answers = [
        HookAnswer(labels={"": canary}),
        HookAnswer(annotations={"": canary}),
        HookAnswer(envs={f"PASSWORD={canary}": ""}),
        HookAnswer(envs={"PASSWORD": f"{canary}\0"}),
        HookAnswer(cgroup_parent=canary),
        HookAnswer(resources=Resources(cpuset_cpus=canary)),
        HookAnswer(resources=Resources(unified={"": canary})),
        HookAnswer(resources=Resources(oom_score_adj=777_777)),
    ]
    for answer in answers:
        _, (broken,) = judged(difference(REQUEST, answer), REQUEST)
        assert canary not in str(broken)
        assert "777777" not in str(broken)


@given(QUESTIONS, ANSWERS)
def test_what_is_good_of_any_answer_is_a_part_of_it_that_breaks_no_rule(
    question: tuple[HookPoint, HookRequest], answer: HookAnswer
) -> None:
    _, request = question
    change = difference(request, answer)
    good, broken = judged(change, request)
    assert judged(good, request) == (good, ())
    assert by_field(good).items() <= by_field(change).items()
    assert good.confirmed <= change.confirmed
    assert (good == change) is (not broken)
