"""The structs of Docker's API with Go's zero values, and the differences between versions of Docker Engine.

A Go client sends every field of the structs. A change depends on the API version of a request, not on the daemon's
newest. Sources: moby's api/docs/CHANGELOG.md, daemon/server/router/{container,image,system}, daemon/server/middleware.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Struct = dict[str, Any]

RESOURCES: Mapping[str, Any] = json.loads("""{
    "CpuShares":0, "Memory":0, "NanoCpus":0, "CgroupParent":"", "BlkioWeight":0, "BlkioWeightDevice":null,
    "BlkioDeviceReadBps":null, "BlkioDeviceWriteBps":null, "BlkioDeviceReadIOps":null, "BlkioDeviceWriteIOps":null,
    "CpuPeriod":0, "CpuQuota":0, "CpuRealtimePeriod":0, "CpuRealtimeRuntime":0, "CpusetCpus":"", "CpusetMems":"",
    "Devices":null, "DeviceCgroupRules":null, "DeviceRequests":null, "MemoryReservation":0, "MemorySwap":0,
    "MemorySwappiness":null, "OomKillDisable":null, "PidsLimit":null, "Ulimits":null,
    "CpuCount":0, "CpuPercent":0, "IOMaximumIOps":0, "IOMaximumBandwidth":0
}""")
HOST_CONFIG: Mapping[str, Any] = {
    **json.loads("""{
        "Binds":null, "ContainerIDFile":"", "LogConfig":{"Type":"", "Config":null}, "NetworkMode":"",
        "PortBindings":null, "RestartPolicy":{"Name":"", "MaximumRetryCount":0}, "AutoRemove":false, "VolumeDriver":"",
        "VolumesFrom":null, "ConsoleSize":[0, 0], "CapAdd":null, "CapDrop":null, "CgroupnsMode":"", "Dns":null,
        "DnsOptions":null, "DnsSearch":null, "ExtraHosts":null, "GroupAdd":null, "IpcMode":"", "Cgroup":"",
        "Links":null, "OomScoreAdj":0, "PidMode":"", "Privileged":false, "PublishAllPorts":false,
        "ReadonlyRootfs":false, "SecurityOpt":null, "UTSMode":"", "UsernsMode":"", "ShmSize":0, "Runtime":"",
        "Isolation":""
    }"""),
    **RESOURCES,
    **json.loads('{"Mounts":null, "MaskedPaths":null, "ReadonlyPaths":null}'),
}
CONFIG: Mapping[str, Any] = json.loads("""{
    "Hostname":"", "Domainname":"", "User":"", "AttachStdin":false, "AttachStdout":false, "AttachStderr":false,
    "ExposedPorts":null, "Tty":false, "OpenStdin":false, "StdinOnce":false, "Env":null, "Cmd":null,
    "Healthcheck":null, "Image":"", "Volumes":null, "WorkingDir":"", "Entrypoint":null, "OnBuild":null, "Labels":null
}""")
OMITTED_IF_EMPTY = frozenset({"ExposedPorts", "Healthcheck", "Runtime", "Mounts"})
"""Fields with ``omitempty``, which are not written if they are empty."""

_HTML = str.maketrans({"&": "\\u0026", "<": "\\u003c", ">": "\\u003e", "\u2028": "\\u2028", "\u2029": "\\u2029"})
INSPECT, IMAGE, EVENT = "inspect", "image", "event"
"""The answers that differ: a container's inspect, an image's, an event."""


def version_number(version: str) -> tuple[int, ...]:
    return tuple(int(part or 0) for part in version.split("."))


def filled(table: Mapping[str, Any], values: Mapping[str, Any]) -> Struct:
    """Return a struct with every field that Go would write, in Go's order.

    Raises KeyError for a value whose field is not in the table.
    """
    if unknown := values.keys() - table.keys():
        raise KeyError(f"not in the struct: {', '.join(sorted(unknown))}")
    struct = {name: values.get(name, zero) for name, zero in table.items()}
    return {name: value for name, value in struct.items() if value or name not in OMITTED_IF_EMPTY}


def go_json(value: Any, html: bool = True) -> bytes:
    """Return what Go's json.Encoder writes: no spaces, a newline at the end; ``html`` escapes <, > and & as it does."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return ((text.translate(_HTML) if html else text) + "\n").encode(errors="replace")


@dataclass(frozen=True, slots=True)
class Engine:
    name: str
    version: str
    api: str
    minimum: str
    ping: Sequence[tuple[str, str]] = ()
    """The headers of a ping's reply that describe the daemon."""
    unified: bool = True
    """True for cgroup v2, where a create has other defaults."""

    def render(self, answer: str, api: str, struct: Struct) -> Struct:
        if answer == INSPECT and self.unified:
            host = dict(struct["HostConfig"])
            host["CgroupnsMode"] = "private" if host["CgroupnsMode"] == "host" else host["CgroupnsMode"]
            host["NetworkMode"] = "bridge" if host["NetworkMode"] == "default" else host["NetworkMode"]
            struct = {**struct, "HostConfig": host}
        if version_number(api) < (1, 52):
            return struct
        if answer == INSPECT:
            config = _without(struct["Config"], *([] if struct["Config"]["OnBuild"] else ["OnBuild"]))
            return {**_without(struct, "GraphDriver"), "Config": config, "NetworkSettings": {"Networks": {}}}
        if answer == IMAGE:
            config = {key: value for key, value in struct["Config"].items() if value}
            return {**_without(struct, "Parent"), "Config": config or None}
        return _without(struct, "status", "id", "from")


def _without(struct: Struct, *names: str) -> Struct:
    return {key: value for key, value in struct.items() if key not in names}


_BUILDKIT = (("Builder-Version", "2"), ("Swarm", "inactive"))
ENGINE_20 = Engine("20.10", "20.10.24", "1.41", "1.12", unified=False)
ENGINES = (
    ENGINE_20,
    Engine("28", "28.5.1", "1.51", "1.24", _BUILDKIT),
    Engine("29", "29.0.0", "1.52", "1.44", _BUILDKIT),
)
