"""Edits of maps and resources: what can be said, what is refused at once, and that a refusal changes nothing."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.merge import difference, judged
from runtimeproxy.model import NUMBER_FIELDS, TEXT_FIELDS, HookAnswer, HookRequest, PodInfo, Resources
from runtimeproxy_hooks.sdk.edits import EditableResources, Entries, Environment
from runtimeproxy_hooks.sdk.errors import NotSayable
from tests.amounts import examples
from tests.merge_cases import BAD_CPUSETS, SENT, TIDY

CANARY = "canary-value"


def entries(**sent: str) -> Entries[str]:
    return Entries(sent, str, "labels")


# -- maps ------------------------------------------------------------------------------------------------------------


def test_a_map_reads_as_what_was_sent_with_the_changes_over_it() -> None:
    labels = entries(a="1", b="2")
    labels["b"] = "3"
    labels["c"] = ""
    assert dict(labels) == {"a": "1", "b": "3", "c": ""}
    assert len(labels) == 3
    assert labels.said == {"b": "3", "c": ""}
    assert labels.get("d") is None
    with pytest.raises(KeyError):
        labels["d"]


@pytest.mark.parametrize("between", ["2", "1"])
def test_a_key_set_back_to_what_was_sent_is_said_again(between: str) -> None:
    labels = entries(a="1", b="2")
    labels["a"] = between
    labels["a"] = "1"
    assert labels.said == {"a": "1"}
    assert dict(labels) == {"a": "1", "b": "2"}


def test_a_number_that_equals_what_was_sent_is_said_as_it_was_sent() -> None:
    limits: Entries[Any] = Entries({"2MB": 1}, int, "hugepage_limits")
    limits["2MB"] = 1.0
    assert type(limits["2MB"]) is int


def test_what_was_sent_is_never_written_to() -> None:
    sent = {"a": "1"}
    Entries(sent, str, "labels").update(a="2", b="3")
    assert sent == {"a": "1"}


@pytest.mark.parametrize("delete", [lambda m: m.pop("a"), lambda m: m.clear(), lambda m: m.popitem()])
def test_a_key_cannot_be_deleted(delete: Any) -> None:
    labels = entries(a="1")
    with pytest.raises(NotSayable, match="labels: a hook server can set a key, but not delete one"):
        delete(labels)
    assert dict(labels) == {"a": "1"}
    assert labels.pop("not there", None) is None


@pytest.mark.parametrize(
    ("kind", "key", "value", "why"),
    [
        (str, "", "x", "a key must not be empty"),
        (str, "\ud800", "x", "a key must be a text"),
        (str, 3, "x", "a key must be a text"),
        (str, ["unhashable"], "x", "a key must be a text"),
        (str, "a", None, "the value of a must be a text in UTF-8"),
        (str, "a", 3, "the value of a must be a text in UTF-8"),
        (str, "a", b"x", "the value of a must be a text in UTF-8"),
        (str, "a", f"{CANARY}\udcff", "the value of a must be a text in UTF-8"),
        (int, "2MB", "3", "the value of 2MB must be a whole number"),
        (int, "2MB", 1.5, "the value of 2MB must be a whole number"),
        (int, "2MB", -1, "the value of 2MB must be a whole number from 0"),
        (int, "2MB", 2**64, "the value of 2MB must be a whole number from 0"),
    ],
)
def test_an_entry_that_cannot_be_said(kind: Any, key: Any, value: Any, why: str) -> None:
    editable: Entries[Any] = Entries({}, kind, "map")
    with pytest.raises(NotSayable, match=rf"^map: {why}") as raised:
        editable[key] = value
    assert CANARY not in str(raised.value)
    assert dict(editable) == {}


@pytest.mark.parametrize("limit", [0, 1, 2**64 - 1])
def test_a_huge_page_limit_is_an_unsigned_number(limit: int) -> None:
    limits: Entries[int] = Entries({"1GB": 3}, int, "hugepage_limits")
    limits["2MB"] = limit
    assert limits.said == {"2MB": limit}


@pytest.mark.parametrize(("key", "value"), [("a", "1"), ("a", "2"), ("b", "1")])
def test_a_fixed_map_says_why(key: str, value: str) -> None:
    labels: Entries[str] = Entries({"a": "1"}, str, "labels", "not here")
    with pytest.raises(NotSayable, match=r"^labels: not here$"):
        labels[key] = value
    with pytest.raises(NotSayable, match=r"^labels: not here$"):
        del labels["a"]
    assert dict(labels) == {"a": "1"}


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (f"A={CANARY}", "x", "a key must not be empty and must not contain"),
        (f"{CANARY}\0", "x", "a key must not be empty and must not contain"),
        ("A", f"{CANARY}\0", "a value must not contain NUL"),
        ("", "x", "a key must not be empty"),
        (3, "x", "a key must be a text"),
        ("A", 3, "the value of A must be a text"),
    ],
)
def test_a_variable_that_the_proxy_would_refuse(key: Any, value: Any, why: str) -> None:
    env = Environment({}, str, "env")
    with pytest.raises(NotSayable, match=rf"^env: {why}") as raised:
        env[key] = value
    assert CANARY not in str(raised.value)
    assert dict(env) == {}


def test_an_odd_entry_of_the_kubelet_can_be_said_again() -> None:
    env = Environment({"A=B": "x\0", "": "y"}, str, "env")
    env.update(dict(env))
    assert env.said == {"A=B": "x\0", "": "y"}


def test_the_text_of_a_map_has_no_value() -> None:
    assert repr(entries(a=CANARY, b="2")) == str(entries(a=CANARY, b="2")) == "<labels: 2 entries>"


# -- numbers and cpusets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [None, Resources()])
@pytest.mark.parametrize("name", [*NUMBER_FIELDS, *sorted(TEXT_FIELDS)])
def test_a_field_that_is_not_set_reads_as_none(name: str, sent: Resources | None) -> None:
    assert getattr(EditableResources(sent), name) is None
    assert EditableResources(sent).get(name) is None


@pytest.mark.parametrize("name", [*NUMBER_FIELDS, *sorted(TEXT_FIELDS)])
def test_a_field_that_is_set_reads_as_its_value(name: str) -> None:
    sent = replace(SENT, oom_score_adj=-998, memory_swap_limit_in_bytes=-1)
    assert getattr(EditableResources(sent), name) == getattr(sent, name)


@pytest.mark.parametrize("name", NUMBER_FIELDS)
@pytest.mark.parametrize("value", [0, None, True, False, "1000", 1000.0, 2**63, -(2**63) - 1])
def test_a_number_that_cannot_be_said(name: str, value: Any) -> None:
    resources = EditableResources(SENT)
    with pytest.raises(NotSayable, match=rf"^{name}: must be a whole number, .*0 and None say 'not set'"):
        setattr(resources, name, value)
    assert resources.answer is None


@pytest.mark.parametrize("value", [None, 3, b"0", ["0"]])
@pytest.mark.parametrize("name", sorted(TEXT_FIELDS))
def test_a_cpuset_that_is_no_text(name: str, value: Any) -> None:
    resources = EditableResources(SENT)
    with pytest.raises(NotSayable, match=rf"^{name}: must be a text"):
        setattr(resources, name, value)
    assert resources.answer is None


@pytest.mark.parametrize(("name", "odd", "normal"), [row for row in TIDY if row[2]])
def test_an_odd_value_is_set_in_its_normal_form(name: str, odd: int | str, normal: int | str) -> None:
    resources = EditableResources(None)
    resources.set(name, odd)
    assert resources.get(name) == normal
    assert resources.answer == Resources(**{name: normal})  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [*BAD_CPUSETS, *(odd for name, odd, normal in TIDY if not normal)])
@pytest.mark.parametrize("name", sorted(TEXT_FIELDS))
def test_a_cpuset_that_the_proxy_would_refuse(name: str, text: str) -> None:
    resources = EditableResources(None)
    with pytest.raises(NotSayable, match=rf"^{name}: must be empty or a list of n and n-m"):
        setattr(resources, name, text)
    assert resources.answer is None


@pytest.mark.parametrize("name", [*NUMBER_FIELDS, *sorted(TEXT_FIELDS)])
def test_a_refused_value_is_not_told(name: str) -> None:
    with pytest.raises(NotSayable) as raised:
        setattr(EditableResources(None), name, CANARY)  # it may come from an annotation
    assert CANARY not in str(raised.value)


def accepted(name: str, value: int | str) -> bool:
    try:
        EditableResources(None).set(name, value)
    except NotSayable:
        return False
    return True


def good(name: str, value: int | str) -> bool:
    request = HookRequest(PodInfo())
    change = difference(request, HookAnswer(resources=Resources(**{name: value})))  # type: ignore[arg-type]
    return bool(change) and not judged(change, request)[1]


EDGES = st.sampled_from([-1001, -1000, -2, -1, 1, 999, 1000, 1001, 1_000_000, 1_000_001, 2**63 - 1])


@settings(max_examples=examples(200))
@given(st.sampled_from(NUMBER_FIELDS), st.integers(-(2**63), 2**63 - 1).filter(bool) | EDGES)
def test_the_numbers_that_can_be_set_are_those_that_the_proxy_takes(name: str, value: int) -> None:
    assert accepted(name, value) is good(name, value)


@settings(max_examples=examples(200))
@given(
    st.sampled_from(sorted(TEXT_FIELDS)),
    st.text("0123456789-, ", min_size=1, max_size=8) | st.from_regex(r"\d+(-\d+)?"),
)
def test_the_cpusets_that_can_be_set_are_those_that_the_proxy_takes(name: str, text: str) -> None:
    assert accepted(name, text) is good(name, text)


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("cpu_quota", 5),
        ("cpu_quota", -7),
        ("cpuset_cpus", "0-3,"),
        ("cpu_shares", -3),
        ("cpu_period", 1),
        ("oom_score_adj", 2000),
        ("cpuset_cpus", "3-1"),
    ],
)
def test_an_odd_value_of_the_kubelet_can_be_said_again(name: str, odd: int | str) -> None:
    sent = Resources(**{name: odd})  # type: ignore[arg-type]
    resources = EditableResources(sent)
    resources.set(name, odd)
    assert resources.answer == sent


# -- clearing a cpuset -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(TEXT_FIELDS))
@pytest.mark.parametrize("number", NUMBER_FIELDS)
def test_one_number_of_the_request_is_enough_to_clear_a_cpuset(name: str, number: str) -> None:
    sent = Resources(**{name: "0-3", number: -1})  # type: ignore[arg-type]
    resources = EditableResources(sent)
    setattr(resources, name, "")
    assert getattr(resources, name) is None
    assert resources.answer == replace(sent, **{name: ""})  # type: ignore[arg-type]


@pytest.mark.parametrize("more", [{}, {"unified": {"a": "b"}}, {"hugepage_limits": {"2MB": 3}}, {"cpuset_mems": "0"}])
def test_without_a_number_in_the_request_a_cpuset_cannot_be_cleared(more: dict[str, Any]) -> None:
    sent = Resources(cpuset_cpus="0-3", **more)
    resources = EditableResources(sent)
    with pytest.raises(NotSayable, match=r"^cpuset_cpus: cannot be cleared where the request has no number"):
        resources.cpuset_cpus = ""
    assert resources.answer is None
    resources.cpuset_cpus = "1"
    assert resources.cpuset_cpus == "1"


def test_numbers_that_the_hook_sets_do_not_help_to_clear_a_cpuset() -> None:
    resources = EditableResources(Resources(cpuset_cpus="0-3"))
    resources.cpu_quota = -1
    with pytest.raises(NotSayable, match="cannot be cleared"):
        resources.cpuset_cpus = ""
    assert resources.answer == Resources(cpuset_cpus="0-3", cpu_quota=-1)


@pytest.mark.parametrize("sent", [None, Resources(), Resources(cpu_shares=2)])
def test_clearing_what_is_not_set_changes_nothing(sent: Resources | None) -> None:
    resources = EditableResources(sent)
    resources.cpuset_cpus = ""
    assert resources.answer is None


@pytest.mark.parametrize("sent", [None, Resources(), Resources(cpu_shares=2)])
def test_a_cpuset_that_only_a_hook_set_can_be_cleared_again(sent: Resources | None) -> None:
    resources = EditableResources(sent)
    resources.cpuset_cpus = "5"
    resources.cpuset_cpus = ""
    assert resources.answer is None


# -- what no update can say ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("oom_score_adj", 5, "no runtime changes it once the container exists: set it at PreCreateContainer"),
        ("cpuset_cpus", "", "no runtime clears it once the container exists: clear it at PreCreateContainer, or name"),
        ("cpuset_mems", "", "no runtime clears it once the container exists"),
    ],
)
def test_what_no_update_can_say_is_refused_in_one(name: str, value: Any, why: str) -> None:
    sent = replace(SENT, oom_score_adj=-998, cpuset_cpus="0-3", cpuset_mems="0")
    resources = EditableResources(sent, update=True, alone=True)
    with pytest.raises(NotSayable, match=rf"^{name}: {why}"):
        resources.set(name, value)
    assert resources.answer is None
    EditableResources(sent).set(name, value)
    if value == "":
        EditableResources(sent, update=True).set(name, value)


@pytest.mark.parametrize("sent", [None, Resources(), Resources(cpu_shares=2)])
def test_an_oom_score_that_was_not_sent_is_none_to_be_set_in_an_update(sent: Resources | None) -> None:
    with pytest.raises(NotSayable, match=r"^oom_score_adj: no runtime changes it"):
        EditableResources(sent, update=True).oom_score_adj = 5


def test_in_an_update_what_was_sent_can_be_said_again_and_the_rest_be_set() -> None:
    resources = EditableResources(Resources(oom_score_adj=5, cpuset_cpus="0-3"), update=True)
    resources.oom_score_adj = 5
    resources.cpuset_cpus = "1"
    resources.cpuset_mems = "1"
    resources.cpuset_mems = ""  # none was sent
    resources.cpu_shares = 2
    assert resources.answer == Resources(oom_score_adj=5, cpuset_cpus="1", cpu_shares=2)


# -- the message -----------------------------------------------------------------------------------------------------


def test_fixed_resources_say_why() -> None:
    resources = EditableResources(SENT, "not here")
    for name, value in (("cpu_shares", 2), ("cpu_shares", 0), ("cpuset_cpus", "")):
        with pytest.raises(NotSayable, match=rf"^{name}: not here$"):
            resources.set(name, value)
    with pytest.raises(NotSayable, match=r"^unified: not here$"):
        resources.unified["a"] = "b"
    with pytest.raises(NotSayable, match=r"^hugepage_limits: not here$"):
        resources.hugepage_limits["2MB"] = 1
    assert resources.answer is None


@pytest.mark.parametrize("name", ["cpu_share", "unified", "hugepage_limits", "value", ""])
def test_set_knows_the_numbers_and_cpusets_only(name: str) -> None:
    with pytest.raises(NotSayable, match=rf"^{name}: no such field; there are .*cpu_shares"):
        EditableResources(None).set(name, 2)


@pytest.mark.parametrize("name", ["cpu_share", "unified", "hugepage_limits", "value", "sent", "get"])
def test_a_misspelt_field_is_not_lost_without_a_word(name: str) -> None:
    resources = EditableResources(SENT)
    with pytest.raises(NotSayable, match=rf"^{name} cannot be assigned; .*cpu_shares"):
        setattr(resources, name, 2)
    assert resources.answer is None


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (None, "<resources: nothing set>"),
        (
            Resources(cpu_shares=2, cpuset_cpus="0-3", unified={"a": CANARY}),
            "<resources: cpu_shares=2, cpuset_cpus=0-3>",
        ),
    ],
)
def test_the_text_of_resources(sent: Resources | None, text: str) -> None:
    assert repr(EditableResources(sent)) == text
