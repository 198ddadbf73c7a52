"""What was removed from a real engine, or changed there, is removed from the Store, whoever did it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.core import sync
from tests.engines.dockerd import BUSYBOX
from tests.system.proxy import ProxyInside, until
from tests.system.real import CONTAINERD, DOCKERD, Kind

pytestmark = [pytest.mark.engine, pytest.mark.slow]


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

    def known(self) -> tuple[bool, bool]:
        """Return whether pod and container are known."""
        return self.pod_id in self.proxy.store.ids(), self.container_id in self.proxy.store.ids()


@pytest.fixture
async def made(
    kind: Kind, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Made]:
    """Create them through a proxy that follows dockerd's events, or sweeps all the time."""
    if kind is CONTAINERD:
        monkeypatch.setattr(sync, "PASS_SECONDS", 0.2)
        monkeypatch.setattr(sync, "SOONEST_SECONDS", 0.05)
    engine = request.getfixturevalue(kind.engine)
    flags = {"remote_image_service_endpoint": engine.socket} if kind is CONTAINERD else {}
    inside = kind.node.front.inside(tmp_path, remote_runtime_service_endpoint=engine.socket, **flags)
    with engine.restored():
        async with inside as proxy:
            if kind is DOCKERD:
                await all_heard(engine, proxy)  # then the daemon's cgroup driver is known, too, and pods are kept
            made = await asyncio.to_thread(Made, kind, engine, proxy)
            assert made.known() == BOTH
            with made.client, made.direct:
                yield made


async def all_heard(engine: Any, inside: ProxyInside) -> None:
    """Wait until the proxy has received a later event: dockerd's events come in order.

    Twice, because the first one may be one of at most two removals that are on their way.
    """
    for _ in range(2):
        heard = inside.metrics.counted("backend_events", action="destroy")
        body = json.dumps({"Image": BUSYBOX}).encode()
        other = json.loads(await asyncio.to_thread(engine.request, "POST", "/containers/create", body))["Id"]
        await asyncio.to_thread(engine.request, "DELETE", f"/containers/{other}")
        await until(lambda: inside.metrics.counted("backend_events", action="destroy") > heard, "it is heard")  # noqa: B023


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
"""What happens to a pod with a container -> which of the two are known after all events."""


@pytest.mark.parametrize(("kind", "name", "act", "left"), WAYS, ids=[f"{kind.name}: {name}" for kind, name, *_ in WAYS])
async def test_store_forgets_what_is_gone(kind: Kind, name: str, made: Made, act: Act, left: tuple[bool, bool]) -> None:
    await asyncio.to_thread(act, made)
    if kind is DOCKERD:
        await all_heard(made.engine, made.proxy)
        assert made.known() == left
    else:
        await until(lambda: made.known() == left, "the Store has what the engine has")
