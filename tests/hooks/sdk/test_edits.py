"""Edits of maps and resources: what is accepted, what is refused and changes nothing, and the answer."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtimeproxy.model.fields import (
    MAP_FIELDS,
    NO_RESOURCES,
    NUMBER_FIELDS,
    RESOURCE_FIELDS,
    TEXT_FIELDS,
    Adjustment,
    ContainerInfo,
    HookAnswer,
    HookRequest,
    PodInfo,
    Resources,
    is_echo,
    normal_form,
)
from runtimeproxy.model.merge import difference, validated
from runtimeproxy_hooks.sdk.edits import EditableResources, Entries, Environment
from runtimeproxy_hooks.sdk.errors import NotSayable
from tests.amounts import examples
from tests.merge_cases import SENT, TIDY

CANARY = "canary-value"
CPUSETS = sorted(TEXT_FIELDS)


def entries(**sent: str) -> Entries[str]:
    return Entries(sent, str, "labels")


def edited(sent: Resources | None, *edits: tuple[str, Any], **more: Any) -> EditableResources:
    """Return resources after edits; those of a map are the entries to set."""
    resources = EditableResources(sent, **more)
    for name, value in edits:
        if name in MAP_FIELDS:
            getattr(resources, name).update(value)
        else:
            resources.set(name, value)
    return resources


def test_map_contains_sent_and_set_entries() -> None:
    labels = entries(a="1", b="2")
    labels.update(b="3", c="")
    assert dict(labels) == {"a": "1", "b": "3", "c": ""}
    assert (len(labels), labels.set_entries, labels.get("d")) == (3, {"b": "3", "c": ""}, None)
    with pytest.raises(KeyError):
        labels["d"]


@pytest.mark.parametrize("delete", [lambda m: m.pop("a"), lambda m: m.clear(), lambda m: m.popitem()])
def test_key_cannot_be_deleted(delete: Any) -> None:
    labels = entries(a="1")
    with pytest.raises(NotSayable, match="labels: a hook server can set a key, but not delete one"):
        delete(labels)
    assert dict(labels) == {"a": "1"}
    assert labels.pop("missing", None) is None


NO_TEXT, NO_NUMBER = "the value of a must be a text in UTF-8", "the value of 2MB must be a whole number from 0"
NO_KEY = "a key must not be empty and must not contain"
TEXTS, NUMBERS, VARIABLES = (Entries, str), (Entries, int), (Environment, str)
INVALID_ENTRIES = [
    (TEXTS, "", "x", "a key must not be empty"),
    *((TEXTS, key, "x", "a key must be a text") for key in ("\ud800", 3, ["unhashable"])),
    *((TEXTS, "a", value, NO_TEXT) for value in (None, 3, b"x", f"{CANARY}\udcff")),
    *((NUMBERS, "2MB", value, NO_NUMBER) for value in ("3", 1.5, -1, 2**64)),
    *((VARIABLES, key, "x", NO_KEY) for key in (f"A={CANARY}", f"{CANARY}\0", "")),
    (VARIABLES, "A", f"{CANARY}\0", "a value must not contain NUL"),
    *((VARIABLES, 3, "x", "a key must be a text"), (VARIABLES, "a", 3, NO_TEXT)),
]


@pytest.mark.parametrize(("kind", "key", "value", "why"), INVALID_ENTRIES)
def test_invalid_entry_is_refused_and_not_shown(kind: Any, key: Any, value: Any, why: str) -> None:
    editable = kind[0]({}, kind[1], "map")
    with pytest.raises(NotSayable, match=rf"^map: {why}") as raised:
        editable[key] = value
    assert CANARY not in str(raised.value)
    assert dict(editable) == {}


def test_invalid_entry_of_the_kubelet_can_be_repeated() -> None:
    env = Environment({"A=B": "x\0", "": "y"}, str, "env")
    env.update(dict(env))
    assert env.set_entries == {"A=B": "x\0", "": "y"}


NOT_SET, NO_LIST = "must be a whole number, .*0 and None mean 'not set'", "must be empty or a list of n and n-m"
NO_NUMBERS = (0, None, True, False, "1000", 1000.0, 2**63, -(2**63) - 1, CANARY)
BAD_VALUES = [
    *((name, value, NOT_SET) for name in NUMBER_FIELDS for value in NO_NUMBERS),
    *((name, value, "must be a text") for name in CPUSETS for value in (None, 3, b"0", ["0"])),
    *((name, CANARY, NO_LIST) for name in CPUSETS),
    *((name, odd, NO_LIST) for name, odd, normal in TIDY if not normal),
]
"""Bad values in addition to those in tests/merge_cases.py."""


@pytest.mark.parametrize(("name", "value", "why"), BAD_VALUES)
def test_invalid_value_is_refused_and_not_shown(name: str, value: Any, why: str) -> None:
    resources = EditableResources(SENT)
    with pytest.raises(NotSayable, match=rf"^{name}: {why}") as raised:
        setattr(resources, name, value)
    assert CANARY not in str(raised.value)  # it may come from an annotation
    assert resources.answer is None


@pytest.mark.parametrize(("name", "odd", "normal"), [row for row in TIDY if row[2]])
def test_unusual_value_is_set_in_its_normal_form(name: str, odd: int | str, normal: int | str) -> None:
    resources = edited(None, (name, odd))
    assert resources.get(name) == normal
    assert resources.answer == Resources(**{name: normal})


@pytest.mark.parametrize(
    ("name", "odd"), [("cpu_quota", 5), ("cpu_shares", -3), ("cpuset_cpus", "0-3,"), ("cpuset_cpus", "3-1")]
)
def test_invalid_value_of_the_kubelet_can_be_repeated(name: str, odd: int | str) -> None:
    assert edited(Resources(**{name: odd}), (name, odd)).answer == Resources(**{name: odd})


@pytest.mark.parametrize("name", CPUSETS)
@pytest.mark.parametrize("number", NUMBER_FIELDS)
def test_cpuset_can_be_cleared_if_a_number_was_sent(name: str, number: str) -> None:
    sent = Resources(**{name: "0-3", number: -1})
    resources = edited(sent, (name, ""))
    assert getattr(resources, name) is None
    assert resources.answer == replace(sent, **{name: ""})
    with pytest.raises(NotSayable, match=rf"^{name}: cannot be cleared where the request has no number"):
        edited(Resources(**{name: "0-3"}), ("cpu_quota", -1), (name, ""))  # a number set by the hook does not help


@pytest.mark.parametrize("sent", [None, Resources(), Resources(cpu_shares=2)])
def test_clearing_an_unset_cpuset_is_no_edit(sent: Resources | None) -> None:
    assert edited(sent, ("cpuset_cpus", "5"), ("cpuset_cpus", "")).answer is None
    assert edited(sent, ("cpuset_cpus", ""), update=True, alone=True).answer is None


@pytest.mark.parametrize("name", ["cpu_share", "unified", "", "get"])
def test_misspelt_field_is_refused(name: str) -> None:
    resources = EditableResources(SENT)
    with pytest.raises(NotSayable, match=rf"^{name}: no such field; there are .*cpu_shares"):
        resources.set(name, 2)
    with pytest.raises(NotSayable, match=rf"^{name} cannot be assigned; .*cpu_shares"):
        setattr(resources, name, 2)
    assert resources.answer is None


def test_repr_of_resources_has_no_map() -> None:
    sent = Resources(cpu_shares=2, cpuset_cpus="0-3", unified={"a": CANARY})
    assert repr(EditableResources(sent)) == "<resources: cpu_shares=2, cpuset_cpus=0-3>"
    assert repr(EditableResources(None)) == "<resources: nothing set>"


Edit = tuple[str, Any]
SAMPLES = st.sampled_from([-1000, -1, 1, 500, 1000, 100_000])
FIELDS = {
    **dict.fromkeys(NUMBER_FIELDS, SAMPLES),
    **dict.fromkeys(CPUSETS, st.sampled_from(["", "0", "0-3"])),
    "hugepage_limits": st.dictionaries(st.sampled_from(["2MB", "1GB"]), st.integers(0, 2)),
    "unified": st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["", "1"])),
}
MESSAGES = st.none() | st.fixed_dictionaries({}, optional=FIELDS).map(lambda values: Resources(**values))
EDITS = st.lists(st.sampled_from(RESOURCE_FIELDS).flatmap(lambda name: st.tuples(st.just(name), FIELDS[name])))


def apply(resources: EditableResources, edits: list[Edit]) -> dict[str, Any]:
    """Apply the edits that are possible; return the last value of each field."""
    done: dict[str, Any] = {}
    for name, value in edits:
        try:
            if name in MAP_FIELDS:
                getattr(resources, name).update(value)
                done[name] = {**done.get(name, {}), **value}
            else:
                resources.set(name, value)
                done[name] = value if value == getattr(resources.sent, name, None) else normal_form(name, value)
        except NotSayable:
            continue
    return {name: value for name, value in done.items() if value != {}}


def changes(sent: Resources, done: dict[str, Any]) -> dict[str, Any]:
    """Return the edits that differ from what was sent."""
    changed: dict[str, Any] = {}
    for name, value in done.items():
        before = getattr(sent, name)
        if name in MAP_FIELDS:
            value = {key: entry for key, entry in value.items() if key not in before or before[key] != entry}
            changed |= {name: value} if value else {}
        elif value != before:
            changed[name] = value
    return changed


def adjustment(sent: Resources | None, answer: Resources | None) -> Adjustment:
    """Return the proxy's change for an answer, which it must accept as a whole."""
    request = HookRequest(PodInfo(), ContainerInfo(resources=sent))
    change = difference(request, HookAnswer(resources=answer))
    assert validated(change, request)[1] == ()
    return change


@settings(max_examples=examples(400))
@given(MESSAGES, EDITS, st.booleans(), st.booleans())
@example(Resources(cpu_quota=1000, cpuset_cpus="0"), [("cpu_quota", 500), ("cpu_quota", 1000)], True, False)
def test_answer_changes_what_was_set_only(sent: Resources | None, edits: list[Edit], update: bool, alone: bool) -> None:
    resources = EditableResources(sent, update=update, alone=update and alone)
    done = apply(resources, edits)
    assert adjustment(sent, resources.answer).resources == changes(sent or NO_RESOURCES, done)


@settings(max_examples=examples(400))
@given(MESSAGES, EDITS)
@example(Resources(cpu_quota=1000, cpuset_cpus="0"), [("cpu_quota", 1000)])
@example(Resources(cpu_quota=1000, cpuset_cpus="0"), [("cpuset_cpus", "")])
def test_answer_to_an_update_confirms_what_was_set_only(sent: Resources | None, edits: list[Edit]) -> None:
    before = sent or NO_RESOURCES
    resources = EditableResources(sent, update=True)
    done = apply(resources, edits)
    confirmed = adjustment(sent, resources.answer).confirmed
    as_sent = set()
    for name, value in done.items():
        if name in MAP_FIELDS:
            as_sent |= {f"{name}.{key}" for key in value if getattr(before, name).get(key) == value[key]}
        elif value and value == getattr(before, name):
            as_sent.add(name)
    assert as_sent <= confirmed
    if any(done.get(name) == "" != getattr(before, name) for name in TEXT_FIELDS):
        assert resources.answer == resources.value  # a cpuset is cleared: a whole echo
    else:
        spared = TEXT_FIELDS if is_echo(before, Resources(**done)) else set()
        assert confirmed <= as_sent | spared


SET = {"cpu_quota": -1, "cpu_shares": SENT.cpu_shares, "cpuset_cpus": "7"}
SET |= {"unified": {"io.max": "x"}, "hugepage_limits": {"2MB": 1}}
MAPS: Any = {"unified": {"memory.high": "max", "io.max": "x"}, "hugepage_limits": {"2MB": 1, "1GB": 2**30}}
WHOLE = replace(SENT, cpu_quota=-1, cpuset_cpus="7", **MAPS)


@pytest.mark.parametrize(
    ("more", "answer"),
    [({}, WHOLE), ({"update": True, "alone": True}, WHOLE), ({"update": True}, Resources(**SET))],
    ids=["create", "start", "update"],
)
def test_answer_is_an_echo_except_in_the_kubelets_update(more: Any, answer: Resources) -> None:
    resources = edited(SENT, *SET.items(), **more)
    assert (resources.answer, resources.value, resources.sent) == (answer, WHOLE, SENT)


def test_value_without_an_edit_is_what_was_sent() -> None:
    assert EditableResources(SENT).value is SENT
