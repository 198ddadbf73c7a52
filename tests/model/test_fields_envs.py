"""Encoded variables equal a dict of them, and are not decoded until they are used."""

import json
from collections.abc import Mapping
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.model.fields import NO_CHANGES, Envs, changed
from tests.amounts import examples

Texts = dict[str, str]
CAME = {"A": "1", "PATH": "/bin", "EMPTY": ""}


class Reader:
    """Decodes JSON in which each key stands as its UTF-8, and counts how often."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, raw: bytes) -> dict[str, str]:
        self.times += 1
        return dict(json.loads(raw)) if raw else {}


def envs(values: Mapping[str, str] = CAME, read: Reader | None = None, changes: Mapping[str, str] = NO_CHANGES) -> Envs:
    raw = json.dumps(dict(values), ensure_ascii=False).encode() if values else b""
    return Envs(raw, read or Reader(), changes)


def test_key_that_did_not_come_is_not_looked_for() -> None:
    read = Reader()
    known = envs(read=read, changes={"SET": "1"})
    assert (known.with_all_of(["NEW", "\udcff", "SET"]), read.times) == ({"SET": "1"}, 0)
    assert (known.with_all_of(["NEW", "PATH"]), read.times) == ({**CAME, "SET": "1"}, 1)


def test_changes_of_what_came_alike_are_compared_unread() -> None:
    read = Reader()
    known, equal, other = (envs(read=read, changes={"NEW": value}) for value in "112")
    assert (known == equal, known != other, read.times) == (True, True, 0)


def test_variables_are_read_once_for_who_goes_through_all() -> None:
    read = Reader()
    known = envs(read=read, changes={"A": "2"})
    expected = {**CAME, "A": "2"}
    assert (dict(known), {**known}, dict(known.items())) == (expected, expected, expected)
    assert (list(known), list(known.values()), len(known)) == (list(expected), list(expected.values()), 3)
    assert (known["PATH"], known.get("NEW"), "NEW" in known) == ("/bin", None, False)
    with pytest.raises(KeyError):
        known["NEW"]
    assert read.times == 1


def test_change_leaves_what_was_as_it_was() -> None:
    first = envs()
    second = changed(first, {"A": "2", "B": "3"})
    third = changed(second, {"B": ""})
    assert (first, second, third) == (CAME, {**CAME, "A": "2", "B": "3"}, {**CAME, "A": "2", "B": ""})
    assert first == dict(reversed(CAME.items()))
    assert isinstance(third, Envs)
    assert third.raw is first.raw
    assert changed({"A": "1"}, {"B": "2"}) == {"A": "1", "B": "2"}
    assert deepcopy(first) is first


def test_no_variable_is_shown() -> None:
    assert repr(envs({"TOKEN": "s3cr3t"}, changes={"KEY": "canary"})) == "Envs(19 bytes, 1 changes)"


MAPS = st.dictionaries(st.sampled_from(["A", "B", "AB", "", "é"]), st.text(max_size=2), max_size=4)


@settings(max_examples=examples())
@given(MAPS, MAPS, MAPS, MAPS)
def test_any_variables_are_what_a_dict_is(one: Texts, set_on_one: Texts, other: Texts, set_on_other: Texts) -> None:
    first, second = changed(envs(one), set_on_one), changed(envs(other), set_on_other)
    whole, another = {**one, **set_on_one}, {**other, **set_on_other}
    assert first == whole
    assert bool(first) is bool(whole)
    assert (first == second) is (whole == another)
    assert {**first, **second} == {**whole, **another}
    for keys in (set_on_other, other):
        found = first.with_all_of(keys)
        assert {key: found[key] for key in keys if key in found} == {key: whole[key] for key in keys if key in whole}
