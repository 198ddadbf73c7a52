"""The project's own hook servers as programs, started as by a user, and helpers common to both engines' pods."""

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engines import cgroups, cri
from tests.fakes.cri_pb2 import ContainerConfig, PodSandboxConfig
from tests.system import node
from tests.system.node import Values, assert_in_force, cri_resources
from tests.system.proxy import ROOT, WAIT_SECONDS, Folder, Program, wait_until
from tests.system.real import Kind, RealNode, running

HOOKS = (sys.executable, "-m", "runtimeproxy_hooks")
FAIL = "--failure-policy=Fail"
SERVES = " serves "


class HookProgram(Program):
    """A hook server as a program. ``words`` come before its flags: the names of hooks, for the project's own."""

    def __init__(
        self, folder: Folder, *words: str, program: Sequence[str] = HOOKS, name: str = "", flags: Sequence[str] = ()
    ) -> None:
        self.name = name or "-".join(words)
        self.socket = folder.path / f"{uuid.uuid4().hex[:8]}.sock"
        self.registration = folder.registrations / f"{self.name}.json"
        self.log = self.socket.with_suffix(".log")
        where = (f"--endpoint={self.socket}", f"--register-dir={folder.registrations}")
        self.command = [*program, *words, *where, *flags]

    def wait_until_it_serves(self) -> None:
        """Wait for the log line that says so, which comes once the registration file is written."""
        wait_until(lambda: self.ended or SERVES in self.output(), "the hook server serves", self.output)
        assert not self.ended, f"the hook server ended at once: {self.output()}"

    def end(self) -> int:
        """End the process as systemd does (SIGTERM, after a time SIGKILL); return its exit code."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.terminate()
        try:
            return process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def check(self, code: int) -> None:
        """Check an end: the exit code, the log, and that nothing is registered any more, except under Fail."""
        assert code == 0, f"exit code {code}: {self.output()[-4000:]}"
        assert not self.faults(), self.faults()
        assert self.registration.exists() is (FAIL in self.command)


@contextmanager
def served(*programs: HookProgram) -> Iterator[None]:
    """Run hook servers; they start at the same time, and end at the same time."""
    with ThreadPoolExecutor(len(programs)) as pool:
        try:
            for program in programs:
                program.launch(cwd=ROOT)
            for program in programs:
                program.wait_until_it_serves()
            yield
        finally:
            codes = list(pool.map(HookProgram.end, programs))
    for program, code in zip(programs, codes, strict=True):
        program.check(code)


# ---- before an engine

UNLIMITED = -1
OWN_STATUS = 'while read name value; do echo "${name%:}=$value"; done < /proc/self/status'
"""No program is run for it: what the shell prints is true of the container's first instruction."""


@dataclass(frozen=True, slots=True)
class ReferenceNode:
    """A node; ``programs`` are its hook servers by name."""

    real: RealNode
    programs: Mapping[str, HookProgram]

    def pod(self, annotations: Mapping[str, str], qos: str = "", cgroup: str = "burstable") -> PodSandboxConfig:
        """Return a new pod of a Koordinator QoS class; ``cgroup`` is its Kubernetes QoS class."""
        pod = node.plain_pod(self.real.engine)
        pod.annotations.update(annotations)
        pod.labels.update({"koordinator.sh/qosClass": qos} if qos else {})
        pod.linux.cgroup_parent = self.real.engine.cgroup_parent(pod.metadata.uid, cgroup)
        return pod

    @contextmanager
    def running(
        self, pod: PodSandboxConfig, container: ContainerConfig, pod_quota: int = UNLIMITED
    ) -> Iterator["Running"]:
        """Run a pod with a container as a kubelet does; both are removed at the end."""
        kubelet_makes(pod.linux.cgroup_parent, pod_quota)
        with self.real.client() as client:
            pod_id = client.run_pod(pod)
            container_id = client.create(pod_id, container, pod)
            client.start(container_id)
            yield Running(self.real, client, pod, container_id)
            node.end(client, pod_id, container_id)


@dataclass(frozen=True, slots=True)
class Running:
    """A pod with a started container, and its client."""

    real: RealNode
    client: Any
    pod: PodSandboxConfig
    container_id: str

    @property
    def processes(self) -> set[int]:
        return cgroups.processes(f"{self.pod.linux.cgroup_parent}/{self.container_id}")

    def first_lines(self) -> dict[str, str]:
        """Wait until the container has printed all of its first lines; return them."""
        return self.real.first_act(self.client, self.pod, self.container_id)

    def update(self, **values: int | str) -> None:
        self.client.update(self.container_id, cri_resources(values))

    def assert_in_force(self, values: Values) -> None:
        """Compare what the container and the host see."""
        assert_in_force(self.client, self.container_id, self.pod.linux.cgroup_parent, values)


@contextmanager
def before(
    kind: Kind, engine: Any, folder: Path, hooks: Callable[[Folder], Sequence[HookProgram]]
) -> Iterator[ReferenceNode]:
    """Run the hook servers that ``hooks`` makes, then a proxy."""
    programs: list[HookProgram] = []
    with ExitStack() as stack:

        def serve(real: RealNode) -> None:
            programs.extend(hooks(real.proxy))
            stack.enter_context(served(*programs))

        real = stack.enter_context(running(kind, engine, folder, serve))
        yield ReferenceNode(real, {program.name: program for program in programs})


def container(script: str = "", envs: Sequence[tuple[str, bytes]] = (), **resources: int | str) -> ContainerConfig:
    """Return a container that prints its status, its cgroup files and its environment, unless it runs ``script``."""
    shell, flag, rest = node.first_act()
    script = script or f"{OWN_STATUS}; echo oom_score_adj=$(cat /proc/self/oom_score_adj); {rest}"
    return cri.container_config("main", command=(shell, flag, script), envs=envs, resources=cri_resources(resources))


def kubelet_makes(path: str, quota: int = UNLIMITED) -> None:
    """Make a pod's cgroup as a kubelet does; it is removed with the engine."""
    if cgroups.is_v2():
        directory = cgroups.ROOT
        for name in path.strip("/").split("/"):
            (directory / "cgroup.subtree_control").write_text("+cpu +memory +cpuset")
            directory /= name
            directory.mkdir(exist_ok=True)
        (directory / "cpu.max").write_text("max" if quota == UNLIMITED else str(quota))
        return
    cpu, memory = (cgroups.ROOT / controller / path.lstrip("/") for controller in ("cpu", "memory"))
    cpu.mkdir(parents=True)
    memory.mkdir(parents=True)
    (cpu / "cpu.cfs_quota_us").write_text(str(quota))
