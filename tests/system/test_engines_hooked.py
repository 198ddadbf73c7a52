"""Hook servers with real engines: their calls, their changes from the first instruction on, and failures by policy.

Fault matrix H12. An unmodified koordlet's answers hold, too.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from runtimeproxy.hookapi import api_pb2
from tests.docs import CODE
from tests.engines import cgroups
from tests.fakes import hookanswers, registration
from tests.fakes.cri_pb2 import ContainerConfig, LinuxContainerResources, PodSandboxConfig
from tests.fakes.faults import FaultRelay
from tests.fakes.hookanswers import Answer, reply
from tests.hooks.sdk import processes
from tests.system import hook_requests, koordlet_cases
from tests.system.koordlet_cases import Case
from tests.system.node import (
    CPU,
    MIB,
    PLUGIN,
    Values,
    assert_first_act,
    assert_in_force,
    cri_resources,
    end,
    inside,
    resources_answer,
    serving,
    skipped,
)
from tests.system.proxy import wait_until
from tests.system.real import CONTAINERD, DOCKERD, OLD_CRI, OLD_SHIM, Kind, Kubelet, RealNode, on, running

pytestmark = pytest.mark.engine

THREE, ALL = on(CONTAINERD, OLD_CRI, DOCKERD), on(CONTAINERD, OLD_CRI, DOCKERD, OLD_SHIM)

# dockershim, unlike cri-dockerd, cannot raise memory above the swap limit that it set at create.
UPDATE = LinuxContainerResources(cpu_shares=400, memory_limit_in_bytes=48 * MIB)


@ALL
def test_every_hook_point_gets_whole_subject(node: RealNode, client: Any) -> None:
    """A proxy that was killed and restarted reads pods and containers, and does not affect them."""
    pod, container = node.rich_pod(), node.rich_container(oom_score_adj=900, cpuset_cpus=CPU, cpuset_mems="0")
    pod_id = client.run_pod(pod)
    assert node.take_calls() == [("PreRunPodSandbox", hook_requests.of_pod(pod))]
    container_id = client.create(pod_id, container, pod)
    assert node.take_calls() == [("PreCreateContainer", hook_requests.of_container(pod, container))]
    client.start(container_id)
    created = hook_requests.of_container(pod, container, container_id)
    assert node.take_calls() == [("PreStartContainer", created), ("PostStartContainer", created)]
    client.update(container_id, UPDATE)
    updated = hook_requests.of_container(pod, node.updated(container, UPDATE), container_id)
    assert node.take_calls() == [("PreUpdateContainerResources", updated)]
    pids = node.pids(client, pod_id, container_id)
    node.restart()
    assert node.pids(client, pod_id, container_id) == pids
    node.hooks.on("PostStopContainer", hookanswers.status(grpc.StatusCode.INTERNAL))
    client.stop(container_id)
    node.hooks.answers.clear()
    client.stop(container_id)
    assert node.take_calls() == [("PostStopContainer", updated)] * 2, "the call is repeated after a failure"
    client.stop(container_id)
    assert node.take_calls() == [], "no call after a successful one"
    node.restart()
    client.stop_pod(pod_id)
    client.stop_pod(pod_id)
    client.remove(container_id)
    client.remove_pod(pod_id)
    ends = [("PostStopContainer", updated), ("PostStopPodSandbox", hook_requests.of_pod(pod))]
    assert node.take_calls() == ends, "one call each in a process"


@ALL
@pytest.mark.parametrize("restarted", [False, True])
def test_end_without_a_stop_is_reported(node: RealNode, client: Any, restarted: bool) -> None:
    """A job ends by itself, the start of a container fails, another one is not started; none is stopped."""
    pod = node.plain_pod()
    pod_id = client.run_pod(pod)
    commands = {"job": "/bin/true", "broken": "/nowhere", "created": "/bin/true"}
    configs = {name: node.plain_container(name) for name in commands}
    for name, command in commands.items():
        configs[name].command[:] = [command]
    job, broken, created = (client.create(pod_id, config, pod) for config in configs.values())
    node.failure(lambda: client.start(broken))
    client.start(job)
    wait_until(lambda: not node.is_running(client, job), "the job has ended")
    end_of_job = ("PostStopContainer", hook_requests.of_container(pod, configs["job"], job))
    by_event = node.front.name == "docker"
    if by_event:
        wait_until(lambda: node.hooks.calls[-1].point.name == "PostStopContainer", "its event is reported")
    assert [call for call in node.take_calls() if call[0] == "PostStopContainer"] == [end_of_job] * by_event
    if restarted:
        node.restart()
    client.stop_pod(pod_id)
    late = restarted or not by_event
    assert node.take_calls() == [end_of_job] * late + [("PostStopPodSandbox", hook_requests.of_pod(pod))]
    for one in (job, broken, created):
        client.remove(one)
    client.remove_pod(pod_id)
    assert node.take_calls() == []


# ---- changes by hook servers

AT_CREATE: Values = {"cpu_shares": 300, "cpu_quota": 20000, "cpuset_cpus": CPU, "memory_limit_in_bytes": 48 * MIB}
AT_START: Values = {"cpu_shares": 700, "cpu_quota": -1}
STARTED: Values = {"cpu_period": 100000, **AT_CREATE, **AT_START}
KUBELETS_UPDATE: Values = {"cpu_shares": 400, "memory_limit_in_bytes": 96 * MIB}
AT_UPDATE: Values = {"cpu_quota": 30000, "cpuset_cpus": CPU}
UPDATED: Values = {**STARTED, **KUBELETS_UPDATE, **AT_UPDATE}
ENVIRONMENT = {"LEVEL": "debug", "DEVICES": "0,1", "SENTENCE": "two words = three", "EMPTY": "", "PATH": "/bin"}


@THREE
def test_changes_of_hooks_hold_and_are_in_later_calls(node: RealNode, client: Any) -> None:
    """The hook server acts at every Pre point; it sets another cgroup parent for a new pod."""
    pod, container = node.rich_pod(), node.rich_container()
    parent = node.engine.cgroup_parent(pod.metadata.uid, "burstable")
    for_pod = api_pb2.PodSandboxHookResponse(
        labels={"app": "changed", "hook.example/label": "added"},
        annotations={"hook.example/pod": "added"},
        cgroup_parent=parent,
        resources=api_pb2.LinuxContainerResources(cpu_shares=300),
    )
    for_container = api_pb2.ContainerResourceHookResponse(
        container_annotations={"hook.example/container": "added"},
        container_envs={"LEVEL": "debug", "DEVICES": "0,1"},
        container_resources=api_pb2.LinuxContainerResources(**AT_CREATE),  # type: ignore[arg-type]
    )
    node.hooks.on("PreRunPodSandbox", reply(for_pod))
    node.hooks.on("PreCreateContainer", reply(for_container))
    node.hooks.on("PreStartContainer", resources_answer(AT_START))
    node.hooks.on("PreUpdateContainerResources", resources_answer(AT_UPDATE))
    changed_pod = PodSandboxConfig.FromString(pod.SerializeToString())
    changed_pod.labels.update(for_pod.labels)
    changed_pod.annotations.update(for_pod.annotations)
    changed_pod.linux.cgroup_parent = parent
    if node.front.name == "docker":  # containerd does not use them
        changed_pod.linux.resources.cpu_shares = 300
    changed = hook_requests.updated(container, cri_resources(AT_CREATE))
    changed.annotations.update(for_container.container_annotations)
    for key, value in for_container.container_envs.items():
        changed.envs.add(key=key, value=value.encode())  # the last value of a name is effective
    changed = node.sent(changed)

    pod_id = client.run_pod(pod)
    assert node.take_calls() == [("PreRunPodSandbox", hook_requests.of_pod(pod))]
    assert node.pod_texts(client, pod_id) == (changed_pod.labels, changed_pod.annotations)
    assert node.pod_shares(client, pod_id) == 300, "sent"
    assert cgroups.read(f"{parent}/{pod_id}", "cpu_shares") == (300 if node.front.name == "docker" else 2)
    assert cgroups.processes(parent)
    assert not cgroups.processes(pod.linux.cgroup_parent)

    container_id = client.create(pod_id, container, pod)
    assert node.take_calls() == [("PreCreateContainer", hook_requests.of_container(changed_pod, container))]
    assert node.annotations(client, container_id) == changed.annotations

    client.start(container_id)
    started = hook_requests.updated(changed, cri_resources(AT_START))
    assert node.take_calls() == [
        ("PreStartContainer", hook_requests.of_container(changed_pod, changed, container_id)),
        ("PostStartContainer", hook_requests.of_container(changed_pod, started, container_id)),
    ]
    first = node.first_act(client, pod, container_id)
    assert_first_act(first, STARTED)
    assert {name: first.get(name) for name in ENVIRONMENT} == ENVIRONMENT
    assert_in_force(client, container_id, parent, STARTED)

    client.update(container_id, cri_resources(KUBELETS_UPDATE))
    # A hook that scales must scale the kubelet's own values, not its earlier results.
    kubelets = hook_requests.updated(container, cri_resources(KUBELETS_UPDATE))
    changed.linux.resources.CopyFrom(kubelets.linux.resources)
    update = hook_requests.of_container(changed_pod, node.sent(changed), container_id)
    assert node.take_calls() == [("PreUpdateContainerResources", update)]
    assert_in_force(client, container_id, parent, UPDATED)

    end(client, pod_id, container_id)
    updated = node.sent(hook_requests.updated(changed, cri_resources(UPDATED)))
    assert node.take_calls() == [
        ("PostStopContainer", hook_requests.of_container(changed_pod, updated, container_id)),
        ("PostStopPodSandbox", hook_requests.of_pod(changed_pod)),
    ]


@THREE
def test_container_may_get_own_cgroup_parent(node: RealNode, client: Any) -> None:
    """A later proxy reads it from the engine, too."""
    pod, container = node.plain_pod(), node.rich_container()
    own = node.engine.cgroup_parent(pod.metadata.uid, "aside")
    node.hooks.on("PreCreateContainer", reply(api_pb2.ContainerResourceHookResponse(pod_cgroup_parent=own)))
    container_id = client.create(client.run_pod(pod), container, pod)
    client.start(container_id)
    assert_in_force(client, container_id, own, {"cpu_shares": 512, "cpu_quota": 50000})
    assert not list(cgroups.directories(f"{pod.linux.cgroup_parent}/{container_id}"))
    moved = hook_requests.of_container(pod, container, container_id)
    moved.pod_cgroup_parent = own
    node.take_calls()
    client.stop(container_id)
    assert node.take_calls() == [("PostStopContainer", moved)]
    node.restart(wait_for_state=True)
    client.stop(container_id)
    assert node.take_calls() == [("PostStopContainer", moved)]


# ---- a hook server that fails or refuses

SHARES = LinuxContainerResources(cpu_shares=99)
HANGS = hookanswers.hang()
REFUSAL = "no room on this node"
FAULTS: Mapping[str, tuple[Answer | None, str]] = {
    "dead": (None, "unreachable"),
    "hangs": (HANGS, "deadline"),
    "refuses": (hookanswers.status(grpc.StatusCode.PERMISSION_DENIED, REFUSAL), REFUSAL),
}
"""The hook server's answers, None without one, and the kubelet's error text."""


@contextmanager
def faulty(kind: Kind, engine: Any, folder: Path, fault: str, policy: str) -> Iterator[tuple[RealNode, FaultRelay]]:
    """Run a proxy whose only hook server fails at every point, and a relay that records the bytes to the engine."""
    answer, _ = FAULTS[fault]

    def prepare(node: RealNode) -> None:
        if answer is not None:
            node.hooks.default = answer
            node.register(policy=policy, timeout="100ms" if answer is HANGS else "10s")
        else:
            node.proxy.register(f"{PLUGIN}.json", node.proxy.path / "nobody.sock", policy=policy)

    with (
        serving(FaultRelay(str(folder / "engine.sock"), engine.socket)) as relay,
        running(kind, engine, folder, prepare, runtime=relay.socket_path) as node,
    ):
        yield node, relay


def passed(relay: FaultRelay, text: str) -> bool:
    return any(text.encode() in bytes(sent.to_backend) for sent in relay.connections)


@THREE
@pytest.mark.parametrize(("fault", "policy"), [*((fault, "Fail") for fault in FAULTS), ("refuses", "Ignore")])
def test_refused_call_reaches_no_engine(kind: Kind, engine: Any, tmp_path: Path, fault: str, policy: str) -> None:
    with faulty(kind, engine, tmp_path, fault, policy) as (node, relay), node.direct() as direct:
        pod, another = node.rich_pod(), node.rich_pod("another")
        pod_id = direct.run_pod(pod)
        container_id = direct.create(pod_id, node.rich_container(), pod)
        with node.client() as client:
            calls: dict[str, Callable[[], object]] = {
                "PreRunPodSandbox": lambda: client.run_pod(another),
                "PreCreateContainer": lambda: client.create(pod_id, node.rich_container("unwanted"), pod),
                "PreStartContainer": lambda: client.start(container_id),
                "PreUpdateContainerResources": lambda: client.update(container_id, SHARES),
            }
            for point, call in calls.items():
                failed = node.failure(call)
                assert failed.status == (node.front.refused if fault == "refuses" else node.front.failed)
                for part in (PLUGIN, point, FAULTS[fault][1]):
                    assert part in failed.text
            assert client.version(), "the connection lives"
        assert not passed(relay, another.metadata.uid)
        assert not passed(relay, "unwanted")
        assert not node.is_running(direct, container_id)
        direct.start(container_id)
        assert inside(direct, container_id, "cpu_shares") != SHARES.cpu_shares


@THREE
@pytest.mark.parametrize(("fault", "policy"), [("dead", "Ignore"), ("hangs", "Ignore"), ("dead", "Fail")])
def test_pod_runs_as_without_a_hook_server(kind: Kind, engine: Any, tmp_path: Path, fault: str, policy: str) -> None:
    """Under Ignore; under Fail with the skip label, as for the hook server's own pod."""
    with faulty(kind, engine, tmp_path, fault, policy) as (node, relay):
        pod = node.rich_pod()
        check_runs_as_directly(node, skipped(pod) if policy == "Fail" else pod, node.rich_container())
        assert passed(relay, pod.metadata.uid)


def check_runs_as_directly(node: RealNode, pod: PodSandboxConfig, container: ContainerConfig) -> None:
    with node.client() as client, node.direct() as direct:
        through, straight = (node.run_to_end(each, pod, container, SHARES) for each in (client, direct))
    assert through == straight


# ---- koordlet (hook-api, "Registration files"): its registration, its echoes, its -1, its empty cpuset

KOORDLETS = ("PreRunPodSandbox", "PreCreateContainer", "PreUpdateContainerResources")
"""The points in the registration of a koordlet with its defaults, except the one that the protocol lacks."""


@THREE
def test_koordlets_whole_echo_changes_nothing(kind: Kind, engine: Any, tmp_path: Path) -> None:
    with running(kind, engine, tmp_path, lambda node: None) as node:
        node.hooks.default = hookanswers.koordlet()
        registration.write_as_koordlet(node.proxy.registrations, node.hooks.socket_path, KOORDLETS)
        node.proxy.wait_for_registration("koordlet.json")
        check_runs_as_directly(node, node.rich_pod(), node.rich_container(cpuset_cpus=CPU))
        assert [point for point, _ in node.take_calls()] == list(KOORDLETS)
        assert registration.KOORDLET_EXTRA_POINT in node.proxy.output(), "the unknown point has its warning"


@THREE
def test_each_answer_of_koordlet_holds_in_container(kind: Kind, engine: Any, tmp_path: Path) -> None:
    with running(kind, engine, tmp_path, lambda node: node.register(policy="Fail")) as node, node.client() as client:
        node.hooks.default = hookanswers.echo()
        pod, config = node.plain_pod(), node.plain_container()
        pod_id = client.run_pod(pod)
        for number, case in enumerate(koordlet_cases.CASES):
            if case.point == koordlet_cases.POD:
                continue
            of_update = case.point == koordlet_cases.UPDATE
            config.metadata.name = f"c{number}"
            config.linux.resources.CopyFrom(cri_resources(case.held if of_update else case.queried))
            config = node.sent(config)
            node.hooks.answers.clear()
            if not of_update:
                node.hooks.on(case.point, case.answer)
            container_id = client.create(pod_id, config, pod)
            client.start(container_id)
            if of_update:
                node.hooks.on(case.point, case.answer)
                client.update(container_id, cri_resources(case.queried))
            lifts = node.front.name == "cri"  # containerd accepts -1 in an update
            _assert_inside(client, container_id, case, {**case.held, **koordlet_cases.goes_out(case, lifts=lifts)})
            client.stop(container_id)
        assert "refused" not in node.proxy.output()


SETTINGS = ("cpu_shares", "cpu_quota", "memory_limit_in_bytes", "cpuset_cpus")
_STARTED = 'while grep -q runc /proc/1/comm || [ -z "$(head -c 1 /proc/1/environ)" ]; do sleep 0.01; done; '
"""Wait for the program of a container: a start is answered before runc's own process becomes it."""
_LOOK = "; echo @; ".join(f"cat {file}" for file in (*map(cgroups.inside_file, SETTINGS), "/proc/1/environ"))


def _assert_inside(client: Any, container_id: str, case: Case, values: Values) -> None:
    *files, environment = client.exec_sync(container_id, "/bin/sh", "-c", _STARTED + _LOOK).stdout.split(b"@\n")
    for setting, file in zip(SETTINGS, files, strict=True):
        seen = cgroups.parse(setting, file.decode())
        if setting == "cpuset_cpus":
            assert cpus(str(seen)) == cpus(str(values.get(setting) or seen)), case.name
        else:
            assert seen == cgroups.expected(setting, values.get(setting, -1)), (case.name, setting)
    assert {f"{key}={value}".encode() for key, value in case.envs.items()} <= set(environment.split(b"\0")), case.name


def cpus(text: str) -> set[int]:
    ends = [part.partition("-")[::2] for part in text.strip().split(",")]
    return {cpu for first, last in ends for cpu in range(int(first), int(last or first) + 1)}


@on(CONTAINERD, DOCKERD)
def test_hook_server_of_the_guide_greets_containers(kind: Kind, engine: Any, tmp_path: Path) -> None:
    hello = tmp_path / "hello.py"
    hello.write_text(CODE)
    with running(kind, engine, tmp_path, lambda node: None) as node, node.client() as client:
        flags = (f"--register-dir={node.proxy.registrations}",)
        with processes.running(tmp_path, *flags, program=(str(hello),), file="hello.json") as program:
            node.proxy.wait_for_registration("hello.json")
            pod = node.plain_pod()
            pod.annotations["example.com/greeting"] = "good day"
            container_id = client.create(client.run_pod(pod), node.rich_container(), pod)
            client.start(container_id)
            printed = node.first_act(client, pod, container_id)
            assert (printed["POD_UID"], printed["GREETING"]) == (pod.metadata.uid, "good day")
            assert program.end(15) == 0


# ---- dockerd's swap limits

CREATE, START, RESIZE = "PreCreateContainer", "PreStartContainer", "PreUpdateContainerResources"


def memory(mib: int) -> Values:
    return {"memory_limit_in_bytes": mib * MIB}


MEMORY: list[tuple[str, Values, int, int]] = [
    (CREATE, {**memory(32), "memory_swap_limit_in_bytes": -1}, 32, -1),
    (START, memory(80), 80, 80 * MIB),
    (RESIZE, memory(80), 80, 80 * MIB),
    (RESIZE, memory(32), 32, 32 * MIB),
]
"""Changes at a hook point, and dockerd's final limits: memory in MiB, and swap.

The kubelet requests 64 MiB without swap, and updates that to 48 MiB.
"""


@on(DOCKERD, OLD_SHIM)
def test_swap_limit_follows_memory(node: RealNode, client: Kubelet) -> None:
    """Memory is raised even by an update of dockershim, which has no swap limit."""
    pod = node.plain_pod()
    pod_id = client.run_pod(pod)
    for number, (point, values, mib, swap) in enumerate(MEMORY):
        node.hooks.answers.clear()
        node.hooks.on(point, resources_answer(values))
        container_id = client.create(pod_id, node.rich_container(f"main-{number}"), pod)
        client.start(container_id)
        if point == RESIZE:
            client.update(container_id, cri_resources(memory(48)))
        host = client.host_config(container_id)
        assert host["Memory"] == mib * MIB, (point, values)
        if node.speaks.moves_swap and node.engine.get("/info")["SwapLimit"]:  # else the kernel does not account for it
            assert host["MemorySwap"] == swap, (point, values)
        assert_in_force(client, container_id, pod.linux.cgroup_parent, memory(mib))
        client.remove(container_id)
