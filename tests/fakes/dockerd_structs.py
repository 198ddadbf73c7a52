"""The structs of Docker's API as Go's encoding/json writes them with zero values, in Go's order of fields.

A Go client sends every field of these tables, whether it is set or not.
"""

import json
from collections.abc import Mapping
from typing import Any

Struct = dict[str, Any]

RESOURCES: Mapping[str, Any] = {
    "CpuShares": 0,
    "Memory": 0,
    "NanoCpus": 0,
    "CgroupParent": "",
    "BlkioWeight": 0,
    "BlkioWeightDevice": None,
    "BlkioDeviceReadBps": None,
    "BlkioDeviceWriteBps": None,
    "BlkioDeviceReadIOps": None,
    "BlkioDeviceWriteIOps": None,
    "CpuPeriod": 0,
    "CpuQuota": 0,
    "CpuRealtimePeriod": 0,
    "CpuRealtimeRuntime": 0,
    "CpusetCpus": "",
    "CpusetMems": "",
    "Devices": None,
    "DeviceCgroupRules": None,
    "DeviceRequests": None,
    "MemoryReservation": 0,
    "MemorySwap": 0,
    "MemorySwappiness": None,
    "OomKillDisable": None,
    "PidsLimit": None,
    "Ulimits": None,
    "CpuCount": 0,
    "CpuPercent": 0,
    "IOMaximumIOps": 0,
    "IOMaximumBandwidth": 0,
}
HOST_CONFIG: Mapping[str, Any] = {
    "Binds": None,
    "ContainerIDFile": "",
    "LogConfig": {"Type": "", "Config": None},
    "NetworkMode": "",
    "PortBindings": None,
    "RestartPolicy": {"Name": "", "MaximumRetryCount": 0},
    "AutoRemove": False,
    "VolumeDriver": "",
    "VolumesFrom": None,
    "ConsoleSize": [0, 0],
    "CapAdd": None,
    "CapDrop": None,
    "CgroupnsMode": "",
    "Dns": None,
    "DnsOptions": None,
    "DnsSearch": None,
    "ExtraHosts": None,
    "GroupAdd": None,
    "IpcMode": "",
    "Cgroup": "",
    "Links": None,
    "OomScoreAdj": 0,
    "PidMode": "",
    "Privileged": False,
    "PublishAllPorts": False,
    "ReadonlyRootfs": False,
    "SecurityOpt": None,
    "UTSMode": "",
    "UsernsMode": "",
    "ShmSize": 0,
    "Runtime": "",
    "Isolation": "",
    **RESOURCES,
    "Mounts": None,
    "MaskedPaths": None,
    "ReadonlyPaths": None,
}
CONFIG: Mapping[str, Any] = {
    "Hostname": "",
    "Domainname": "",
    "User": "",
    "AttachStdin": False,
    "AttachStdout": False,
    "AttachStderr": False,
    "ExposedPorts": None,
    "Tty": False,
    "OpenStdin": False,
    "StdinOnce": False,
    "Env": None,
    "Cmd": None,
    "Healthcheck": None,
    "Image": "",
    "Volumes": None,
    "WorkingDir": "",
    "Entrypoint": None,
    "OnBuild": None,
    "Labels": None,
}
OMITTED_IF_EMPTY = frozenset({"ExposedPorts", "Healthcheck", "Runtime", "Mounts"})
"""Fields with ``omitempty``: they are not written where they hold nothing."""

_HTML = str.maketrans({"&": "\\u0026", "<": "\\u003c", ">": "\\u003e", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def filled(table: Mapping[str, Any], values: Mapping[str, Any]) -> Struct:
    """Return a struct with every field that Go would write, in Go's order.

    Raises KeyError for a value whose field the table does not have.
    """
    if unknown := values.keys() - table.keys():
        raise KeyError(f"not in the struct: {', '.join(sorted(unknown))}")
    struct = {name: values.get(name, zero) for name, zero in table.items()}
    return {name: value for name, value in struct.items() if value or name not in OMITTED_IF_EMPTY}


def go_json(value: Any, html: bool = True) -> bytes:
    """Return what Go's json.Encoder writes: no spaces, a newline at the end; ``html`` escapes <, > and & as it does."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return ((text.translate(_HTML) if html else text) + "\n").encode(errors="replace")
