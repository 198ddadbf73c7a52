"""What a proxy answers commands, by docs/control-protocol.rst."""

import json
from typing import Any

from runtimeproxy.admin import queries
from runtimeproxy.admin.health import CHECKS
from runtimeproxy.admin.protocol import join
from runtimeproxy.observe.metrics import Metrics
from tests.fakes.canned_admin import Canned

POD, CONTAINER = "3f2a11b09c22" + "0" * 52, "77ab" + "0" * 60


def checks(**overrides: str) -> dict[str, Any]:
    """Return an answer to readyz: all checks are ok, but for those with a state and reason."""
    given = {name: overrides.get(name, "ok").partition(": ") for name in CHECKS}
    rows = [{"name": name, "state": state, "reason": reason} for name, (state, _, reason) in given.items()]
    return {"schemaVersion": 1, "checks": rows}


def figures(metrics: Metrics, started: float | None) -> dict[str, Any]:
    """Return an answer to metrics, of a process that began at a time."""
    body: dict[str, Any] = {}
    for part in queries._series(metrics):
        join(body, json.loads(json.dumps(part)))
    return body | {"process": {} if started is None else {"process_start_time_seconds": started}}


DISABLED = "degraded: disabled by hand: cpuset"
DEGRADED = checks(disabled_plugins=DISABLED, invalid_files="degraded: rejected: x.json")
UNREADY = checks(disabled_plugins=DISABLED, runtime="failed: nothing listens at /run/c.sock")

CPUSET: dict[str, Any] = {
    **{"name": "cpuset", "endpoint": "/run/cpuset.sock", "policy": "Fail"},
    **{"points": ["PreCreateContainer", "PreStartContainer"], "sameSocketAs": [], "timeoutSeconds": 2.0},
    **{"state": "closed", "disabled": None, "unreachable": None},
    **{"calls": 12, "failures": 1, "p50Seconds": 0.000412, "p99Seconds": 0.021},
    "lastError": {"time": "2026-11-25T10:11:12.500Z", "hook": "PreCreateContainer", "reason": "deadline"},
}
SINCE, UNTIL = "2026-11-25T10:20:00.000Z", "2026-11-25T11:20:00.000Z"
MASK = {"reason": "it hangs", "by": "uid 0, pid 4711", "since": SINCE, "until": UNTIL}
GPU = {**CPUSET, "name": "gpu", "policy": "Ignore", "state": "open", "calls": 0, "p50Seconds": None}
GPU |= {"p99Seconds": None, "lastError": None, "points": ["PreCreateContainer"]}
RDT = {**CPUSET, "name": "rdt", "state": "disabled", "disabled": MASK}
KOORDLET = {**GPU, "name": "koordlet", "state": "unreachable"}
COPY = {**GPU, "name": "gpu-copy", "state": "closed", "points": [], "sameSocketAs": ["gpu"]}
KOORDLET["unreachable"] = {"since": "2026-11-25T10:09:30.000Z", "reason": "/run/k.sock: No such file or directory"}
INVALID = {"file": "bad.json", "reason": "bad.json: remote-endpoint is missing"}
HOOKS = {"schemaVersion": 1, "hooks": [CPUSET, GPU, COPY, KOORDLET, RDT], "invalid": [INVALID], "masked": ["gone"]}

POD_RECORD: dict[str, Any] = {
    **{"id": POD, "namespace": "default", "name": "web-1", "uid": "u-1"},
    "asked": ["annotations.team", "cgroup_parent", "labels.app"],
    "sent": ["annotations.team", "cgroup_parent", "labels.app", "labels.tier"],
    **{"changed": ["labels.tier"], "owners": {}, "read": False, "containers": [CONTAINER]},
}
CONTAINER_RECORD: dict[str, Any] = {
    **{"id": CONTAINER, "podId": POD, "name": "main", "attempt": 1},
    "asked": ["envs.HOME", "resources.cpu_shares", "resources.cpuset_mems"],
    "sent": ["envs.GPU", "envs.HOME", "resources.cpu_shares", "resources.cpuset_cpus"],
    "changed": ["envs.GPU", "resources.cpu_shares", "resources.cpuset_cpus", "resources.cpuset_mems"],
    **{"owners": {"resources.cpu_shares": "cpuset", "resources.cpuset_cpus": "cpuset"}, "read": False},
}
STORE: dict[str, Any] = {"schemaVersion": 1, "pods": [POD_RECORD], "containers": [CONTAINER_RECORD], "next": None}

OF_POD: dict[str, Any] = {"namespace": "default", "pod": "web-1", "podId": POD}


def event(number: int, time: str, kind: str, call: str = "", operation: str = "", **more: Any) -> dict[str, Any]:
    """Return an event, of a call of the pod if there is one."""
    of_call = {"call": call, "operation": operation, **OF_POD} if call else {}
    return {"number": number, "time": f"2026-11-25T{time}Z", "kind": kind, **of_call, **more}


def edited(hooks: float, runtime: float, fields: dict[str, str]) -> dict[str, Any]:
    """Return the fields of a call with who set each, and its seconds."""
    changed = [{"field": name, "hookServer": server} for name, server in fields.items()]
    return {"fields": changed, "seconds": {"own": 0.0004, "turn": 0.0, "hooks": hooks, "runtime": runtime, "post": 0.0}}


OF_RUN = edited(0.001, 0.2, {"labels.tier": "gpu"})
OF_MAIN = {"container": "main", "containerId": CONTAINER}
OF_MAIN |= edited(0.002, 0.05, {**CONTAINER_RECORD["owners"], "envs.GPU": "gpu"})
FAILED_OPEN = {"container": "side", "hookServer": "cpuset", "hook": "PreCreateContainer", "reason": "deadline"}
EVENTS: list[dict[str, Any]] = [
    {"kind": "gap", "from": 1, "to": 5},
    event(6, "10:11:00.000", "plugin_added", hookServer="cpuset"),
    event(7, "10:11:09.125", "edited", "ab12-40", "RunPodSandbox", **OF_RUN),
    event(8, "10:11:10.250", "edited", "ab12-41", "CreateContainer", **OF_MAIN),
    event(9, "10:11:12.500", "failed_open", "ab12-42", "CreateContainer", **FAILED_OPEN),
    event(10, "10:12:00.000", "runtime_lost", text="/run/c.sock", later=True),
    event(11, "10:12:30.000", "refused", "ab12-43", "CreateContainer", reason="refused", later=True),
]

VERSION = {"schemaVersion": 1, "version": "1.0", "python": "3.11.2", "mode": "Containerd", "pid": 7}
VERSION["startedAt"] = "2026-11-25T10:00:00.000Z"
CANNED: Canned = {
    **{"readyz": checks(), "version": VERSION, "hooks": HOOKS, "store": STORE, "events": EVENTS},
    "loglevel": {"schemaVersion": 1, "level": "debug", "until": "2026-11-25T10:30:00.000Z"},
    "disable": {"schemaVersion": 1, **RDT, "notes": []},
    "enable": {"schemaVersion": 1, **RDT, "state": "closed", "disabled": None, "notes": []},
}
