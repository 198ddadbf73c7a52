"""Malformed annotations for each hook: an error without the value, and no write."""

from pathlib import Path
from typing import Any

import pytest

from runtimeproxy_hooks.lib import koordinator as keys
from runtimeproxy_hooks.lib.koordinator import BATCH_CPU, BATCH_MEMORY, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from runtimeproxy_hooks.sdk import Malformed
from runtimeproxy_hooks.servers.groupidentity import FILE
from runtimeproxy_hooks.servers.rdt import Rdt
from tests.fakes.resctrl import StandIn
from tests.hooks.nodes import annotation, on_node, qos, tree

RUN_POD, CREATE, UPDATE = "pre_run_pod_sandbox", "pre_create_container", "pre_update_container_resources"
POD = "/kubepods/podx"
SETTINGS = "cpu-normalization-ratio: 2\nshared-pools: [{cpuset: 0-3}]\ngroup-identity: {enable: true}\n"
CGROUP = [f"cpu{POD}/{name}" for name in ("cpu.shares", "cpu.cfs_quota_us", FILE)]
CGROUP.append(f"memory{POD}/memory.limit_in_bytes")
HALF = {GPU_CORE: "50", GPU_MEMORY: "16Gi", GPU_MEMORY_RATIO: "50"}
METHODS = {
    "batchresource": (keys.EXTENDED_RESOURCE_SPEC, (RUN_POD, CREATE, UPDATE)),
    "cpunormalization": (keys.RESOURCE_STATUS, (CREATE,)),
    "cpuset": (keys.RESOURCE_STATUS, (RUN_POD, CREATE, UPDATE)),
    "gpu": (keys.DEVICE_ALLOCATED, (CREATE,)),
    "groupidentity": (keys.CPU_QOS, (RUN_POD,)),
    "rdt": (keys.RESCTRL, (RUN_POD, CREATE, "post_start_container")),
}


def gpu(resources: Any) -> dict[str, Any]:
    return {"gpu": [{"minor": 0, "id": "GPU-1", "resources": resources}]}


def numa(*given: Any) -> dict[str, Any]:
    return {"numaNodeResources": list(given)}


def containers(**limits: Any) -> dict[str, Any]:
    return {"containers": {"a": {"limits": {BATCH_CPU: 500}}, "main": {"limits": limits}}}


def resctrl(resource: str, *entries: Any, **schemata: Any) -> dict[str, Any]:
    return {resource: {"schemataPerCache": list(entries)} if entries else {"schemata": schemata}}


MALFORMED = {
    "batchresource": [
        *(("{", "not JSON"), ({"containers": []}, "containers must be a JSON object")),
        ({"containers": {"main": {"limits": "canary"}}}, "limits must be a JSON object"),
        *((containers(**{name: "canary"}), "not a quantity") for name in (BATCH_CPU, BATCH_MEMORY)),
    ],
    "cpunormalization": [("{", ""), ({"cpuset": ["canary"]}, "")],
    "cpuset": [
        *(("canary", "not JSON"), ({"cpuset": 3}, "cpuset must be a text"), (numa("canary"), "")),
        *((numa({"node": "canary"}), ""), (numa({"resources": {"cpu": 4}}, {"resources": "canary"}), "")),
        (numa({"resources": {BATCH_CPU: []}}), ""),
        ({"cpuset": "0-3", **numa({"resources": {"cpu": "canary"}})}, "not a quantity"),
    ],
    "gpu": [
        *((text, "") for text in ("{", "[]")),
        *(({"gpu": found}, "") for found in (3, [None], [{"minor": 0}, {}], [{"minor": "canary"}])),
        *((gpu(found), "") for found in (None, "canary", {})),
        *((gpu({name: HALF[name] for name in HALF if name != key}), "") for key in (GPU_MEMORY, GPU_MEMORY_RATIO)),
        (gpu({key.upper(): value for key, value in HALF.items()}), ""),
        *((gpu({**HALF, key: amount}), "") for key in HALF for amount in ("canary", True)),
    ],
    "groupidentity": [
        *(({"enable": enable, "groupIdentity": value}, "") for enable, value in ((True, 3), (True, -2), (False, 3))),
        *(({"enable": True, "groupIdentity": "1"}, ""), ({"enable": 1}, ""), ("{", "not JSON")),
    ],
    "rdt": [
        *(("{", "not JSON"), ({"llc": []}, "llc must be a JSON object")),
        *((resctrl("llc", range=ends), "two whole percentages") for ends in ([61], [0, 61.5], [False, True])),
        *(
            (resctrl("llc", range=ends), "from a lower to a higher percentage")
            for ends in ([61, 61], [-1, 61], [0, 161])
        ),
        (resctrl("llc", 61), "schemataPerCache must be a list of JSON objects"),
        *((resctrl("llc", entry), "needs cacheID") for entry in (None, {"range": [0, 61]})),
        *((resctrl(name, {"cacheID": 0}), "and range (llc) or percent (mb)") for name in ("llc", "mb")),
        (resctrl("mb", percent="61"), "percent must be a whole number"),
        *((resctrl("mb", {"cacheID": 0, "percent": each}), "1 to 100 percent") for each in (161, 0)),
    ],
}
ROWS = [(name, method, *row) for name, (_, methods) in METHODS.items() for method in methods for row in MALFORMED[name]]


@pytest.mark.parametrize(("name", "method", "value", "why"), ROWS)
def test_malformed_annotation_is_error_without_value(
    tmp_path: Path, name: str, method: str, value: Any, why: str
) -> None:
    tree(tmp_path, dict.fromkeys(CGROUP, "old\n"))
    tester = on_node(tmp_path, Rdt(StandIn(tmp_path / "resctrl")) if name == "rdt" else name, SETTINGS)
    before = {path: path.is_file() and path.read_text() for path in tmp_path.rglob("*")}
    labels = qos("BE" if name == "batchresource" else "LS") | {keys.GPU_ISOLATION_PROVIDER: "HAMi-core"}
    call = {"labels": labels, "cgroup_parent": POD, "resources": {"cpu_quota": 100_000}}
    key = METHODS[name][0]
    with pytest.raises(Malformed) as caught:
        getattr(tester, method)(**call, annotations=annotation(key, value))
    text = str(caught.value)
    assert why in text
    assert not [secret for secret in ("canary", "61") if secret in text]
    assert key in text or name == "gpu"  # the text names the missing resources instead
    assert {path: path.is_file() and path.read_text() for path in tmp_path.rglob("*")} == before
