"""The contract of all fronts: the same pod results in equal hook requests and records, step by step.

A kubelet runs, changes and ends a pod once through the CRI front and once through the Docker front. ``DIFFERENCES``
lists the fields that may differ; all other fields are equal.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from google.protobuf.json_format import MessageToDict

from runtimeproxy.core.store import Store
from runtimeproxy.hookapi import api_pb2
from runtimeproxy.model.hookpoints import HOOK_POINTS
from tests.engines import cri
from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes import cri_pb2, dockershim_bodies, hookanswers
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.dockershim import CRI_DOCKERD, DOCKERSHIM, Dockershim, Generation
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime
from tests.system.proxy import ProxyInside

PARENT = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod6f1c.slice"
HOOKED_PARENT = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod6f1c.slice"
MIB = 1 << 20
LABELS, NOTES = {"app": "web"}, {"kubernetes.io/config.source": "api"}
POD = dockershim_bodies.Pod("web-0", "6f1c", "shop", 1, LABELS, NOTES, PARENT)
LIMITS: dict[str, Any] = {"cpu_period": 100_000, "cpu_quota": 50_000, "cpu_shares": 512, "cpuset_cpus": "0-3"}
LIMITS |= {"memory_limit_in_bytes": 256 * MIB, "oom_score_adj": 968}
CRI_ONLY_LIMITS: dict[str, Any] = {"unified": {"memory.high": "1000"}}
CRI_ONLY_LIMITS |= {"hugepage_limits": [cri_pb2.HugepageLimit(page_size="2MB", limit=4 * MIB)]}
ENVS, NOTE = (("A", "1"), ("B", ""), ("C", "x=y")), {"note": "kept"}
CONTAINER = dockershim_bodies.Container(
    "main", BUSYBOX_IMAGE, 2, ("sleep", "3600"), envs=ENVS, annotations=NOTE, resources=LIMITS
)
UPDATE: dict[str, Any] = {"cpu_shares": 400, "memory_limit_in_bytes": 128 * MIB}
KUBELETS_LABELS = dockershim_bodies.pod_labels(POD)


class CriKubelet(cri.CriClient):
    """A kubelet that uses CRI and sets every field."""

    pod = cri.pod_config(
        POD.name, POD.uid, cgroup_parent=PARENT, labels={**LABELS, **KUBELETS_LABELS}, annotations=NOTES
    )
    pod.metadata.namespace, pod.metadata.attempt = POD.namespace, POD.attempt
    pod.linux.overhead.cpu_shares = 5
    pod.linux.resources.memory_limit_in_bytes = 512 * MIB
    container = cri.container_config(
        CONTAINER.name,
        envs=[(key, value.encode()) for key, value in ENVS],
        resources=cri_pb2.LinuxContainerResources(**CRI_ONLY_LIMITS, **LIMITS),
        labels=KUBELETS_LABELS,
        annotations={**NOTE, **dockershim_bodies.kubelets_annotations(CONTAINER)},
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
        shim = Dockershim(socket, generation)
        self.run_pod = partial(shim.run_pod_sandbox, **asdict(POD))
        self.create = partial(shim.create_container, **asdict(CONTAINER))
        self.update = partial(shim.update_container_resources, resources=UPDATE)
        self.start, self.stop, self.remove = shim.start_container, shim.stop_container, shim.remove_container
        self.stop_pod, self.remove_pod, self.close = shim.stop_pod_sandbox, shim.remove_pod_sandbox, shim.close


class Front(NamedTuple):
    name: str
    runtime: Callable[[str], Any]
    kubelet: Callable[[str], Any]
    mode: str = "Docker"


SHIMS = (("cri-dockerd", CRI_DOCKERD, "cgroupfs"), ("cri-dockerd", CRI_DOCKERD, "systemd"))
FIRST, *FRONTS = (
    *(Front(f"CRI {name}", FakeRuntime, partial(CriKubelet, version=name), "Containerd") for name in cri.VERSIONS),
    *(
        Front(f"{shim}, {driver}", partial(FakeDockerd, cgroup_driver=driver), partial(DockerKubelet, generation=made))
        for shim, made, driver in (*SHIMS, ("dockershim", DOCKERSHIM, "cgroupfs"))
    ),
)

# dockershim requests no runtime, drops the overhead and resources of a sandbox, and what Docker's API has no place for.
# It sets the swap limit to the memory limit; the kubelet sets none in CRI.
DIFFERENCES = {"runtime_handler", "pod overhead", "pod resources", "hugepage_limits", "unified"}
DIFFERENCES |= {"memory_swap_limit_in_bytes"}
"""The fields that differ between fronts in hook requests for the same pod."""
PARENT_READ, POD_READ = "container's cgroup_parent", "pod's original labels and annotations"
"""Additional differences in a record that was read, the second one with hooks' changes; hook servers get the same. A
container read from a CRI runtime has a parent even if that is its pod's; its create repeats the pod's labels."""
STEPS = ("start", "update", "stop", "stop", "stop_pod", "stop_pod", "remove", "remove_pod")
Fields = dict[tuple[str, ...], Any]
"""Values by their path."""
Forgets = Callable[[Store, str], None] | None


class Seen(NamedTuple):
    """The effects of one step: the hook points with their messages, and the Store after it."""

    step: str
    hook_points: list[str]
    reported: list[Fields]
    records: Fields


async def lived(front: Front, folder: Path, forgets: Forgets) -> list[Seen]:
    """Live a pod's lifecycle on one front; with ``forgets`` each step is done as by a proxy that was just started."""
    folder.mkdir()
    inside, hooks = ProxyInside(folder, backend_runtime_mode=front.mode), HookServer(f"{folder}/hooks.sock", CHANGES)
    inside.register("plugin.json", hooks.socket_path)
    names: dict[str, str] = {}  # for each id: ids differ between two fronts
    seen: list[Seen] = []

    def fields(value: Any, path: tuple[str, ...] = ()) -> Fields:
        """Return the values of nested maps and lists by their paths, with a name for each id."""
        if not isinstance(value, Mapping | list):
            return {path: names.get(value, value) if isinstance(value, str) else value}
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        return {place: leaf for key, item in items for place, leaf in fields(item, (*path, str(key))).items()}

    async def do(step: str, *arguments: str) -> str:
        """Do a step, record its effects, and return the id that it created, if any."""
        if forgets is not None:
            for any_id in proxy.store.ids():
                forgets(proxy.store, any_id)
        hooks.calls.clear()
        made = await asyncio.to_thread(getattr(kubelet, step), *arguments) or ""
        names.update({made: f"the id of {step}"} if made else {})
        records = {kind: [asdict(record) for record in of] for kind, of in proxy.store.snapshot()._asdict().items()}
        reported = [fields(MessageToDict(call.request, preserving_proto_field_name=True)) for call in hooks.calls]
        seen.append(Seen(step, [call.point.name for call in hooks.calls], reported, fields(records)))
        return made

    async with front.runtime(str(inside.runtime)), hooks, inside as proxy:
        kubelet = front.kubelet(str(proxy.socket))
        try:
            pod_id = await do("run_pod")
            container_id = await do("create", pod_id)
            for step in STEPS:
                await do(step, pod_id if "pod" in step else container_id)
        finally:
            kubelet.close()
    return seen


def reason(path: tuple[str, ...]) -> str:
    """Return the name in ``DIFFERENCES`` of a field of a message or a record; "" if none."""
    if path[0] == "containers" and path[-1] == "cgroup_parent":
        return PARENT_READ
    if path[0] == "pods" and path[2] == "original" and path[-2] in ("labels", "annotations"):
        return POD_READ
    if path[0] in ("resources", "pod_resources") or (path[0] == "pods" and "resources" in path):
        return "pod resources"
    if "overhead" in path:
        return "pod overhead"
    return next((name for name in DIFFERENCES if name in path), "")


def halved(response: Any, more: bool = False) -> None:
    response.container_resources.cpu_shares //= 2
    if more:
        response.container_envs.update({"B": "2", "NEW": "3"})
        response.container_annotations.update({"note": "changed"})


CHANGED = api_pb2.PodSandboxHookResponse(labels={"l": "1"}, annotations={"n": "2"}, cgroup_parent=HOOKED_PARENT)
AT_START = api_pb2.LinuxContainerResources(cpuset_cpus="1", cpu_quota=20_000)
CHANGES: Mapping[str, hookanswers.Answer] = {
    "PreRunPodSandbox": hookanswers.reply(CHANGED),
    "PreCreateContainer": hookanswers.echo(partial(halved, more=True)),
    "PreStartContainer": hookanswers.reply(api_pb2.ContainerResourceHookResponse(container_resources=AT_START)),
    "PreUpdateContainerResources": hookanswers.echo(halved),
}
"""A hook server's answers that change something at each Pre point."""


@pytest.mark.slow  # two seconds
@pytest.mark.parametrize("forgets", [None, Store.drop], ids=["one proxy", "a new proxy each step"])
@pytest.mark.parametrize("front", FRONTS, ids=lambda front: front.name)
async def test_requests_and_records_of_fronts_are_equal(tmp_path: Path, front: Front, forgets: Forgets) -> None:
    first = await lived(FIRST, tmp_path / "first", forgets)
    second = await lived(front, tmp_path / "second", forgets)
    used: set[str] = set()
    for step, other in zip(first, second, strict=True):
        assert (step.step, step.hook_points) == (other.step, other.hook_points)
        for ours, theirs in ((step.records, other.records), *zip(step.reported, other.reported, strict=True)):
            differing = {path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path)}
            assert not [(path, ours.get(path), theirs.get(path)) for path in differing if not reason(path)], step.step
            used |= set(map(reason, differing))
    expected = DIFFERENCES | ({PARENT_READ, POD_READ} if forgets else set())
    assert used == (set() if front.mode == FIRST.mode else expected), "the lists of differences are true"
    assert {name for seen in second for name in seen.hook_points} == {row.name for row in HOOK_POINTS}
