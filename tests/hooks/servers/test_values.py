"""Values, log lines and errors of hooks; malformed annotations, also rdt's: an error without value, and no write."""

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
from runtimeproxy_hooks.servers.rdt import Rdt
from tests.fakes.resctrl import StandIn
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
    ("cpu-normalization-ratio: 3", amounts(0, 500), fields(2, 16_667, -1)),
    ("cpu-normalization-ratio: 3", amounts(0, 20), fields(2, 1000, -1)),
]
BATCH: list[tuple[str, str, Any, dict[str, int]]] = [
    *((settings, "BE", {"main": container}, expected) for settings, container, expected in OF_CONTAINERS),
    # a pod has the sums; pods of other classes, and containers without amounts, are unchanged
    ("", "BE", {"a": HALF, "b": amounts("1k", "1k", "1Ki")}, fields(1536, 150_000, 1124)),
    ("", "BE", {"a": amounts(1, 5, 1), "MAIN": amounts(2, 6, 1)}, fields(3, 1100, 2)),
    *(("", "BE", {"a": HALF, "b": none}, fields(512, -1, -1)) for none in (amounts(-200, -500, -100), None)),
    ("", "BE", {"a": GREAT, "b": amounts("1M", 1, 1)}, GREATEST),
    *(("", name, {"main": HALF}, {}) for name in ("LSE", "LSR", "LS", "SYSTEM", "", "be")),
    *(("", "BE", none, {}) for none in ({}, None)),
]


@pytest.mark.parametrize(("settings", "name", "containers", "expected"), BATCH)
def test_batch_resources_are_set(serve: Serve, settings: str, name: str, containers: Any, expected: Any) -> None:
    annotations = annotation(EXTENDED_RESOURCE_SPEC, {"containers": containers})
    hook, call = serve("batchresource", settings), {"labels": qos(name), "annotations": annotations}
    assert hook.pre_run_pod_sandbox(**call).resources == expected
    of_container = expected if "main" in (containers or {}) else {}
    assert at_both(hook, **call, resources={"cpu_quota": 7000}) == Difference(resources=of_container)


def test_limits_of_pod_cgroup_are_written_and_lifted(serve: Serve, tmp_path: Path, caplog: Log) -> None:
    names = (f"cpu{POD}/cpu.shares", f"cpu{POD}/cpu.cfs_quota_us", f"memory{POD}/memory.limit_in_bytes")
    files = _, quota, memory = tree(tmp_path, dict.fromkeys(names, "old\n"))
    caplog.set_level("INFO", "runtimeproxy_hooks.servers")
    call: dict[str, Any] = {"labels": BE, "cgroup_parent": POD}
    call["annotations"] = annotation(EXTENDED_RESOURCE_SPEC, {"containers": {"main": amounts(500, 500, 500)}})
    hook = serve("batchresource")
    assert hook.pre_create_container(**call)
    assert [file.read_text() for file in files] == ["old\n"] * 3
    assert hook.pre_run_pod_sandbox(**call)
    assert [file.read_text() for file in files] == ["512\n", "50000\n", "500\n"]
    assert not caplog.records
    assert at_both(hook, **call, container="sidecar") == NO_DIFFERENCE
    assert [file.read_text() for file in files] == ["512\n", "-1\n", "-1\n"]
    for file in (quota, memory):
        file.unlink()
    memory.mkdir()
    for _ in range(2):
        assert hook.pre_run_pod_sandbox(**call).resources == fields(512, 50_000, 500)
    assert not quota.exists()
    lifted, *failed = caplog.messages
    assert lifted.endswith("lifted cpu_quota, memory_limit_in_bytes of its pod")
    assert [message.split()[0] for message in failed] == ["cpu_quota", "memory_limit_in_bytes"], "not once each"


# cpunormalization
def status(value: Any) -> Texts:
    return annotation(keys.RESOURCE_STATUS, value)


def numa(*nodes: int, **resources: Any) -> Texts:
    return status({"numaNodeResources": [{"node": node, "resources": resources} for node in nodes]})


SCALED: list[tuple[str, str, Texts, int, int | None]] = [
    *(("2", name, {}, 100_000, 50_000) for name in ("unknown", "LS")),
    *(("2", name, {}, 100_000, None) for name in ("LSR", "LSE", "BE", "SYSTEM")),
    *(("2", "LS", given, 100_000, 50_000) for given in (status("null"), status({"cpuset": ""}), numa(0, cpu="4"))),
    ("2", "", status({"CPUSet": "0-3"}), 100_000, None),
    *(("2", "", {}, quota, scaled) for quota, scaled in ((1999, 1000), (1000, None), (-1, None), (0, None))),
    *((ratio, "", {}, 100_000, scaled) for ratio, scaled in (("3", 33_334), ("0.5", None))),
]


@pytest.mark.parametrize(("ratio", "name", "annotations", "quota", "scaled"), SCALED)
def test_quota_of_containers_that_share_cpus_is_scaled(
    serve: Serve, ratio: str, name: str, annotations: Texts, quota: int, scaled: int | None
) -> None:
    hook = serve("cpunormalization", f"cpu-normalization-ratio: {ratio}")
    call: dict[str, Any] = {"labels": qos(name), "annotations": annotations}
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
    hook = serve("cpunormalization", "cpu-normalization-ratio: 1.2")
    created = hook.pre_create_container(resources={"cpu_quota": 50_000})
    assert created.annotations == {NORMALIZED: "50000:41667"}
    call: Any = {"container_annotations": created.annotations, "resources": {"cpu_quota": quota, "cpu_shares": 512}}
    hook = serve("cpunormalization", f"cpu-normalization-ratio: {ratio}")
    updated = hook.pre_update_container_resources(**call)
    assert updated.resources.get("cpu_quota", quota) == result
    assert updated.resources.keys() <= {"cpu_quota"}


@pytest.mark.parametrize("text", ["", "1:canary", "50000", "1:2:3", "-1:2", "1:2\n", "9" * 20 + ":1"])
def test_foreign_quota_annotation_is_error_where_read(serve: Serve, text: str) -> None:
    hook, call = serve("cpunormalization", "cpu-normalization-ratio: 2"), {"container_annotations": {NORMALIZED: text}}
    with pytest.raises(Malformed, match=NORMALIZED) as caught:
        hook.pre_update_container_resources(resources={"cpu_quota": 50_000}, **call)
    assert "canary" not in str(caught.value)
    assert not hook.pre_update_container_resources(resources={"cpu_shares": 512}, **call)
    created = hook.pre_create_container(resources={"cpu_quota": 50_000}, **call)
    assert created.annotations == {NORMALIZED: "50000:25000"}


# cpuset
POOLS = 'shared-pools: [{socket: 0, node: 0, cpuset: 0-3}, {socket: 0, node: 1, cpuset: "8-11,15"}]\n'
POOLS += "be-shared-pools: [{socket: 0, node: 0, cpuset: 4-5}, {socket: 0, node: 1, cpuset: 12-13}]\n"
STATIC, GATE, SYSTEM = "kubelet-cpu-manager-policy: static\n", "be-cpu-manager: true\n", "system-cpuset: 0-1\n"
KEEP_QUOTA = "unset-cpu-quota: false\n"
SENT = {"cpu_shares": 1024, "cpu_quota": 200000, "cpuset_cpus": "0-15"}
"""A container as the kubelet's static policy requests it."""


def cpus(text: str) -> dict[str, Any]:
    return {"cpuset_cpus": text}


ALL, POOL_0, POOL_1, CLEARED, NOTHING = cpus("0-3,8-11,15"), cpus("0-3"), cpus("8-11,15"), cpus(""), dict[str, Any]()
OWN, EXCLUSIVE = {"cpuset": "4-7,9"}, {**cpus("4-7,9"), "cpu_quota": -1}
WITH_NODES = status({**OWN, "numaNodeResources": [{"resources": {"cpu": "4"}}]})
SECOND_HAS_CPU = status({"numaNodeResources": [{"node": 1}, {"node": 0, "resources": {"cpu": 4}}]})
NODE_IN_MIXED_CASE = status({"NUMANodeResources": [{"Node": 1, "RESOURCES": {"cpu": 4}}]})
NO_NODE = status({"cpuset": "", "numaNodeResources": [{"resources": {"cpu": 4}}]})
ON_NODES = [
    *((numa(0, cpu="1n"), POOL_0), (numa(0, cpu="0", memory="1Gi"), ALL), (numa(7, cpu=4), CLEARED)),
    *((numa(1, **{BATCH_CPU: "500"}), POOL_1), (numa(1, **{BATCH_CPU: -1}), ALL)),
    *((NODE_IN_MIXED_CASE, POOL_1), (NO_NODE, POOL_0)),  # as in Go
]
RULES = [
    # The pod's own CPUs, for any class and settings.
    *(("", "LSR", POD, status(OWN), EXCLUSIVE), (POOLS + STATIC + SYSTEM, "BE", POD, status(OWN), EXCLUSIVE)),
    *((KEEP_QUOTA, "SYSTEM", POD, status(OWN), cpus("4-7,9")), (POOLS, "LSR", POD, WITH_NODES, EXCLUSIVE)),
    ("", "LSR", POD, status({"CPUSet": "1,1,0-0"}), {**cpus("1,1,0-0"), "cpu_quota": -1}),
    # Without settings nothing is set, nor cleared.
    *(("", "BE", BEST_EFFORT, {}, NOTHING), (GATE + KEEP_QUOTA, "", POD, numa(0, cpu=1), NOTHING)),
    # 1. NUMA nodes with CPUs; one entry with CPUs counts all nodes. A pool may have no CPUs, or there may be none.
    *((POOLS, "LS", BURSTABLE, given, resources) for given, resources in ON_NODES),
    (POOLS + SYSTEM, "SYSTEM", BURSTABLE, SECOND_HAS_CPU, ALL),
    (POOLS + STATIC, "", BEST_EFFORT, numa(1, cpu=-4), POOL_1),
    ("shared-pools: [{}, {node: 1, cpuset: 8-11}]", "LS", BURSTABLE, numa(0, 1, cpu=4), cpus("8-11")),
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
    serve: Serve, settings: str, name: str, parent: str, annotations: Texts, resources: dict[str, Any]
) -> None:
    hook, call = serve("cpuset", settings), {"labels": qos(name), "cgroup_parent": parent, "annotations": annotations}
    assert at_both(hook, resources=SENT, **call) == Difference(resources=resources)
    assert at_both(hook, resources={**SENT, **resources}, **call) == NO_DIFFERENCE


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


EXCLUSIVES = [
    *(
        (POOLS, POD, status(OWN), "-1\n"),
        (KEEP_QUOTA, POD, status(OWN), "old\n"),
        (POOLS, POD, numa(0, cpu=4), "old\n"),
    ),
    *(("", "/y", status(OWN), ""), ("", "/y/../x", status(OWN), "")),
]


@pytest.mark.parametrize(("settings", "parent", "annotations", "after"), EXCLUSIVES)
def test_pod_with_exclusive_cpus_has_no_quota(
    serve: Serve, tmp_path: Path, caplog: Log, settings: str, parent: str, annotations: Texts, after: str
) -> None:
    [file] = tree(tmp_path, {f"cpu{POD}/cpu.cfs_quota_us": "old\n"})
    changed = serve("cpuset", settings).pre_run_pod_sandbox(annotations=annotations, cgroup_parent=parent, pod="p")
    assert changed == Difference(resources={} if after == "old\n" else {"cpu_quota": -1})
    assert file.read_text() == (after or "old\n")
    stays = "default/p: the quota of the pod's cgroup stays as it is: "
    assert [message.startswith(stays) for message in caplog.messages] == [True] * (not after)


# gpu
CORE, MEMORY, RATIO = keys.GPU_CORE, keys.GPU_MEMORY, keys.GPU_MEMORY_RATIO
OLD_CORE, OLD_MEMORY, OLD_RATIO = "kubernetes.io/gpu-core", "kubernetes.io/gpu-memory", "kubernetes.io/gpu-memory-ratio"
HAMI = {keys.GPU_ISOLATION_PROVIDER: "HAMi-core"}
SHARE = {CORE: "50", MEMORY: "16Gi", RATIO: "50"}
VISIBLE, LIMIT, SM_LIMIT = "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT"


def gpus(*devices: Any) -> Texts:
    return annotation(keys.DEVICE_ALLOCATED, {"gpu": list(devices)})


def gpu(resources: Any) -> dict[str, Any]:
    return {"minor": 0, "id": "GPU-1", "resources": resources}


ONE, WHOLE = {VISIBLE: "0"}, {"minor": 7, "resources": {RATIO: "100"}}
SHARED = {**ONE, LIMIT: str(16 << 30), SM_LIMIT: "50", "LD_PRELOAD": LIBRARY}
MINORS: list[tuple[Texts, Texts]] = [
    *(({}, {}), (gpus(), {}), (annotation(keys.DEVICE_ALLOCATED, {"rdma": [{"minor": 1}], "gpu": None}), {})),
    (annotation(keys.DEVICE_ALLOCATED, {"GPU": [{"minor": 1}]}), {}),  # a type of devices is a key of a map: exact
    (gpus({"minor": 3}, gpu(SHARE), {"Minor": 11}), {VISIBLE: "3,0,11"}),  # in the list's order
]
SHARES: list[tuple[dict[str, Any], Texts]] = [
    ({CORE: 50, MEMORY: 16 << 30, RATIO: 5e1}, SHARED),
    ({**SHARE, MEMORY: "1500m", CORE: 0.5}, {**SHARED, LIMIT: "2", SM_LIMIT: "1"}),  # rounded up
    ({MEMORY: "16Gi", RATIO: "50"}, {**ONE, LIMIT: str(16 << 30), "LD_PRELOAD": LIBRARY}),
    ({**SHARE, CORE: "0"}, {**SHARED, SM_LIMIT: "0"}),
    # a whole GPU has no limits, and needs no amount of memory
    *(({**SHARE, RATIO: "99"}, SHARED), ({**SHARE, RATIO: "99.5"}, ONE), ({RATIO: 100}, ONE)),
    # deprecated names, which the new ones override
    ({OLD_CORE: "50", OLD_MEMORY: "16Gi", OLD_RATIO: "50"}, SHARED),
    ({**SHARE, OLD_CORE: "1", OLD_MEMORY: "1", OLD_RATIO: "100"}, SHARED),
    ({**SHARE, MEMORY: None, OLD_MEMORY: "16Gi"}, SHARED),
]
VARIABLES = [  # the label's value must match exactly; the first device's share counts
    *((given, provider, env) for given, env in MINORS for provider in ("", "hami-core", "a")),
    *((gpus(gpu(share), WHOLE), "HAMi-core", {**env, VISIBLE: "0,7"}) for share, env in SHARES),
]


@pytest.mark.parametrize(("annotations", "provider", "env"), VARIABLES)
def test_variables_are_minors_and_share_of_gpus(serve: Serve, annotations: Texts, provider: str, env: Texts) -> None:
    sent, labels = {VISIBLE: "all", "LD_PRELOAD": "/mine.so", "PATH": "/bin"}, {keys.GPU_ISOLATION_PROVIDER: provider}
    changed = serve("gpu").pre_create_container(annotations=annotations, labels=labels, env=sent)
    assert changed == Difference(env=env)


def test_flags_name_absolute_paths_in_container(serve: Serve) -> None:
    cache = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/v/u-1_main.cache"}
    flags = {"--hami-core-library=/h.so": {"LD_PRELOAD": "/h.so"}, "--hami-core-cache-dir=/v/": cache}
    for flag, more in flags.items():
        for resources, env in ((SHARE, {**SHARED, **more}), ({RATIO: 100}, ONE)):
            call: dict[str, Any] = {"annotations": gpus(gpu(resources)), "labels": HAMI, "uid": "u-1"}
            assert serve("gpu", "", flag).pre_create_container(**call).env == env
        name = flag.partition("=")[0]
        with pytest.raises(ValueError, match=f"{name} must be an absolute path"):
            serve("gpu", "", f"{name}=vgpu")


# groupidentity
ON, OFF = "group-identity: {enable: true}\n", "group-identity: {enable: false, LSR: 1, LS: 1, BE: 1}\n"
CHANGED = "group-identity: {enable: true, LSR: 1, LS: 0, BE: 2}\n"


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
    serve: Serve, tmp_path: Path, settings: str, name: str, parent: str, text: str, value: int
) -> None:
    [file] = tree(tmp_path, {f"cpu,cpuacct{parent}/{FILE}": "5\n"})
    call = {"labels": qos(name), "annotations": {keys.CPU_QOS: text}, "cgroup_parent": parent}
    assert not serve("groupidentity", settings).pre_run_pod_sandbox(**call)
    assert file.read_text() == f"{value}\n"


def test_failed_write_is_logged_and_pod_runs(serve: Serve, tmp_path: Path, caplog: Log) -> None:
    top = tmp_path / "cpu,cpuacct"
    hook = serve("groupidentity", ON)
    for parent in (POD, BURSTABLE):
        assert not hook.pre_run_pod_sandbox(cgroup_parent=parent)
    for parent in (POD, BURSTABLE):
        (top / parent[1:]).mkdir(parents=True)
    for settings in (OFF, ON):  # 0 is the behaviour of a kernel without the file
        hook = serve("groupidentity", settings)
        for parent in (POD, BURSTABLE, ""):
            assert not hook.pre_run_pod_sandbox(cgroup_parent=parent)
    with pytest.raises(Malformed, match="cgroup path"):
        hook.pre_run_pod_sandbox(cgroup_parent="/kubepods/../../x")
    assert not list(top.rglob(FILE))
    (top / POD[1:] / FILE).mkdir()
    for parent in (POD, "/kubepods/y"):
        assert not hook.pre_run_pod_sandbox(cgroup_parent=parent, pod="web")
    assert not (top / "kubepods/y").exists()
    absent, lacking, *failed = caplog.messages
    assert absent.startswith(f"pods run without a group identity: {tmp_path} holds no cgroups")
    assert lacking.startswith(f"this kernel's cgroups have no {FILE}")
    advice = "run this server as root, with the node's cgroups mounted to be written"
    words = f"{top}{POD}/{FILE}: Is a directory; {advice}", f"its cgroup {top}/kubepods/y is not there"
    assert failed == [f"default/web gets no {FILE}: {each}" for each in words]


# oomscoreadj
NO_SCORES = (str(LEAST - 1), str(MOST + 1), "77123" * 2000, "1e2", " 100", "1_0", "٣", "-")
NO_SPECS = ("{", "[77123]", '{"main": 77123}', '{"main": 5, "b": "77123"}')
KEPT = "default/web main keeps its oom_score_adj: annotation "
ZERO = "an oom_score_adj of 0 cannot be requested on the wire, the kubelet's holds"
SCORES: list[tuple[Texts, int | None, int, str]] = [
    *(({SPEC: '{"main": -500, "b": 200}'}, -500, 0, ""), ({SPEC: '{"main": 200}', OF_POD: "100"}, 200, 0, "")),
    *(({SPEC: spec, OF_POD: "100"}, 100, 0, "") for spec in ('{"b": 200}', '{"MAIN": 200}', '{"b": null}', "null", "")),
    *((none, None, 0, "") for none in ({}, {OF_POD: ""}, {SPEC: '{"b": 5}'})),
    *(({OF_POD: text}, int(text), 0, "") for text in ("+7", "-" + "0" * 1000 + "5", str(LEAST), str(MOST))),
    *(({SPEC: text}, None, 3, f"{KEPT}{SPEC}: ") for text in NO_SPECS),
    *(({OF_POD: text}, None, 3, f"{KEPT}{OF_POD}: ") for text in NO_SCORES),
    ({SPEC: '{"main": 1001}', OF_POD: "100"}, None, 3, f"{KEPT}{SPEC}: "),
    ({SPEC: '{"b": 5}', OF_POD: "x77123"}, None, 3, f"{KEPT}{OF_POD}: "),
    # nothing to set where the score is 0 or the runtime's default already
    *((zero, None, 1, ZERO) for zero in ({OF_POD: "-0"}, {SPEC: '{"main": 0}'}, {SPEC: '{"main": null}'})),
]


@pytest.mark.parametrize(("annotations", "value", "lines", "words"), SCORES)
def test_requested_score_is_set_or_problem_logged(
    serve: Serve, caplog: Log, annotations: Texts, value: int | None, lines: int, words: str
) -> None:
    hook, sent = serve("oomscoreadj"), {"oom_score_adj": 968, "cpu_shares": 2}
    for resources in (None, sent, sent):
        changed = hook.pre_create_container(annotations=annotations, resources=resources, pod="web")
        assert changed == Difference(resources={} if value is None else {"oom_score_adj": value})
    assert {each.levelname for each in caplog.records} <= {"WARNING"}
    assert [message.startswith(words) for message in caplog.messages] == [True] * lines
    assert "77123" not in caplog.text


# Malformed annotations.
RUN_POD, CREATE, UPDATE = "pre_run_pod_sandbox", "pre_create_container", "pre_update_container_resources"
SETTINGS = f"cpu-normalization-ratio: 2\nshared-pools: [{{cpuset: 0-3}}]\n{ON}"
CGROUP = [f"cpu{POD}/{name}" for name in ("cpu.shares", "cpu.cfs_quota_us", FILE)]
CGROUP.append(f"memory{POD}/memory.limit_in_bytes")


def on_nodes(*given: Any) -> dict[str, Any]:
    return {"numaNodeResources": list(given)}


def resctrl(resource: str, *entries: Any, **schemata: Any) -> dict[str, Any]:
    return {resource: {"schemataPerCache": list(entries)} if entries else {"schemata": schemata}}


MALFORMED: dict[tuple[str, ...], list[tuple[Any, str]]] = {
    ("batchresource", keys.EXTENDED_RESOURCE_SPEC, RUN_POD, CREATE, UPDATE): [
        *(("{", "not JSON"), ({"containers": []}, "containers must be a JSON object")),
        ({"containers": {"main": {"limits": "canary"}}}, "limits must be a JSON object"),
        ({"containers": {"a": {"limits": {BATCH_CPU: 500}}, "main": amounts(0, "canary")}}, "not a quantity"),
        ({"containers": {"a": {"limits": {BATCH_CPU: 500}}, "main": amounts(0, 0, "canary")}}, "not a quantity"),
    ],
    ("cpunormalization", keys.RESOURCE_STATUS, CREATE): [("{", ""), ({"cpuset": ["canary"]}, "")],
    ("cpuset", keys.RESOURCE_STATUS, RUN_POD, CREATE, UPDATE): [
        *(("canary", "not JSON"), ({"cpuset": 3}, "cpuset must be a text"), (on_nodes("canary"), "")),
        *((on_nodes({"node": "canary"}), ""), (on_nodes({"resources": {"cpu": 4}}, {"resources": "canary"}), "")),
        (on_nodes({"resources": {BATCH_CPU: []}}), ""),
        ({"cpuset": "0-3", **on_nodes({"resources": {"cpu": "canary"}})}, "not a quantity"),
    ],
    ("gpu", keys.DEVICE_ALLOCATED, CREATE): [
        *((text, "") for text in ("{", "[]")),
        *(({"gpu": found}, "") for found in (3, [None], [{"minor": 0}, {}], [{"minor": "canary"}])),
        *(({"gpu": [gpu(found)]}, "") for found in (None, "canary", {}, {**SHARE, MEMORY: None}, {CORE: 1, MEMORY: 1})),
        ({"gpu": [gpu({key.upper(): value for key, value in SHARE.items()})]}, ""),
        *(({"gpu": [gpu({**SHARE, key: amount})]}, "") for key in SHARE for amount in ("canary", True)),
    ],
    ("groupidentity", keys.CPU_QOS, RUN_POD): [
        *(({"enable": enable, "groupIdentity": value}, "") for enable, value in ((True, 3), (True, -2), (False, 3))),
        *(({"enable": True, "groupIdentity": "1"}, ""), ({"enable": 1}, ""), ("{", "not JSON")),
    ],
    ("rdt", keys.RESCTRL, RUN_POD, CREATE, "post_start_container"): [
        *(("{", "not JSON"), ({"llc": []}, "llc must be a JSON object")),
        *((resctrl("llc", range=ends), "two whole percentages") for ends in ([61], [0, 61.5], [False, True])),
        *((resctrl("llc", range=ends), "from a lower to a higher") for ends in ([61, 61], [-1, 61], [0, 161])),
        (resctrl("llc", 61), "schemataPerCache must be a list of JSON objects"),
        *((resctrl("llc", entry), "needs cacheID") for entry in (None, {"range": [0, 61]})),
        *((resctrl(name, {"cacheID": 0}), "and range (llc) or percent (mb)") for name in ("llc", "mb")),
        (resctrl("mb", percent="61"), "percent must be a whole number"),
        *((resctrl("mb", {"cacheID": 0, "percent": each}), "1 to 100 percent") for each in (161, 0)),
    ],
}
MALFORMED["cpuset", keys.RESOURCE_STATUS, CREATE] = [
    ({"cpuset": text}, "its cpuset cannot be used") for text in ("canary", "3-0", " ")
]
ROWS = [
    (name, key, method, *row) for (name, key, *methods), rows in MALFORMED.items() for method in methods for row in rows
]


@pytest.mark.parametrize(("name", "key", "method", "value", "why"), ROWS)
def test_malformed_annotation_is_error_without_value(
    tmp_path: Path, name: str, key: str, method: str, value: Any, why: str
) -> None:
    tree(tmp_path, dict.fromkeys(CGROUP, "old\n"))
    tester = on_node(tmp_path, Rdt(StandIn(tmp_path / "resctrl")) if name == "rdt" else name, SETTINGS)
    before = {path: path.is_file() and path.read_text() for path in tmp_path.rglob("*")}
    call = {"labels": qos("BE" if name == "batchresource" else "LS") | HAMI, "cgroup_parent": POD}
    with pytest.raises(Malformed) as caught:
        getattr(tester, method)(**call, resources={"cpu_quota": 100_000}, annotations=annotation(key, value))
    text = str(caught.value)
    assert why in text
    assert not [secret for secret in ("canary", "61") if secret in text]
    assert key in text or name == "gpu"  # the text names the missing resources instead
    assert {path: path.is_file() and path.read_text() for path in tmp_path.rglob("*")} == before
