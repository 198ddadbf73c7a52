"""What is left of an update without an answer beside a later one."""

from typing import Any

import pytest

from runtimeproxy.model import Resources
from runtimeproxy.records import AskedUpdate
from runtimeproxy.superseded import outlived

SHARES_AND_CPUS = Resources(cpu_shares=2, cpuset_cpus="0-1", unified={"a": "1", "b": "2"})
OUTLIVED: list[tuple[str, AskedUpdate, dict[str, Any], AskedUpdate, dict[str, Any], tuple[Any, ...] | None]] = [
    (
        "the same fields",
        AskedUpdate("c1", Resources(cpu_shares=2)),
        {},
        AskedUpdate("c1", Resources(cpu_shares=5)),
        {},
        None,
    ),
    ("nothing at all", AskedUpdate("c1", None), {}, AskedUpdate("c1", Resources(cpu_shares=5)), {}, None),
    (
        "other fields",
        AskedUpdate("c1", SHARES_AND_CPUS),
        {},
        AskedUpdate("c1", Resources(cpu_shares=5, unified={"b": "3"})),
        {},
        (AskedUpdate("c1", Resources(cpuset_cpus="0-1", unified={"a": "1"})), {}),
    ),
    (
        "all entries of a map",
        AskedUpdate("c1", Resources(unified={"a": "1"}), {"n": "1", "m": "1"}),
        {},
        AskedUpdate("c1", Resources(unified={"a": "2"}), {"n": "2"}),
        {},
        (AskedUpdate("c1", None, {"m": "1"}), {}),
    ),
    (
        "what hooks put in",
        AskedUpdate("c1", Resources(cpuset_cpus="0-1")),
        {"cpu_shares": 7, "cpu_quota": 1000, "cpuset_mems": "0"},
        AskedUpdate("c1", Resources(cpuset_cpus="2", cpuset_mems="1")),
        {"cpu_quota": 2000},
        (AskedUpdate("c1", None), {"cpu_shares": 7, "cpu_quota": 2000}),
    ),
    (
        "a field that later hooks put in",
        AskedUpdate("c1", Resources(cpu_shares=2)),
        {},
        AskedUpdate("c1", Resources(cpuset_cpus="2")),
        {"cpu_shares": 9},
        (AskedUpdate("c1", Resources(cpu_shares=2)), {"cpu_shares": 9}),
    ),
]


@pytest.mark.parametrize(
    ("asked", "put_in", "later", "later_put_in", "left"),
    [case[1:] for case in OUTLIVED],
    ids=[case[0] for case in OUTLIVED],
)
def test_an_update_without_an_answer_says_what_a_later_one_does_not(
    asked: AskedUpdate,
    put_in: dict[str, Any],
    later: AskedUpdate,
    later_put_in: dict[str, Any],
    left: tuple[Any, ...] | None,
) -> None:
    assert outlived(asked, put_in, later, later_put_in) == left
