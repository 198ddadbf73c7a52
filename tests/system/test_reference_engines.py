"""The project's own hook servers on real containerd and dockerd: what they give is true inside the container."""

import json
from collections.abc import Iterator, Mapping, Sequence

import pytest

from runtimeproxy_hooks import coresched, koordinator
from runtimeproxy_hooks.groupidentity import FILE as BVT
from tests.engines import cgroups
from tests.system.node import CPU, MIB
from tests.system.proxy import Folder
from tests.system.reference import HookProgram
from tests.system.reference_node import ENGINES, ReferenceNode, Running, before, container, running
from tests.system.scene import Values, assert_first_act

pytestmark = [pytest.mark.engine, pytest.mark.slow]

OWN_DEVICES = "gpu-cpuset"
OTHERS = "batchresource-cpunormalization-oomscoreadj-groupidentity-coresched"
SETTINGS = "cpu-normalization-ratio: 2\ngroup-identity: {enable: true}\n"
LIMITED: Values = {"cpu_period": 100000, "cpu_quota": 50000, "cpu_shares": 512, "memory_limit_in_bytes": 64 * MIB}
"""What the kubelet asks for."""


def hooks(folder: Folder) -> Sequence[HookProgram]:
    settings = folder.path / "node.yaml"
    settings.write_text(SETTINGS)
    state = folder.path / "coresched.json"
    with_settings = f"--node-config={settings}"
    return (
        HookProgram(folder, *OWN_DEVICES.split("-"), flags=[with_settings]),
        HookProgram(folder, *OTHERS.split("-"), flags=[with_settings, f"--core-sched-state={state}"]),
        HookProgram(folder, "rdt", flags=[f"--resctrl-root={folder.path}/none", "--failure-policy=Fail"]),
    )


@pytest.fixture(scope="module", params=ENGINES)
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReferenceNode]:
    engine = request.getfixturevalue(request.param)
    with before(engine, tmp_path_factory.mktemp("node"), hooks) as made:
        yield made


def annotation(key: str, value: object) -> dict[str, str]:
    return {key: json.dumps(value)}


def test_cpus_and_gpus_are_there_from_the_first_instruction_on(node: ReferenceNode) -> None:
    share = {
        "koordinator.sh/gpu-core": "50",
        "koordinator.sh/gpu-memory": "16Gi",
        "koordinator.sh/gpu-memory-ratio": 50,
    }
    gpus = [{"minor": 3, "resources": share}, {"minor": 0, "resources": share}]
    pod = node.pod(
        annotation(koordinator.DEVICE_ALLOCATED, {"gpu": gpus})
        | annotation(koordinator.RESOURCE_STATUS, {"cpuset": CPU, "numaNodeResources": []}),
        qos="LSR",
        cgroup="guaranteed",
    )
    pod.labels[koordinator.GPU_ISOLATION_PROVIDER] = "HAMi-core"
    envs = [("NVIDIA_VISIBLE_DEVICES", b"all"), ("LEVEL", b"info")]
    with running(node, pod, container(envs=envs, **LIMITED), pod_quota=60000) as made:
        told = made.told()
        assert told["Cpus_allowed_list"] == CPU
        expected = {
            "NVIDIA_VISIBLE_DEVICES": "3,0",
            "LEVEL": "info",
            "CUDA_DEVICE_MEMORY_LIMIT": str(16 << 30),
            "CUDA_DEVICE_SM_LIMIT": "50",
            "LD_PRELOAD": "/usr/local/vgpu/libvgpu.so",
        }
        assert {name: told.get(name) for name in expected} == expected
        in_force = {**LIMITED, "cpuset_cpus": CPU, "cpu_quota": -1}
        assert_first_act(told, in_force)
        assert cgroups.read(pod.linux.cgroup_parent, "cpu_quota") == -1
        made.update(cpu_quota=40000, cpu_shares=400)
        made.assert_in_force({**in_force, "cpu_shares": 400})


def test_no_annotation_no_change(node: ReferenceNode) -> None:
    with running(node, node.pod({}, qos="LSE"), container(**LIMITED)) as made:
        told = made.told()
        assert_first_act(told, LIMITED)
        assert "NVIDIA_VISIBLE_DEVICES" not in told


BATCH = {
    "requests": {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"},
    "limits": {"kubernetes.io/batch-cpu": 600, "kubernetes.io/batch-memory": "96Mi"},
}
BATCH_IN_FORCE: Values = {"cpu_shares": 512, "cpu_quota": 30000, "memory_limit_in_bytes": 96 * MIB}
"""The quota of 600 milli cores is 60000; the node's CPUs count twice."""


def test_batch_resources_hold_also_after_an_update(node: ReferenceNode) -> None:
    spec = annotation(koordinator.EXTENDED_RESOURCE_SPEC, {"containers": {"main": BATCH}})
    pod = node.pod(spec, qos="BE", cgroup="besteffort")
    with running(node, pod, container(cpu_shares=2)) as made:
        assert_first_act(made.told(), BATCH_IN_FORCE)
        made.assert_in_force(BATCH_IN_FORCE)
        of_pod = {setting: cgroups.read(pod.linux.cgroup_parent, setting) for setting in BATCH_IN_FORCE}
        assert of_pod == {setting: cgroups.expected(setting, value) for setting, value in BATCH_IN_FORCE.items()}
        made.update(cpu_shares=2, memory_limit_in_bytes=200 * MIB)
        made.assert_in_force(BATCH_IN_FORCE)


@pytest.mark.parametrize(("qos", "times"), [("LS", 2), ("LSR", 1)])
def test_a_quota_is_scaled_once(node: ReferenceNode, qos: str, times: int) -> None:
    with running(node, node.pod({}, qos=qos), container(**LIMITED)) as made:
        assert_first_act(made.told(), {**LIMITED, "cpu_quota": 50000 // times})
        made.update(cpu_shares=400)
        made.assert_in_force({"cpu_shares": 400, "cpu_quota": 50000 // times})
        for quota in (80000, 30000):
            made.update(cpu_quota=quota)
            made.assert_in_force({"cpu_shares": 400, "cpu_quota": quota // times})


OOM: dict[str, tuple[Mapping[str, str], str]] = {
    "of the container": (
        {koordinator.OOM_SCORE_ADJ_SPEC: '{"main": 300, "other": 1}', koordinator.OOM_SCORE_ADJ: "500"},
        "300",
    ),
    "cannot be read": ({koordinator.OOM_SCORE_ADJ: "5,00"}, "900"),
}
"""The pod's annotations and what holds in its container; the kubelet asks for 900."""


@pytest.mark.parametrize("row", OOM)
def test_the_oom_score(node: ReferenceNode, row: str) -> None:
    annotations, expected = OOM[row]
    with running(node, node.pod(annotations), container(**LIMITED, oom_score_adj=900)) as made:
        assert made.told()["oom_score_adj"] == expected
        made.update(cpu_shares=400)
        now = made.client.exec_sync(made.container_id, "cat", "/proc/1/oom_score_adj").stdout.decode()
        assert now.strip() == expected


# ---- what this kernel may lack

NO_RDT = "no RDT on this node"
NO_BVT = f"this kernel's cgroups have no {BVT}"
NO_COOKIES = "pods run without core scheduling, this kernel or machine has none"


@pytest.fixture
def two(node: ReferenceNode) -> Iterator[tuple[Running, Running]]:
    """Run two best-effort pods of one core scheduling group, each with an RDT group of its own."""
    wish = annotation(koordinator.RESCTRL, {"mb": {"schemata": {"percent": 20}}})
    pods = node.pod(wish, qos="BE", cgroup="besteffort"), node.pod(wish, qos="BE", cgroup="besteffort")
    for pod in pods:
        pod.labels[koordinator.CORE_SCHED_GROUP] = "one-group"
    with running(node, pods[0], container()) as one, running(node, pods[1], container()) as other:
        assert one.told()
        assert other.told()
        yield one, other


def kernel_has_cookies() -> bool:
    try:
        coresched.sched_core(coresched.GET, coresched.ITSELF, coresched.THREAD)
    except OSError as error:
        if error.errno in coresched.NOT_SUPPORTED:
            return False
        raise
    return True


def test_what_the_kernel_lacks_is_said_once_and_pods_run(node: ReferenceNode, two: tuple[Running, Running]) -> None:
    directories = [found for made in two for found in cgroups.directories(made.pod.linux.cgroup_parent)]
    values = [(found / BVT).read_text().strip() for found in directories if (found / BVT).exists()]
    assert set(values) <= {"-1"}
    cookies = set()
    if kernel_has_cookies():
        pids = [pid for made in two for pid in cgroups.processes(made.cgroup)]
        cookies = {coresched.sched_core(coresched.GET, pid, coresched.THREAD) for pid in pids}
        assert len(cookies) == 1, cookies
        assert cookies != {0}
    log = "".join(program.output() for program in node.programs.values())
    said = {text: log.count(text) for text in (NO_RDT, NO_BVT, NO_COOKIES)}
    assert said == {NO_RDT: 1, NO_BVT: 0 if values else 1, NO_COOKIES: 0 if cookies else 1}, log
