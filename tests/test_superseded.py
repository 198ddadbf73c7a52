"""What is left of an update without an answer beside a later one."""

from typing import Any

import pytest

from runtimeproxy.model import Resources
from runtimeproxy.records import AskedUpdate, SaidUpdate
from runtimeproxy.superseded import outlived


def asked(notes: dict[str, str] | None = None, **resources: Any) -> AskedUpdate:
    return AskedUpdate("c1", Resources(**resources) if resources else None, notes or {})


UNIFIED = {"a": "1", "b": "2"}
OUTLIVED: dict[str, tuple[SaidUpdate, SaidUpdate, SaidUpdate | None]] = {
    "the same fields": (SaidUpdate(asked(cpu_shares=2)), SaidUpdate(asked(cpu_shares=5)), None),
    "nothing at all": (SaidUpdate(asked()), SaidUpdate(asked(cpu_shares=5)), None),
    "nothing beside what later hooks put in": (SaidUpdate(asked()), SaidUpdate(asked(), {"cpu_shares": 5}), None),
    "other fields": (
        SaidUpdate(asked(cpu_shares=2, cpuset_cpus="0-1", unified=UNIFIED)),
        SaidUpdate(asked(cpu_shares=5, unified={"b": "3"})),
        SaidUpdate(asked(cpuset_cpus="0-1", unified={"a": "1"})),
    ),
    "all entries of a map": (
        SaidUpdate(asked({"n": "1", "m": "1"}, unified={"a": "1"})),
        SaidUpdate(asked({"n": "2"}, unified={"a": "2"})),
        None,
    ),
    "what hooks put in": (
        SaidUpdate(asked(cpuset_cpus="0-1"), {"cpu_shares": 7, "cpu_quota": 1000, "cpuset_mems": "0"}),
        SaidUpdate(asked(cpuset_cpus="2", cpuset_mems="1"), {"cpu_quota": 2000}),
        SaidUpdate(asked(), {"cpu_shares": 7}, {}, {"cpu_quota": 2000}),
    ),
    "a field that later hooks put in": (
        SaidUpdate(asked(cpu_shares=2)),
        SaidUpdate(asked(cpuset_cpus="2"), {"cpu_shares": 9}),
        SaidUpdate(asked(cpu_shares=2), {}, {}, {"cpu_shares": 9}),
    ),
    "beside two later ones": (
        SaidUpdate(asked(cpu_shares=2, cpu_quota=3), {}, {}, {"cpu_shares": 9, "cpuset_cpus": "1"}),
        SaidUpdate(asked(cpuset_cpus="2"), {"cpu_quota": 8}),
        SaidUpdate(asked(cpu_shares=2, cpu_quota=3), {}, {}, {"cpu_shares": 9, "cpu_quota": 8}),
    ),
    "what hooks noted": (
        SaidUpdate(asked({"a": "1", "b": "1", "f": "1"}, cpu_shares=2), {}, {"c": "1", "d": "1", "e": "1"}),
        SaidUpdate(asked({"a": "2", "c": "2"}), {}, {"b": "2", "d": "2"}),
        SaidUpdate(asked({"f": "1"}, cpu_shares=2), {}, {"e": "1"}),
    ),
    "annotations alone": (SaidUpdate(asked({"a": "1"}), {}, {"b": "1"}), SaidUpdate(asked()), None),
    "entries that two later ones put in": (
        SaidUpdate(asked(cpu_shares=2), {}, {}, {"unified": {"a": "1"}}),
        SaidUpdate(asked(), {"unified": {"b": "2"}, "cpu_quota": 0}),
        SaidUpdate(asked(cpu_shares=2), {}, {}, {"unified": {"a": "1", "b": "2"}}),
    ),
}


@pytest.mark.parametrize(("said", "by", "left"), OUTLIVED.values(), ids=OUTLIVED)
def test_an_update_without_an_answer_says_what_a_later_one_does_not(
    said: SaidUpdate, by: SaidUpdate, left: SaidUpdate | None
) -> None:
    assert outlived(said, by) == left


def test_what_the_runtime_holds_in_the_end() -> None:
    left = outlived(
        SaidUpdate(asked(cpu_shares=2, cpu_quota=3), {"cpuset_cpus": "0"}),
        SaidUpdate(asked(cpu_period=5), {"cpu_shares": 9, "cpuset_cpus": "1"}),
    )
    assert left is not None
    assert left.wanted == {"cpu_shares": 9, "cpu_quota": 3, "cpuset_cpus": "1"}
