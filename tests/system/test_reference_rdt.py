"""The RDT hook server on real containerd and dockerd, above a stand-in for resctrl: classes, groups, threads.

What the container's first instruction finds in the cache is the bench's to measure; no machine of the tests has RDT.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from runtimeproxy_hooks.koordinator import RESCTRL
from runtimeproxy_hooks.rdt import RDT_CLASS
from tests.engines import cgroups
from tests.engines.containerd import Containerd
from tests.fakes.cri_pb2 import ContainerConfig, CreateContainerRequest, PodSandboxConfig
from tests.fakes.faults import FaultRelay
from tests.system import capture
from tests.system.node import LAST_LINE, end, serving
from tests.system.proxy import Folder, wait_until
from tests.system.reference import HookProgram
from tests.system.reference_node import ENGINES, ReferenceNode, before, container, running
from tests.system.reference_standin import MOST_SECONDS, PROCESSES

pytestmark = [pytest.mark.engine, pytest.mark.slow]

STAND_IN = (sys.executable, "-m", "tests.system.reference_standin")
CLASSES = 3
"""Of service; the root has one of them, and BE gets one."""
SETTINGS = "rdt: {BE: {enable: true, l3: [0, 30], mb: 35}}\n"
WISH = {"llc": {"schemata": {"range": [20, 80]}}, "mb": {"schemataPerCache": [{"cacheID": 1, "percent": 20}]}}
SEVERAL = f"sleep 3600 & sleep 3600 & echo {LAST_LINE}; wait"
COUNT = 4
"""The processes of that script, the shell and two more, and the guest."""
GUEST = """
import threading, time
for _ in range(3):
    threading.Thread(target=time.sleep, args=[3600], daemon=True).start()
time.sleep(3600)
"""
GUESTS_THREADS = 4

OF_CLASS, OF_POD = "class", "pod"
LIMITS = {OF_CLASS: "L3:0=00f;1=00f\nMB:0= 40;1= 40\n", OF_POD: "L3:0=1f8;1=1f8\nMB:0=100;1= 20\n"}
"""What the schemata file shows of 11 ways and steps of 10 %: 0 to 30 % is 4 ways, 20 to 80 % the 4th to the 9th."""


def resctrl(folder: Path) -> Path:
    return folder / "resctrl"


def hooks(folder: Folder) -> Sequence[HookProgram]:
    settings = folder.path / "node.yaml"
    settings.write_text(SETTINGS)
    words = (str(resctrl(folder.path)), str(CLASSES))
    flags = [f"--node-config={settings}", "--failure-policy=Fail", f"--timeout={2 * MOST_SECONDS:.0f}s"]
    return [HookProgram(folder, *words, program=STAND_IN, name="rdt", flags=flags)]


@pytest.fixture(scope="module", params=ENGINES)
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReferenceNode]:
    engine = request.getfixturevalue(request.param)
    with before(engine, tmp_path_factory.mktemp("node"), hooks) as made:
        yield made


def pod_of(node: ReferenceNode, kind: str) -> tuple[PodSandboxConfig, str]:
    """Return a new pod of the class BE, and the group that is its."""
    pod = node.pod({RESCTRL: json.dumps(WISH)} if kind == OF_POD else {}, qos="BE", cgroup="besteffort")
    return pod, f"koordlet-{pod.metadata.uid}" if kind == OF_POD else "BE"


def several() -> ContainerConfig:
    """Return a container of several processes."""
    config = container(SEVERAL)
    config.annotations[PROCESSES] = str(COUNT)
    return config


def threads(*pids: int) -> set[int]:
    return {int(task.name) for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()}


@contextmanager
def guest() -> Iterator[int]:
    """Run a process of several threads: no program of the test's image has more than one."""
    with subprocess.Popen([sys.executable, "-c", GUEST]) as process:
        try:
            wait_until(lambda: len(threads(process.pid)) == GUESTS_THREADS, "the guest's threads run")
            yield process.pid
        finally:
            process.kill()


def name_of(pid: int) -> str:
    """Return a process's name, "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def move_in(pid: int, cgroup: str) -> None:
    """Put a process into a container as soon as that runs its program: until then runc may still be on its way into
    one hierarchy of version 1 after the other."""
    wait_until(lambda: "sleep" in map(name_of, cgroups.processes(cgroup)), "the container runs")
    for directory in cgroups.directories(cgroup):
        (directory / "cgroup.procs").write_text(str(pid))


@pytest.mark.parametrize("kind", [OF_CLASS, OF_POD])
def test_a_group_holds_every_thread_of_the_container(node: ReferenceNode, kind: str) -> None:
    pod, name = pod_of(node, kind)
    group = resctrl(node.proxy.path) / name
    with node.client() as client:
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, several(), pod)
        cgroup = f"{pod.linux.cgroup_parent}/{container_id}"
        with guest() as visiting, ThreadPoolExecutor() as pool:
            moved = pool.submit(move_in, visiting, cgroup)
            client.start(container_id)
            moved.result()
            pids = cgroups.processes(cgroup)
            assert len(pids) == COUNT
            said = f"{node.programs['rdt'].output()}\n{node.proxy.output()}"
            assert {int(tid) for tid in (group / "tasks").read_text().split()} == threads(*pids), said
        assert (group / "schemata").read_text() == LIMITS[kind]
        end(client, pod_id, container_id)
    assert group.exists() == (kind == OF_CLASS)


def test_classes_of_service_run_out_and_pods_run_all_the_same(node: ReferenceNode) -> None:
    root, program = resctrl(node.proxy.path), node.programs["rdt"]
    pods = [pod_of(node, OF_POD) for _ in range(CLASSES)]
    with ExitStack() as stack:
        for pod, _ in pods:
            assert stack.enter_context(running(node, pod, container())).told()
        made = [name for _, name in pods if (root / name).exists()]
        assert 0 < len(made) < len(pods), "some have a group, not all"
        assert program.output().count("no class of service is free") == 1, program.output()
    assert not [name for _, name in pods if (root / name).exists()]


# ---- before the start, by containerd


@pytest.fixture(scope="module")
def tapped(
    containerd: Containerd, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ReferenceNode, FaultRelay]]:
    """Return a node on which all that the proxy says to containerd is kept."""
    folder = tmp_path_factory.mktemp("tapped")
    with (
        serving(FaultRelay(str(folder / "tap.sock"), containerd.socket)) as tap,
        before(containerd, folder, hooks, runtime=tap.listen) as made,
    ):
        yield made, tap


def created(tap: FaultRelay, uid: str) -> Iterator[CreateContainerRequest]:
    """Yield the creates of a pod's containers that went through."""
    for connection in tap.connections:
        for half in capture.read(bytes(connection.to_backend)).values():
            if half.fields.get(b":path", b"").endswith(b"/CreateContainer"):
                request = CreateContainerRequest.FromString(half.data[5:])
                if request.sandbox_config.metadata.uid == uid:
                    yield request


@pytest.mark.parametrize("kind", [OF_CLASS, OF_POD])
def test_the_create_that_reaches_containerd_carries_the_class(
    tapped: tuple[ReferenceNode, FaultRelay], kind: str
) -> None:
    node, tap = tapped
    pod, group = pod_of(node, kind)
    with running(node, pod, container()) as made:
        said = [dict(request.config.annotations) for request in created(tap, pod.metadata.uid)]
        assert said == [{RDT_CLASS: group}]
        assert made.client.status(made.container_id).status.annotations[RDT_CLASS] == group
        assert made.told(), "it runs, although this containerd has no RDT"
        assert (resctrl(node.proxy.path) / group / "schemata").read_text() == LIMITS[kind]
