"""The project's own hook servers with real containerd and dockerd: their values hold inside the container.

RDT's is above a stand-in for resctrl, as no machine of the tests has RDT.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from runtimeproxy_hooks.lib import koordinator
from runtimeproxy_hooks.servers import coresched
from runtimeproxy_hooks.servers.groupidentity import FILE as BVT
from runtimeproxy_hooks.servers.rdt import RDT_CLASS
from tests.engines import cgroups
from tests.engines.cri import CriClient
from tests.system.node import CPU, LAST_LINE, MIB, Values, assert_first_act
from tests.system.proxy import Folder
from tests.system.real import CONTAINERD, DOCKERD, Kind, on
from tests.system.reference import HookProgram, ReferenceNode, before, container
from tests.system.reference_standin import MOST_SECONDS, PROCESSES

pytestmark = [pytest.mark.engine, pytest.mark.slow, on(CONTAINERD, DOCKERD)]

LIMITED: Values = {"cpu_period": 100000, "cpu_quota": 50000, "cpu_shares": 512, "memory_limit_in_bytes": 64 * MIB}
"""What the kubelet asks for."""


def every_hook(folder: Folder) -> Sequence[HookProgram]:
    settings = folder.path / "node.yaml"
    settings.write_text("cpu-normalization-ratio: 2\ngroup-identity: {enable: true}\n")
    config, state = f"--node-config={settings}", f"--core-sched-state={folder.path}/coresched.json"
    others = ("batchresource", "cpunormalization", "oomscoreadj", "groupidentity", "coresched")
    return (
        HookProgram(folder, "gpu", "cpuset", flags=[config]),
        HookProgram(folder, *others, flags=[config, state]),
        HookProgram(folder, "rdt", flags=[f"--resctrl-root={folder.path}/none", "--failure-policy=Fail"]),
    )


@pytest.fixture(scope="module")
def node(kind: Kind, engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReferenceNode]:
    with before(kind, engine, tmp_path_factory.mktemp("node"), every_hook) as made:
        yield made


def annotation(key: str, value: object) -> dict[str, str]:
    return {key: json.dumps(value)}


def test_cpus_and_gpus_are_there_from_the_first_instruction(node: ReferenceNode) -> None:
    half = {"core": "50", "memory": "16Gi", "memory-ratio": 50}
    share = {f"koordinator.sh/gpu-{name}": value for name, value in half.items()}
    devices = annotation(koordinator.DEVICE_ALLOCATED, {"gpu": [{"minor": it, "resources": share} for it in (3, 0)]})
    cpus = annotation(koordinator.RESOURCE_STATUS, {"cpuset": CPU, "numaNodeResources": []})
    pod = node.pod(devices | cpus, qos="LSR", cgroup="guaranteed")
    pod.labels[koordinator.GPU_ISOLATION_PROVIDER] = "HAMi-core"
    envs = [("NVIDIA_VISIBLE_DEVICES", b"all"), ("LEVEL", b"info")]
    with node.running(pod, container(envs=envs, **LIMITED), pod_quota=60000) as made:
        printed = made.first_lines()
        assert printed["Cpus_allowed_list"] == CPU
        expected = {
            "NVIDIA_VISIBLE_DEVICES": "3,0",
            "LEVEL": "info",
            "CUDA_DEVICE_MEMORY_LIMIT": str(16 << 30),
            "CUDA_DEVICE_SM_LIMIT": "50",
            "LD_PRELOAD": "/usr/local/vgpu/libvgpu.so",
        }
        assert {name: printed.get(name) for name in expected} == expected
        in_force = {**LIMITED, "cpuset_cpus": CPU, "cpu_quota": -1}
        assert_first_act(printed, in_force)
        assert cgroups.read(pod.linux.cgroup_parent, "cpu_quota") == -1
        made.update(cpu_quota=40000, cpu_shares=400)
        made.assert_in_force({**in_force, "cpu_shares": 400})


BATCH = {
    "requests": {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"},
    "limits": {"kubernetes.io/batch-cpu": 600, "kubernetes.io/batch-memory": "96Mi"},
}
BATCH_IN_FORCE: Values = {"cpu_shares": 512, "cpu_quota": 30000, "memory_limit_in_bytes": 96 * MIB}
"""The quota of 600 milli cores is 60000; the node's CPUs count twice."""


def test_batch_resources_hold_after_an_update(node: ReferenceNode) -> None:
    spec = annotation(koordinator.EXTENDED_RESOURCE_SPEC, {"containers": {"main": BATCH}})
    pod = node.pod(spec, qos="BE", cgroup="besteffort")
    with node.running(pod, container(cpu_shares=2)) as made:
        assert_first_act(made.first_lines(), BATCH_IN_FORCE)
        made.assert_in_force(BATCH_IN_FORCE)
        of_pod = {setting: cgroups.read(pod.linux.cgroup_parent, setting) for setting in BATCH_IN_FORCE}
        assert of_pod == {setting: cgroups.expected(setting, value) for setting, value in BATCH_IN_FORCE.items()}
        made.update(cpu_shares=2, memory_limit_in_bytes=200 * MIB)
        made.assert_in_force(BATCH_IN_FORCE)


def test_unnamed_container_has_its_own_limits_only(node: ReferenceNode) -> None:
    """Its limits are above the pod's, which the annotation's containers have together."""
    spec = annotation(koordinator.EXTENDED_RESOURCE_SPEC, {"containers": {"other": BATCH}})
    pod = node.pod(spec, qos="BE", cgroup="besteffort")
    limits: Values = {"cpu_shares": 2, "cpu_quota": 80000, "memory_limit_in_bytes": 200 * MIB}
    with node.running(pod, container(**limits)) as made:
        assert_first_act(made.first_lines(), limits)
        of_pod = {setting: cgroups.read(pod.linux.cgroup_parent, setting) for setting in BATCH_IN_FORCE}
        lifted: Values = {"cpu_shares": 512, "cpu_quota": -1, "memory_limit_in_bytes": -1}
        assert of_pod == {setting: cgroups.expected(setting, value) for setting, value in lifted.items()}
        made.update(cpu_quota=90000)
        made.assert_in_force({**limits, "cpu_quota": 90000})


@pytest.mark.parametrize(("qos", "times"), [("LS", 2), ("LSR", 1)])
def test_quota_is_scaled_once(node: ReferenceNode, qos: str, times: int) -> None:
    with node.running(node.pod({}, qos=qos), container(**LIMITED)) as made:
        assert_first_act(made.first_lines(), {**LIMITED, "cpu_quota": 50000 // times})
        made.update(cpu_shares=400)
        made.assert_in_force({"cpu_shares": 400, "cpu_quota": 50000 // times})
        for quota in (80000, 30000):
            made.update(cpu_quota=quota)
            made.assert_in_force({"cpu_shares": 400, "cpu_quota": quota // times})


OOM_SCORES: dict[str, tuple[Mapping[str, str], str]] = {
    "set": ({koordinator.OOM_SCORE_ADJ_SPEC: '{"main": 300, "other": 1}', koordinator.OOM_SCORE_ADJ: "500"}, "300"),
    "unreadable": ({koordinator.OOM_SCORE_ADJ: "5,00"}, "900"),
}


@pytest.mark.parametrize(("annotations", "expected"), OOM_SCORES.values(), ids=OOM_SCORES)
def test_oom_score_is_the_annotations(node: ReferenceNode, annotations: Mapping[str, str], expected: str) -> None:
    """The kubelet asks for 900."""
    with node.running(node.pod(annotations), container(**LIMITED, oom_score_adj=900)) as made:
        assert made.first_lines()["oom_score_adj"] == expected
        made.update(cpu_shares=400)
        now = made.client.exec_sync(made.container_id, "cat", "/proc/1/oom_score_adj").stdout.decode()
        assert now.strip() == expected


# ---- what this kernel may lack

NO_RDT = "no RDT on this node"
NO_BVT = f"this kernel's cgroups have no {BVT}"
NO_COOKIES = "pods run without core scheduling, this kernel or machine has none"


def kernel_has_cookies() -> bool:
    try:
        coresched.sched_core(coresched.GET, coresched.ITSELF, coresched.THREAD)
    except OSError as error:
        if error.errno in coresched.NOT_SUPPORTED:
            return False
        raise
    return True


def test_what_the_kernel_lacks_is_logged_once_and_pods_run(node: ReferenceNode) -> None:
    """Two best-effort pods are in one core scheduling group, each with an RDT group of its own."""
    wish = annotation(koordinator.RESCTRL, {"mb": {"schemata": {"percent": 20}}})
    pods = [node.pod(wish, qos="BE", cgroup="besteffort") for _ in range(2)]
    cookies = set()
    with ExitStack() as stack:
        for pod in pods:
            pod.labels[koordinator.CORE_SCHED_GROUP] = "one-group"
            made = stack.enter_context(node.running(pod, container()))
            assert made.first_lines()
            if kernel_has_cookies():
                pids = made.processes
                cookies |= {coresched.sched_core(coresched.GET, pid, coresched.THREAD) for pid in pids}
        assert 0 not in cookies
        assert len(cookies) == int(kernel_has_cookies())
        directories = [found for pod in pods for found in cgroups.directories(pod.linux.cgroup_parent)]
        values = [(found / BVT).read_text().strip() for found in directories if (found / BVT).exists()]
        assert set(values) <= {"-1"}
    log = "".join(program.output() for program in node.programs.values())
    said = {text: log.count(text) for text in (NO_RDT, NO_BVT, NO_COOKIES)}
    assert said == {NO_RDT: 1, NO_BVT: 0 if values else 1, NO_COOKIES: 0 if cookies else 1}, log


# ---- RDT above a stand-in

RESCTRL = "resctrl"
CLASSES = 3
"""Number of classes of service: the root has one of them, and BE gets one."""
WISH = {"llc": {"schemata": {"range": [20, 80]}}, "mb": {"schemataPerCache": [{"cacheID": 1, "percent": 20}]}}
SEVERAL = f"sleep 3600 & sleep 3600 & echo {LAST_LINE}; wait"
COUNT = 3
"""The processes of that script, the shell and two more."""
OF_CLASS, OF_POD = "class", "pod"
LIMITS = {OF_CLASS: "L3:0=00f;1=00f\nMB:0= 40;1= 40\n", OF_POD: "L3:0=1f8;1=1f8\nMB:0=100;1= 20\n"}
"""The schemata file for 11 ways and steps of 10 %: 0 to 30 % is 4 ways, 20 to 80 % the 4th to the 9th."""


def rdt_hook(folder: Folder) -> Sequence[HookProgram]:
    settings = folder.path / "node.yaml"
    settings.write_text("rdt: {BE: {enable: true, l3: [0, 30], mb: 35}}\n")
    words = (f"{folder.path}/{RESCTRL}", str(CLASSES))
    flags = [f"--node-config={settings}", "--failure-policy=Fail", f"--timeout={2 * MOST_SECONDS:.0f}s"]
    program = (sys.executable, "-m", "tests.system.reference_standin")
    return [HookProgram(folder, *words, program=program, name="rdt", flags=flags)]


@pytest.fixture(scope="module")
def rdt_node(kind: Kind, engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReferenceNode]:
    with before(kind, engine, tmp_path_factory.mktemp("node"), rdt_hook) as made:
        yield made


@pytest.mark.parametrize("group_of", [OF_CLASS, OF_POD])
def test_group_holds_every_process_of_the_container(rdt_node: ReferenceNode, group_of: str) -> None:
    wish = annotation(koordinator.RESCTRL, WISH) if group_of == OF_POD else {}
    pod = rdt_node.pod(wish, qos="BE", cgroup="besteffort")
    name = f"koordlet-{pod.metadata.uid}" if group_of == OF_POD else "BE"
    group = rdt_node.real.proxy.path / RESCTRL / name
    config = container(SEVERAL)
    config.annotations[PROCESSES] = str(COUNT)
    with rdt_node.running(pod, config) as made:
        if isinstance(made.client, CriClient):
            assert made.client.status(made.container_id).status.annotations[RDT_CLASS] == name
        pids = made.processes
        assert len(pids) == COUNT
        said = f"{rdt_node.programs['rdt'].output()}\n{rdt_node.real.proxy.output()}"
        assert set(map(int, (group / "tasks").read_text().split())) == set(pids), said
        assert (group / "schemata").read_text() == LIMITS[group_of]
    assert group.exists() == (group_of == OF_CLASS)
