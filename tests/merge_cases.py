"""Answers that are good, odd or bad (hook-api, "Normal forms and checks")."""

from dataclasses import replace
from typing import Any

from runtimeproxy.model.fields import HookAnswer, Resources

NUMBERS: dict[str, Any] = {
    "cpu_period": 100_000,
    "cpu_quota": 50_000,
    "cpu_shares": 512,
    "memory_limit_in_bytes": 2**30,
}
PAGES, UNIFIED = {"2MB": 2**21, "1GB": 2**30}, {"memory.high": "max"}
SENT = Resources(**NUMBERS, cpuset_cpus="0-3", cpuset_mems="0", hugepage_limits=PAGES, unified=UNIFIED)


def of(**fields: Any) -> HookAnswer:
    return HookAnswer(resources=Resources(**fields))


MEMORY = ("memory_limit_in_bytes", "memory_swap_limit_in_bytes")
GOOD_FIELDS: dict[str, list[Any]] = {
    "cpu_period": [1000, 100_000, 1_000_000],
    "cpu_quota": [-1, 1000, 2**40],
    "cpu_shares": [1, 2, 262_144, 2**40],
    **{name: [-1, 1, 2**50] for name in MEMORY},
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
    *[(" 0-3", "0-3"), ("0-3\n", "0-3"), ("0, 2", "0,2"), ("0 2", "0,2"), ("\t0-1 ,\r\n2\v\f", "0-1,2")],
    *[("0,0", "0,0"), (",", ""), (" ", ""), (" , ,\n", "")],
]
"""Unusual texts of cpusets, and their normal forms: koordlet's texts for empty pools, and others that the
kernel accepts. The last ones become empty and are not set."""

TIDY: list[tuple[str, int | str, int | str]] = [
    *((name, odd, normal) for name in ("cpuset_cpus", "cpuset_mems") for odd, normal in TIDY_CPUSETS),
    *(("cpu_quota", odd, 1000) for odd in (1, 834, 999)),
]
"""Field, an unusual value, its normal form."""

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
    **{name: [-2, -(2**62)] for name in MEMORY},
    "oom_score_adj": [-1001, 1001, 2**40],
    "cpuset_cpus": BAD_CPUSETS,
    "cpuset_mems": ["1-0", "node0", "0;1"],
    **{"hugepage_limits": [{"": 1}], "unified": [{"": "1"}]},
}
BAD: list[tuple[str, HookAnswer]] = [
    *[("labels", HookAnswer(labels={"": "x"})), ("annotations", HookAnswer(annotations={"": "x"}))],
    *(("envs", HookAnswer(envs={key: "x"})) for key in ["", "=", "A=B", "=A", "A=", "\0", "A\0", "A\0B"]),
    *(("envs", HookAnswer(envs={"A": value})) for value in ["\0", "x\0", "\0x"]),
    *(("cgroup_parent", HookAnswer(cgroup_parent=path)) for path in BAD_PATHS),
    *((f"resources.{name}", of(**{name: value})) for name, values in BAD_FIELDS.items() for value in values),
]
"""The bad field, and an answer with only this bad field."""
