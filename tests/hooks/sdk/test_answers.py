"""The resources of an answer: the proxy makes of them what was set, and in an update they repeat nothing else."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtimeproxy.hookpoints import BY_NAME
from runtimeproxy.merge import combine, difference
from runtimeproxy.model import (
    MAP_FIELDS,
    NO_ADJUSTMENT,
    NO_RESOURCES,
    NUMBER_FIELDS,
    RESOURCE_FIELDS,
    TEXT_FIELDS,
    Adjustment,
    ContainerInfo,
    ContainerRecord,
    HookAnswer,
    HookRequest,
    PodInfo,
    PodRecord,
    Resources,
    Subject,
    is_echo,
    tidy,
)
from runtimeproxy.records import AskedUpdate, differing, told_of_update
from runtimeproxy_hooks.sdk.context import ContainerContext
from runtimeproxy_hooks.sdk.edits import EditableResources
from runtimeproxy_hooks.sdk.errors import NotSayable
from tests.amounts import examples
from tests.merge_cases import SENT

Edit = tuple[str, Any]
"""A field and its value; a map's is the entries to set."""

NUMBERS = st.sampled_from([-1000, -1, 1, 500, 1000, 100_000])
CPUSETS = st.sampled_from(["", "0", "0-3"])
LIMITS = st.dictionaries(st.sampled_from(["2MB", "1GB"]), st.integers(0, 2))
FILES = st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["", "1"]))
FIELDS = {
    **dict.fromkeys(NUMBER_FIELDS, NUMBERS),
    **dict.fromkeys(sorted(TEXT_FIELDS), CPUSETS),
    "hugepage_limits": LIMITS,
    "unified": FILES,
}
MESSAGES = st.none() | st.fixed_dictionaries({}, optional=FIELDS).map(lambda values: Resources(**values))
EDITS = st.lists(st.sampled_from(RESOURCE_FIELDS).flatmap(lambda name: st.tuples(st.just(name), FIELDS[name])))


def edited(resources: EditableResources, edits: list[Edit]) -> dict[str, Any]:
    """Make the edits that can be said; return what then was set last."""
    made: dict[str, Any] = {}
    for name, value in edits:
        try:
            if name in MAP_FIELDS:
                getattr(resources, name).update(value)
                made[name] = {**made.get(name, {}), **value}
            else:
                resources.set(name, value)
                made[name] = value if value == getattr(resources.sent, name, None) else tidy(name, value)
        except NotSayable:
            continue
    return {name: value for name, value in made.items() if value != {}}


def changes(sent: Resources, made: dict[str, Any]) -> dict[str, Any]:
    """Return the edits that differ from what was sent."""
    changed: dict[str, Any] = {}
    for name, value in made.items():
        before = getattr(sent, name)
        if name in MAP_FIELDS:
            value = {key: entry for key, entry in value.items() if key not in before or before[key] != entry}
            changed |= {name: value} if value else {}
        elif value != before:
            changed[name] = value
    return changed


def judged(sent: Resources | None, answer: Resources | None) -> Adjustment:
    return difference(HookRequest(PodInfo(), ContainerInfo(resources=sent)), HookAnswer(resources=answer))


@settings(max_examples=examples(400))
@given(MESSAGES, EDITS, st.booleans(), st.booleans())
@example(Resources(cpu_quota=1000, cpuset_cpus="0"), [("cpu_quota", 500), ("cpu_quota", 1000)], True, False)
def test_an_answer_changes_what_was_set_and_nothing_else(
    sent: Resources | None, edits: list[Edit], update: bool, alone: bool
) -> None:
    resources = EditableResources(sent, update=update, alone=update and alone)
    made = edited(resources, edits)
    assert judged(sent, resources.answer).resources == changes(sent or NO_RESOURCES, made)


@settings(max_examples=examples(400))
@given(MESSAGES, EDITS)
@example(Resources(cpu_quota=1000, cpuset_cpus="0"), [("cpu_quota", 1000)])
@example(Resources(cpu_quota=1000, cpuset_cpus="0"), [("cpuset_cpus", "")])
def test_in_an_update_only_what_was_set_is_confirmed(sent: Resources | None, edits: list[Edit]) -> None:
    before = sent or NO_RESOURCES
    resources = EditableResources(sent, update=True)
    made = edited(resources, edits)
    confirmed = judged(sent, resources.answer).confirmed
    as_sent = {name for name, value in made.items() if value and value == getattr(before, name)}
    assert as_sent <= confirmed
    if any(made.get(name) == "" != getattr(before, name) for name in TEXT_FIELDS):
        assert resources.answer == resources.value  # a cpuset is cleared: a whole echo
    else:
        spared = TEXT_FIELDS if is_echo(before, Resources(**made)) else set()
        assert confirmed <= as_sent | spared


@pytest.mark.parametrize("sent", [None, Resources(), SENT])
@pytest.mark.parametrize("update", [False, True])
def test_where_nothing_was_set_there_is_no_message(sent: Resources | None, update: bool) -> None:
    resources = EditableResources(sent, update=update)
    assert resources.cpu_shares != 2  # what is only read is not set
    assert dict(resources.unified) == (sent.unified if sent else {})
    assert resources.answer is None


def edit(resources: EditableResources) -> None:
    resources.cpu_quota = -1
    resources.cpu_shares = SENT.cpu_shares
    resources.cpuset_cpus = "7"
    resources.unified["io.max"] = "x"
    resources.hugepage_limits["2MB"] = 1


@pytest.mark.parametrize("alone", [{}, {"update": True, "alone": True}], ids=["create", "start"])
def test_elsewhere_than_in_the_kubelets_update_an_answer_is_the_whole_message(alone: Any) -> None:
    resources = EditableResources(SENT, **alone)
    edit(resources)
    assert resources.answer == resources.value
    assert resources.answer == replace(
        SENT,
        cpu_quota=-1,
        cpuset_cpus="7",
        unified={"memory.high": "max", "io.max": "x"},
        hugepage_limits={"2MB": 1, "1GB": 2**30},
    )
    assert resources.sent == SENT


def test_in_the_kubelets_update_an_answer_is_what_was_set() -> None:
    resources = EditableResources(SENT, update=True)
    edit(resources)
    assert resources.answer == Resources(
        cpu_quota=-1, cpu_shares=SENT.cpu_shares, cpuset_cpus="7", unified={"io.max": "x"}, hugepage_limits={"2MB": 1}
    )


@pytest.mark.parametrize("quota", [1000, 2000])
def test_where_all_numbers_are_set_the_cpusets_that_were_sent_are_said_again(quota: int) -> None:
    resources = EditableResources(Resources(cpu_quota=2000, cpuset_cpus="0-3", cpuset_mems="0"), update=True)
    resources.cpu_quota = quota
    resources.cpuset_mems = "1"
    assert resources.answer == Resources(cpu_quota=quota, cpuset_cpus="0-3", cpuset_mems="1")


def test_without_a_message_an_edit_makes_one() -> None:
    resources = EditableResources(None)
    resources.unified["a"] = "b"
    assert resources.answer == Resources(unified={"a": "b"})


@pytest.mark.parametrize(
    ("edits", "released"),
    [
        ([], {}),
        ([("cpu_quota", 2000)], {"cpu_quota": 2000}),
        ([("cpu_shares", 2)], {"cpu_shares": 2}),  # as the kubelet asked for it
    ],
)
def test_what_a_hook_server_set_at_create_stays_unless_a_method_sets_what_was_sent(
    edits: list[Edit], released: dict[str, Any]
) -> None:
    asked = ContainerInfo(resources=Resources(cpu_shares=2, memory_limit_in_bytes=1000))
    holds = ContainerInfo(resources=Resources(cpu_shares=512, memory_limit_in_bytes=500))
    owners = (("cpu_shares", "mine"), ("memory_limit_in_bytes", "mine"))
    subject = Subject(PodRecord(PodInfo(), PodInfo()), ContainerRecord(asked, holds, owners))
    update = AskedUpdate("c1", Resources(cpu_quota=1000))
    request = told_of_update(subject, update)
    container = ContainerContext(BY_NAME["PreUpdateContainerResources"], request)
    edited(container.resources, edits)
    change = combine(NO_ADJUSTMENT, "mine", difference(request, container.answer()))
    assert differing(subject, update, change) == released
