"""Engines and proxies are killed while pods run (promise 8, fault matrix B1, B3)."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2
from tests.fakes import hookanswers
from tests.system.keeping import file_of, on_tmpfs, rows, scale
from tests.system.proxy import WAIT_SECONDS, answers, wait_until
from tests.system.real import CONTAINERD, CPU, DOCKERD, Kind, RealNode, end, inside, on, resources, running

pytestmark = [pytest.mark.engine, pytest.mark.slow]

GRACE_SECONDS = 3600
READY, SIGNALLED = "ready", "got a signal"
DEAF = f"""
trap 'trap "exit 0" TERM; echo {SIGNALLED}' TERM
sleep {GRACE_SECONDS} & echo {READY}
while :; do wait; done
"""
"""Handles a stop's signal, prints that, and continues. A second one ends it: dockerd ends containers at its start."""
KILLS = 5
QUOTA, CHANGED_QUOTA = 60_000, 45_000
SCALED, CHANGED_SCALED = 40_000, 30_000
SHARES = 300


@on(CONTAINERD, DOCKERD)
def test_quota_is_scaled_once_over_kills(kind: Kind, engine: Any, tmp_path: Path) -> None:
    """One container's quota is set by its create, another's by an update; updates after a kill do not contain it.

    The pod's shares, which containerd reports and does not use, are in no hook request.
    """
    with (
        on_tmpfs() as memory,
        running(kind, engine, tmp_path, originals_dir=str(memory)) as node,
        node.client() as client,
    ):
        for point in ("PreCreateContainer", "PreUpdateContainerResources"):
            node.hooks.on(point, hookanswers.echo(scale))
        of_the_pod = api_pb2.PodSandboxHookResponse(resources=api_pb2.LinuxContainerResources(cpu_shares=SHARES))
        node.hooks.on("PreRunPodSandbox", hookanswers.reply(of_the_pod))
        shares = 0 if node.front.name == "cri" else SHARES
        file, pod = file_of(memory, node.proxy.socket), node.plain_pod()
        pod_id = client.run_pod(pod)
        containers = (node.rich_container(name, cpu_quota=QUOTA) for name in ("created", "updated"))
        by_create, by_update = (client.create(pod_id, container, pod) for container in containers)
        for one in (by_create, by_update):
            client.start(one)
        client.update(by_update, resources(cpu_quota=CHANGED_QUOTA))
        expected = {by_create: [QUOTA, SCALED], by_update: [CHANGED_QUOTA, CHANGED_SCALED]}

        def stored() -> dict[str, Any]:
            return {one: pairs.get("resources.cpu_quota") for one, pairs in rows(file).items()}

        wait_until(lambda: stored() == {**expected, pod_id: None}, "they are in the file", lambda: str(rows(file)))
        for _ in range(KILLS):
            node.restart(wait_for_state=True)
            for one, (requested, scaled) in expected.items():
                client.update(one, resources(cpuset_cpus=CPU))
                ((_, update),) = node.take_calls()
                assert update.container_resources.cpu_quota == requested
                assert update.pod_resources.cpu_shares == shares
                assert inside(client, one, "cpu_quota") == scaled
        end(client, pod_id, by_create, by_update)
        wait_until(lambda: not rows(file), "the file is empty", lambda: str(rows(file)))


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
        wait_until(lambda: READY in node.written(client, pod, container_id), "the container runs")
        pids = node.pids(client, pod_id, container_id)
        node.take_calls()
        stop = caller.submit(client.stop, container_id, GRACE_SECONDS)
        wait_until(lambda: SIGNALLED in node.written(client, pod, container_id), "the engine stops it")
        node.engine.kill()
        try:
            assert node.failure(lambda: stop.result(WAIT_SECONDS)).status == node.front.lost
            assert answers(node.proxy.socket)
        finally:
            node.engine.launch()
    with node.client() as client:  # the first calls, without retries
        if outlives:
            assert node.pids(client, pod_id, container_id) == pids
            assert node.points() == [], "it was not stopped"
            client.update(container_id, resources(cpu_quota=40_000))
            assert node.points() == ["PreUpdateContainerResources"]
        end(client, pod_id, container_id)
    *stops, (pod_stop, _) = node.take_calls()
    ends = [(point, message.container_meta.id) for point, message in stops]
    stopped = ("PostStopContainer", container_id)
    assert ends == [stopped] or (not outlives and ends == 2 * [stopped])
    assert pod_stop == "PostStopPodSandbox"
