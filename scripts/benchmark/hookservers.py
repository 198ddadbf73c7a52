"""The reference hook servers, each with one call that makes it work, and the node that they find.

Owns the rows, their requests and flags, and the files of that node: cgroups, the settings, a stand-in for resctrl.
Must not know: how a server is started or asked, what is measured.
A row's call is always of the same pod: its annotations have been read, as at all calls of a pod but the first.
Invariant: every answer of a row differs from its request in exactly the parts that the row names, so that nothing is
measured that has given up early.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from subprocess import Popen

from runtimeproxy.hookpoints import BY_NAME, HookPoint, SubjectKind
from runtimeproxy.model import ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources
from runtimeproxy_hooks.koordinator import (
    BATCH_CPU,
    BATCH_MEMORY,
    CORE_SCHED_GROUP,
    DEVICE_ALLOCATED,
    EXTENDED_RESOURCE_SPEC,
    GPU_CORE,
    GPU_ISOLATION_PROVIDER,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    OOM_SCORE_ADJ,
    QOS_CLASS,
    RESCTRL,
    RESOURCE_STATUS,
)
from tests.fakes.resctrl import StandIn

ALL = "all"
UID = "0a0a0a0a-1111-4222-8333-444444444444"
CONTAINER_ID = "bee5" * 16
PARENT = f"/kubepods/besteffort/pod{UID}"
SETTINGS = "cpu-normalization-ratio: 1.5\ngroup-identity: {enable: true}\n"
BVT_FILE = Path("cgroup", PARENT.lstrip("/"), "cpu.bvt_warp_ns")

_SHARE = {GPU_CORE: 50, GPU_MEMORY: "8Gi", GPU_MEMORY_RATIO: 50}
_BATCH = {BATCH_CPU: "500", BATCH_MEMORY: "64Mi"}
_HAMI = {GPU_ISOLATION_PROVIDER: "HAMi-core"}
_BE, _LS = {QOS_CLASS: "BE"}, {QOS_CLASS: "LS"}
_GPU = {DEVICE_ALLOCATED: json.dumps({"gpu": [{"minor": 0, "resources": _SHARE}, {"minor": 1, "resources": _SHARE}]})}
_CPUSET = {RESOURCE_STATUS: json.dumps({"cpuset": "0-1"})}
_RDT = {RESCTRL: json.dumps({"llc": {"schemata": {"range": [0, 30]}}, "mb": {"schemata": {"percent": 20}}})}
_SPEC = {EXTENDED_RESOURCE_SPEC: json.dumps({"containers": {"main": {"requests": _BATCH, "limits": _BATCH}}})}
_OOM = {OOM_SCORE_ADJ: "500"}

_NODE = "--node-config={folder}/node.yaml"
_CGROUPS = "--cgroup-root={folder}/cgroup"
_RESCTRL = "--resctrl-root={folder}/resctrl"
_STATE = "--core-sched-state={folder}/coresched.json"


@dataclass(frozen=True, slots=True)
class HookServer:
    """A row: the hook's name on the command line, the hook point, what the pod says, what the answer changes."""

    name: str
    point_name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    changes: frozenset[str] = frozenset()
    """Fields of HookAnswer."""
    flags: tuple[str, ...] = ()
    written: Path | None = None
    """A file of the node that the hook writes to, for one whose answer changes nothing."""

    @property
    def point(self) -> HookPoint:
        """Return the hook point."""
        return BY_NAME[self.point_name]

    @property
    def request(self) -> HookRequest:
        """Return what the proxy would send of a kubelet's call."""
        labels = {"app": "bench", "pod-template-hash": "6d4cf56db6", **self.labels}
        annotations = {"kubernetes.io/config.source": "api", **self.annotations}
        pod = PodInfo("", "bench", UID, "default", labels=labels, annotations=annotations, cgroup_parent=PARENT)
        return HookRequest(pod, None if self.point.subject is SubjectKind.POD else _container(self.point))

    def arguments(self, folder: Path) -> list[str]:
        """Return the command line after the program's name, with the node's files in ``folder``."""
        return [self.name, *(flag.format(folder=folder) for flag in self.flags)]


def _container(point: HookPoint) -> ContainerInfo:
    return ContainerInfo(
        id="" if point.name == "PreCreateContainer" else CONTAINER_ID,
        name="main",
        annotations={"io.kubernetes.container.hash": "5ba9a2b1", "io.kubernetes.container.restartCount": "0"},
        resources=Resources(cpu_period=100_000, cpu_quota=50_000, cpu_shares=512, memory_limit_in_bytes=128 << 20),
        envs={f"BENCH_VARIABLE_{number}": f"value {number}" for number in range(10)},
    )


_CREATE, _RUN, _STARTED = "PreCreateContainer", "PreRunPodSandbox", "PostStartContainer"
_ENVS, _ANNOTATIONS, _RESOURCES = (frozenset({part}) for part in ("envs", "annotations", "resources"))
HOOK_SERVERS: Sequence[HookServer] = (
    HookServer("batchresource", _CREATE, _BE, _SPEC, _RESOURCES, (_NODE, _CGROUPS)),
    HookServer("coresched", _STARTED, {CORE_SCHED_GROUP: "bench"}, flags=(_CGROUPS, _STATE)),
    HookServer("cpunormalization", _CREATE, _LS, {}, _ANNOTATIONS | _RESOURCES, (_NODE,)),
    HookServer("cpuset", _CREATE, {}, _CPUSET, _RESOURCES, (_NODE, _CGROUPS)),
    HookServer("gpu", _CREATE, _HAMI, _GPU, _ENVS),
    HookServer("groupidentity", _RUN, _BE, flags=(_NODE, _CGROUPS), written=BVT_FILE),
    HookServer("oomscoreadj", _CREATE, {}, _OOM, _RESOURCES),
    HookServer("rdt", _CREATE, {}, _RDT, _ANNOTATIONS, (_NODE, _CGROUPS, _RESCTRL)),
    HookServer(
        ALL,
        _CREATE,
        {**_BE, **_HAMI},
        {**_GPU, **_CPUSET, **_RDT, **_SPEC, **_OOM},
        _ENVS | _ANNOTATIONS | _RESOURCES,
        (_NODE, _CGROUPS, _RESCTRL, _STATE),
    ),
)


def changed(request: HookRequest, answer: HookAnswer) -> frozenset[str]:
    """Return which parts of an answer differ from what was sent: hook servers of the SDK answer with an echo, but that
    the resources are left out if none is set."""
    subject = request.container or request.pod
    sent = HookAnswer(
        labels={} if request.container else request.pod.labels,
        annotations=subject.annotations,
        envs=request.container.envs if request.container else {},
        cgroup_parent=request.pod.cgroup_parent or "",
        resources=subject.resources if answer.resources else None,
    )
    return frozenset(each.name for each in fields(sent) if getattr(sent, each.name) != getattr(answer, each.name))


@contextmanager
def node(folder: Path) -> Iterator[None]:
    """Make the node's files, and a process that stands for the container's, until the end of the block.

    A plain file takes what the hooks write to the kernel's. The pod's group is there already: only a mkdir(2) in the
    kernel's own resctrl gives one its files.
    """
    (folder / "node.yaml").write_text(SETTINGS)
    container = folder / "cgroup" / PARENT.lstrip("/") / CONTAINER_ID
    container.mkdir(parents=True)
    (folder / "cgroup/cgroup.controllers").write_text("cpu memory cpuset\n")
    (folder / BVT_FILE).touch()
    (folder / "resctrl").mkdir()
    StandIn(folder / "resctrl").make(f"koordlet-{UID}")
    with Popen(["sleep", "infinity"]) as process:
        try:
            (container / "cgroup.procs").write_text(f"{process.pid}\n")
            yield
        finally:
            process.kill()
