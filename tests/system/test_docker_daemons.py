"""Daemons of other kinds work alike: a minimum API version above ours, the systemd cgroup driver."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2
from tests.fakes import hookanswers, registration
from tests.fakes.hookserver import HookServer
from tests.system.docker_front import DOCKER, DockerCaller, DockerRuntime
from tests.system.fronts import POD

pytestmark = pytest.mark.slow

NEW_API = {"api": "1.51", "minimum": "1.44", "server_version": "28.3.0"}
SYSTEMD = {"cgroup_driver": "systemd"}
DAEMONS: dict[str, tuple[dict[str, str], str]] = {
    "1.41": ({}, "/v1.41"),
    "1.44 to 1.51": (NEW_API, "/v1.44"),
    "1.44 to 1.51, newest": (NEW_API, "/v1.51"),
    "systemd": (SYSTEMD, "/v1.41"),
}
"""How the daemon differs, and the version that its client has negotiated."""

SLICE = "kubepods-burstable-pod6f1c_7c9e.slice"
PATH = f"/kubepods.slice/kubepods-burstable.slice/{SLICE}"
MOVED = "/other.slice/other-deep.slice"
IN_SYSTEMD = replace(POD, cgroup_parent=PATH)


@pytest.mark.parametrize(("kind", "version"), DAEMONS.values(), ids=DAEMONS)
async def test_the_seven_points_are_told_and_a_new_proxy_tells_the_same(
    tmp_path: Path, hooks: HookServer, kind: dict[str, str], version: str
) -> None:
    """What a second proxy tells it has read by inspect: it has seen neither the pod nor the container made."""
    driver = kind.get("cgroup_driver", "cgroupfs")
    pod = IN_SYSTEMD if driver == "systemd" else POD
    first, second = (
        DOCKER.inside(tmp_path / name, remote_runtime_service_endpoint=str(tmp_path / "docker.sock"))
        for name in ("first", "second")
    )
    for proxy in (first, second):
        proxy.register("plugin.json", hooks.socket_path)
    async with DockerRuntime(str(tmp_path / "docker.sock"), **kind) as dockerd:
        async with first, DockerCaller(first.socket, version=version, driver=driver) as caller:
            pod_id = await caller.run_pod(pod)
            container_id = await caller.create(pod_id)
            await caller.act("start", container_id)
            await caller.update(container_id)
            first_told = {call.point.name: call.request for call in hooks.calls}
        async with second, DockerCaller(second.socket, version=version, driver=driver) as caller:
            hooks.calls.clear()
            name = dockerd.container(container_id).name
            for reference in (container_id[:12], name):
                await caller.update(reference)
            await caller.act("stop", container_id)
            await caller.act("stop_pod", pod_id)
    assert [call.point.name for call in hooks.calls] == [
        "PreUpdateContainerResources",
        "PreUpdateContainerResources",
        "PostStopContainer",
        "PostStopPodSandbox",
    ]
    assert {*first_told, *(call.point.name for call in hooks.calls)} == set(registration.ALL_POINTS)
    by_prefix, by_name, stopped, pod_stopped = (call.request for call in hooks.calls)
    assert by_prefix == by_name == first_told["PreUpdateContainerResources"]
    assert stopped == first_told["PreUpdateContainerResources"]
    assert pod_stopped == first_told["PreRunPodSandbox"]
    assert pod_stopped.cgroup_parent == stopped.pod_cgroup_parent == pod.cgroup_parent


# ---- the systemd driver


async def play(tmp_path: Path, hooks: HookServer) -> tuple[list[bytes], list[bytes]]:
    """Run a pod with a container; return both creates as they were sent, and as dockerd got them."""
    proxy = DOCKER.inside(tmp_path)
    proxy.register("plugin.json", hooks.socket_path)
    async with (
        DockerRuntime(str(proxy.runtime), **SYSTEMD) as dockerd,
        proxy,
        DockerCaller(proxy.socket, driver="systemd") as caller,
    ):
        sent = [caller.pod_request(IN_SYSTEMD)]
        pod_id = caller.id_in("run_pod", await caller.send("run_pod", sent[0]))
        caller.pods[pod_id] = IN_SYSTEMD
        sent.append(caller.create_request(pod_id))
        await caller.send("create", sent[1])
        return sent, dockerd.asked("run_pod") + dockerd.asked("create")


def parents(requests: list[bytes]) -> list[Any]:
    """Return the cgroup parent of each create."""
    return [json.loads(request.partition(b"\r\n\r\n")[2])["HostConfig"]["CgroupParent"] for request in requests]


@pytest.mark.parametrize("answer", [hookanswers.empty(), hookanswers.echo()], ids=["empty", "echo"])
async def test_hook_servers_are_told_the_whole_path_and_dockerd_gets_the_bytes_that_came(
    tmp_path: Path, hooks: HookServer, answer: hookanswers.Answer
) -> None:
    hooks.default = answer
    sent, came = await play(tmp_path, hooks)
    assert came == sent
    assert parents(came) == [SLICE, SLICE]
    (pod,), (container,) = hooks.calls_of("PreRunPodSandbox"), hooks.calls_of("PreCreateContainer")
    assert (pod.request.cgroup_parent, container.request.pod_cgroup_parent) == (PATH, PATH)


async def test_a_path_that_a_hook_server_sets_for_a_pod_is_dockerds_slice_in_both_creates(
    tmp_path: Path, hooks: HookServer
) -> None:
    hooks.on("PreRunPodSandbox", hookanswers.reply(api_pb2.PodSandboxHookResponse(cgroup_parent=MOVED)))
    _, came = await play(tmp_path, hooks)
    assert parents(came) == ["other-deep.slice", "other-deep.slice"]
    assert hooks.calls_of("PreCreateContainer")[0].request.pod_cgroup_parent == MOVED


async def test_a_path_that_a_hook_server_sets_for_a_container_is_dockerds_slice_in_its_create(
    tmp_path: Path, hooks: HookServer
) -> None:
    answer = api_pb2.ContainerResourceHookResponse(pod_cgroup_parent=MOVED)
    hooks.on("PreCreateContainer", hookanswers.reply(answer))
    _, came = await play(tmp_path, hooks)
    assert parents(came) == [SLICE, "other-deep.slice"]
