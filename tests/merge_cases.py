"""Tables of answers: what each changes, what of it is bad, how two add up (hook-api, "What an answer means")."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runtimeproxy.model import Adjustment, HookAnswer, Resources

SENT = Resources(
    cpu_period=100_000,
    cpu_quota=50_000,
    cpu_shares=512,
    memory_limit_in_bytes=2**30,
    cpuset_cpus="0-3",
    cpuset_mems="0",
    hugepage_limits={"2MB": 2**21, "1GB": 2**30},
    unified={"memory.high": "max"},
)
"""The resources that the request holds in the tables."""

KEPT: dict[str, Any] = {"cpu_period": 100_000, "cpu_quota": 50_000, "cpu_shares": 512, "memory_limit_in_bytes": 2**30}
"""The numbers that SENT has: an answer with all of them is an echo."""
CPUSETS: dict[str, Any] = {"cpuset_cpus": "0-3", "cpuset_mems": "0"}

RESOURCE_CASES: list[tuple[str, Resources | None, Resources | None, Mapping[str, Any]]] = [
    ("no message", SENT, None, {}),
    ("no message on either side", None, None, {}),
    ("whole echo", SENT, SENT, {}),
    ("empty message", SENT, Resources(), {}),
    ("empty message against none", None, Resources(), {}),
    # partial: a number that was sent is missing
    ("partial: one number", SENT, Resources(cpu_quota=-1), {"cpu_quota": -1}),
    ("partial: a number that was not sent", SENT, Resources(oom_score_adj=-998), {"oom_score_adj": -998}),
    ("partial: the same number", SENT, Resources(cpu_quota=50_000), {}),
    ("partial: cpuset set", SENT, Resources(cpuset_cpus="5"), {"cpuset_cpus": "5"}),
    ("partial: cpuset not set stays", SENT, Resources(cpu_shares=2), {"cpu_shares": 2}),
    ("partial: three of four numbers", SENT, Resources(**{**KEPT, "cpu_quota": 0}), {}),
    ("partial: one huge page size", SENT, Resources(hugepage_limits={"2MB": 1}), {"hugepage_limits": {"2MB": 1}}),
    ("partial: one huge page size as it was", SENT, Resources(hugepage_limits={"2MB": 2**21}), {}),
    ("partial: huge page size of 0", SENT, Resources(hugepage_limits={"4MB": 0}), {"hugepage_limits": {"4MB": 0}}),
    ("partial: one unified key", SENT, Resources(unified={"io.max": "x"}), {"unified": {"io.max": "x"}}),
    # echo: every number that was sent is there
    ("echo: changed number", SENT, Resources(**{**KEPT, **CPUSETS, "cpu_quota": -1}), {"cpu_quota": -1}),
    ("echo: memory unlimited", SENT, replace(SENT, memory_limit_in_bytes=-1), {"memory_limit_in_bytes": -1}),
    ("echo: number that was 0", SENT, replace(SENT, oom_score_adj=5), {"oom_score_adj": 5}),
    ("echo: cpuset cleared", SENT, replace(SENT, cpuset_cpus=""), {"cpuset_cpus": ""}),
    ("echo: both cpusets cleared", SENT, Resources(**KEPT), {"cpuset_cpus": "", "cpuset_mems": ""}),
    ("echo: cpuset changed", SENT, replace(SENT, cpuset_cpus="1"), {"cpuset_cpus": "1"}),
    ("echo: map keys not named stay", SENT, replace(SENT, hugepage_limits={}, unified={}), {}),
    ("echo: map key changed", SENT, replace(SENT, unified={"memory.high": "1"}), {"unified": {"memory.high": "1"}}),
    # nothing sent that tells an echo: every answer is partial
    ("no number sent: cpuset stays", Resources(cpuset_cpus="0-3"), Resources(cpu_quota=-1), {"cpu_quota": -1}),
    ("no number sent: empty answer", Resources(cpuset_cpus="0-3"), Resources(), {}),
    ("no message sent", None, Resources(cpu_shares=1024), {"cpu_shares": 1024}),
    ("no message sent: cpuset", None, Resources(cpuset_cpus="0"), {"cpuset_cpus": "0"}),
]
"""Name, resources sent, resources answered, fields changed."""

ENTRY_CASES: list[tuple[Mapping[str, str], Mapping[str, str], Mapping[str, str]]] = [
    ({}, {}, {}),
    ({"a": "1"}, {}, {}),
    ({"a": "1"}, {"a": "1"}, {}),
    ({"a": "1"}, {"a": "2"}, {"a": "2"}),
    ({"a": "1"}, {"a": ""}, {"a": ""}),
    ({"a": "1"}, {"b": "1"}, {"b": "1"}),
    ({"a": "1"}, {"b": ""}, {"b": ""}),
    ({"a": ""}, {"a": ""}, {}),
    ({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}, {"b": "3", "c": "4"}),
]
"""Entries sent, entries answered, entries to set."""


def of(**fields: Any) -> HookAnswer:
    """Return an answer with these fields of resources."""
    return HookAnswer(resources=Resources(**fields))


GOOD_FIELDS: dict[str, list[Any]] = {
    "cpu_period": [1000, 100_000, 1_000_000],
    "cpu_quota": [-1, 1000, 2**40],
    "cpu_shares": [1, 2, 262_144, 2**40],
    "memory_limit_in_bytes": [-1, 1, 2**50],
    "memory_swap_limit_in_bytes": [-1, 1, 2**50],
    "oom_score_adj": [-1000, -1, 1, 1000],
    "cpuset_cpus": ["0", "0-0", "0-3,8", "1,0", "8191", "00-01"],
    "cpuset_mems": ["0", "0-1", "0,1"],
}
GOOD: list[HookAnswer] = [
    HookAnswer(),
    HookAnswer(labels={"koordinator.sh/qosClass": ""}, annotations={"a=b": "c\0d"}),
    *(HookAnswer(envs={key: value}) for key, value in [("A", "="), ("a.b-c", ""), ("1", "é\n"), (" ", " ")]),
    *(HookAnswer(cgroup_parent=path) for path in ["/", "/a/b", "/a..b", "/kubepods.slice/x.slice", "/a/.../b"]),
    *(of(**{name: value}) for name, values in GOOD_FIELDS.items() for value in values),
    of(),
    HookAnswer(resources=replace(SENT, cpuset_cpus="", cpuset_mems="")),
    of(hugepage_limits={"2MB": 0}, unified={"cpu.weight": ""}),
]

TIDY_CPUSETS: list[tuple[str, str]] = [
    *[("0-3,", "0-3"), (",8-15", "8-15"), ("0-3,,8", "0-3,8"), ("0-3,8-11,", "0-3,8-11"), (",,0-3,,", "0-3")],
    *[
        (" 0-3", "0-3"),
        ("0-3\n", "0-3"),
        ("0, 2", "0,2"),
        ("0 2", "0,2"),
        ("\t0-1 ,\r\n2\v\f", "0-1,2"),
        ("0,0", "0,0"),
    ],
    *[(",", ""), (" ", ""), (" , ,\n", "")],
]
"""Odd texts of cpusets, and their normal forms: what koordlet makes of pools one of which is empty, and what the kernel
takes besides. Of the last ones nothing is left: they are not set."""

TIDY: list[tuple[str, int | str, int | str]] = [
    *((name, odd, normal) for name in ("cpuset_cpus", "cpuset_mems") for odd, normal in TIDY_CPUSETS),
    *(("cpu_quota", odd, 1000) for odd in (1, 834, 999)),
]
"""Field, an odd value, its normal form."""

BAD_CPUSETS = [
    *["-", "0-", "-1", "-1-2", "3-2", "0-1,9-8", "0-1-2", "0-10:2/4", "0 - 3", "0- 3", "0-3;8", "0\u00a01", "0\u20031"],
    *["a", "0-a", "0x1", "1.5", "٣", "²", "all", "\0", "0,\0"],
    *["8192", "9999", "0-9999", "0,9999", "1234567890", "9" * 5000],
]

BAD_PATHS = ["a", ".", "..", "./a", "../a", "/..", "/../a", "/a/..", "/a/../b", " /a", "a/b", "/a\0b", "x.slice"]
BAD_FIELDS: dict[str, list[Any]] = {
    "cpu_period": [-1, 1, 999, 1_000_001, 2**62],
    "cpu_quota": [-2, -7, -(2**40)],
    "cpu_shares": [-1, -(2**40)],
    "memory_limit_in_bytes": [-2, -(2**62)],
    "memory_swap_limit_in_bytes": [-2, -(2**62)],
    "oom_score_adj": [-1001, 1001, 2**40],
    "cpuset_cpus": BAD_CPUSETS,
    "cpuset_mems": ["1-0", "node0", "0;1"],
    "hugepage_limits": [{"": 1}],
    "unified": [{"": "1"}],
}
BAD: list[tuple[str, HookAnswer]] = [
    ("labels", HookAnswer(labels={"": "x"})),
    ("annotations", HookAnswer(annotations={"": "x"})),
    *(("envs", HookAnswer(envs={key: "x"})) for key in ["", "=", "A=B", "=A", "A=", "\0", "A\0", "A\0B"]),
    *(("envs", HookAnswer(envs={"A": value})) for value in ["\0", "x\0", "\0x"]),
    *(("cgroup_parent", HookAnswer(cgroup_parent=path)) for path in BAD_PATHS),
    *((f"resources.{name}", of(**{name: value})) for name, values in BAD_FIELDS.items() for value in values),
]
"""The field that is at fault, and an answer with this one fault."""


def says(cgroup_parent: str | None = None, **fields: Any) -> Adjustment:
    return Adjustment(cgroup_parent=cgroup_parent, **fields)


def sets(**resources: Any) -> Adjustment:
    return Adjustment(resources=resources)


PAGES, OTHER_PAGES = {"2MB": 1, "1GB": 1}, {"2MB": 2, "4MB": 3}
TWO_PARTS, OTHER_PARTS = says(labels={"a": "1"}, envs={"a": "1"}), says("/x", annotations={"a": "2"})
CPUS_1, NO_CPUS = sets(cpuset_cpus="1"), sets(cpuset_cpus="")

MERGE_CASES: list[tuple[str, Adjustment, Adjustment, Adjustment | None, tuple[str, ...]]] = [
    ("label", says(labels={"a": "1"}), says(labels={"a": "2"}), None, ("labels.a",)),
    ("annotation", says(annotations={"a": "1"}), says(annotations={"a": ""}), None, ("annotations.a",)),
    ("env", says(envs={"a": "1"}), says(envs={"a": "2"}), None, ("envs.a",)),
    ("same env", says(envs={"a": "1"}), says(envs={"a": "1"}), None, ()),
    ("other env", says(envs={"a": "1"}), says(envs={"b": "2"}), says(envs={"a": "1", "b": "2"}), ()),
    ("cgroup parent", says("/a"), says("/b"), None, ("cgroup_parent",)),
    ("same cgroup parent", says("/a"), says("/a"), None, ()),
    ("number", sets(cpu_quota=-1, cpu_shares=2), sets(cpu_quota=1000, cpu_shares=2), None, ("resources.cpu_quota",)),
    ("cpuset cleared", CPUS_1, NO_CPUS, None, ("resources.cpuset_cpus",)),
    ("cleared cpuset set", NO_CPUS, CPUS_1, None, ("resources.cpuset_cpus",)),
    (
        "huge pages key by key",
        sets(hugepage_limits=PAGES),
        sets(hugepage_limits=OTHER_PAGES),
        sets(hugepage_limits=PAGES | OTHER_PAGES),
        ("resources.hugepage_limits.2MB",),
    ),
    ("unified", sets(unified={"a": "1"}), sets(unified={"b": "2"}), sets(unified={"a": "1", "b": "2"}), ()),
    ("parts", TWO_PARTS, OTHER_PARTS, says("/x", labels={"a": "1"}, envs={"a": "1"}, annotations={"a": "2"}), ()),
    ("nothing", TWO_PARTS, says(), TWO_PARTS, ()),
]
"""Name, what two plugins change, both together where that is not the second, fields in conflict."""
