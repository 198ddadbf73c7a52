"""The structs of Docker's API as Go's encoding/json writes them with zero values, in Go's order of fields.

A Go client sends every field of these tables, whether it is set or not.
"""

import json
from collections.abc import Mapping
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


def version_number(version: str) -> tuple[int, ...]:
    """Return an API version in a form that can be compared."""
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
