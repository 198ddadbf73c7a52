"""Hook servers with real engines: their calls, their changes from the first instruction on, and failures by policy.

Fault matrix H12. Each front's calls, field by field, with fakes: tests/test_contract.py; what a call that is refused
sends: tests/core and test_policy_exact. An unmodified koordlet registers, and echoes (hook-api, "Registration files").
"""

from pathlib import Path
from typing import Any

import grpc
import pytest

from runtimeproxy.hookapi import api_pb2
from tests.control import call
from tests.engines import cgroups
from tests.fakes import hookanswers, registration
from tests.fakes.cri_pb2 import PodSandboxConfig
from tests.fakes.dockershim_bodies import Values
from tests.fakes.hookanswers import Answer, reply
from tests.system.fronts import SKIP
from tests.system.hook_requests import of_container, of_pod
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
    resources,
    resources_answer,
    running,
    updated,
)

pytestmark = pytest.mark.engine

EVERY = on(CONTAINERD, OLD_CRI, DOCKERD)
UPDATE = resources(cpu_shares=400, memory_limit_in_bytes=48 * MIB)


@EVERY
def test_every_hook_point_gets_whole_subject(node: RealNode, client: Any) -> None:
    """A proxy that was killed and restarted reads pods and containers, and does not affect them."""
    pod, container = node.rich_pod(), node.rich_container(oom_score_adj=900, cpuset_cpus=CPU, cpuset_mems="0")
    pod_id = client.run_pod(pod)
    assert node.take_calls() == [("PreRunPodSandbox", of_pod(pod))]
    container_id = client.create(pod_id, container, pod)
    assert node.take_calls() == [("PreCreateContainer", of_container(pod, container))]
    client.start(container_id)
    created = of_container(pod, container, container_id)
    assert node.take_calls() == [("PreStartContainer", created), ("PostStartContainer", created)]
    client.update(container_id, UPDATE)
    changed = of_container(pod, node.sent(updated(container, UPDATE)), container_id)
    assert node.take_calls() == [("PreUpdateContainerResources", changed)]
    pids = node.pids(client, pod_id, container_id)
    node.restart()
    assert node.pids(client, pod_id, container_id) == pids
    node.hooks.on("PostStopContainer", hookanswers.status(grpc.StatusCode.INTERNAL))
    client.stop(container_id)
    node.hooks.answers.clear()
    client.stop(container_id)
    assert node.take_calls() == [("PostStopContainer", changed)] * 2, "the call is repeated after a failure"
    client.stop(container_id)
    assert node.take_calls() == [], "no call after a successful one"
    node.restart()
    client.stop_pod(pod_id)
    client.stop_pod(pod_id)
    client.remove(container_id)
    client.remove_pod(pod_id)
    ends = [("PostStopContainer", changed), ("PostStopPodSandbox", of_pod(pod))]
    assert node.take_calls() == ends, "one call each in a process"


AT_CREATE: Values = {"cpu_shares": 300, "cpu_quota": 20000, "cpuset_cpus": CPU, "memory_limit_in_bytes": 48 * MIB}
AT_START: Values = {"cpu_shares": 700, "cpu_quota": -1}
STARTED: Values = {"cpu_period": 100000, **AT_CREATE, **AT_START}
KUBELETS_UPDATE: Values = {"cpu_shares": 400, "memory_limit_in_bytes": 96 * MIB}
AT_UPDATE: Values = {"cpu_quota": 30000, "cpuset_cpus": CPU}
UPDATED: Values = {**STARTED, **KUBELETS_UPDATE, **AT_UPDATE}
ENVIRONMENT = {"LEVEL": "debug", "DEVICES": "0,1", "SENTENCE": "two words = three", "EMPTY": "", "PATH": "/bin"}


@EVERY
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
    node.hooks.on("PreStartContainer", resources_answer(**AT_START))
    node.hooks.on("PreUpdateContainerResources", resources_answer(**AT_UPDATE))
    changed_pod = PodSandboxConfig.FromString(pod.SerializeToString())
    changed_pod.labels.update(for_pod.labels)
    changed_pod.annotations.update(for_pod.annotations)
    changed_pod.linux.cgroup_parent = parent
    if node.front.name == "docker":  # containerd does not use them
        changed_pod.linux.resources.cpu_shares = 300
    changed = updated(container, resources(**AT_CREATE))
    changed.annotations.update(for_container.container_annotations)
    for key, value in for_container.container_envs.items():
        changed.envs.add(key=key, value=value.encode())  # the last value of a name is effective
    changed = node.sent(changed)

    pod_id = client.run_pod(pod)
    assert node.take_calls() == [("PreRunPodSandbox", of_pod(pod))]
    assert node.pod_texts(client, pod_id) == (changed_pod.labels, changed_pod.annotations)
    assert cgroups.read(f"{parent}/{pod_id}", "cpu_shares") == (300 if node.front.name == "docker" else 2)
    assert cgroups.processes(parent)
    assert not cgroups.processes(pod.linux.cgroup_parent)

    container_id = client.create(pod_id, container, pod)
    assert node.take_calls() == [("PreCreateContainer", of_container(changed_pod, container))]
    assert node.annotations(client, container_id) == changed.annotations

    client.start(container_id)
    started = of_container(changed_pod, updated(changed, resources(**AT_START)), container_id)
    created = of_container(changed_pod, changed, container_id)
    assert node.take_calls() == [("PreStartContainer", created), ("PostStartContainer", started)]
    first = node.first_act(client, pod, container_id)
    for setting, value in STARTED.items():
        assert cgroups.parse(setting, first[setting]) == cgroups.expected(setting, value), setting
    assert {name: first.get(name) for name in ENVIRONMENT} == ENVIRONMENT
    assert_in_force(client, container_id, parent, STARTED)

    client.update(container_id, resources(**KUBELETS_UPDATE))
    # A hook that scales must scale the kubelet's own values, not its earlier results.
    kubelets = updated(container, resources(**KUBELETS_UPDATE))
    changed.linux.resources.CopyFrom(kubelets.linux.resources)
    update = of_container(changed_pod, node.sent(changed), container_id)
    assert node.take_calls() == [("PreUpdateContainerResources", update)]
    assert_in_force(client, container_id, parent, UPDATED)

    end(client, pod_id, container_id)
    ended = of_container(changed_pod, node.sent(updated(changed, resources(**UPDATED))), container_id)
    assert node.take_calls() == [("PostStopContainer", ended), ("PostStopPodSandbox", of_pod(changed_pod))]


@on(CONTAINERD, DOCKERD)
def test_value_that_the_machine_lacks_costs_the_container(node: RealNode, client: Any) -> None:
    """containerd fails its start, dockerd its create: blast.py, "not here"."""
    node.hooks.on("PreCreateContainer", resources_answer(cpuset_cpus="1000"))
    pod = node.plain_pod()
    pod_id = client.run_pod(pod)
    node.failure(lambda: client.start(client.create(pod_id, node.rich_container(), pod)))
    events = call(node.proxy.admin, "events", kind="failed")["events"]
    operation = "StartContainer" if node.front.name == "cri" else "CreateContainer"
    assert [event["operation"] for event in events] == [operation]
    assert f"hook servers had set resources.cpuset_cpus ({PLUGIN})" in node.proxy.output()


HANGS = hookanswers.hang()
QUIET: dict[str, tuple[Answer | None, str]] = {
    "dead": (None, "Ignore"),
    "hangs": (HANGS, "Ignore"),
    "dead, and the pod is its own": (None, "Fail"),
    "koordlet": (hookanswers.koordlet(), ""),
}
"""Hook servers that set nothing: the answer, None without a process, and the policy, "" as koordlet registers."""
KOORDLETS = ("PreRunPodSandbox", "PreCreateContainer", "PreUpdateContainerResources")
"""The points in the registration of a koordlet with its defaults, except the one that the protocol lacks."""


@EVERY
@pytest.mark.parametrize(("answer", "policy"), QUIET.values(), ids=QUIET)
def test_pod_runs_as_without_a_hook_server(
    kind: Kind, engine: Any, tmp_path: Path, answer: Answer | None, policy: str
) -> None:
    """Under Fail with the skip label, as for the hook server's own pod."""

    def prepare(node: RealNode) -> None:
        node.hooks.default = answer
        if not policy:
            registration.write_as_koordlet(node.proxy.registrations, node.hooks.socket_path, KOORDLETS)
        elif answer is None:
            node.proxy.register(f"{PLUGIN}.json", node.proxy.path / "nobody.sock", policy=policy)
        else:
            node.register(policy=policy, timeout="100ms")

    with running(kind, engine, tmp_path, prepare) as node:
        pod, container = node.rich_pod(), node.rich_container(cpuset_cpus=CPU)
        pod.labels.update(SKIP if policy == "Fail" else {})
        reports = []
        with node.client() as client, node.direct() as direct:
            for each in (client, direct):
                pod_id = each.run_pod(pod)
                container_id = each.create(pod_id, container, pod)
                each.start(container_id)
                each.update(container_id, resources(cpu_shares=99))
                reports.append(node.inspected(each, pod_id, container_id))
                end(each, pod_id, container_id)
        assert reports[0] == reports[1]
        if not policy:
            assert [point for point, _ in node.take_calls()] == list(KOORDLETS)
            assert registration.KOORDLET_EXTRA_POINT in node.proxy.output(), "the unknown point has its warning"
