"""Hook servers with real engines: their changes apply from the first instruction on, and failures stay bounded.

Fault matrix B1, B3 and H12, promise 8. tests/test_contract.py compares each front's calls with fakes, field by field.
An unmodified koordlet registers, and echoes (hook-api, "Registration files").
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2
from tests.control import call
from tests.engines import cgroups
from tests.fakes import hookanswers, registration
from tests.fakes.dockershim_bodies import Values
from tests.fakes.hookanswers import Answer, reply
from tests.system.fronts import SKIP
from tests.system.proxy import WAIT_SECONDS, answers, wait_until
from tests.system.real import (
    CONTAINERD,
    CPU,
    DOCKERD,
    MIB,
    OLD_CRI,
    PLUGIN,
    Kind,
    RealNode,
    assert_in_force,
    end,
    on,
    printed,
    resources,
    resources_answer,
    running,
)

pytestmark = pytest.mark.engine

GRACE_SECONDS = 3600
READY, SIGNALLED = "ready", "got a signal"
DEAF = f"""
trap 'trap "exit 0" TERM; echo {SIGNALLED}' TERM
sleep {GRACE_SECONDS} & echo {READY}
while :; do wait; done
"""
"""Handles a stop's signal, prints it, and continues. A second one ends it: dockerd ends containers at its start."""
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
    first = printed(client, pod, container_id)
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


@on(CONTAINERD, DOCKERD)
def test_unavailable_cpuset_fails_container(node: RealNode, client: Any) -> None:
    """containerd fails its start, dockerd its create (docs/fleets.rst)."""
    node.hooks.on("PreCreateContainer", resources_answer(cpuset_cpus="1000"))
    pod = node.plain_pod()
    pod_id = client.run_pod(pod)
    node.failure(lambda: client.start(client.create(pod_id, node.rich_container(), pod)))
    events = call(node.proxy.admin, "events", kind="failed")["events"]
    operation = "StartContainer" if node.front.name == "cri" else "CreateContainer"
    assert [event["operation"] for event in events] == [operation]
    assert f"hook servers had set resources.cpuset_cpus ({PLUGIN})" in node.proxy.output()


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
        with node.client() as client, node.direct() as direct:
            for kubelet in (client, direct):
                pod_id = kubelet.run_pod(pod)
                container_id = kubelet.create(pod_id, container, pod)
                kubelet.start(container_id)
                kubelet.update(container_id, resources(cpu_shares=99))
                reports.append(kubelet.inspected(pod_id, container_id))
                end(kubelet, pod_id, container_id)
        assert reports[0] == reports[1]
        if not policy:
            assert node.points() == list(KOORDLET_HOOK_POINTS)
            assert registration.KOORDLET_EXTRA_HOOK_POINT in node.proxy.output(), "the unknown point has its warning"


@pytest.mark.slow
@on(CONTAINERD, DOCKERD)
def test_killed_engine_changes_no_hook_call(node: RealNode) -> None:
    """A stop is in progress. The container outlives containerd, and ends with dockerd.

    If the proxy notices its end before the next stop, the hook server is called then.
    """
    outlives = node.front.name == "cri"
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
            assert node.failure(lambda: stop.result(WAIT_SECONDS)) == node.front.lost
            assert answers(node.proxy.socket)
        finally:
            node.engine.launch()
    with node.client() as client:  # the first calls, without retries
        if outlives:
            assert client.pids(pod_id, container_id) == pids
            assert node.points() == [], "it was not stopped"
            client.update(container_id, resources(cpu_quota=40_000))
            assert node.points() == ["PreUpdateContainerResources"]
        end(client, pod_id, container_id)
    *stops, (pod_stop, _) = node.pop_calls()
    ends = [(hook_point, message.container_meta.id) for hook_point, message in stops]
    stopped = ("PostStopContainer", container_id)
    assert ends == [stopped] or (not outlives and ends == 2 * [stopped])
    assert pod_stop == "PostStopPodSandbox"
