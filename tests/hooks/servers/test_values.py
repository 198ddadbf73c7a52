"""Values and log lines of the hooks that set resources, variables or a pod's group identity."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy_hooks.lib import koordinator as keys
from runtimeproxy_hooks.lib.koordinator import BATCH_CPU, BATCH_MEMORY, EXTENDED_RESOURCE_SPEC, MAX_INT64
from runtimeproxy_hooks.lib.koordinator import OOM_SCORE_ADJ as OF_POD
from runtimeproxy_hooks.lib.koordinator import OOM_SCORE_ADJ_SPEC as SPEC
from runtimeproxy_hooks.sdk import Malformed
from runtimeproxy_hooks.sdk.testing import NO_DIFFERENCE, Difference, HookTester
from runtimeproxy_hooks.servers.cpunormalization import NORMALIZED
from runtimeproxy_hooks.servers.gpu import LIBRARY
from runtimeproxy_hooks.servers.groupidentity import FILE
from runtimeproxy_hooks.servers.oomscoreadj import LEAST, MOST
from tests.hooks.nodes import annotation, on_node, qos, tree

Log, Texts = pytest.LogCaptureFixture, dict[str, str]
Serve = Callable[..., HookTester]
POD, BURSTABLE = "/kubepods/podx", "/kubepods/burstable/podx"
BEST_EFFORT = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podx.slice"


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Return a function that creates the tester of a hook; the node's cgroups are in the test's directory."""
    return lambda name, *more: on_node(tmp_path, name, *more)


def at_both(hook: HookTester, **call: Any) -> Difference:
    """Return the changes of an update; a create must change the same resources."""
    created, updated = hook.pre_create_container(**call), hook.pre_update_container_resources(**call)
    assert replace(created, annotations={}) == updated
    return updated


# batchresource

BE, GIB = qos("BE"), 1 << 30


def amounts(request: Any = None, cpu: Any = None, memory: Any = None) -> dict[str, Any]:
    return {"requests": {BATCH_CPU: request}, "limits": {BATCH_CPU: cpu, BATCH_MEMORY: memory}}


def fields(shares: int, quota: int, memory: int) -> dict[str, int]:
    return {"cpu_shares": shares, "cpu_quota": quota, "memory_limit_in_bytes": memory}


NO_LIMITS, HALF = fields(2, -1, -1), amounts(500, 500, 100)
GREAT, GREATEST = amounts("1M", MAX_INT64, MAX_INT64), fields(262144, MAX_INT64, MAX_INT64)
OF_CONTAINERS: list[tuple[str, Any, dict[str, int]]] = [
    ("", amounts("500", "500", "2Gi"), fields(512, 50_000, 2 * GIB)),
    ("", amounts("500m", "500m", "500m"), fields(2, 1000, 1)),  # rounded up
    ("", amounts(1.5, "2000.5", "1.5Gi"), fields(2, 200_100, 3 * GIB // 2)),
    ("", GREAT, GREATEST),
    *(("", empty, NO_LIMITS) for empty in (amounts(0, 0, 0), amounts("-1", "-1", "-1"), None, {"requests": None})),
    ("", {"requests": {BATCH_CPU.upper(): "500", "cpu": "1"}}, NO_LIMITS),
    *(("cpu-suppress-policy: cfsQuota", HALF, fields(512, -1, 100)), ("cpu-suppress-policy: cpuset", GREAT, GREATEST)),
    *(
        ("cpu-normalization-ratio: 3", amounts(0, limit), fields(2, quota, -1))
        for limit, quota in ((500, 16_667), (20, 1000))
    ),
]


@pytest.mark.parametrize(("settings", "amounts", "expected"), OF_CONTAINERS)
def test_batch_resources_are_set(serve: Serve, settings: str, amounts: Any, expected: dict[str, int]) -> None:
    annotations = annotation(EXTENDED_RESOURCE_SPEC, {"containers": {"main": amounts}})
    hook, call = serve("batchresource", settings), {"labels": BE, "annotations": annotations}
    assert at_both(hook, **call, resources={"cpu_quota": 7000}).resources == expected
    assert hook.pre_run_pod_sandbox(**call).resources == expected


OF_PODS: list[tuple[str, Any, dict[str, int]]] = [
    ("BE", {"a": HALF, "b": amounts("1k", "1k", "1Ki")}, fields(1536, 150_000, 1124)),
    ("BE", {"a": amounts(1, 5, 1), "MAIN": amounts(2, 6, 1)}, fields(3, 1100, 2)),
    *(("BE", {"a": HALF, "b": none}, fields(512, -1, -1)) for none in (amounts(-200, -500, -100), None)),
    ("BE", {"a": GREAT, "b": amounts("1M", 1, 1)}, GREATEST),
    *((name, {"main": HALF}, {}) for name in ("LSE", "LSR", "LS", "SYSTEM", "", "be")),
    *(("BE", none, {}) for none in ({}, None)),
]


@pytest.mark.parametrize(("name", "containers", "expected"), OF_PODS)
def test_pod_has_sums_and_other_pods_are_unchanged(
    serve: Serve, name: str, containers: Any, expected: dict[str, int]
) -> None:
    annotations = annotation(EXTENDED_RESOURCE_SPEC, {"containers": containers})
    hook, call = serve("batchresource"), {"labels": qos(name), "annotations": annotations}
    assert hook.pre_run_pod_sandbox(**call).resources == expected
    assert at_both(hook, **call) == NO_DIFFERENCE


BATCH_CALL: dict[str, Any] = {"labels": BE, "cgroup_parent": POD}
BATCH_CALL["annotations"] = annotation(EXTENDED_RESOURCE_SPEC, {"containers": {"main": amounts(500, 500, 500)}})


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Return the files of the pod's cgroup."""
    names = (f"cpu{POD}/cpu.shares", f"cpu{POD}/cpu.cfs_quota_us", f"memory{POD}/memory.limit_in_bytes")
    return tree(tmp_path, dict.fromkeys(names, "old\n"))


def test_limits_of_pod_cgroup_are_written_and_lifted(serve: Serve, files: list[Path], caplog: Log) -> None:
    caplog.set_level("INFO", "runtimeproxy_hooks.servers")
    hook = serve("batchresource")
    assert hook.pre_create_container(**BATCH_CALL)
    assert [file.read_text() for file in files] == ["old\n"] * 3
    assert hook.pre_run_pod_sandbox(**BATCH_CALL)
    assert [file.read_text() for file in files] == ["512\n", "50000\n", "500\n"]
    assert not caplog.records
    assert at_both(hook, **BATCH_CALL, container="sidecar") == NO_DIFFERENCE
    assert [file.read_text() for file in files] == ["512\n", "-1\n", "-1\n"]
    [line] = caplog.messages
    assert line.endswith("lifted cpu_quota, memory_limit_in_bytes of its pod")


def test_each_kind_of_failed_write_is_logged_once(serve: Serve, files: list[Path], caplog: Log) -> None:
    hook, (shares, quota, memory) = serve("batchresource"), files
    for file in (quota, memory):
        file.unlink()
    memory.mkdir()
    for _ in range(2):
        assert hook.pre_run_pod_sandbox(**BATCH_CALL).resources == fields(512, 50_000, 500)
    assert (shares.read_text(), quota.exists()) == ("512\n", False)
    assert [message.split()[0] for message in caplog.messages] == ["cpu_quota", "memory_limit_in_bytes"]
    quota.mkdir()
    assert hook.pre_run_pod_sandbox(**BATCH_CALL)
    assert len(caplog.records) == 3, "another kind of error is another line"


# cpunormalization

NUMA = {"numaNodeResources": [{"node": 0, "resources": {"cpu": "4"}}]}
SCALED = [
    *(("2", name, {}, 100_000, 50_000) for name in ("unknown", "LS")),
    *(("2", name, {}, 100_000, None) for name in ("LSR", "LSE", "BE", "SYSTEM")),
    *(
        ("2", "LS", annotation(keys.RESOURCE_STATUS, status), 100_000, 50_000)
        for status in ("null", {"cpuset": ""}, NUMA)
    ),
    ("2", "", annotation(keys.RESOURCE_STATUS, {"CPUSet": "0-3"}), 100_000, None),
    *(("2", "", {}, quota, scaled) for quota, scaled in ((1999, 1000), (1000, None), (-1, None), (0, None))),
    *((ratio, "", {}, 100_000, scaled) for ratio, scaled in (("3", 33_334), ("0.5", None))),
]


def normalizing(serve: Serve, ratio: str) -> HookTester:
    return serve("cpunormalization", f"cpu-normalization-ratio: {ratio}")


@pytest.mark.parametrize(("ratio", "name", "annotations", "quota", "scaled"), SCALED)
def test_quota_of_containers_that_share_cpus_is_scaled(
    serve: Serve, ratio: str, name: str, annotations: Texts, quota: int, scaled: int | None
) -> None:
    hook, call = normalizing(serve, ratio), {"labels": qos(name), "annotations": annotations}
    changed = at_both(hook, **call, resources={"cpu_quota": quota, "cpu_shares": 512})
    assert changed == Difference(resources={"cpu_quota": scaled} if scaled else {})
    assert at_both(hook, **call) == NO_DIFFERENCE


UPDATES = [
    ("1.2", 50_000, 41_667),  # the kubelet's quota, stored by the proxy
    ("1.2", 41_667, 41_667),  # the runtime's quota, after a restart of the proxy
    ("1.2", 60_000, 50_000),  # another quota of the kubelet's
    *(("1.5", 41_667, 33_334), ("1", 41_667, 50_000)),  # the node's settings changed
    ("1.2", -1, -1),
]


@pytest.mark.parametrize(("ratio", "quota", "result"), UPDATES)
def test_quota_is_not_scaled_again_after_restart(serve: Serve, ratio: str, quota: int, result: int) -> None:
    created = normalizing(serve, "1.2").pre_create_container(resources={"cpu_quota": 50_000})
    assert created.annotations == {NORMALIZED: "50000:41667"}
    call: Any = {"container_annotations": created.annotations, "resources": {"cpu_quota": quota, "cpu_shares": 512}}
    updated = normalizing(serve, ratio).pre_update_container_resources(**call)
    assert updated.resources.get("cpu_quota", quota) == result
    assert updated.resources.keys() <= {"cpu_quota"}


@pytest.mark.parametrize("text", ["", "1:canary", "50000", "1:2:3", "-1:2", "1:2\n", "9" * 20 + ":1"])
def test_foreign_quota_annotation_is_error_where_read(serve: Serve, text: str) -> None:
    hook, call = normalizing(serve, "2"), {"container_annotations": {NORMALIZED: text}}
    with pytest.raises(Malformed, match=NORMALIZED) as caught:
        hook.pre_update_container_resources(resources={"cpu_quota": 50_000}, **call)
    assert "canary" not in str(caught.value)
    assert not hook.pre_update_container_resources(resources={"cpu_shares": 512}, **call)
    created = hook.pre_create_container(resources={"cpu_quota": 50_000}, **call)
    assert created.annotations == {NORMALIZED: "50000:25000"}


# cpuset

POOLS = """
shared-pools: [{socket: 0, node: 0, cpuset: 0-3}, {socket: 0, node: 1, cpuset: "8-11,15"}]
be-shared-pools: [{socket: 0, node: 0, cpuset: 4-5}, {socket: 0, node: 1, cpuset: 12-13}]
"""
STATIC, GATE, SYSTEM = "kubelet-cpu-manager-policy: static\n", "be-cpu-manager: true\n", "system-cpuset: 0-1\n"
KEEP_QUOTA = "unset-cpu-quota: false\n"
ONE_EMPTY_POOL = 'shared-pools: [{node: 0, cpuset: ""}, {node: 1, cpuset: 8-11}]'
SENT = {"cpu_shares": 1024, "cpu_quota": 200000, "cpuset_cpus": "0-15"}
"""A container as the kubelet's static policy requests it."""


def cpus(text: str) -> dict[str, Any]:
    return {"cpuset_cpus": text}


ALL, POOL_0, POOL_1, CLEARED, NOTHING = cpus("0-3,8-11,15"), cpus("0-3"), cpus("8-11,15"), cpus(""), dict[str, Any]()
EXCLUSIVE = {**cpus("4-7,9"), "cpu_quota": -1}


def status(value: Any) -> dict[str, str]:
    return annotation(keys.RESOURCE_STATUS, value)


def numa(*nodes: int, **resources: Any) -> dict[str, str]:
    return status({"numaNodeResources": [{"node": node, "resources": resources} for node in nodes]})


OWN = {"cpuset": "4-7,9"}
OWN_CPUS: list[tuple[Any, str, dict[str, Any]]] = [
    *((OWN, "", EXCLUSIVE), (OWN, POOLS + STATIC + SYSTEM, EXCLUSIVE), (OWN, KEEP_QUOTA, cpus("4-7,9"))),
    ({"CPUSet": "1,1,0-0"}, "", {**cpus("1,1,0-0"), "cpu_quota": -1}),
    ({**OWN, "numaNodeResources": [{"resources": {"cpu": "4"}}]}, POOLS, EXCLUSIVE),
]


@pytest.mark.parametrize(("value", "settings", "resources"), OWN_CPUS)
def test_cpuset_of_annotation_is_set(serve: Serve, value: Any, settings: str, resources: dict[str, Any]) -> None:
    hook = serve("cpuset", settings)
    as_set = ("SYSTEM", {**SENT, **resources}, {})
    for name, sent, expected in (("LSR", None, resources), ("BE", {}, resources), ("SYSTEM", SENT, resources), as_set):
        call = {"annotations": status(value), "labels": qos(name), "cgroup_parent": POD}
        assert at_both(hook, **call, resources=sent) == Difference(resources=expected)


SECOND_HAS_CPU = status({"numaNodeResources": [{"node": 1}, {"node": 0, "resources": {"cpu": 4}}]})
NODE_IN_MIXED_CASE = status({"NUMANodeResources": [{"Node": 1, "RESOURCES": {"cpu": 4}}]})
NO_NODE = status({"cpuset": "", "numaNodeResources": [{"resources": {"cpu": 4}}]})
ON_NODES = [
    *((numa(0, cpu="1n"), POOL_0), (numa(0, cpu="0", memory="1Gi"), ALL), (numa(7, cpu=4), CLEARED)),
    *((numa(1, **{BATCH_CPU: "500"}), POOL_1), (numa(1, **{BATCH_CPU: -1}), ALL)),
    *((NODE_IN_MIXED_CASE, POOL_1), (NO_NODE, POOL_0)),  # as in Go
]
RULES = [
    # Without settings nothing is set, nor cleared.
    *(("", "BE", BEST_EFFORT, {}, NOTHING), (GATE + KEEP_QUOTA, "", POD, numa(0, cpu=1), NOTHING)),
    # 1. NUMA nodes with CPUs; one entry with CPUs counts all nodes. A pool may have no CPUs, or there may be none.
    *((POOLS, "LS", BURSTABLE, given, resources) for given, resources in ON_NODES),
    (POOLS + SYSTEM, "SYSTEM", BURSTABLE, SECOND_HAS_CPU, ALL),
    (POOLS + STATIC, "", BEST_EFFORT, numa(1, cpu=-4), POOL_1),
    (ONE_EMPTY_POOL, "LS", BURSTABLE, numa(0, 1, cpu=4), cpus("8-11")),
    (STATIC, "LS", BURSTABLE, numa(0, cpu=4), NOTHING),
    # BE has its own pools with the gate; without it the next rule applies.
    (POOLS + GATE, "BE", BURSTABLE, numa(0, 1, cpu=4), cpus("4-5,12-13")),
    (STATIC + GATE, "BE", BURSTABLE, numa(0, cpu=4), CLEARED),
    ("be-shared-pools: [{node: 0, cpuset: 4-5}]", "BE", BEST_EFFORT, {}, CLEARED),
    (POOLS, "BE", BURSTABLE, numa(1, cpu=4), ALL),
    # 2. SYSTEM. 3. LS. 4. BestEffort.
    *((SYSTEM, "SYSTEM", BEST_EFFORT, {}, cpus("0-1")), (SYSTEM, "LSR", POD, {}, NOTHING)),
    (POOLS + STATIC, "LS", BEST_EFFORT, status({"cpuset": ""}), ALL),
    (STATIC, "", BEST_EFFORT, {}, CLEARED),
    # 5. All other pods.
    *((POOLS + STATIC, "LSR", POD, {}, NOTHING), (POOLS, "LSE", "", {}, ALL)),
]


@pytest.mark.parametrize(("settings", "name", "parent", "annotations", "resources"), RULES)
def test_first_matching_rule_determines_cpuset(
    serve: Serve, settings: str, name: str, parent: str, annotations: dict[str, str], resources: dict[str, Any]
) -> None:
    call = {"labels": qos(name), "cgroup_parent": parent, "annotations": annotations}
    assert at_both(serve("cpuset", settings), resources=SENT, **call) == Difference(resources=resources)


def test_cpuset_that_cannot_be_cleared_is_logged_once(serve: Serve, caplog: Log) -> None:
    hook = serve("cpuset", STATIC)
    for _ in range(3):
        assert at_both(hook, cgroup_parent=BEST_EFFORT, resources=cpus("0-15")) == NO_DIFFERENCE
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    at_create, at_update = caplog.messages
    assert "stays as it is: cpuset_cpus: cannot be cleared where the request has no number" in at_create
    assert "stays as it is" in at_update
    for sent, cleared in ((SENT, CLEARED), (None, NOTHING), ({"cpu_shares": 2}, NOTHING)):
        assert at_both(hook, cgroup_parent=BEST_EFFORT, resources=sent).resources == cleared
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("settings", "annotations", "exclusive"),
    [(POOLS, status(OWN), True), (KEEP_QUOTA, status(OWN), False), (POOLS, numa(0, cpu=4), False)],
)
def test_pod_with_exclusive_cpus_has_no_quota(
    serve: Serve, tmp_path: Path, settings: str, annotations: Texts, exclusive: bool
) -> None:
    [file] = tree(tmp_path, {f"cpu{POD}/cpu.cfs_quota_us": "200000\n"})
    changed = serve("cpuset", settings).pre_run_pod_sandbox(annotations=annotations, cgroup_parent=POD)
    assert changed.resources == ({"cpu_quota": -1} if exclusive else {})
    assert file.read_text() == ("-1\n" if exclusive else "200000\n")


@pytest.mark.parametrize("parent", [POD, "/kubepods/../x"])
def test_failed_write_of_quota_is_only_logged(serve: Serve, parent: str, caplog: Log) -> None:
    changed = serve("cpuset").pre_run_pod_sandbox(annotations=status(OWN), cgroup_parent=parent, pod="p")
    assert changed == Difference(resources={"cpu_quota": -1})
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line.startswith("default/p: the quota of the pod's cgroup stays as it is: ")


def test_invalid_cpuset_is_malformed(serve: Serve) -> None:
    for text in ("canary", "3-0", " "):
        with pytest.raises(Malformed, match=f"annotation {keys.RESOURCE_STATUS}: its cpuset cannot be used") as raised:
            serve("cpuset").pre_create_container(annotations=status({"cpuset": text}), resources=SENT)
        assert "canary" not in str(raised.value)


# gpu

CORE, MEMORY, RATIO = keys.GPU_CORE, keys.GPU_MEMORY, keys.GPU_MEMORY_RATIO
OLD_CORE, OLD_MEMORY, OLD_RATIO = "kubernetes.io/gpu-core", "kubernetes.io/gpu-memory", "kubernetes.io/gpu-memory-ratio"
HAMI = {keys.GPU_ISOLATION_PROVIDER: "HAMi-core"}
SHARE = {CORE: "50", MEMORY: "16Gi", RATIO: "50"}
LIMIT, SM_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT"


def gpus(*devices: Any) -> Texts:
    return annotation(keys.DEVICE_ALLOCATED, {"gpu": list(devices)})


def gpu(**resources: Any) -> dict[str, Any]:
    return {"minor": 0, "id": "GPU-1", "resources": resources}


def without(key: str, entries: dict[str, Any] = SHARE) -> dict[str, Any]:
    return {name: value for name, value in entries.items() if name != key}


def visible(minors: str) -> Texts:
    return {"NVIDIA_VISIBLE_DEVICES": minors}


ONE = visible("0")
SHARED = {**ONE, LIMIT: str(16 << 30), SM_LIMIT: "50", "LD_PRELOAD": LIBRARY}
VISIBLE: list[tuple[Texts, Texts]] = [
    *(({}, {}), (gpus(), {}), (annotation(keys.DEVICE_ALLOCATED, {"rdma": [{"minor": 1}], "gpu": None}), {})),
    (annotation(keys.DEVICE_ALLOCATED, {"GPU": [{"minor": 1}]}), {}),  # a type of devices is a key of a map: exact
    (gpus({"minor": 3}, gpu(**SHARE), {"Minor": 11}), visible("3,0,11")),  # in the list's order
]


@pytest.mark.parametrize(("annotations", "env"), VISIBLE)
def test_visible_devices_are_device_minors(serve: Serve, annotations: Texts, env: Texts) -> None:
    for provider in ("", "hami-core", "a"):  # the label's value must match exactly
        labels = {keys.GPU_ISOLATION_PROVIDER: provider}
        assert serve("gpu").pre_create_container(annotations=annotations, labels=labels) == Difference(env=env)


SHARES: list[tuple[dict[str, Any], Texts]] = [
    ({CORE: 50, MEMORY: 16 << 30, RATIO: 5e1}, SHARED),
    ({**SHARE, MEMORY: "1500m", CORE: 0.5}, {**SHARED, LIMIT: "2", SM_LIMIT: "1"}),  # rounded up
    *((without(CORE), without(SM_LIMIT, SHARED)), ({**SHARE, CORE: "0"}, {**SHARED, SM_LIMIT: "0"})),
    # a whole GPU has no limits, and needs no amount of memory
    *(({**SHARE, RATIO: "99"}, SHARED), ({**SHARE, RATIO: "99.5"}, ONE), ({RATIO: 100}, ONE)),
    # deprecated names, which the new ones override
    ({OLD_CORE: "50", OLD_MEMORY: "16Gi", OLD_RATIO: "50"}, SHARED),
    ({**SHARE, OLD_CORE: "1", OLD_MEMORY: "1", OLD_RATIO: "100"}, SHARED),
    ({**SHARE, MEMORY: None, OLD_MEMORY: "16Gi"}, SHARED),
]


@pytest.mark.parametrize(("resources", "env"), SHARES)
def test_hami_core_has_share_of_first_device(serve: Serve, resources: dict[str, Any], env: Texts) -> None:
    annotations = gpus(gpu(**resources), {"minor": 7, "resources": {RATIO: "100"}})
    sent = {**visible("all"), "LD_PRELOAD": "/mine.so", "PATH": "/bin"}
    changed = serve("gpu").pre_create_container(annotations=annotations, labels=HAMI, env=sent)
    assert changed == Difference(env={**env, **visible("0,7")})


GPU_FLAGS = [
    ("--hami-core-library=/h.so", {"LD_PRELOAD": "/h.so"}),
    ("--hami-core-cache-dir=/v/", {"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/v/u-1_main.cache"}),
]


@pytest.mark.parametrize(("flag", "more"), GPU_FLAGS)
def test_flags_name_absolute_paths_in_container(serve: Serve, flag: str, more: Texts) -> None:
    for resources, env in ((SHARE, {**SHARED, **more}), ({RATIO: 100}, ONE)):
        call: dict[str, Any] = {"annotations": gpus(gpu(**resources)), "labels": HAMI, "uid": "u-1"}
        assert serve("gpu", "", flag).pre_create_container(**call).env == env
    name = flag.partition("=")[0]
    with pytest.raises(ValueError, match=f"{name} must be an absolute path"):
        serve("gpu", "", f"{name}=vgpu")


# groupidentity

ON = "group-identity: {enable: true}\n"
CHANGED = "group-identity: {enable: true, LSR: 1, LS: 0, BE: 2}\n"
OFF = "group-identity: {enable: false, LSR: 1, LS: 1, BE: 1}\n"


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """Return a hierarchy in which the pods' cgroups have the file."""
    tree(tmp_path / "cpu,cpuacct", {f"{pod[1:]}/{FILE}": "5\n" for pod in (POD, BURSTABLE, BEST_EFFORT)})
    return tmp_path / "cpu,cpuacct"


def cpu_qos(value: Any, enable: Any = True) -> str:
    return annotation("", {"enable": enable, "groupIdentity": value})[""]


IDENTITIES = [
    *((ON, "", BURSTABLE, "", 2), (ON, "", BEST_EFFORT, "", -1)),
    *((CHANGED, name, BEST_EFFORT, "", value) for name, value in (("LSE", 1), ("LSR", 1), ("LS", 0), ("ls", 2))),
    *((CHANGED, name, POD, "", value) for name, value in (("BE", 2), ("SYSTEM", 1), ("", 1))),
    *((OFF, "BE", POD, "", 0), ("", "BE", POD, "", 0)),
    # The annotation applies to LS only.
    *((ON, "LS", POD, cpu_qos(value), value) for value in (-1, 0, 2)),
    *((ON, "LS", POD, '{"ENABLE": true, "groupidentity": -1}', -1), (ON, "LS", POD, '{"enable": true}', 2)),
    *((ON, "LS", POD, text, 0) for text in (cpu_qos(-1, False), cpu_qos(-1, None), '{"groupIdentity": -1}', "{}")),
    *((CHANGED, "LS", POD, cpu_qos(None), 0), (OFF, "LS", POD, cpu_qos(-1), -1), (ON, "BE", POD, "{", -1)),
    *((ON, "LSR", POD, cpu_qos(-1), 2), (ON, "", POD, cpu_qos(-1), 2)),
]


@pytest.mark.parametrize(("settings", "name", "parent", "text", "value"), IDENTITIES)
def test_group_identity_is_by_annotation_or_class(
    serve: Serve, top: Path, settings: str, name: str, parent: str, text: str, value: int
) -> None:
    call = {"labels": qos(name), "annotations": {keys.CPU_QOS: text}, "cgroup_parent": parent}
    assert not serve("groupidentity", settings).pre_run_pod_sandbox(**call)
    assert (top / parent[1:] / FILE).read_text() == f"{value}\n"


def test_kernel_without_cgroup_file_is_logged_once(serve: Serve, top: Path, caplog: Log) -> None:
    for file in top.rglob(FILE):
        file.unlink()
    for settings, messages in ((OFF, 0), (ON, 1)):  # 0 is the behaviour of such a kernel
        hook = serve("groupidentity", settings)
        for parent in (POD, BURSTABLE, ""):
            assert not hook.pre_run_pod_sandbox(cgroup_parent=parent)
        assert len(caplog.messages) == messages
    assert f"this kernel's cgroups have no {FILE}" in caplog.text
    with pytest.raises(Malformed, match="cgroup path"):
        hook.pre_run_pod_sandbox(cgroup_parent="/kubepods/../../x")
    assert not list(top.rglob(FILE))


def test_absent_cgroups_are_logged_once_and_pods_run(serve: Serve, caplog: Log) -> None:
    hook = serve("groupidentity")
    for parent in (POD, BURSTABLE):
        assert not hook.pre_run_pod_sandbox(cgroup_parent=parent)
    [message] = caplog.messages
    assert message.startswith("pods run without a group identity: ")
    assert "holds no cgroups" in message


ADVICE = "run this server as root, with the node's cgroups mounted to be written"
REFUSED, MISSING = f"{{0}}{POD}/{FILE}: Is a directory; {ADVICE}", "its cgroup {0}/kubepods/y is not there"


@pytest.mark.parametrize(("parent", "words"), [(POD, REFUSED), ("/kubepods/y", MISSING)])
def test_failed_write_is_logged_and_pod_runs(serve: Serve, top: Path, caplog: Log, parent: str, words: str) -> None:
    (top / POD[1:] / FILE).unlink()
    (top / POD[1:] / FILE).mkdir()
    assert not serve("groupidentity", ON).pre_run_pod_sandbox(cgroup_parent=parent, pod="web")
    assert caplog.messages == [f"default/web gets no {FILE}: {words.format(top)}"]
    assert not (top / "kubepods/y").exists()


# oomscoreadj

SCORES: list[tuple[Texts, int | None]] = [
    *(({SPEC: '{"main": -500, "b": 200}'}, -500), ({SPEC: '{"main": 200}', OF_POD: "100"}, 200)),
    *(({SPEC: spec, OF_POD: "100"}, 100) for spec in ('{"b": 200}', '{"MAIN": 200}', '{"b": null}', "null", "")),
    *((none, None) for none in ({}, {OF_POD: ""}, {SPEC: '{"b": 5}'})),
    *(({OF_POD: text}, int(text)) for text in ("+7", "-" + "0" * 1000 + "5", str(LEAST), str(MOST))),
]


@pytest.mark.parametrize(("annotations", "value"), SCORES)
def test_requested_score_is_set(serve: Serve, annotations: Texts, value: int | None, caplog: Log) -> None:
    for before in (None, {"oom_score_adj": 968, "cpu_shares": 2}):
        changed = serve("oomscoreadj").pre_create_container(annotations=annotations, resources=before)
        assert changed.resources == ({} if value is None else {"oom_score_adj": value})
    assert not caplog.records


MALFORMED = [
    *(({SPEC: text}, SPEC) for text in ("{", "[77123]", '{"main": 77123}', '{"main": 5, "b": "77123"}')),
    *(
        ({OF_POD: text}, OF_POD)
        for text in (str(LEAST - 1), str(MOST + 1), "77123" * 2000, "1e2", " 100", "1_0", "٣", "-")
    ),
    *(({SPEC: '{"main": 1001}', OF_POD: "100"}, SPEC), ({SPEC: '{"b": 5}', OF_POD: "x77123"}, OF_POD)),
]


@pytest.mark.parametrize(("annotations", "key"), MALFORMED)
def test_malformed_score_is_logged_without_value(serve: Serve, annotations: Texts, key: str, caplog: Log) -> None:
    call: dict[str, Any] = {"annotations": annotations, "resources": {"oom_score_adj": 968}, "pod": "web"}
    assert not serve("oomscoreadj").pre_create_container(**call)
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert f"default/web main keeps its oom_score_adj: annotation {key}: " in record.getMessage()
    assert "77123" not in caplog.text


@pytest.mark.parametrize("annotations", [{OF_POD: "-0"}, {SPEC: '{"main": 0}'}, {SPEC: '{"main": null}'}])
def test_score_of_zero_cannot_be_requested(serve: Serve, annotations: Texts, caplog: Log) -> None:
    hook = serve("oomscoreadj")
    assert not hook.pre_create_container(annotations=annotations)  # the score is 0 or the runtime's default already
    for _ in range(2):
        assert not hook.pre_create_container(annotations=annotations, resources={"oom_score_adj": 968})
    [message] = caplog.messages
    assert message.startswith("an oom_score_adj of 0 cannot be requested on the wire, the kubelet's holds")
