"""The project's own hook servers as programs: their values hold in real containers, and each passes ``hook verify``.

The demo runs GPU, CPU, batch, quota and RDT hooks on both engines (tests/scripts/test_demo.py); here are the pods'
cgroups, updates, and what a kernel may lack.
"""

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy_hooks.__main__ import ALL, HOOKS
from runtimeproxy_hooks.lib import koordinator
from runtimeproxy_hooks.servers import coresched
from runtimeproxy_hooks.servers.groupidentity import FILE as BVT
from tests.engines import cgroups, cri
from tests.fakes.cri_pb2 import ContainerConfig, PodSandboxConfig
from tests.system.node import (
    CPU,
    MIB,
    Values,
    assert_first_act,
    assert_in_force,
    cri_resources,
    end,
    first_act,
    plain_pod,
)
from tests.system.proxy import ROOT, WAIT_SECONDS, Folder, Program, wait_until
from tests.system.real import CONTAINERD, DOCKERD, Kind, RealNode, on, running

pytestmark = pytest.mark.slow

FAIL = "--failure-policy=Fail"


class HookProgram(Program):
    """A hook server as a program."""

    def __init__(self, folder: Folder, *names: str, flags: Sequence[str] = ()) -> None:
        self.name = "-".join(names)
        self.socket = folder.path / f"{uuid.uuid4().hex[:8]}.sock"
        self.registration = folder.registrations / f"{self.name}.json"
        self.log = self.socket.with_suffix(".log")
        where = (f"--endpoint={self.socket}", f"--register-dir={folder.registrations}")
        self.command = [sys.executable, "-m", "runtimeproxy_hooks", *names, *where, *flags]

    def wait_until_it_serves(self) -> None:
        wait_until(lambda: self.ended or " serves " in self.output(), f"{self.name} serves", self.output)
        assert not self.ended, f"the hook server ended: {self.output()}"

    def end(self) -> None:
        """End the process by SIGTERM. It must leave no registration file, except under Fail."""
        assert self.process is not None
        self.process.terminate()
        try:
            code = self.process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        assert code == 0, f"exit code {code}: {self.output()[-4000:]}"
        assert not self.faults(), self.faults()
        assert self.registration.exists() is (FAIL in self.command)


@contextmanager
def served(*programs: HookProgram) -> Iterator[None]:
    with ExitStack() as stack:
        for program in programs:
            program.launch(cwd=ROOT)
            stack.callback(program.end)
        for program in programs:
            program.wait_until_it_serves()
        yield


OWN_PATHS = {"coresched": ["core-sched-state"], "rdt": ["resctrl-root"], ALL: ["core-sched-state", "resctrl-root"]}
"""The flags that set a hook's paths, which are the machine's by default."""


def test_each_hook_server_passes_hook_verify(tmp_path: Path) -> None:
    programs = []
    for name in (*sorted(HOOKS), ALL):
        flags = [f"--{flag}={tmp_path}/{name}/{flag}" for flag in OWN_PATHS.get(name, [])]
        programs.append(HookProgram(Folder(tmp_path / name), name, flags=flags))

    def verify(program: HookProgram) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "runtimeproxy", "hook", "verify", str(program.socket)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)

    with served(*programs), ThreadPoolExecutor(3) as pool:
        for program, done in zip(programs, pool.map(verify, programs), strict=True):
            assert done.returncode == 0, f"{program.name}: {done.stdout}{done.stderr}"


# ---- with real engines


def on_engines(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.engine(on(CONTAINERD, DOCKERD)(test))


LIMITED: Values = {"cpu_period": 100000, "cpu_quota": 50000, "cpu_shares": 512, "memory_limit_in_bytes": 64 * MIB}
NO_QUOTA = -1


@dataclass(frozen=True, slots=True)
class Node:
    real: RealNode
    programs: list[HookProgram]

    def pod(self, annotations: dict[str, object], *, qos: str, cgroup: str = "besteffort") -> PodSandboxConfig:
        """Return a new pod of a Koordinator QoS class; ``cgroup`` is its Kubernetes QoS class."""
        pod = plain_pod(self.real.engine)
        pod.annotations.update({key: json.dumps(value) for key, value in annotations.items()})
        pod.labels["koordinator.sh/qosClass"] = qos
        pod.linux.cgroup_parent = self.real.engine.cgroup_parent(pod.metadata.uid, cgroup)
        return pod

    @contextmanager
    def running(
        self, pod: PodSandboxConfig, container: ContainerConfig, pod_quota: int = NO_QUOTA
    ) -> Iterator[tuple[Any, str]]:
        """Run a pod with a container as a kubelet does; yield a client and the container's id."""
        make_pod_cgroup(pod.linux.cgroup_parent, pod_quota)
        with self.real.client() as client:
            pod_id = client.run_pod(pod)
            container_id = client.create(pod_id, container, pod)
            client.start(container_id)
            yield client, container_id
            end(client, pod_id, container_id)


@pytest.fixture(scope="module")
def node(kind: Kind, engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Run a proxy with every hook server that changes containers."""
    programs: list[HookProgram] = []
    with ExitStack() as stack:

        def serve(real: RealNode) -> None:
            folder = real.proxy
            (folder.path / "node.yaml").write_text("group-identity: {enable: true}\n")
            config, state = f"--node-config={folder.path}/node.yaml", f"--core-sched-state={folder.path}/coresched.json"
            others = ("batchresource", "groupidentity", "coresched")
            programs.append(HookProgram(folder, "gpu", "cpuset", flags=[config]))
            programs.append(HookProgram(folder, *others, flags=[config, state]))
            programs.append(HookProgram(folder, "rdt", flags=[f"--resctrl-root={folder.path}/none", FAIL]))
            stack.enter_context(served(*programs))

        real = stack.enter_context(running(kind, engine, tmp_path_factory.mktemp("node"), serve))
        yield Node(real, programs)


def container(**resources: int | str) -> ContainerConfig:
    """Return a container that prints its cgroup files and its environment by its first instructions."""
    return cri.container_config("main", command=first_act(), resources=cri_resources(resources))


def make_pod_cgroup(path: str, quota: int) -> None:
    """Make a pod's cgroup as a kubelet does; it is removed with the engine."""
    if cgroups.is_v2():
        directory = cgroups.ROOT
        for name in path.strip("/").split("/"):
            (directory / "cgroup.subtree_control").write_text("+cpu +memory +cpuset")
            directory /= name
            directory.mkdir(exist_ok=True)
        (directory / "cpu.max").write_text("max" if quota == NO_QUOTA else str(quota))
        return
    cpu, memory = (cgroups.ROOT / controller / path.lstrip("/") for controller in ("cpu", "memory"))
    cpu.mkdir(parents=True)
    memory.mkdir(parents=True)
    (cpu / "cpu.cfs_quota_us").write_text(str(quota))


def of_pod(pod: PodSandboxConfig, *settings: str) -> Values:
    return {setting: cgroups.read(pod.linux.cgroup_parent, setting) for setting in settings}


@on_engines
def test_cpus_and_gpu_share_hold_from_first_instruction(node: Node) -> None:
    """The pod's own quota is lifted, too; an update does not restore the container's."""
    share = {
        f"koordinator.sh/gpu-{name}": value
        for name, value in {"core": "50", "memory": "16Gi", "memory-ratio": 50}.items()
    }
    devices = {"gpu": [{"minor": minor, "resources": share} for minor in (3, 0)]}
    pod = node.pod(
        {koordinator.DEVICE_ALLOCATED: devices, koordinator.RESOURCE_STATUS: {"cpuset": CPU, "numaNodeResources": []}},
        qos="LSR",
        cgroup="guaranteed",
    )
    pod.labels[koordinator.GPU_ISOLATION_PROVIDER] = "HAMi-core"
    expected: Values = {**LIMITED, "cpuset_cpus": CPU, "cpu_quota": NO_QUOTA}
    with node.running(pod, container(**LIMITED), pod_quota=60000) as (client, container_id):
        printed = node.real.first_act(client, pod, container_id)
        assert (printed["NVIDIA_VISIBLE_DEVICES"], printed["CUDA_DEVICE_SM_LIMIT"]) == ("3,0", "50")
        assert_first_act(printed, expected)
        assert of_pod(pod, "cpu_quota") == {"cpu_quota": NO_QUOTA}
        client.update(container_id, cri_resources({"cpu_quota": 40000, "cpu_shares": 400}))
        assert_in_force(client, container_id, pod.linux.cgroup_parent, {**expected, "cpu_shares": 400})


BATCH = {
    "requests": {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"},
    "limits": {"kubernetes.io/batch-cpu": 600, "kubernetes.io/batch-memory": "96Mi"},
}
LIMITS: Values = {"cpu_shares": 512, "cpu_quota": 60000, "memory_limit_in_bytes": 96 * MIB}
OWN: Values = {"cpu_shares": 2, "cpu_quota": 80000, "memory_limit_in_bytes": 200 * MIB}
LIFTED: Values = {"cpu_shares": 512, "cpu_quota": NO_QUOTA, "memory_limit_in_bytes": -1}


@on_engines
@pytest.mark.parametrize(
    ("name", "in_container", "in_pod"),
    [pytest.param("main", LIMITS, LIMITS, id="named"), pytest.param("sidecar", OWN, LIFTED, id="unnamed")],
)
def test_batch_limits_hold_after_an_update(node: Node, name: str, in_container: Values, in_pod: Values) -> None:
    """A container that the annotation does not name has its own limits; those of its pod must not be lower."""
    pod = node.pod({koordinator.EXTENDED_RESOURCE_SPEC: {"containers": {name: BATCH}}}, qos="BE")
    with node.running(pod, container(**OWN)) as (client, container_id):
        assert_first_act(node.real.first_act(client, pod, container_id), in_container)
        expected = {setting: cgroups.expected(setting, value) for setting, value in in_pod.items()}
        assert of_pod(pod, *in_pod) == expected
        client.update(container_id, cri_resources(OWN))
        assert_in_force(client, container_id, pod.linux.cgroup_parent, in_container)


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


@on_engines
def test_missing_kernel_features_are_logged_once(node: Node) -> None:
    """Two best-effort pods run in one core scheduling group, each with an RDT group of its own."""
    annotations: dict[str, object] = {koordinator.RESCTRL: {"mb": {"schemata": {"percent": 20}}}}
    pods = [node.pod(annotations, qos="BE") for _ in range(2)]
    cookies = set()
    with ExitStack() as stack:
        for pod in pods:
            pod.labels[koordinator.CORE_SCHED_GROUP] = "one-group"
            client, container_id = stack.enter_context(node.running(pod, container()))
            assert node.real.first_act(client, pod, container_id)
            if kernel_has_cookies():
                pids = cgroups.processes(f"{pod.linux.cgroup_parent}/{container_id}")
                cookies |= {coresched.sched_core(coresched.GET, pid, coresched.THREAD) for pid in pids}
        assert 0 not in cookies
        assert len(cookies) == int(kernel_has_cookies())
        directories = [found for pod in pods for found in cgroups.directories(pod.linux.cgroup_parent)]
        values = [(found / BVT).read_text().strip() for found in directories if (found / BVT).exists()]
        assert set(values) <= {"-1"}
    log = "".join(program.output() for program in node.programs)
    counts = {text: log.count(text) for text in (NO_RDT, NO_BVT, NO_COOKIES)}
    assert counts == {NO_RDT: 1, NO_BVT: 0 if values else 1, NO_COOKIES: 0 if cookies else 1}, log
