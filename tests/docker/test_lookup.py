"""What the daemon tells of a container is the record that its create would have made; what is plain is remembered
(relay-rules B10).
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.call import Unreadable
from runtimeproxy.docker import lookup as module
from runtimeproxy.docker.backend import Backend
from runtimeproxy.docker.cgroup import Driver
from runtimeproxy.docker.lookup import Lookup
from runtimeproxy.errors import BackendError
from runtimeproxy.model import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Resources, Subject
from runtimeproxy.store import Store
from runtimeproxy.sync import Listed
from tests.docker.node import CONTAINER, INSPECT, MIB, PARENT, POD, SYSTEMD_PARENT
from tests.engines.images import BUSYBOX_IMAGE, PAUSE_IMAGE
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.dockerd_received import Injection
from tests.fakes.dockerd_structs import go_json

INFO, IMAGE = "GET /info", "GET /images/{ref}/json"


class Rig:
    """A lookup on a fake daemon that has a pod with a container."""

    def __init__(self, dockerd: FakeDockerd, pod: bodies.Pod = POD) -> None:
        self.dockerd = dockerd
        self.store = Store()
        self.backend = Backend(dockerd.socket_path)
        self.lookup = Lookup(self.backend, self.store)
        driver = dockerd.state.cgroup_driver
        self.pod_id = self.create(bodies.sandbox_name(pod), bodies.sandbox_body(pod, PAUSE_IMAGE, driver))
        body = bodies.container_body(pod, CONTAINER, self.pod_id, driver)
        self.container_id = self.create(bodies.container_name(pod, CONTAINER), body)

    def create(self, name: str, body: dict[str, Any]) -> str:
        return self.dockerd.state.create(name, go_json(body), body).id

    def asked(self, route: str) -> int:
        return len(self.dockerd.requests(route))

    async def subject(self, reference: str) -> Subject:
        found = await self.lookup.read(reference)
        assert found is not None
        return found[1]


@pytest.fixture(params=["cgroupfs", "systemd"])
async def either(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """A rig on each cgroup driver."""
    pod = replace(POD, cgroup_parent=SYSTEMD_PARENT) if request.param == "systemd" else POD
    async with FakeDockerd(str(tmp_path / "docker.sock"), cgroup_driver=request.param) as dockerd:
        rig = Rig(dockerd, pod)
        yield rig
        await rig.backend.close()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with FakeDockerd(str(tmp_path / "docker.sock")) as dockerd:
        rig = Rig(dockerd)
        yield rig
        await rig.backend.close()


def told_pod(rig: Rig, parent: str = PARENT) -> PodInfo:
    labels = {
        "app": "web",
        "io.kubernetes.pod.name": "web-0",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": "6f1c7c9e",
    }
    return PodInfo(
        id=rig.pod_id,
        name="web-0",
        uid="6f1c7c9e",
        namespace="default",
        attempt=1,
        labels=labels,
        annotations={"note": "pod"},
        cgroup_parent=parent,
    )


# -- records -----------------------------------------------------------------------------------------------------------


async def test_a_pod_and_its_container_are_read_as_they_were_asked_for(either: Rig) -> None:
    systemd = either.dockerd.state.cgroup_driver == "systemd"
    pod = told_pod(either, SYSTEMD_PARENT if systemd else PARENT)
    assert await either.lookup.read(either.pod_id) == (either.pod_id, Subject(PodRecord(pod, pod)))
    found = await either.subject(either.container_id)
    assert found.pod == PodRecord(pod, pod)
    assert found.container is not None
    container = found.container.effective
    assert found.container.original is container
    resources = Resources(
        cpu_shares=1024, memory_limit_in_bytes=64 * MIB, memory_swap_limit_in_bytes=64 * MIB, cpuset_cpus="0-1"
    )
    assert (container.id, container.pod_id, container.name, container.attempt) == (
        either.container_id,
        either.pod_id,
        "main",
        2,
    )
    assert (container.envs, container.resources) == ({"A": "1", "B": "2"}, resources), "without the image's PATH"
    assert (container.annotations["note"], container.cgroup_parent) == ("container", "")
    assert either.store.counts() == (0, 0), "what is read is kept by the call, if the daemon agrees to it"


async def test_what_the_store_knows_stands(rig: Rig) -> None:
    pod = PodRecord(PodInfo(id=rig.pod_id, name="original"), PodInfo(id=rig.pod_id, name="effective"))
    rig.store.commit(Subject(pod))
    assert await rig.subject(rig.pod_id[:12]) == Subject(pod)
    assert (await rig.subject(rig.container_id)).pod == pod
    info = ContainerInfo(id=rig.container_id, pod_id=rig.pod_id, name="known")
    rig.store.commit(Subject(pod, ContainerRecord(info, info)))
    assert await rig.subject(rig.container_id[:12]) == Subject(pod, ContainerRecord(info, info))
    assert rig.lookup.known(rig.container_id) == Subject(pod, ContainerRecord(info, info))
    assert rig.lookup.known(rig.container_id[:12]) is None
    assert rig.asked(INSPECT) == 3


async def test_a_container_whose_pod_is_known_alone_has_a_parent_of_its_own_if_it_differs(rig: Rig) -> None:
    hooked = PodInfo(id=rig.pod_id, cgroup_parent="/hooked")
    rig.store.commit(Subject(PodRecord(replace(hooked, cgroup_parent="/asked"), hooked)))
    found = await rig.subject(rig.container_id)
    assert found.container is not None
    assert found.container.effective.cgroup_parent == PARENT


@pytest.mark.parametrize("reference", ["nobody", "", "f" * 64, ".", ".."])
async def test_what_the_daemon_does_not_have_is_none(rig: Rig, reference: str) -> None:
    assert await rig.lookup.read(reference) is None
    assert await rig.lookup.pod(reference) is None
    assert not rig.lookup.is_plain(reference)


async def test_a_container_whose_sandbox_is_gone_or_no_sandbox_is_nobodys(rig: Rig) -> None:
    del rig.dockerd.state.containers[rig.pod_id]
    assert await rig.lookup.read(rig.container_id) is None
    assert not rig.lookup.is_plain(rig.container_id), "it is a pod's all the same"
    assert await rig.lookup.pod(rig.container_id) is None


# -- for the sync ------------------------------------------------------------------------------------------------------


async def test_pods_and_their_containers_are_listed_apart_and_nothing_else(rig: Rig) -> None:
    rig.create("plain", {"Image": BUSYBOX_IMAGE})
    rig.create("odd", {"Image": BUSYBOX_IMAGE, "Labels": {"io.kubernetes.docker.type": "something else"}})
    assert await rig.lookup.listed() == Listed([rig.pod_id], [rig.container_id])


async def test_a_container_is_read_with_its_pod_by_its_id(rig: Rig) -> None:
    found = await rig.lookup.container(rig.container_id)
    assert found == await rig.subject(rig.container_id)
    assert await rig.lookup.container("f" * 64) is None
    plain = rig.create("plain", {"Image": BUSYBOX_IMAGE})
    assert await rig.lookup.container(plain) is None


async def test_an_image_is_read_once_for_all_containers_that_are_made_of_it(rig: Rig) -> None:
    for number in range(3):
        body = bodies.container_body(POD, replace(CONTAINER, attempt=number + 5), rig.pod_id, "cgroupfs")
        found = await rig.lookup.container(rig.create(f"again{number}", body))
        assert found is not None
        assert found.container is not None
        assert found.container.effective.envs == {"A": "1", "B": "2"}, "without the image's PATH"
    assert rig.asked(IMAGE) == 2, "the container's image, and the sandbox's"
    rig.dockerd.state.images.by_name.clear()
    assert (await rig.subject(rig.container_id)).container is not None
    assert rig.asked(IMAGE) == 2


async def test_the_memory_of_images_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IMAGES_REMEMBERED", 1)
    for _ in range(2):
        assert await rig.lookup.pod(rig.pod_id) is not None
        assert (await rig.subject(rig.container_id)).container is not None
    assert rig.asked(IMAGE) > 2
    assert len(rig.lookup._images) == 1


async def test_an_image_that_is_gone_is_asked_for_each_time(rig: Rig) -> None:
    rig.dockerd.state.images.by_name.clear()
    for _ in range(2):
        await rig.lookup.pod(rig.pod_id)
    assert rig.asked(IMAGE) == 2


async def test_what_limits_a_container_now_is_read(rig: Rig) -> None:
    rig.dockerd.state.update(rig.container_id, {"CpuShares": 7})
    found = await rig.lookup.resources(rig.container_id)
    assert found is not None
    assert (found.cpu_shares, found.memory_limit_in_bytes) == (7, 64 * MIB)
    assert await rig.lookup.resources(rig.pod_id) is None
    assert await rig.lookup.resources("f" * 64) is None


# -- what is no pod's --------------------------------------------------------------------------------------------------


async def test_what_is_no_pods_is_remembered_by_its_full_id_and_nothing_more_is_asked(rig: Rig) -> None:
    rig.dockerd.inject(INFO, Injection(status=500))
    rig.dockerd.inject(IMAGE, Injection(status=500))
    plain = rig.create("plain", {"Image": BUSYBOX_IMAGE})
    assert await rig.lookup.read("plain") is None
    assert rig.lookup.is_plain(plain)
    assert not rig.lookup.is_plain("plain")
    assert (rig.asked(INFO), rig.asked(IMAGE)) == (0, 0)
    rig.lookup.forget_plain(plain)
    assert not rig.lookup.is_plain(plain)
    rig.lookup.forget_plain(plain)


async def test_the_memory_of_what_is_no_pods_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 2)
    plain = [rig.create(f"plain{number}", {"Image": BUSYBOX_IMAGE}) for number in range(3)]
    for container_id in plain:
        assert await rig.lookup.read(container_id) is None
    assert [rig.lookup.is_plain(container_id) for container_id in plain] == [False, True, True]


# -- the driver --------------------------------------------------------------------------------------------------------


async def test_the_driver_is_asked_for_once(either: Rig) -> None:
    assert either.lookup.driver is None
    wanted = Driver(either.dockerd.state.cgroup_driver)
    drivers = await asyncio.gather(either.lookup.known_driver(), either.lookup.known_driver())
    assert list(drivers) == [wanted, wanted]
    before = either.asked(INFO)
    assert await either.lookup.known_driver() is wanted
    await either.subject(either.container_id)
    assert either.asked(INFO) == before
    await either.lookup.learn_driver()
    assert either.asked(INFO) == before + 1


@pytest.mark.parametrize(
    ("injection", "error"),
    [
        (Injection(status=500), BackendError),
        (Injection(raw=b'HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{"CgroupDriver":1}'), Unreadable),
    ],
)
async def test_a_daemon_that_does_not_name_its_driver(rig: Rig, injection: Injection, error: type[Exception]) -> None:
    rig.dockerd.inject(INFO, injection)
    for ask in (rig.lookup.learn_driver(), rig.lookup.read(rig.pod_id), rig.lookup.pod(rig.pod_id)):
        with pytest.raises(error):
            await ask
    assert rig.lookup.driver is None


@pytest.mark.parametrize(("runtime", "handler"), [("", ""), ("runc", ""), ("kata", "kata")])
async def test_the_daemons_default_runtime_is_no_handler(rig: Rig, runtime: str, handler: str) -> None:
    body = bodies.sandbox_body(POD, PAUSE_IMAGE, "cgroupfs")
    body["HostConfig"]["Runtime"] = runtime
    found = await rig.subject(rig.create("other", body))
    assert found.pod.effective.runtime_handler == handler


def answered(body: bytes) -> Injection:
    return Injection(raw=b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


@pytest.mark.parametrize("body", [b"{}", b'{"Id":1}', b'{"Config":7,"n":"io.kubernetes.docker.type"}'])
async def test_an_inspect_without_labels_is_no_pods(rig: Rig, body: bytes) -> None:
    rig.dockerd.inject(INSPECT, answered(body))
    assert await rig.lookup.read(rig.container_id) is None
    with pytest.raises(Unreadable):
        await rig.lookup.read("a-name")
    assert (rig.lookup.is_plain(rig.container_id), rig.lookup.is_plain("a-name")) == (True, False)


async def test_a_pod_without_a_cgroup_parent_runs_where_its_container_does(rig: Rig) -> None:
    """Unknown is not empty, which is the daemon's default."""
    pod = json.loads((await rig.backend.inspect(rig.pod_id)) or b"")
    del pod["HostConfig"]["CgroupParent"]
    rig.dockerd.inject(INSPECT, answered(json.dumps(pod).encode()))
    found = await rig.lookup.read(rig.pod_id)
    assert found is not None
    assert found[1].pod.effective.cgroup_parent is None
    rig.store.commit(found[1])
    del rig.dockerd.injections[INSPECT]
    assert (await rig.subject(rig.container_id)).pod.effective.cgroup_parent == told_pod(rig).cgroup_parent


async def test_a_daemon_that_cannot_be_asked(rig: Rig) -> None:
    rig.dockerd.inject(INSPECT, Injection(status=500))
    with pytest.raises(BackendError):
        await rig.lookup.read(rig.container_id)
    with pytest.raises(BackendError):
        await rig.lookup.pod(rig.pod_id)


async def test_a_daemon_whose_oldest_api_is_new_is_read_all_the_same(tmp_path: Path) -> None:
    async with FakeDockerd(str(tmp_path / "docker.sock"), api="1.52", minimum="1.44") as dockerd:
        rig = Rig(dockerd)
        assert (await rig.subject(rig.container_id)).pod.effective == told_pod(rig)
        await rig.backend.close()
