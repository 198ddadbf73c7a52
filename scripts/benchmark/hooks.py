"""The bench of the hook servers that come with the project: their memory, and how fast they answer.

Each is a process of its own that is called as the proxy calls it. Its answer must differ from the request in exactly
the parts that its row names, so that no early return is measured. A row's call is always about the same pod, whose
annotations are cached after the first call, as in a real pod's later calls.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import median
from subprocess import Popen
from typing import NamedTuple

import uvloop

from runtimeproxy.errors import HookError
from runtimeproxy.model.fields import ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources
from runtimeproxy.model.hookpoints import BY_NAME, SubjectKind
from runtimeproxy.plugins.client import HookClient
from runtimeproxy_hooks.lib import koordinator as key
from runtimeproxy_hooks.servers.coresched import GET, ITSELF, THREAD, sched_core
from scripts.benchmark.cases import by_median
from scripts.benchmark.loads import Run
from scripts.demonstration.processes import DemoError, Program, program
from scripts.figures import MIB, Figure
from tests.fakes.resctrl import StandIn

NAME = "hooks"
RESIDENT_MIB = 64.0
ANSWER_MICROSECONDS = 1000.0
CALLS = 2_000
WARM_UP_CALLS = 50
AT_ONCE = 16
"""As many calls as a server has threads: from then on all its threads exist, and use memory."""
TIMEOUT_SECONDS = 10.0
MEMORY = Path("/dev/shm")
"""Where the node's files are: in memory, as the kernel's files that they stand for."""

# ---- the hook servers, each with one call that makes it work, and the node that they find

ALL = "all"
UID = "0a0a0a0a-1111-4222-8333-444444444444"
CONTAINER_ID = "bee5" * 16
PARENT = f"/kubepods/besteffort/pod{UID}"
SETTINGS = "cpu-normalization-ratio: 1.5\ngroup-identity: {enable: true}\n"
BVT_FILE = Path("cgroup", PARENT.lstrip("/"), "cpu.bvt_warp_ns")

_SHARE = {key.GPU_CORE: 50, key.GPU_MEMORY: "8Gi", key.GPU_MEMORY_RATIO: 50}
_BATCH = {key.BATCH_CPU: "500", key.BATCH_MEMORY: "64Mi"}
_HAMI = {key.GPU_ISOLATION_PROVIDER: "HAMi-core"}
_BE, _LS = {key.QOS_CLASS: "BE"}, {key.QOS_CLASS: "LS"}
_GPU = {key.DEVICE_ALLOCATED: json.dumps({"gpu": [{"minor": minor, "resources": _SHARE} for minor in (0, 1)]})}
_CPUSET = {key.RESOURCE_STATUS: json.dumps({"cpuset": "0-1"})}
_RDT = {key.RESCTRL: json.dumps({"llc": {"schemata": {"range": [0, 30]}}, "mb": {"schemata": {"percent": 20}}})}
_SPEC = {key.EXTENDED_RESOURCE_SPEC: json.dumps({"containers": {"main": {"requests": _BATCH, "limits": _BATCH}}})}
_OOM = {key.OOM_SCORE_ADJ: "500"}

_NODE = "--node-config={folder}/node.yaml"
_CGROUPS = "--cgroup-root={folder}/cgroup"
_RESCTRL = "--resctrl-root={folder}/resctrl"
_STATE = "--core-sched-state={folder}/coresched.json"


@dataclass(frozen=True, slots=True)
class HookServer:
    """One row: a hook by its name on the command line, a hook point, a pod's labels and annotations, the changes."""

    name: str
    point_name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    changes: frozenset[str] = frozenset()
    """Fields of HookAnswer that the answer changes."""
    flags: tuple[str, ...] = ()
    written: Path | None = None
    """A file of the node that the hook writes, for a hook whose answer changes nothing."""

    @property
    def request(self) -> HookRequest:
        """Return the request that the proxy would send for a kubelet's call."""
        labels = {"app": "bench", "pod-template-hash": "6d4cf56db6", **self.labels}
        annotations = {"kubernetes.io/config.source": "api", **self.annotations}
        pod = PodInfo("", "bench", UID, "default", labels=labels, annotations=annotations, cgroup_parent=PARENT)
        if BY_NAME[self.point_name].subject is SubjectKind.POD:
            return HookRequest(pod, None)
        container = ContainerInfo(
            id="" if self.point_name == _CREATE else CONTAINER_ID,
            name="main",
            annotations={"io.kubernetes.container.hash": "5ba9a2b1", "io.kubernetes.container.restartCount": "0"},
            resources=Resources(cpu_period=100_000, cpu_quota=50_000, cpu_shares=512, memory_limit_in_bytes=128 << 20),
            envs={f"BENCH_VARIABLE_{number}": f"value {number}" for number in range(10)},
        )
        return HookRequest(pod, container)

    def arguments(self, folder: Path) -> list[str]:
        """Return the command line after the program's name, with the node's files in ``folder``."""
        return [self.name, *(flag.format(folder=folder) for flag in self.flags)]


_CREATE, _RUN, _STARTED = "PreCreateContainer", "PreRunPodSandbox", "PostStartContainer"
_ENVS, _ANNOTATIONS, _RESOURCES = (frozenset({part}) for part in ("envs", "annotations", "resources"))
HOOK_SERVERS: Sequence[HookServer] = (
    HookServer("batchresource", _CREATE, _BE, _SPEC, _RESOURCES, (_NODE, _CGROUPS)),
    HookServer("coresched", _STARTED, {key.CORE_SCHED_GROUP: "bench"}, flags=(_CGROUPS, _STATE)),
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
    """Return which parts of an answer differ from the request. Hook servers of the SDK answer with an echo, except that
    the resources are left out if none was set."""
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
    """Make the node's files, and a process in place of the container's, until the end of the block.

    Plain files accept what the hooks write into the kernel's. The pod's group exists already, because only mkdir(2) in
    the kernel's own resctrl creates its files.
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


# ---- a round


class Figures(NamedTuple):
    """One hook server: resident bytes before the first call and after all, and its answers' times."""

    idle: int
    resident: int
    run: Run


Round = dict[str, Figures]
"""The figures of a round by the hook server's name."""


def one_round(share: float) -> Round:
    """Start the servers and measure them one after the other, with ``share`` of the calls. Raises DemoError."""
    calls = max(int(CALLS * share), 1)
    with tempfile.TemporaryDirectory(prefix="rp-bench-", dir=MEMORY if MEMORY.is_dir() else None) as made:
        folder, found = Path(made), {}
        with node(folder):
            for server in HOOK_SERVERS:
                socket, registrations = folder / f"{server.name}.sock", folder / f"{server.name}-hooks"
                registrations.mkdir()
                command = [sys.executable, "-m", "runtimeproxy_hooks", *server.arguments(folder)]
                command += [f"--endpoint={socket}", f"--register-dir={registrations}"]
                with program(server.name, command, folder) as running:
                    running.wait_until_it_listens(socket)
                    try:
                        found[server.name] = uvloop.run(measured(folder, running, server, calls))
                    except HookError as error:
                        raise DemoError(str(error)) from None
        return found


async def measured(folder: Path, running: Program, server: HookServer, calls: int) -> Figures:
    """Measure a running server. Raises DemoError if a hook does not do its work, and HookError."""
    client, point = HookClient(server.name, str(folder / f"{server.name}.sock")), BY_NAME[server.point_name]

    async def call(number: int) -> Run:
        took = []
        for _ in range(number):
            began = time.perf_counter_ns()
            await client.call(point, server.request, TIMEOUT_SECONDS)
            took.append((time.perf_counter_ns() - began) // 1000)
        return Run(took, sum(took) / 1e6)

    try:
        idle = running.memory()
        found = changed(server.request, await client.call(point, server.request, TIMEOUT_SECONDS))
        if found != server.changes:
            raise DemoError(f"{server.name} changed {sorted(found)}, it should change {sorted(server.changes)}")
        if server.written and not (folder / server.written).read_text():
            raise DemoError(f"{server.name} wrote nothing into {server.written}")
        await call(WARM_UP_CALLS)
        run = await call(calls)
        await asyncio.gather(*(call(WARM_UP_CALLS) for _ in range(AT_ONCE)))
        return Figures(idle, running.memory(), run)
    finally:
        await client.close()


# ---- what was found

HEADER = ("hook server", "hook point", "idle MiB", "resident MiB", "p50 us", "p99 us")


def bench(rounds: int, share: float) -> tuple[list[Sequence[str]], list[Figure]]:
    """Run the rounds; return the table of their medians, and the comparison with the limits. Raises DemoError."""
    found = []
    for number in range(rounds):
        print(f"{NAME}, round {number + 1}", flush=True)
        found.append(one_round(share))
    try:
        sched_core(GET, ITSELF, THREAD)
    except OSError as error:
        print(f"coresched: this kernel or machine has no core scheduling ({error.strerror}); its answer ends there")
    table: list[Sequence[str]] = [HEADER]
    figures = []
    for server in HOOK_SERVERS:
        of = [each[server.name] for each in found]
        resident, answers = [each.resident / MIB for each in of], [each.run.percentile(50) for each in of]
        table.append(
            (
                *(server.name, server.point_name),
                *(f"{median(each.idle for each in of) / MIB:.1f}", f"{median(resident):.1f}"),
                *(f"{median(answers):.0f}", f"{median(each.run.percentile(99) for each in of):.0f}"),
            )
        )
        figures.append(by_median(f"{server.name}: resident MiB", resident, RESIDENT_MIB))
        figures.append(by_median(f"{server.name}: p50 us of an answer", answers, ANSWER_MICROSECONDS))
    return table, figures
