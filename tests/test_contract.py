"""The contract of all fronts: the same pod results in equal hook requests and records, step by step.

A kubelet runs, changes and ends a pod once through the CRI front and once through the Docker front. ``DIFFERENCES``
lists the fields that may differ, with reasons; all other fields are equal.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest
from google.protobuf.json_format import MessageToDict

from runtimeproxy.core.store import Store
from runtimeproxy.hookapi import api_pb2
from runtimeproxy.model.hookpoints import HOOK_POINTS, Operation
from tests.engines import cri
from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes import cri_pb2, dockershim_bodies, hookanswers
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.dockershim import CRI_DOCKERD, DOCKERSHIM, Dockershim, Generation
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime
from tests.system.proxy import ProxyInside

PARENT = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod6f1c.slice"
MIB = 1 << 20
LABELS, NOTES = {"app": "web"}, {"kubernetes.io/config.source": "api"}
POD = dockershim_bodies.Pod("web-0", "6f1c", "shop", 1, LABELS, NOTES, PARENT)
LIMITS: dict[str, Any] = {"cpu_period": 100_000, "cpu_quota": 50_000, "cpu_shares": 512, "cpuset_cpus": "0-3"}
LIMITS |= {"memory_limit_in_bytes": 256 * MIB, "oom_score_adj": 968}
CRI_ONLY_LIMITS: dict[str, Any] = {"unified": {"memory.high": "1000"}}
CRI_ONLY_LIMITS |= {"hugepage_limits": [cri_pb2.HugepageLimit(page_size="2MB", limit=4 * MIB)]}
CONTAINER = dockershim_bodies.Container(
    *("main", BUSYBOX_IMAGE, 2),
    command=("sleep", "3600"),
    envs=(("A", "1"), ("B", ""), ("C", "x=y")),
    annotations={"note": "kept"},
    resources=LIMITS,
)
UPDATE: dict[str, Any] = {"cpu_shares": 400, "memory_limit_in_bytes": 128 * MIB}
KUBELETS_LABELS = dockershim_bodies.pod_labels(POD)


class CriKubelet(cri.CriClient):
    """A kubelet that uses CRI and sets every field."""

    pod = cri.pod_config(
        *(POD.name, POD.uid),
        cgroup_parent=POD.cgroup_parent,
        labels={**POD.labels, **KUBELETS_LABELS},
        annotations=POD.annotations,
    )
    pod.metadata.namespace, pod.metadata.attempt = POD.namespace, POD.attempt
    pod.linux.overhead.cpu_shares = 5
    pod.linux.resources.memory_limit_in_bytes = 512 * MIB
    container = cri.container_config(
        CONTAINER.name,
        envs=[(key, value.encode()) for key, value in CONTAINER.envs],
        resources=cri_pb2.LinuxContainerResources(**CRI_ONLY_LIMITS, **LIMITS),
        labels=KUBELETS_LABELS,
        annotations={**CONTAINER.annotations, **dockershim_bodies.kubelets_annotations(CONTAINER)},
    )
    container.metadata.attempt = CONTAINER.attempt

    def run_pod(self) -> str:  # type: ignore[override]
        request = cri_pb2.RunPodSandboxRequest(config=self.pod, runtime_handler="runc")
        return str(self.call("RunPodSandbox", request).pod_sandbox_id)

    def create(self, pod_id: str) -> str:  # type: ignore[override]
        return super().create(pod_id, self.container, self.pod)

    def update(self, container_id: str) -> None:  # type: ignore[override]
        super().update(container_id, cri_pb2.LinuxContainerResources(**UPDATE))


class DockerKubelet:
    def __init__(self, socket: str, generation: Generation) -> None:
        shim = self._shim = Dockershim(socket, generation)
        self.start, self.stop, self.remove = shim.start_container, shim.stop_container, shim.remove_container
        self.stop_pod, self.remove_pod, self.close = shim.stop_pod_sandbox, shim.remove_pod_sandbox, shim.close

    def run_pod(self) -> str:
        return self._shim.run_pod_sandbox(**asdict(POD))

    def create(self, pod_id: str) -> str:
        return self._shim.create_container(pod_id, **asdict(CONTAINER))

    def update(self, container_id: str) -> None:
        self._shim.update_container_resources(container_id, UPDATE)


class Front(NamedTuple):
    name: str
    runtime: Callable[[str], Any]
    kubelet: Callable[[str], CriKubelet | DockerKubelet]
    mode: str = "Docker"


def _docker(shim: str, generation: Generation, driver: str) -> Front:
    runtime, kubelet = partial(FakeDockerd, cgroup_driver=driver), partial(DockerKubelet, generation=generation)
    return Front(f"Docker, {shim}, {driver}", runtime, kubelet)


FIRST, *FRONTS = (
    *(Front(f"CRI {name}", FakeRuntime, partial(CriKubelet, version=name), "Containerd") for name in cri.VERSIONS),
    *(_docker("cri-dockerd", CRI_DOCKERD, driver) for driver in ("cgroupfs", "systemd")),
    _docker("dockershim", DOCKERSHIM, "cgroupfs"),
)


DIFFERENCES = {
    "runtime_handler": "dockershim requests no runtime: Docker's handler is its daemon's default",
    "pod overhead": "dockershim drops the overhead of a sandbox",
    "pod resources": "dockershim drops the resources of a sandbox",
    "memory_swap_limit_in_bytes": "dockershim sets the swap limit to the memory limit; the kubelet sets none in CRI",
    "hugepage_limits": "dockershim drops them: Docker's API has no place for them",
    "unified": "dockershim drops it: Docker's API has no place for it",
}
"""The fields that differ between fronts in hook requests for the same pod, and why."""

PARENT_READ, POD_READ = "container's cgroup_parent", "pod's original labels and annotations"
"""Additional differences in a record that was read, the second one with hooks' changes; hook servers get the same. A
container read from a CRI runtime has a parent even if that is its pod's; its create repeats the pod's labels."""

CRI_ONLY = {Operation.UPDATE_POD_SANDBOX_RESOURCES}
"""dockershim has no such call, and Docker no request for it."""

REMOVES = {Operation.REMOVE_CONTAINER, Operation.REMOVE_POD_SANDBOX}
"""The Docker front does not hold the removal of unknown subjects: they have no record."""

HOOKED_PARENT = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod6f1c.slice"

Fields = dict[tuple[str, ...], Any]
"""Values by their path."""
Forgets = Callable[[Store, str], None] | None


class Seen(NamedTuple):
    """The effects of one step: the hook points with their messages, and the Store after it."""

    step: str
    hook_points: list[str]
    reported: list[Fields]
    records: Fields


@dataclass
class Life:
    """A pod's lifecycle on one front; with ``forgets`` each step is done as by a proxy that was just started."""

    front: Front
    folder: Path
    answers: Mapping[str, hookanswers.Answer]
    forgets: Forgets
    seen: list[Seen] = field(default_factory=list)
    operations: set[Operation] = field(default_factory=set)
    _names: dict[str, str] = field(default_factory=dict)
    """A name for each id: ids differ between two fronts."""

    async def live(self) -> Self:
        self.folder.mkdir()
        self._proxy = ProxyInside(self.folder, backend_runtime_mode=self.front.mode)
        self._proxy.register("plugin.json", self.folder / "hooks.sock")
        async with (
            self.front.runtime(str(self.folder / "runtime.sock")),
            HookServer(str(self.folder / "hooks.sock"), self.answers) as self._hooks,
            self._proxy,
        ):
            metrics = self._proxy.metrics
            kubelet = self.front.kubelet(str(self._proxy.socket))
            try:
                await self._steps(kubelet)
            finally:
                kubelet.close()
            agreed = {op: metrics.counted("calls", operation=op.value, outcome="agreed") for op in Operation}
            self.operations.update(op for op, count in agreed.items() if count)
        return self

    async def _steps(self, kubelet: CriKubelet | DockerKubelet) -> None:
        pod_id = await self._do("run pod", kubelet.run_pod)
        container_id = await self._do("create", kubelet.create, pod_id)
        steps = [kubelet.start, kubelet.update, kubelet.stop, kubelet.stop, kubelet.stop_pod, kubelet.stop_pod]
        for number, act in enumerate([*steps, kubelet.remove, kubelet.remove_pod]):
            await self._do(f"step {number}", act, pod_id if "pod" in act.__name__ else container_id)

    async def _do(self, step: str, act: Callable[..., str | None], *arguments: str) -> str:
        """Do a step, record its effects, and return the id that it created, if any."""
        store = self._proxy.store
        if self.forgets is not None:
            for any_id in store.ids():
                self.forgets(store, any_id)
        self._hooks.calls.clear()
        made = await asyncio.to_thread(act, *arguments) or ""
        if made:
            self._names[made] = f"the id of {step}"
        calls = self._hooks.calls
        records = {kind: [asdict(record) for record in of] for kind, of in store.snapshot()._asdict().items()}
        reported = [self._fields(MessageToDict(call.request, preserving_proto_field_name=True)) for call in calls]
        self.seen.append(Seen(step, [call.point.name for call in calls], reported, self._fields(records)))
        return made

    def _fields(self, value: Any, path: tuple[str, ...] = ()) -> Fields:
        """Return the values of nested maps and lists by their paths, with a name for each id."""
        if not isinstance(value, Mapping | list):
            return {path: self._names.get(value, value) if isinstance(value, str) else value}
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        return {place: leaf for key, item in items for place, leaf in self._fields(item, (*path, str(key))).items()}


def reason(path: tuple[str, ...]) -> str:
    """Return the key in ``DIFFERENCES`` of a field of a message or a record; "" if none."""
    if path[0] == "containers" and path[-1] == "cgroup_parent":
        return PARENT_READ
    if path[0] == "pods" and path[2] == "original" and path[-2] in ("labels", "annotations"):
        return POD_READ
    if path[0] in ("resources", "pod_resources") or (path[0] == "pods" and "resources" in path):
        return "pod resources"
    if "overhead" in path:
        return "pod overhead"
    return next((name for name in DIFFERENCES if name in path), "")


def differences(first: Fields, second: Fields) -> dict[tuple[str, ...], tuple[Any, Any]]:
    """Return the fields that are not equal, with both values."""
    places = first.keys() | second.keys()
    return {path: both for path in places if (both := (first.get(path), second.get(path)))[0] != both[1]}


def changed(response: Any) -> None:
    response.labels.update({"l": "1"})
    response.annotations.update({"n": "2"})
    response.cgroup_parent = HOOKED_PARENT


def halved(response: Any, more: bool = False) -> None:
    response.container_resources.cpu_shares //= 2
    if more:
        response.container_envs.update({"B": "2", "NEW": "3"})
        response.container_annotations.update({"note": "changed"})


AT_START = api_pb2.LinuxContainerResources(cpuset_cpus="1", cpu_quota=20_000)
CHANGES: Mapping[str, hookanswers.Answer] = {
    "PreRunPodSandbox": hookanswers.echo(changed),
    "PreCreateContainer": hookanswers.echo(partial(halved, more=True)),
    "PreStartContainer": hookanswers.reply(api_pb2.ContainerResourceHookResponse(container_resources=AT_START)),
    "PreUpdateContainerResources": hookanswers.echo(halved),
}
"""A hook server's answers that change something at each Pre point."""


FIRST_LIVES: dict[tuple[bool, object], Life] = {}
"""The lifecycles on the first front: each is run once and compared with all other fronts."""


@pytest.mark.parametrize("forgets", [None, Store.drop], ids=["one proxy", "a new proxy each step"])
@pytest.mark.parametrize("answers", [{}, CHANGES], ids=["listens", "changes"])
@pytest.mark.parametrize("front", FRONTS, ids=lambda front: front.name)
async def test_fronts_send_equal_requests_and_keep_equal_records(
    tmp_path: Path, front: Front, answers: Mapping[str, hookanswers.Answer], forgets: Forgets
) -> None:
    which = answers is CHANGES, forgets
    first = FIRST_LIVES.get(which) or await Life(FIRST, tmp_path / "first", answers, forgets).live()
    FIRST_LIVES[which] = first
    second = await Life(front, tmp_path / "second", answers, forgets).live()
    used: set[str] = set()
    for step, other in zip(first.seen, second.seen, strict=True):
        assert (step.step, step.hook_points) == (other.step, other.hook_points)
        for pair in ((step.records, other.records), *zip(step.reported, other.reported, strict=True)):
            differing = differences(*pair)
            assert not {path: both for path, both in differing.items() if not reason(path)}, step.step
            used |= {reason(path) for path in differing}
    expected = DIFFERENCES.keys() | ({PARENT_READ, *([POD_READ] if answers else [])} if forgets else set())
    assert used == (set() if front.mode == FIRST.mode else expected), "the lists of differences are true"
    assert {name for seen in second.seen for name in seen.hook_points} == {row.name for row in HOOK_POINTS}
    assert second.operations | (REMOVES if forgets else set()) == set(Operation) - CRI_ONLY


@pytest.mark.parametrize("front", [FIRST, *FRONTS], ids=lambda front: front.name)
async def test_new_proxy_with_original_values_sends_equal_requests(tmp_path: Path, front: Front) -> None:
    """Except dockershim's swap limit after an update without it: an inspected container has none."""
    life = await Life(front, tmp_path / "one", CHANGES, None).live()
    new_life = await Life(front, tmp_path / "new", CHANGES, Store.forget).live()
    for seen, again in zip(life.seen, new_life.seen, strict=True):
        if not again.hook_points and front.mode != FIRST.mode:
            continue  # a remove, which the Docker front does not hold
        assert (again.step, again.hook_points) == (seen.step, seen.hook_points)
        for fields, new_fields in zip(seen.reported, again.reported, strict=True):
            differing = {path for path in differences(fields, new_fields) if "memory_swap_limit_in_bytes" not in path}
            assert not differing, again.step
