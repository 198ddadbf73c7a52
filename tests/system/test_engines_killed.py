"""Engines and proxies are killed while pods run; what is removed at an engine is removed from the Store.

Promise 8, fault matrix B1, B3.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.core import sync
from runtimeproxy.hookapi import api_pb2
from tests.engines.dockerd import BUSYBOX
from tests.fakes import hookanswers
from tests.fakes.cri_pb2 import LinuxContainerResources
from tests.system import hook_requests
from tests.system.keeping import file_of, on_tmpfs, rows, scale
from tests.system.node import CPU, end, inside
from tests.system.proxy import WAIT_SECONDS, ProxyInside, answers, until, wait_until
from tests.system.real import CONTAINERD, DOCKERD, OLD_SHIM, Kind, RealNode, on, running

pytestmark = [pytest.mark.engine, pytest.mark.slow]

GRACE_SECONDS = 3600
UPDATE = LinuxContainerResources(cpu_quota=40_000)
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


@on(CONTAINERD, DOCKERD, OLD_SHIM)
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
        of_pod = api_pb2.PodSandboxHookResponse(resources=api_pb2.LinuxContainerResources(cpu_shares=SHARES))
        node.hooks.on("PreRunPodSandbox", hookanswers.reply(of_pod))
        shares = 0 if node.front.name == "cri" else SHARES
        file, pod = file_of(memory, node.proxy.socket), node.plain_pod()
        pod_id = client.run_pod(pod)
        containers = (node.rich_container(name, cpu_quota=QUOTA) for name in ("created", "updated"))
        created, updated = (client.create(pod_id, container, pod) for container in containers)
        for one in (created, updated):
            client.start(one)
        client.update(updated, LinuxContainerResources(cpu_quota=CHANGED_QUOTA))
        expected = {created: [QUOTA, SCALED], updated: [CHANGED_QUOTA, CHANGED_SCALED]}
        wait_until(
            lambda: (
                {one: pairs.get("resources.cpu_quota") for one, pairs in rows(file).items()}
                == {**expected, pod_id: None}
            ),
            "they are in the file",
            lambda: str(rows(file)),
        )
        for _ in range(KILLS):
            node.restart(wait_for_state=True)
            for one, (requested, scaled) in expected.items():
                client.update(one, LinuxContainerResources(cpuset_cpus=CPU))
                ((_, update),) = node.take_calls()
                assert update.container_resources.cpu_quota == requested
                assert update.pod_resources.cpu_shares == shares
                assert inside(client, one, "cpu_quota") == scaled
        end(client, pod_id, created, updated)
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
        wait_until(lambda: READY in node.written(pod, container_id), "the container runs")
        pids = node.pids(client, pod_id, container_id)
        node.take_calls()
        stop = caller.submit(client.stop, container_id, GRACE_SECONDS)
        wait_until(lambda: SIGNALLED in node.written(pod, container_id), "the engine stops it")
        node.engine.kill()
        try:
            assert node.failure(lambda: stop.result(WAIT_SECONDS)).status == node.front.lost
            assert answers(node.proxy.socket)
        finally:
            node.engine.launch()
    ended = hook_requests.of_container(pod, container, container_id)
    with node.client() as client:  # the first calls, without retries
        if outlives:
            assert node.pids(client, pod_id, container_id) == pids
            assert node.take_calls() == [], "it was not stopped"
            client.update(container_id, UPDATE)
            ended = hook_requests.of_container(pod, hook_requests.updated(container, UPDATE), container_id)
            assert node.take_calls() == [("PreUpdateContainerResources", ended)]
        end(client, pod_id, container_id)
    *stops, pod_stop = node.take_calls()
    stopped = ("PostStopContainer", ended)
    assert stops == [stopped] or (not outlives and stops == 2 * [stopped])
    assert pod_stop == ("PostStopPodSandbox", hook_requests.of_pod(pod))


# ---- removals and changes that the proxy only notices


class Made:
    """A pod and its container, created through the proxy; ``direct`` is a client on the engine's own socket."""

    def __init__(self, kind: Kind, engine: Any, proxy: Any) -> None:
        self.engine, self.proxy = engine, proxy
        node: Any = kind.node(proxy, proxy, engine, kind.speaks)  # there is no hook server
        self.client, self.direct = node.client(), node.direct()
        self.pod, self.container = node.rich_pod(), node.rich_container()
        self.pod_id = self.client.run_pod(self.pod)
        self.container_id = self.client.create(self.pod_id, self.container, self.pod)
        self.name = "" if kind is CONTAINERD else self.client.shim.inspect(self.container_id)["Name"].removeprefix("/")

    def stored(self) -> tuple[bool, bool]:
        """Return whether the Store has the pod, and the container."""
        return self.pod_id in self.proxy.store.ids(), self.container_id in self.proxy.store.ids()


@pytest.fixture
async def made(
    kind: Kind, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Made]:
    """Create them through a proxy that follows dockerd's events, or lists containerd's state all the time."""
    if kind is CONTAINERD:
        monkeypatch.setattr(sync, "PASS_SECONDS", 0.2)
        monkeypatch.setattr(sync, "SOONEST_SECONDS", 0.05)
    engine = request.getfixturevalue(kind.engine)
    flags = {"remote_image_service_endpoint": engine.socket} if kind is CONTAINERD else {}
    inside = kind.node.front.inside(tmp_path, remote_runtime_service_endpoint=engine.socket, **flags)
    with engine.restored():
        async with inside as proxy:
            if kind is DOCKERD:
                await all_events_received(engine, proxy)  # then it has the daemon's cgroup driver, too, and stores pods
            made = await asyncio.to_thread(Made, kind, engine, proxy)
            assert made.stored() == BOTH
            with made.client, made.direct:
                yield made


async def all_events_received(engine: Any, inside: ProxyInside) -> None:
    """Wait until the proxy has received a later event: dockerd's events are in order.

    Twice, because the first one may be an event of at most two pending removals.
    """
    for _ in range(2):
        received = inside.metrics.counted("backend_events", action="destroy")
        body = json.dumps({"Image": BUSYBOX}).encode()
        container = json.loads(await asyncio.to_thread(engine.request, "POST", "/containers/create", body))["Id"]
        await asyncio.to_thread(engine.request, "DELETE", f"/containers/{container}")
        await until(lambda: inside.metrics.counted("backend_events", action="destroy") > received, "its event")  # noqa: B023


def removes_by_ctr(made: Made) -> None:
    """Remove without CRI, which notices at the next start of containerd at the latest."""
    made.engine.ctr("containers", "rm", made.container_id)
    made.engine.terminate()
    made.engine.launch()


def removes_the_pod(made: Made) -> None:
    made.direct.stop_pod(made.pod_id)
    made.direct.remove_pod(made.pod_id)


def fails_to_remove(made: Made) -> None:
    made.client.start(made.container_id)
    made.client.docker("rm", made.name, exit_code=1)


BOTH, POD, NOTHING = (True, True), (True, False), (False, False)
Act = Callable[[Made], object]
WAYS: list[tuple[Kind, str, Act, tuple[bool, bool]]] = [
    (CONTAINERD, "crictl", lambda made: made.direct.remove(made.container_id), POD),
    (CONTAINERD, "ctr", removes_by_ctr, POD),
    (CONTAINERD, "crictl, the pod", removes_the_pod, NOTHING),
    (DOCKERD, "rm of both", lambda made: made.client.docker("rm", "-f", made.name, made.pod_id[:12]), NOTHING),
    (DOCKERD, "direct rm of both", lambda made: made.direct.docker("rm", "-f", made.name, made.pod_id), NOTHING),
    (DOCKERD, "direct prune", lambda made: made.direct.docker("container", "prune", "-f"), POD),
    (DOCKERD, "direct update", lambda made: made.direct.docker("update", "--cpu-shares", "99", made.name), POD),
    (DOCKERD, "rename", lambda made: made.client.docker("rename", made.name, "another"), BOTH),
    (DOCKERD, "restart", lambda made: made.client.docker("restart", "-t", "0", made.name), BOTH),
    (DOCKERD, "kill", lambda made: made.direct.docker("kill", made.pod_id), BOTH),
    (DOCKERD, "rm that fails", fails_to_remove, BOTH),
]
"""Acts on a pod with a container, and which of the two the Store has after all events."""


@pytest.mark.parametrize(
    ("kind", "act", "stored"),
    [pytest.param(kind, act, stored, id=f"{kind.name}: {name}") for kind, name, act, stored in WAYS],
)
async def test_store_has_what_the_engine_has(kind: Kind, made: Made, act: Act, stored: tuple[bool, bool]) -> None:
    await asyncio.to_thread(act, made)
    if kind is DOCKERD:
        await all_events_received(made.engine, made.proxy)
        assert made.stored() == stored
    else:
        await until(lambda: made.stored() == stored, "the Store has what the engine has")
