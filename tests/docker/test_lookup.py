"""An inspected container gives the same record as its create; those without a pod are remembered (relay-rules B10)."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.core.call import Unreadable
from runtimeproxy.core.sync import Listed
from runtimeproxy.docker import sync as module
from runtimeproxy.docker.messages import Driver
from runtimeproxy.docker.sync import Lookup
from runtimeproxy.errors import BackendError
from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Subject
from tests.docker.bodies import CONTAINER, PARENT, POD
from tests.docker.node import INSPECT, Node
from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.dockerd_wire import Injection

INFO, IMAGE = "GET /info", "GET /images/{ref}/json"
PLAIN_BODY = {"Image": BUSYBOX_IMAGE}
NOBODY = "f" * 64


class Rig(Node):
    """A node that knows nothing; its daemon has a pod with a container."""

    pod_id = container_id = ""

    def make(self, name: str, body: dict[str, Any]) -> str:
        return self.dockerd.state.create(name, body).id

    @property
    def lookup(self) -> Lookup:
        return self.front._lookup

    def answers(self, route: str, body: bytes) -> None:
        raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        self.dockerd.inject(route, Injection(raw=raw))

    def queried(self, route: str) -> int:
        return len(self.dockerd.requests(route))

    async def read(self, reference: str) -> ContainerInfo:
        found = await self.lookup.container(reference)
        assert found is not None
        assert found.container is not None
        return found.container.effective


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(tmp_path, follows=False) as rig:
        rig.pod_id, rig.container_id = await rig.made()
        rig.forget()
        yield rig


async def test_what_the_store_has_is_not_changed(rig: Rig) -> None:
    pod = PodRecord(PodInfo(id=rig.pod_id, name="original"), PodInfo(id=rig.pod_id, name="effective"))
    rig.store.commit(Subject(pod))
    assert await rig.lookup.container(rig.pod_id[:12]) == Subject(pod)
    assert (await rig.lookup.container(rig.container_id)).pod == pod
    info = ContainerInfo(id=rig.container_id, pod_id=rig.pod_id, name="known")
    known = Subject(pod, ContainerRecord(info, info))
    rig.store.commit(known)
    assert await rig.lookup.container(rig.container_id[:12]) == rig.lookup.known(rig.container_id) == known
    assert rig.lookup.known(rig.container_id[:12]) is None
    assert rig.queried(INSPECT) == 3
    rig.store.forget(rig.container_id)
    hooked = PodInfo(id=rig.pod_id, cgroup_parent="/hooked")
    rig.store.commit(Subject(PodRecord(replace(hooked, cgroup_parent="/requested"), hooked)))
    assert (await rig.read(rig.container_id)).cgroup_parent == PARENT, "it is the container's own"


@pytest.mark.parametrize("reference", ["nobody", NOBODY, ".."])
async def test_what_the_daemon_does_not_have_is_none(rig: Rig, reference: str) -> None:
    assert await rig.lookup.read(reference) is await rig.lookup.pod(reference) is None
    del rig.dockerd.state.containers[rig.pod_id]
    assert await rig.lookup.read(rig.container_id) is await rig.lookup.pod(rig.container_id) is None
    assert not rig.lookup.is_plain(reference)
    assert not rig.lookup.is_plain(rig.container_id)


async def test_pod_without_a_cgroup_parent_runs_where_its_container_does(rig: Rig) -> None:
    """An unknown parent is None; the empty one is the daemon's default."""
    pod = (await rig.fetch("GET", f"/containers/{rig.pod_id}/json")).json
    del pod["HostConfig"]["CgroupParent"]
    rig.answers(INSPECT, json.dumps(pod).encode())
    found = await rig.lookup.container(rig.pod_id)
    assert found.pod.effective.cgroup_parent is None
    rig.store.commit(found)
    del rig.dockerd.injections[INSPECT]
    assert (await rig.lookup.container(rig.container_id)).pod.effective.cgroup_parent == PARENT


async def test_pods_and_their_containers_are_listed_apart_and_nothing_else(rig: Rig) -> None:
    rig.make("odd", {**PLAIN_BODY, "Labels": {"io.kubernetes.docker.type": "something else"}})
    assert await rig.lookup.listed() == Listed([rig.pod_id], [rig.container_id])


async def test_image_is_read_once_for_all_its_containers(rig: Rig) -> None:
    for number in range(3):
        body = bodies.container_body(POD, replace(CONTAINER, attempt=number + 5), rig.pod_id, "cgroupfs")
        again = rig.make(f"again{number}", body)
        assert (await rig.read(again)).envs == {"A": "1", "B": "2"}, "without the image's PATH"
    assert rig.queried(IMAGE) == 2, "the container's image, and the sandbox's"
    rig.dockerd.state.images.by_name.clear()
    rig.lookup._images.clear()
    for _ in range(2):
        assert (await rig.read(rig.container_id)).envs == {"A": "1", "B": "2", "PATH": "/bin"}
    assert rig.queried(IMAGE) == 6


async def test_memories_of_images_and_plain_containers_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IMAGES_REMEMBERED", 1)
    monkeypatch.setattr(module, "REMEMBERED", 2)
    for _ in range(2):
        assert await rig.lookup.pod(rig.pod_id) is not None
        await rig.read(rig.container_id)
    assert rig.queried(IMAGE) > 2
    plain = [rig.make(f"plain{number}", PLAIN_BODY) for number in range(3)]
    for container_id in plain:
        assert await rig.lookup.read(container_id) is None
    assert [rig.lookup.is_plain(container_id) for container_id in plain] == [False, True, True]


async def test_b10_plain_container_is_cached_by_its_full_id(rig: Rig) -> None:
    rig.dockerd.inject(INFO, Injection(status=500))
    rig.dockerd.inject(IMAGE, Injection(status=500))
    plain = rig.make("plain", PLAIN_BODY)
    assert await rig.lookup.read("plain") is None
    assert (rig.lookup.is_plain(plain), rig.lookup.is_plain("plain")) == (True, False)
    assert (rig.queried(INFO), rig.queried(IMAGE)) == (0, 0)
    for _ in range(2):
        rig.lookup.forget_plain(plain)
        assert not rig.lookup.is_plain(plain)


@pytest.mark.parametrize("body", [b"{}", b'{"Id":1}', b'{"Config":7,"n":"io.kubernetes.docker.type"}'])
async def test_inspect_without_labels_is_no_pods(rig: Rig, body: bytes) -> None:
    rig.answers(INSPECT, body)
    assert await rig.lookup.read(rig.container_id) is None
    with pytest.raises(Unreadable):
        await rig.lookup.read("a-name")
    assert (rig.lookup.is_plain(rig.container_id), rig.lookup.is_plain("a-name")) == (True, False)


FAILING = [(INFO, b'{"CgroupDriver":1}', Unreadable), (INFO, None, BackendError), (INSPECT, None, BackendError)]


@pytest.mark.parametrize(("route", "reply", "error"), FAILING)
async def test_failing_daemon_is_an_error_and_queried_again(
    rig: Rig, route: str, reply: bytes | None, error: type[Exception]
) -> None:
    if reply is not None:
        rig.answers(route, reply)
    else:
        rig.dockerd.inject(route, Injection(status=500))
    for fetch in (rig.lookup.read(rig.container_id), rig.lookup.read(rig.pod_id), rig.lookup.pod(rig.pod_id)):
        with pytest.raises(error):
            await fetch
    assert rig.lookup.driver is None
    rig.dockerd.injections.clear()
    before = rig.queried(INFO)
    for _ in range(2):
        assert await rig.lookup.known_driver() is Driver.CGROUPFS
    assert rig.queried(INFO) == before + 1
    await rig.lookup.learn_driver()
    assert rig.queried(INFO) == before + 2, "it is queried once until it changes"
