"""The values of the model are frozen, a resource field is one row, and encoded variables equal a dict of them."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from runtimeproxy.model import fields
from runtimeproxy.model.fields import NO_CHANGES, ContainerInfo, Envs, PodInfo, Resources, changed_envs


def test_values_are_frozen() -> None:
    for value in (PodInfo(), ContainerInfo(), Resources(), fields.NO_ADJUSTMENT):
        with pytest.raises(FrozenInstanceError):
            setattr(value, next(iter(type(value).__dataclass_fields__)), None)


SWAPS = [(5, 5, 7, 7), (5, 5, 0, 0), (0, 0, 7, 7), (5, 0, 7, 0), (5, -1, 7, -1), (5, -1, 0, -1), (5, 9, 7, 9)]
SWAPS += [(5, 5, -1, -1), (5, 9, -1, -1), (5, 0, -1, 0), (5, 9, 10, 10), (5, 9, 0, 0)]


@pytest.mark.parametrize(("memory", "swap", "new_memory", "new_swap"), SWAPS)
def test_swap_limit_follows_new_memory_limit(memory: int, swap: int, new_memory: int, new_swap: int) -> None:
    assert fields.swap_for(memory, swap, new_memory) == new_swap


ROWS = """\
    cpu_burst: int = _field(Kind.NUMBER, *_SCORE, group="cpu")
    files: Mapping[str, str] = _field(Kind.TEXTS)
"""
MODEL_WITH_IT = """
from runtimeproxy.model import fields, merge, originals
from runtimeproxy.model.fields import *

sent, answered = Resources(cpu_burst=5, files={"a": "1"}), Resources(cpu_burst=7, files={"b": "2"})
request = HookRequest(PodInfo("p1"), ContainerInfo("c1", "p1", resources=sent))
change = merge.difference(request, HookAnswer(resources=answered))
assert change.resources == {"cpu_burst": 7, "files": {"b": "2"}}
added = merge.combine(NO_ADJUSTMENT, "a", change)
assert added.owners == {"resources.cpu_burst": "a", "resources.files.b": "a"}
bad = merge.difference(request, HookAnswer(resources=Resources(cpu_burst=1001, cpu_quota=-1)))
good, rules = merge.validated(bad, request)
assert (good.resources, [rule.field for rule in rules]) == ({}, ["resources.cpu_burst"])
hooked = merge.applied(request, added).container
assert hooked.resources == Resources(cpu_burst=7, files={"a": "1", "b": "2"})
record = ContainerRecord(request.container, hooked)
kept = originals.read(originals.write(originals.original_values_of(record)))
assert kept.pairs == {"resources.cpu_burst": (5, 7), "resources.files.b": (None, "2")}
assert originals.restored_container(hooked, kept) == record
"""


def test_new_field_needs_only_one_row(tmp_path: Path) -> None:
    """A number and a map are added to a copy of the model, which then handles them as any other field."""
    copied = tmp_path / "runtimeproxy"
    shutil.copytree(Path(fields.__file__).parents[1], copied, ignore=shutil.ignore_patterns("__pycache__"))
    table = copied / "model" / "fields.py"
    row = next(line for line in table.read_text().splitlines(keepends=True) if line.startswith("    cpu_shares: int ="))
    table.write_text(table.read_text().replace(row, row + ROWS))
    subprocess.run([sys.executable, "-c", MODEL_WITH_IT], cwd=tmp_path, check=True)


def test_nested_is_inverse_of_flat() -> None:
    maps = {"labels": {"a.b": "1", "": "2"}, "annotations": {"resources.a": ""}}
    limits = {"cpu_quota": 7, "unified": {"a.b": "c"}}
    assert fields.nested(fields.flat(maps, "/x", limits)) == {**maps, "cgroup_parent": "/x", "resources": limits}
    assert fields.nested(fields.flat({}, None, {})) == {}


GIVEN = {"A": "1", "PATH": "/bin", "EMPTY": ""}


class Reader:
    """Decodes JSON in which each key has its UTF-8, and counts how often."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, raw: bytes) -> dict[str, str]:
        self.times += 1
        return dict(json.loads(raw)) if raw else {}


def envs(
    values: Mapping[str, str] = GIVEN, read: Reader | None = None, changes: Mapping[str, str] = NO_CHANGES
) -> Envs:
    raw = json.dumps(dict(values), ensure_ascii=False).encode() if values else b""
    return Envs(raw, read or Reader(), changes)


def test_envs_are_searched_and_compared_undecoded() -> None:
    read = Reader()
    variables = envs(read=read, changes={"SET": "1"})
    assert (variables.with_all_of(["NEW", "\udcff", "SET"]), read.times) == ({"SET": "1"}, 0)
    assert (variables.with_all_of(["NEW", "PATH"]), read.times) == ({**GIVEN, "SET": "1"}, 1)
    first, equal, different = (envs(read=read, changes={"NEW": value}) for value in "112")
    assert (first == equal, first != different, read.times) == (True, True, 1)


def test_envs_are_decoded_once() -> None:
    read = Reader()
    variables = envs(read=read, changes={"A": "2"})
    expected = {**GIVEN, "A": "2"}
    assert (dict(variables), list(variables), len(variables)) == (expected, list(expected), 3)
    assert list(variables.values()) == list(expected.values())
    assert (variables["PATH"], variables.get("NEW"), "NEW" in variables) == ("/bin", None, False)
    with pytest.raises(KeyError):
        variables["NEW"]
    assert read.times == 1


def test_changed_envs_leave_earlier_envs_unchanged() -> None:
    first = envs()
    second = changed_envs(first, {"A": "2", "B": "3"})
    third = changed_envs(second, {"B": ""})
    assert (first, second, third) == (GIVEN, {**GIVEN, "A": "2", "B": "3"}, {**GIVEN, "A": "2", "B": ""})
    assert first == dict(reversed(GIVEN.items()))
    assert isinstance(third, Envs)
    assert third.raw is first.raw
    assert changed_envs({"A": "1"}, {"B": "2"}) == {"A": "1", "B": "2"}
    assert deepcopy(first) is first


def test_repr_has_no_variable() -> None:
    assert repr(envs({"TOKEN": "s3cr3t"}, changes={"KEY": "canary"})) == "Envs(19 bytes, 1 changes)"


def test_envs_equal_equivalent_dict() -> None:
    base, different = {"A": "1", "AB": ""}, {"A": "2", "é": "1"}
    first, second = changed_envs(envs(base), {"B": "3"}), changed_envs(envs(different), {"A": "1", "B": "3"})
    assert first == base | {"B": "3"} != second == different | {"A": "1", "B": "3"}
    assert first == changed_envs(envs(base | {"B": "2"}), {"B": "3"})
    assert first != second
    assert (bool(first), bool(envs({})), bool(changed_envs(envs({}), {"A": ""}))) == (True, False, True)
    assert {**first, **second} == {**base, **different, "A": "1", "B": "3"}
    assert [first.with_all_of([key]).get(key) for key in ("A", "B", "AB", "é")] == ["1", "3", "", None]
    number: object = 7
    assert first != number
