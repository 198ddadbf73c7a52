"""Edits of maps and resources: what is accepted, what is refused and changes nothing, and the answer."""

from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy.model.fields import (
    MAP_FIELDS,
    NUMBER_FIELDS,
    TEXT_FIELDS,
    ContainerInfo,
    HookAnswer,
    HookRequest,
    PodInfo,
    Resources,
)
from runtimeproxy.model.merge import difference, judged
from runtimeproxy_hooks.sdk.edits import EditableResources, Entries, Environment
from runtimeproxy_hooks.sdk.errors import NotSayable
from tests.hooks.nodes import rows
from tests.merge_cases import SENT, TIDY

CANARY = "canary-value"
CPUSETS = sorted(TEXT_FIELDS)


def edited(sent: Resources | None, *edits: tuple[str, Any], **more: Any) -> EditableResources:
    """Return resources after edits; those of a map are the entries to set."""
    resources = EditableResources(sent, **more)
    for name, value in edits:
        if name in MAP_FIELDS:
            getattr(resources, name).update(value)
        else:
            resources.set(name, value)
    return resources


def test_map_contains_sent_and_set_entries_and_loses_none() -> None:
    labels = Entries({"a": "1", "b": "2"}, str, "labels")
    labels.update(b="3", c="")
    assert (dict(labels), len(labels), labels.set_entries) == ({"a": "1", "b": "3", "c": ""}, 3, {"b": "3", "c": ""})
    assert labels.get("d") is labels.pop("d", None) is None
    for delete in (lambda: labels.pop("a"), labels.clear, labels.popitem):
        with pytest.raises(NotSayable, match="labels: a hook server can set a key, but not delete one"):
            delete()
    assert len(labels) == 3


NO_TEXT, NO_NUMBER = "the value of a must be a text in UTF-8", "the value of 2MB must be a whole number from 0"
NO_KEY = "a key must not be empty and must not contain"
TEXTS, NUMBERS, VARIABLES = (Entries, str), (Entries, int), (Environment, str)
INVALID_ENTRIES = [
    *((TEXTS, key, "x", "a key must be a text") for key in ("\ud800", 3, ["unhashable"])),
    *((TEXTS, "a", value, NO_TEXT) for value in (None, b"x", f"{CANARY}\udcff")),
    *((NUMBERS, "2MB", value, NO_NUMBER) for value in ("3", 1.5, -1, 2**64)),
    *((VARIABLES, key, "x", NO_KEY) for key in (f"A={CANARY}", f"{CANARY}\0", "")),
    *((VARIABLES, "A", f"{CANARY}\0", "a value must not contain NUL"), (VARIABLES, "a", 3, NO_TEXT)),
    *((TEXTS, "", "x", "a key must not be empty"), (VARIABLES, 3, "x", "a key must be a text")),
]


@pytest.mark.parametrize(("kind", "key", "value", "why"), INVALID_ENTRIES)
def test_invalid_entry_is_refused_and_not_shown(kind: Any, key: Any, value: Any, why: str) -> None:
    editable = kind[0]({}, kind[1], "map")
    with pytest.raises(NotSayable, match=rf"^map: {why}") as raised:
        editable[key] = value
    assert CANARY not in str(raised.value)
    assert dict(editable) == {}


NOT_SET, NO_LIST = "must be a whole number, .*0 and None say 'not set'", "must be empty or a list of n and n-m"
NO_NUMBERS = (0, None, True, "1000", 1000.0, 2**63, -(2**63) - 1, CANARY)
BAD_VALUES = [
    *(("cpu_quota", value, NOT_SET) for value in NO_NUMBERS),
    *(("cpuset_cpus", value, "must be a text") for value in (None, 3, b"0")),
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


def test_invalid_value_of_the_kubelet_can_be_repeated() -> None:
    for name, odd in (("cpu_quota", 5), ("cpu_shares", -3), ("cpuset_cpus", "0-3,"), ("cpuset_cpus", "3-1")):
        assert edited(Resources(**{name: odd}), (name, odd)).answer == Resources(**{name: odd})
    env = Environment({"A=B": "x\0", "": "y"}, str, "env")
    env.update(dict(env))
    assert env.set_entries == {"A=B": "x\0", "": "y"}


@pytest.mark.parametrize("name", CPUSETS)
def test_cpuset_can_be_cleared_if_a_number_was_sent(name: str) -> None:
    for number in NUMBER_FIELDS:
        sent = Resources(**{name: "0-3", number: -1})
        resources = edited(sent, (name, ""))
        assert getattr(resources, name) is None
        assert resources.answer == replace(sent, **{name: ""})
    with pytest.raises(NotSayable, match=rf"^{name}: cannot be cleared where the request has no number"):
        edited(Resources(**{name: "0-3"}), ("cpu_quota", -1), (name, ""))  # a number set by the hook does not help
    assert edited(None, (name, "5"), (name, "")).answer is None
    assert edited(Resources(cpu_shares=2), (name, ""), update=True, alone=True).answer is None


def test_misspelt_field_is_refused() -> None:
    resources = EditableResources(SENT)
    with pytest.raises(NotSayable, match=r"^cpu_share: no such field; there are .*cpu_shares"):
        resources.set("cpu_share", 2)
    with pytest.raises(NotSayable, match=r"^cpu_share cannot be assigned; .*cpu_shares"):
        resources.cpu_share = 2
    assert resources.answer is None


def test_repr_of_resources_has_no_map() -> None:
    sent = Resources(cpu_shares=2, cpuset_cpus="0-3", unified={"a": CANARY})
    assert repr(EditableResources(sent)) == "<resources: cpu_shares=2, cpuset_cpus=0-3>"
    assert repr(EditableResources(None)) == "<resources: nothing set>"


NEW: dict[str, Any] = {"cpu_quota": -1, "cpuset_mems": "0", "unified": {"a": "1"}}
BEFORE = {"memory.high": "max"}
CHANGES: list[tuple[str, Resources | None, list[tuple[str, Any]], dict[str, Any]]] = [
    ("nothing was sent", None, [*NEW.items()], NEW),
    ("as sent", SENT, [("cpu_quota", SENT.cpu_quota), ("cpuset_cpus", SENT.cpuset_cpus), ("unified", BEFORE)], {}),
    (
        "set back",
        SENT,
        [("cpu_quota", -1), ("cpu_quota", 50_000), ("unified", {"memory.high": "1"}), ("unified", BEFORE)],
        {},
    ),
    (
        "entries",
        SENT,
        [("unified", {**BEFORE, "b": ""}), ("hugepage_limits", {"2MB": 0})],
        {"unified": {"b": ""}, "hugepage_limits": {"2MB": 0}},
    ),
]


@pytest.mark.parametrize("more", [{}, {"update": True}, {"update": True, "alone": True}], ids=str)
@pytest.mark.parametrize(("sent", "edits", "changed"), rows(CHANGES))
def test_answer_changes_what_was_set_only(
    sent: Resources | None, edits: list[tuple[str, Any]], changed: dict[str, Any], more: Any
) -> None:
    request = HookRequest(PodInfo(), ContainerInfo(resources=sent))
    change = difference(request, HookAnswer(resources=edited(sent, *edits, **more).answer))
    assert judged(change, request)[1] == ()
    assert change.resources == changed


SET = {"cpu_quota": -1, "cpu_shares": SENT.cpu_shares, "cpuset_cpus": "7"}
SET |= {"unified": {"io.max": "x"}, "hugepage_limits": {"2MB": 1}}
MAPS: Any = {"unified": {"memory.high": "max", "io.max": "x"}, "hugepage_limits": {"2MB": 1, "1GB": 2**30}}
WHOLE = replace(SENT, cpu_quota=-1, cpuset_cpus="7", **MAPS)


UPDATE = {"update": True}
ANSWERS = [
    ("create", {}, SET, WHOLE),
    ("start", {**UPDATE, "alone": True}, SET, WHOLE),
    ("update", UPDATE, SET, Resources(**SET)),
    ("update that clears a cpuset", UPDATE, {"cpuset_cpus": ""}, replace(SENT, cpuset_cpus="")),
]


@pytest.mark.parametrize(("more", "edits", "answer"), rows(ANSWERS))
def test_answer_is_an_echo_except_in_the_kubelets_update(more: Any, edits: dict[str, Any], answer: Resources) -> None:
    resources = edited(SENT, *edits.items(), **more)
    assert (resources.answer, resources.sent) == (answer, SENT)
    assert resources.value == (WHOLE if edits is SET else answer)
    assert EditableResources(SENT).value is SENT
