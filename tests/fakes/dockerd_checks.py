"""The checks that dockerd 20.10 makes before it creates or updates a container, with its own texts.

In an update zero and "" mean "unchanged"; nothing is changed where anything is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from tests.fakes.dockerd_structs import CONFIG, HOST_CONFIG

LEAST_MEMORY_BYTES = 6 << 20
OVERWRITTEN = (
    *("BlkioWeight", "CpuShares", "NanoCpus", "CpuPeriod", "CpuQuota", "CpusetCpus", "CpusetMems"),
    *("Memory", "MemorySwap", "MemoryReservation"),
)
"""What an update takes over where it is not zero; OomScoreAdj and CgroupParent are not among them."""

_CONFLICTS = (("NanoCpus", "CpuPeriod"), ("NanoCpus", "CpuQuota"), ("CpuPeriod", "NanoCpus"), ("CpuQuota", "NanoCpus"))
_SPELT = {"NanoCpus": "Nano CPUs", "CpuPeriod": "CPU Period", "CpuQuota": "CPU Quota"}

Values = Mapping[str, Any]


class Refused(Exception):
    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def bad(message: str) -> Refused:
    """Return a refusal for a wrong parameter."""
    return Refused(HTTPStatus.BAD_REQUEST, message)


def check_types(body: Values) -> None:
    """Refuse a value that Go could not put into its field: the tables tell the types; null fits everywhere."""
    for name, table, values in (
        ("ContainerConfigWrapper", CONFIG, body),
        ("HostConfig", HOST_CONFIG, body.get("HostConfig") or {}),
    ):
        if not isinstance(values, dict):
            raise bad(f"json: cannot unmarshal {_go_type(values)} into Go value of type container.{name}")
        for key, zero in table.items():
            value = values.get(key)
            if isinstance(zero, (bool, int, str)) and value is not None and type(value) is not type(zero):
                wanted = {bool: "bool", int: "int64", str: "string"}[type(zero)]
                raise bad(
                    f"json: cannot unmarshal {_go_type(value)} into Go struct field {name}.{key} of type {wanted}"
                )


def _go_type(value: Any) -> str:
    kinds = ((bool, "bool"), (str, "string"), ((int, float), "number"), (list, "array"), (dict, "object"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "null")


def check(host: Values, *, systemd: bool, cpus: int, update: bool) -> None:
    """Refuse values that dockerd refuses in a create, or in an update, with status 400."""
    problem = next(_problems(host, systemd, cpus, update), None)
    if problem is not None:
        raise bad(problem)


def _problems(host: Values, systemd: bool, cpus: int, update: bool) -> Iterator[str]:
    yield from _memory(host, update)
    yield from _cpu(host, cpus, update)
    yield from _cpusets(host, cpus)
    if not -1000 <= host["OomScoreAdj"] <= 1000:
        yield f"Invalid value {host['OomScoreAdj']}, range for oom score adj is [-1000, 1000]"
    parent = host["CgroupParent"]
    if systemd and parent and not (len(parent) > len(".slice") and parent.endswith(".slice")):
        yield 'cgroup-parent for systemd cgroup should be a valid slice named as "xxx.slice"'


def _memory(host: Values, update: bool) -> Iterator[str]:
    memory, swap = host["Memory"], host["MemorySwap"]
    if memory != 0 and memory < LEAST_MEMORY_BYTES:
        yield "Minimum memory limit allowed is 6MB"
    if 0 < swap < memory:
        yield "Minimum memoryswap limit should be larger than memory limit, see usage"
    if memory == 0 and swap > 0 and not update:
        yield "You should always set the Memory limit when using Memoryswap limit, see usage"


def _cpu(host: Values, cpus: int, update: bool) -> Iterator[str]:
    nano, period, quota = host["NanoCpus"], host["CpuPeriod"], host["CpuQuota"]
    if nano > 0 and period > 0:
        yield "Conflicting options: Nano CPUs and CPU Period cannot both be set"
    if nano > 0 and quota > 0:
        yield "Conflicting options: Nano CPUs and CPU Quota cannot both be set"
    if not 0 <= nano <= cpus * 10**9:
        yield f"Range of CPUs is from 0.01 to {cpus}.00, as there are only {cpus} CPUs available"
    if update and host["CpuShares"] < 0:
        yield "shares: invalid argument"
    if period != 0 and not 1000 <= period <= 1_000_000:
        yield "CPU cfs period can not be less than 1ms (i.e. 1000) or larger than 1s (i.e. 1000000)"
    if 0 < quota < 1000:
        yield "CPU cfs quota can not be less than 1ms (i.e. 1000)"


def _cpusets(host: Values, cpus: int) -> Iterator[str]:
    rows = (("CpusetCpus", "cpuset cpus", "CPUs", cpus), ("CpusetMems", "cpuset mems", "memory nodes", 1))
    for field, spelt, plural, count in rows:
        try:
            wanted = _members(host[field])
        except ValueError:
            yield f"Invalid value {host[field]} for {spelt}: invalid format: {host[field]}"
            continue
        if not wanted <= set(range(count)):
            available = f"0-{count - 1}" if count > 1 else "0"
            yield f"Requested {plural} are not available - requested {host[field]}, available: {available}"


def _members(cpuset: str) -> set[int]:
    members: set[int] = set()
    for part in cpuset.split(",") if cpuset else []:
        first, dash, last = part.partition("-")
        members.update(range(int(first), int(last if dash else first) + 1))
    return members


def adapted(host: dict[str, Any]) -> dict[str, Any]:
    """Return a create's HostConfig with the defaults that the daemon puts in."""
    defaults = {
        "NetworkMode": "default",
        "IpcMode": "private",
        "CgroupnsMode": "host",
        "Runtime": "runc",
        "ShmSize": 64 << 20,
        "LogConfig": {"Type": "json-file", "Config": {}},
    }
    if host["Memory"] > 0 and host["MemorySwap"] == 0:
        defaults["MemorySwap"] = 2 * host["Memory"]
    empty = ("", 0, HOST_CONFIG["LogConfig"])
    return {**host, **{name: value for name, value in defaults.items() if host[name] in empty}}


def updated(stored: dict[str, Any], update: Values) -> dict[str, Any]:
    """Return the stored HostConfig with an update put into it.

    Raises Refused with status 409 where the two do not go together.
    """
    for new, old in _CONFLICTS:
        if update[new] > 0 and stored[old] > 0:
            spelt = "NanoCPUs" if old == "NanoCpus" else _SPELT[old]
            raise _conflict(f"Conflicting options: {_SPELT[new]} cannot be updated as {spelt} has already been set")
    if update["Memory"] > stored["MemorySwap"] and update["Memory"] != 0 and update["MemorySwap"] == 0:
        raise _conflict(
            "Memory limit should be smaller than already set memoryswap limit, update the memoryswap at the same time"
        )
    changes = {name: update[name] for name in OVERWRITTEN if update[name]}
    if update["RestartPolicy"]["Name"]:
        changes["RestartPolicy"] = update["RestartPolicy"]
    return {**stored, **changes}


def _conflict(message: str) -> Refused:
    return Refused(HTTPStatus.CONFLICT, message)
