"""Hook servers with real engines: their changes apply from the first instruction on, and failures stay bounded.

Fault matrix B1, B3 and H12. tests/test_contract.py compares each front's calls with fakes, field by field.
An unmodified koordlet registers, and echoes (hook-api, "Registration files").
"""

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from runtimeproxy.hookapi import api_pb2
from runtimeproxy_hooks.lib import koordinator
from tests.control import call
from tests.engines import cgroups, cri
from tests.fakes import hookanswers, registration
from tests.fakes.cri_pb2 import ContainerConfig, HugepageLimit, LinuxContainerResources, PodSandboxConfig
from tests.fakes.dockershim import DockerError
from tests.fakes.dockershim_bodies import Values
from tests.fakes.hookanswers import Answer, reply
from tests.fakes.hookserver import HookServer
from tests.hooks.sdk import processes
from tests.system.fronts import CRI, DOCKER, SKIP, Front
from tests.system.proxy import WAIT_SECONDS, ProxyProcess, answers, serving, wait_until
from tests.system.real import CriKubelet, Kubelet

pytestmark = pytest.mark.engine

MIB = 1 << 20
CPU = str(min(os.sched_getaffinity(0)))
PLUGIN = "tester"
LAST_LINE = "first=done"
FIRST_ACT = "; ".join(f"echo {setting}=$(cat {cgroups.inside_file(setting)})" for setting in cgroups.SETTINGS)


def resources(**values: int | str) -> LinuxContainerResources:
    return LinuxContainerResources(**values)


def resources_answer(**values: int | str) -> hookanswers.Answer:
    set_there = api_pb2.LinuxContainerResources(**values)  # type: ignore[arg-type]
    return hookanswers.reply(api_pb2.ContainerResourceHookResponse(container_resources=set_there))


def assert_in_force(client: Any, container_id: str, parent: str, values: Values) -> None:
    """Compare the container's cgroup files, as seen inside and from the host under this cgroup parent."""
    expected = {setting: cgroups.expected(setting, value) for setting, value in values.items()}
    files = {setting: client.exec_sync(container_id, "cat", cgroups.inside_file(setting)).stdout for setting in values}
    assert {setting: cgroups.parse(setting, file.decode()) for setting, file in files.items()} == expected
    assert {setting: cgroups.read(f"{parent}/{container_id}", setting) for setting in values} == expected


def end(client: Any, pod_id: str, *container_ids: str) -> None:
    for container_id in container_ids:
        client.stop(container_id)
        client.remove(container_id)
    client.stop_pod(pod_id)
    client.remove_pod(pod_id)
    assert pod_id not in [pod.id for pod in client.pods()]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of node; ``engine`` is the session's fixture, ``version`` that of the kubelet's CRI."""

    name: str
    engine: str
    front: Front
    kubelet: Callable[..., Any]
    version: str = cri.V1


CONTAINERD = Kind("containerd", "containerd", CRI, CriKubelet)
DOCKERD = Kind("dockerd", "dockerd", DOCKER, Kubelet)
OLD_CRI = Kind("containerd-v1alpha2", "containerd", CRI, CriKubelet, cri.V1ALPHA2)


@dataclass(frozen=True, slots=True)
class RealNode:
    kind: Kind
    proxy: ProxyProcess
    hooks: HookServer
    engine: Any

    def client(self, socket: str = "") -> Any:
        return self.kind.kubelet(socket or str(self.proxy.socket), self.kind.version)

    def register(self, **more: str) -> None:
        """Register the hook server as the plugin ``PLUGIN``; ``more`` as in ``registration.text``."""
        self.proxy.register(f"{PLUGIN}.json", self.hooks.socket_path, **more)

    def pop_calls(self) -> list[tuple[str, Any]]:
        calls = [(call.point.name, call.request) for call in self.hooks.calls]
        self.hooks.calls.clear()
        return calls

    def plain_pod(self, name: str = "plain") -> PodSandboxConfig:
        uid = str(uuid.uuid4())
        logs = str(self.engine.directory(f"logs/{uid}"))
        return cri.pod_config(name, uid, cgroup_parent=self.engine.cgroup_parent(uid), log_directory=logs)

    def rich_pod(self) -> PodSandboxConfig:
        """Return a pod with all fields that a kubelet may set."""
        pod = self.plain_pod("rich")
        pod.metadata.attempt = 2
        pod.labels.update({"app": "web", "koordinator.sh/qosClass": "BE"})
        pod.annotations.update({"example.com/text": "line\nnext", "example.com/empty": ""})
        pod.linux.overhead.CopyFrom(resources(cpu_shares=102, memory_limit_in_bytes=16 * MIB))
        # containerd only stores a pod's resources, so the two maps need no special machine.
        limits = resources(cpu_period=100000, cpu_quota=150000, cpu_shares=614, memory_limit_in_bytes=128 * MIB)
        limits.hugepage_limits.append(HugepageLimit(page_size="2MB", limit=4 * MIB))
        limits.unified["memory.high"] = "100000000"
        pod.linux.resources.CopyFrom(limits)
        return pod

    def rich_container(self, **more: int | str) -> ContainerConfig:
        """Return a container with all fields that a kubelet may set, and ``more`` resources."""
        usual: Values = {"cpu_period": 100000, "cpu_quota": 50000, "cpu_shares": 512, "memory_limit_in_bytes": 64 * MIB}
        config = cri.container_config(
            "main",
            command=("/bin/sh", "-c", f"{FIRST_ACT}; env; echo {LAST_LINE}; sleep 3600"),
            envs=[("LEVEL", b"info"), ("SENTENCE", b"two words = three"), ("EMPTY", b"")],
            resources=resources(**{**usual, **more}),
            labels={"io.kubernetes.container.name": "main"},
            annotations={"example.com/hash": "f00"},
        )
        config.metadata.attempt = 3
        return config


def on(*kinds: Kind) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.name, scope="module")


@contextmanager
def running(
    kind: Kind, engine: Any, folder: Path, prepare: Callable[[RealNode], None] = RealNode.register, **flags: str
) -> Iterator[RealNode]:
    """Run a hook server, then ``prepare``, and then a proxy in front of an engine; its pods are removed at the end."""
    if kind.front is CRI:
        flags = {"remote_image_service_endpoint": engine.socket, **flags}
    proxy = kind.front.process(folder / "proxy", remote_runtime_service_endpoint=engine.socket, **flags)
    with engine.restored(), serving(HookServer(str(folder / "hooks.sock"))) as hooks:
        node = RealNode(kind, proxy, hooks, engine)
        prepare(node)
        with proxy:
            yield node


@pytest.fixture(scope="module")
def engine(kind: Kind, request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(kind.engine)


@pytest.fixture
def node(kind: Kind, engine: Any, tmp_path: Path) -> Iterator[RealNode]:
    with running(kind, engine, tmp_path) as node:
        yield node


@pytest.fixture
def client(node: RealNode) -> Iterator[Any]:
    with node.client() as made:
        yield made


EVERY = on(CONTAINERD, OLD_CRI, DOCKERD)
AT_CREATE: Values = {"cpu_shares": 300, "cpu_quota": 20000, "cpuset_cpus": CPU, "memory_limit_in_bytes": 48 * MIB}
CREATED: Values = {"cpu_period": 100000, **AT_CREATE}
AT_START: Values = {"cpu_shares": 700, "cpu_quota": -1}
STARTED: Values = {**CREATED, **AT_START}
KUBELETS_UPDATE: Values = {"cpu_shares": 400, "memory_limit_in_bytes": 96 * MIB}
AT_UPDATE: Values = {"cpu_quota": 30000, "cpuset_cpus": CPU}
UPDATED: Values = {**STARTED, **KUBELETS_UPDATE, **AT_UPDATE}
CHANGED = {"LEVEL": "debug", "DEVICES": "0,1"}
ENVIRONMENT = {**CHANGED, "SENTENCE": "two words = three", "EMPTY": "", "PATH": "/bin"}


def sent(message: Any) -> Values:
    """Return the resources of a hook call that the tests set, without a swap limit of dockershim's."""
    return {name: value for field, value in message.container_resources.ListFields() if (name := field.name) in UPDATED}


@EVERY
def test_hook_changes_are_applied_and_in_later_calls(node: RealNode, client: Any) -> None:
    """The hook server acts at every Pre point (hook-api, "What is sent"); it sets another cgroup parent for a new pod.

    A killed and restarted proxy reads all of it from the engine, and does not affect the container.
    """
    pod, container = node.rich_pod(), node.rich_container()
    parent = node.engine.cgroup_parent(pod.metadata.uid, "burstable")
    for_pod = api_pb2.PodSandboxHookResponse(
        labels={"app": "changed"}, annotations={"hook.example/pod": "added"}, cgroup_parent=parent
    )
    for_container = api_pb2.ContainerResourceHookResponse(
        container_annotations={"hook.example/container": "added"},
        container_envs=CHANGED,
        container_resources=api_pb2.LinuxContainerResources(**AT_CREATE),  # type: ignore[arg-type]
    )
    node.hooks.on("PreRunPodSandbox", reply(for_pod))
    node.hooks.on("PreCreateContainer", reply(for_container))
    node.hooks.on("PreStartContainer", resources_answer(**AT_START))
    node.hooks.on("PreUpdateContainerResources", resources_answer(**AT_UPDATE))

    pod_id = client.run_pod(pod)
    assert cgroups.processes(parent)
    assert not cgroups.processes(pod.linux.cgroup_parent)
    container_id = client.create(pod_id, container, pod)
    client.start(container_id)
    (_, for_run), (_, create), (_, start), (last, started) = node.pop_calls()
    assert (for_run.pod_meta.uid, for_run.labels["app"], last) == (pod.metadata.uid, "web", "PostStartContainer")
    assert (create.pod_labels["app"], create.pod_cgroup_parent) == ("changed", parent)
    assert sent(create) == {field.name: value for field, value in container.linux.resources.ListFields()}
    assert (sent(start), start.container_meta.id) == (CREATED, container_id)
    assert (sent(started), started.container_annotations["hook.example/container"]) == (STARTED, "added")
    wait_until(lambda: LAST_LINE in client.written(pod, container_id), "it has printed its first lines")
    first = dict(line.partition("=")[::2] for line in client.written(pod, container_id).splitlines())
    for setting, value in STARTED.items():
        assert cgroups.parse(setting, first[setting]) == cgroups.expected(setting, value), setting
    assert {name: first.get(name) for name in ENVIRONMENT} == ENVIRONMENT
    assert_in_force(client, container_id, parent, STARTED)

    client.update(container_id, resources(**KUBELETS_UPDATE))
    ((_, update),) = node.pop_calls()
    # A hook that scales must scale the kubelet's own values, not its earlier results.
    assert sent(update) == {**sent(create), **KUBELETS_UPDATE}
    assert_in_force(client, container_id, parent, UPDATED)

    pids = client.pids(pod_id, container_id)
    node.proxy.kill()
    node.proxy.start()
    assert client.pids(pod_id, container_id) == pids
    end(client, pod_id, container_id)
    (hook_point, stop), (last, for_stop) = node.pop_calls()
    assert (hook_point, sent(stop), stop.pod_cgroup_parent) == ("PostStopContainer", UPDATED, parent)
    assert stop.container_envs.items() >= CHANGED.items()
    assert (last, for_stop.labels["app"], for_stop.cgroup_parent) == ("PostStopPodSandbox", "changed", parent)


GRACE_SECONDS = 3600
READY, SIGNALLED = "ready", "got a signal"
DEAF = f"""
trap 'trap "exit 0" TERM; echo {SIGNALLED}' TERM
sleep {GRACE_SECONDS} & echo {READY}
while :; do wait; done
"""
"""Prints a stop's signal and continues. A second one ends it: dockerd ends containers at its start."""


@pytest.mark.slow
@on(CONTAINERD, DOCKERD)
def test_engine_killed_during_stop_changes_no_hook_call(node: RealNode) -> None:
    """The container outlives containerd, and ends with dockerd; its hook server may be called before the next stop."""
    outlives = node.kind.front is CRI
    pod, container = node.rich_pod(), node.rich_container()
    container.command[:] = ("/bin/sh", "-c", DEAF)
    with node.client() as client, ThreadPoolExecutor(1) as caller:
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, container, pod)
        client.start(container_id)
        wait_until(lambda: READY in client.written(pod, container_id), "the container runs")
        pids = client.pids(pod_id, container_id)
        node.pop_calls()
        stop = caller.submit(client.stop, container_id, GRACE_SECONDS)
        wait_until(lambda: SIGNALLED in client.written(pod, container_id), "the engine stops it")
        node.engine.kill()
        try:
            with pytest.raises((grpc.RpcError, ConnectionError)) as lost:
                stop.result(WAIT_SECONDS)
            error: Any = lost.value
            assert (error.code() if outlives else None) == node.kind.front.lost
            assert answers(node.proxy.socket)
        finally:
            node.engine.launch()
    with node.client() as client:  # the first calls, without retries
        if outlives:
            assert client.pids(pod_id, container_id) == pids
            client.update(container_id, resources(cpu_quota=40_000))
            assert [hook_point for hook_point, _ in node.pop_calls()] == ["PreUpdateContainerResources"]
        end(client, pod_id, container_id)
    *stops, (last, _) = node.pop_calls()
    ends = [(hook_point, message.container_meta.id) for hook_point, message in stops]
    assert ends in ([("PostStopContainer", container_id)] * count for count in ((1,) if outlives else (1, 2)))
    assert last == "PostStopPodSandbox"


@on(CONTAINERD, DOCKERD)
def test_unavailable_cpuset_fails_container(node: RealNode, client: Any) -> None:
    """containerd fails its start, dockerd its create (docs/fleets.rst)."""
    node.hooks.on("PreCreateContainer", resources_answer(cpuset_cpus="1000"))
    pod = node.plain_pod()
    pod_id = client.run_pod(pod)
    with pytest.raises((grpc.RpcError, DockerError)):
        client.start(client.create(pod_id, node.rich_container(), pod))
    events = call(node.proxy.admin, "events", kind="failed")["events"]
    operation = "StartContainer" if node.kind.front.name == "cri" else "CreateContainer"
    assert [event["operation"] for event in events] == [operation]
    line, output = f"hook servers had set resources.cpuset_cpus ({PLUGIN})", node.proxy.output
    wait_until(lambda: line in output(), "the log names the field and its hook server", output)


QUIET: Mapping[str, tuple[Answer | None, str]] = {
    "dead": (None, "Ignore"),
    "hangs": (hookanswers.hang(), "Ignore"),
    "dead, and the pod is its own": (None, "Fail"),
    "koordlet": (hookanswers.koordlet(), ""),
}
"""Hook servers that set nothing: the answer (None: no process), and the policy ("": as koordlet registers)."""
KOORDLET_HOOK_POINTS = ("PreRunPodSandbox", "PreCreateContainer", "PreUpdateContainerResources")
"""The points in the registration of a koordlet with its defaults, except the one that the protocol lacks."""


@EVERY
@pytest.mark.parametrize(("answer", "policy"), QUIET.values(), ids=QUIET)
def test_pod_runs_as_without_hook_server(
    kind: Kind, engine: Any, tmp_path: Path, answer: Answer | None, policy: str
) -> None:
    """Under Fail with the skip label, like the hook server's own pod."""

    def prepare(node: RealNode) -> None:
        if answer is None:
            node.proxy.register(f"{PLUGIN}.json", node.proxy.path / "nobody.sock", policy=policy)
            return
        node.hooks.default = answer
        if policy:
            node.register(policy=policy, timeout="100ms")
        else:
            registration.write_as_koordlet(node.proxy.registrations, node.hooks.socket_path, KOORDLET_HOOK_POINTS)

    with running(kind, engine, tmp_path, prepare) as node:
        pod, container = node.rich_pod(), node.rich_container(cpuset_cpus=CPU)
        pod.labels.update(SKIP if policy == "Fail" else {})
        reports = []
        with node.client() as client, node.client(node.engine.socket) as direct:
            for kubelet in (client, direct):
                pod_id = kubelet.run_pod(pod)
                container_id = kubelet.create(pod_id, container, pod)
                kubelet.start(container_id)
                kubelet.update(container_id, resources(cpu_shares=99))
                reports.append(kubelet.inspected(pod_id, container_id))
                end(kubelet, pod_id, container_id)
        assert reports[0] == reports[1]
        if not policy:
            assert [hook_point for hook_point, _ in node.pop_calls()] == list(KOORDLET_HOOK_POINTS)
            assert registration.KOORDLET_EXTRA_HOOK_POINT in node.proxy.output(), "the unknown point has its warning"


# ---- the project's own hook servers

BATCH = {f"kubernetes.io/batch-{name}": value for name, value in {"cpu": 600, "memory": "96Mi"}.items()}
LIMITS: Values = {"cpu_quota": 60000, "memory_limit_in_bytes": 96 * MIB}
OWN: Values = {"cpu_shares": 2, "cpu_quota": 80000, "memory_limit_in_bytes": 200 * MIB}


def make_pod_cgroup(path: str) -> None:
    """Make a pod's cgroup as a kubelet does; it is removed with the engine."""
    if not cgroups.is_v2():
        for controller in ("cpu", "memory"):
            (cgroups.ROOT / controller / path.lstrip("/")).mkdir(parents=True)
        return
    directory = cgroups.ROOT
    for name in path.strip("/").split("/"):
        (directory / "cgroup.subtree_control").write_text("+cpu +memory +cpuset")
        directory /= name
        directory.mkdir(exist_ok=True)


@pytest.mark.slow
@on(CONTAINERD, DOCKERD)
def test_limits_hold_in_cgroups_of_pod_and_container(kind: Kind, engine: Any, tmp_path: Path) -> None:
    """Also after an update."""
    program = ("-m", "runtimeproxy_hooks", "batchresource")
    with (
        running(kind, engine, tmp_path, lambda node: None) as node,
        node.client() as client,
        processes.running(node.proxy.path, program=program, file="batchresource.json") as hooks,
    ):
        node.proxy.wait_for_log(f"registration {hooks.file.name} ")
        pod, container = node.plain_pod(), node.rich_container(**OWN)
        spec = json.dumps({"containers": {"main": {"limits": BATCH, "requests": BATCH}}})
        pod.annotations[koordinator.EXTENDED_RESOURCE_SPEC] = spec
        pod.labels["koordinator.sh/qosClass"] = "BE"
        parent = pod.linux.cgroup_parent
        make_pod_cgroup(parent)
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, container, pod)
        client.start(container_id)
        for _ in range(2):
            assert_in_force(client, container_id, parent, LIMITS)
            assert {name: cgroups.read(parent, name) for name in LIMITS} == LIMITS
            client.update(container_id, resources(**OWN))
        end(client, pod_id, container_id)
        assert hooks.end(15) == 0
