"""The bench of the hook servers that come with the project: their memory, and how fast they answer.

Each is a process of its own that is called as the proxy calls it, in turns with one that does nothing. Every answer
must differ from its request in exactly the parts that its row names, so that no early return is measured. A row's call
is always about the same pod, whose annotations are cached after the first call, as in a real pod's later calls.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
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
PORTIONS = 5
WARM_UP_CALLS = 50
AT_ONCE = 16
"""As many calls as a server has threads: from then on all its threads exist, and use memory."""
TIMEOUT_SECONDS = 10.0
BARE = "bare"
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
    """One hook server: resident bytes before the first call and after all, its answers' times and the bare server's."""

    idle: int
    resident: int
    own: Run
    bare: Run


Round = dict[str, Figures]
"""The figures of a round by the hook server's name."""


def one_round(share: float, servers: Sequence[HookServer] = HOOK_SERVERS) -> Round:
    """Start all servers anew and measure them one after the other, with ``share`` of the calls. Raises DemoError."""
    calls = max(int(CALLS * share / PORTIONS), 1)
    with tempfile.TemporaryDirectory(prefix="rp-bench-", dir=MEMORY if MEMORY.is_dir() else None) as made:
        folder, found = Path(made), {}
        with node(folder), _serving(folder, BARE, ["scripts.benchmark.barehook"]):
            for server in servers:
                arguments = ["runtimeproxy_hooks", *server.arguments(folder)]
                with _serving(folder, server.name, arguments) as running:
                    found[server.name] = uvloop.run(_asked(folder, running, server, calls))
        return found


@contextmanager
def _serving(folder: Path, name: str, module: Sequence[str]) -> Iterator[Program]:
    """Run a hook server as a user starts it, until the end of the block. Raises DemoError."""
    socket, registrations = folder / f"{name}.sock", folder / f"{name}-hooks"
    registrations.mkdir()
    flags = (f"--endpoint={socket}", f"--register-dir={registrations}")
    with program(name, [sys.executable, "-m", *module, *flags], folder) as started:
        started.wait_until_it_listens(socket)
        yield started


async def _asked(folder: Path, running: Program, server: HookServer, calls: int) -> Figures:
    """Measure a running server; ``calls`` is the number per portion."""
    async with AsyncExitStack() as stack:
        own, bare = (_Asker(stack, name, folder, server) for name in (server.name, BARE))
        idle = running.memory()
        await own.check(folder)
        for asker in (own, bare):
            await asker.ask(WARM_UP_CALLS)
        taken = {own: Run(), bare: Run()}
        for turn in range(PORTIONS):
            for asker in (own, bare) if turn % 2 else (bare, own):
                taken[asker] = taken[asker].plus(await asker.ask(calls))
        await asyncio.gather(*(own.ask(WARM_UP_CALLS) for _ in range(AT_ONCE)))
        return Figures(idle, running.memory(), taken[own], taken[bare])


class _Asker:
    """Makes a row's call to a server until ``stack`` ends. Its methods raise DemoError."""

    def __init__(self, stack: AsyncExitStack, name: str, folder: Path, row: HookServer) -> None:
        self._name, self._row, self._request, self._point = name, row, row.request, BY_NAME[row.point_name]
        self._client = HookClient(name, str(folder / f"{name}.sock"))
        stack.push_async_callback(self._client.close)

    async def check(self, folder: Path) -> None:
        """Make a call, and check the hook's effect in the answer and on the node in ``folder``."""
        found = changed(self._request, await self._call())
        if found != self._row.changes:
            expected = ", ".join(sorted(self._row.changes)) or "nothing"
            raise DemoError(f"{self._name} changed {', '.join(sorted(found)) or 'nothing'}, it should: {expected}")
        if self._row.written and not (folder / self._row.written).read_text():
            raise DemoError(f"{self._name} wrote nothing into {self._row.written}")

    async def ask(self, calls: int) -> Run:
        """Make calls, one after the other."""
        took = []
        for _ in range(calls):
            began = time.perf_counter_ns()
            await self._call()
            took.append((time.perf_counter_ns() - began) // 1000)
        return Run(took, sum(took) / 1e6)

    async def _call(self) -> HookAnswer:
        try:
            return await self._client.call(self._point, self._request, TIMEOUT_SECONDS)
        except HookError as error:
            raise DemoError(str(error)) from None


# ---- what was found


def bench(rounds: int, share: float) -> tuple[list[Sequence[str]], list[Figure]]:
    """Run the rounds; return the table of their medians, and the comparison with the limits. Raises DemoError."""
    measured = []
    for number in range(rounds):
        print(f"{NAME}, round {number + 1}", flush=True)
        measured.append(one_round(share))
    try:
        sched_core(GET, ITSELF, THREAD)
    except OSError as error:
        print(f"coresched: this kernel or machine has no core scheduling ({error.strerror}); its answer ends there")
    return figure_table(measured), judge(measured)


def judge(rounds: Sequence[Round]) -> list[Figure]:
    verdicts = []
    for name in rounds[0]:
        figures = [measured[name] for measured in rounds]
        resident = [each.resident / MIB for each in figures]
        answer = [each.own.percentile(50) for each in figures]
        verdicts.append(by_median(f"{name}: resident MiB", resident, RESIDENT_MIB))
        verdicts.append(by_median(f"{name}: p50 us of an answer", answer, ANSWER_MICROSECONDS))
    return verdicts


HEADER = (
    *("hook server", "hook point", "idle MiB", "resident MiB", "p50 us", "p99 us"),
    *("bare p50 us", "bare p99 us", "p50 to bare"),
)


def figure_table(rounds: Sequence[Round]) -> list[Sequence[str]]:
    """Return the header and a row for each hook server: the medians over the rounds."""
    points = {server.name: server.point_name for server in HOOK_SERVERS}
    return [HEADER, *((name, points[name], *_row([measured[name] for measured in rounds])) for name in rounds[0])]


def _row(rounds: Sequence[Figures]) -> Iterator[str]:
    yield f"{median(each.idle for each in rounds) / MIB:.1f}"
    yield f"{median(each.resident for each in rounds) / MIB:.1f}"
    for runs in ([each.own for each in rounds], [each.bare for each in rounds]):
        for percent in (50, 99):
            yield f"{median(run.percentile(percent) for run in runs):.0f}"
    yield f"{median(each.own.percentile(50) / each.bare.percentile(50) for each in rounds):.2f}"
