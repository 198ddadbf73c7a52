"""Checks that dockerd 20.10 makes before it creates or updates a container, with its own texts.

In an update zero and "" mean "unchanged"; nothing is changed if anything is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from tests.fakes.dockerd_structs import CONFIG, HOST_CONFIG

LEAST_MEMORY_BYTES = 6 << 20
CPUS = 1024
OVERWRITTEN = (
    *("BlkioWeight", "CpuShares", "NanoCpus", "CpuPeriod", "CpuQuota", "CpusetCpus", "CpusetMems"),
    *("Memory", "MemorySwap", "MemoryReservation"),
)
"""The fields that an update replaces if they are not zero; OomScoreAdj and CgroupParent are not among them."""

_GO_TYPES = {bool: "bool", int: "int64", str: "string"}
_CONFLICTS = (("NanoCpus", "CpuPeriod"), ("NanoCpus", "CpuQuota"), ("CpuPeriod", "NanoCpus"), ("CpuQuota", "NanoCpus"))
_SPELT = {"NanoCpus": "Nano CPUs", "CpuPeriod": "CPU Period", "CpuQuota": "CPU Quota"}

Values = Mapping[str, Any]


@dataclass(eq=False)
class Refused(Exception):
    status: HTTPStatus
    message: str


def bad(message: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, message)


def check_types(body: Values) -> None:
    """Refuse a value that Go could not put into its field, by the types in the tables; null is always accepted."""
    host = body.get("HostConfig") or {}
    if not isinstance(host, dict):
        raise bad(f"json: cannot unmarshal {_go_type(host)} into Go value of type container.HostConfig")
    for struct, table, values in (("ContainerConfigWrapper", CONFIG, body), ("HostConfig", HOST_CONFIG, host)):
        for key, zero in table.items():
            value = values.get(key)
            if type(zero) in _GO_TYPES and value is not None and type(value) is not type(zero):
                place = f"Go struct field {struct}.{key} of type {_GO_TYPES[type(zero)]}"
                raise bad(f"json: cannot unmarshal {_go_type(value)} into {place}")


def _go_type(value: Any) -> str:
    return {bool: "bool", str: "string", int: "number", float: "number", list: "array"}.get(type(value), "object")


def check(host: Values, *, systemd: bool, update: bool) -> None:
    """Refuse with status 400 a create or an update that is invalid, into which no proxy may turn a valid one."""
    memory, swap, nano, parent = (host[name] for name in ("Memory", "MemorySwap", "NanoCpus", "CgroupParent"))
    cpuset = host["CpusetCpus"]
    slice_name = parent.rpartition(".slice")[0] if parent.endswith(".slice") else ""
    for refused, problem in (
        (memory != 0 and memory < LEAST_MEMORY_BYTES, "Minimum memory limit allowed is 6MB"),
        (0 < swap < memory, "Minimum memoryswap limit should be larger than memory limit, see usage"),
        (memory == 0 < swap and not update, "You should always set the Memory limit when using Memoryswap limit"),
        (nano > 0 and host["CpuPeriod"] > 0, "Conflicting options: Nano CPUs and CPU Period cannot both be set"),
        (nano > 0 and host["CpuQuota"] > 0, "Conflicting options: Nano CPUs and CPU Quota cannot both be set"),
        (update and host["CpuShares"] < 0, "shares: invalid argument"),
        (
            any(int(number) >= CPUS for number in re.findall(r"\d+", cpuset)),
            f"Requested CPUs are not available - requested {cpuset}, available: 0-{CPUS - 1}",
        ),
        (systemd and parent and not slice_name, "cgroup-parent for systemd cgroup should be a valid slice"),
    ):
        if refused:
            raise bad(problem)


def adapted(host: dict[str, Any]) -> dict[str, Any]:
    """Return a create's HostConfig with the daemon's defaults."""
    modes = {"NetworkMode": "default", "IpcMode": "private", "CgroupnsMode": "host", "Runtime": "runc"}
    defaults = {**modes, "ShmSize": 64 << 20, "LogConfig": {"Type": "json-file", "Config": {}}}
    if host["Memory"] > 0 and host["MemorySwap"] == 0:
        defaults["MemorySwap"] = 2 * host["Memory"]
    empty = ("", 0, HOST_CONFIG["LogConfig"])
    return {**host, **{name: value for name, value in defaults.items() if host[name] in empty}}


def updated(stored: dict[str, Any], update: Values) -> dict[str, Any]:
    """Return the stored HostConfig with an update applied.

    Raises Refused with status 409 if the two do not fit together.
    """
    for new, old in _CONFLICTS:
        if update[new] > 0 and stored[old] > 0:
            problem = f"{_SPELT[new]} cannot be updated as {_SPELT[old]} has already been set"
            raise Refused(HTTPStatus.CONFLICT, f"Conflicting options: {problem}")
    if update["Memory"] > stored["MemorySwap"] and update["Memory"] != 0 and update["MemorySwap"] == 0:
        raise Refused(HTTPStatus.CONFLICT, "Memory limit should be smaller than already set memoryswap limit")
    changes = {name: update[name] for name in OVERWRITTEN if update[name]}
    if update["RestartPolicy"]["Name"]:
        changes["RestartPolicy"] = update["RestartPolicy"]
    return {**stored, **changes}
