"""Whatever a runtime answers to creates and updates, the record equals what it reports afterwards (relay-rules C3).

CRI-O answers a create with what an earlier one of its name made if that one's caller had left; a test lets each shape
of a runtime do so. The property test also has answers with the id of another container, and lost and failed updates.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.core.store import Store
from runtimeproxy.cri.backend import Backend as CriBackend
from runtimeproxy.cri.sync import CriState
from runtimeproxy.docker.backend import Backend as DockerBackend
from runtimeproxy.docker.lookup import Lookup
from runtimeproxy.hookapi import api_pb2
from runtimeproxy.model.values import RESOURCE_FIELDS, ContainerInfo, PodInfo
from runtimeproxy.observe.events import EventKind
from tests import amounts
from tests.fakes import hookanswers
from tests.fakes.dockerd_received import Injection as DockerInjection
from tests.fakes.runtime import Injection
from tests.system.cri_front import METHODS, CriRuntime
from tests.system.docker_front import CREATE, ROUTES, DockerRuntime
from tests.system.fronts import CONTAINER, PARENT, POD, Failed, Front
from tests.system.proxy import until
from tests.system.shaped import FRONTS, ShapedNode, named

EVERY = pytest.mark.parametrize("front", FRONTS, ids=named)
RESTARTED = pytest.mark.parametrize("restarted", [False, True], ids=["at once", "after a restart"])
CREATED = b"HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"


def of_pod(**fields: Any) -> hookanswers.Answer:
    return hookanswers.reply(api_pb2.PodSandboxHookResponse(**fields))


def of_container(envs: dict[str, str] | None = None, **resources: int | str) -> hookanswers.Answer:
    values = api_pb2.LinuxContainerResources(**resources)  # type: ignore[arg-type]
    return hookanswers.reply(api_pb2.ContainerResourceHookResponse(container_envs=envs, container_resources=values))


def answer_with(node: ShapedNode, verb: str, any_id: str) -> None:
    """Make the runtime answer the next create with an id, whatever it is."""
    if isinstance(node.runtime, DockerRuntime):
        reply = json.dumps({"Id": any_id, "Warnings": []}).encode()
        node.runtime.inject(CREATE, DockerInjection(raw=CREATED % (len(reply), reply), times=1))
        return
    assert isinstance(node.runtime, CriRuntime)
    state = node.runtime.state

    def mangle(method: str, reply: Any) -> Any:
        if method == METHODS[verb]:
            setattr(reply, reply.DESCRIPTOR.fields[0].name, any_id)
            state.mangle = None
        return reply

    state.mangle = mangle


async def lose(node: ShapedNode, verb: str, request: bytes) -> None:
    """Send a request that the runtime carries out; the client leaves before the answer."""
    before = len(node.runtime.asked(verb))
    if isinstance(node.runtime, DockerRuntime):
        node.runtime.inject(ROUTES[verb], DockerInjection(cut_after_bytes=0, times=1))
        with pytest.raises(Failed):
            await node.caller.send(verb, request)
    else:
        assert isinstance(node.runtime, CriRuntime)
        node.runtime.inject(METHODS[verb], Injection(gate=asyncio.Event(), times=1))
        sent = asyncio.ensure_future(node.caller.send(verb, request))
        await until(lambda: len(node.runtime.asked(verb)) > before, "the runtime has the request")
        received = node.runtime.requests(METHODS[verb])[-1]
        sent.cancel()
        await until(lambda: received.cancelled, "the runtime knows that its caller has left")
        if verb == "update":
            node.runtime.state.answer("v1", METHODS[verb], received.message)
    await idle(node)


async def lose_create(node: ShapedNode, verb: str, request: bytes, first: str = "") -> str:
    """Lose a create's answer; return the id of what it made, with which the next one of its name is answered. If there
    is a ``first`` one of its name, that is its answer."""
    before = {*node.runtime.pod_ids(), *node.runtime.container_ids()}
    if isinstance(node.runtime, CriRuntime):
        node.runtime.state.shape = replace(node.runtime.state.shape, repeats_answers=True)
    await lose(node, verb, request)
    (made,) = {*node.runtime.pod_ids(), *node.runtime.container_ids()} - before or {first}
    if isinstance(node.runtime, DockerRuntime):
        answer_with(node, verb, made)
    return made


async def idle(node: ShapedNode) -> None:
    await until(lambda: not node.inside.app.lifecycle.running, "no call is under way")


async def create(node: ShapedNode, verb: str, request: bytes) -> str:
    made = node.caller.id_in(verb, await node.caller.send(verb, request))
    await idle(node)
    return made


async def reported(node: ShapedNode, any_id: str, *, pod: bool = False) -> PodInfo | ContainerInfo:
    """Return what the runtime reports of a pod or container, as a proxy without records reads it."""
    reader: CriState | Lookup
    if isinstance(node.runtime, CriRuntime):
        cri = CriBackend(node.runtime.socket_path)
        reader, close = CriState(cri, Store()), cri.close
    else:
        docker = DockerBackend(node.runtime.socket_path)
        reader, close = Lookup(docker, Store()), docker.close
    found = await (reader.pod(any_id) if pod else reader.container(any_id))
    await close()
    assert found is not None
    return found.effective if pod else found.container.effective  # type: ignore[union-attr]


def edited(node: ShapedNode) -> list[str]:
    """Return the fields in the events of edited calls."""
    rows = [row for row in node.inside.metrics.events.read().events if row[2] == EventKind.EDITED.value]
    return [row[7] for row in rows]


# ---- the answer of a create that names what an earlier one made

ENVS = {"GPU": "0"}


@RESTARTED
@EVERY
async def test_repeated_container_has_what_the_first_one_asked(front: Front, restarted: bool, tmp_path: Path) -> None:
    """The next update is sent with the cpuset that the container has not."""
    async with ShapedNode(front, tmp_path) as node:
        pod_id = await node.caller.run_pod()
        request = node.caller.create_request(pod_id, CONTAINER)
        first = await lose_create(node, "create", request)
        if restarted:
            await node.restart()
            await node.known()
        node.hooks.on("PreCreateContainer", of_container(ENVS, cpuset_cpus="2-3"))
        assert await create(node, "create", request) == first
        record = node.inside.store.container(first)
        assert record is not None
        assert record.effective == await reported(node, first)
        assert record.original.resources is not None
        assert record.original.resources.cpu_quota == CONTAINER.resources["cpu_quota"], "the kubelet's"
        assert (record.owners, "GPU" in record.effective.envs, edited(node)) == ((), False, [])

        node.hooks.on("PreUpdateContainerResources", of_container(cpuset_cpus="2-3"))
        _, released = await node.passed("update", node.caller.update_request(first, {"cpu_shares": 5}, {}))
        assert b"2-3" in released


@RESTARTED
@EVERY
async def test_repeated_pod_has_what_the_first_one_asked(front: Front, restarted: bool, tmp_path: Path) -> None:
    """Hooks get the cgroup parent that the pod has; where it is not reported, a create repeats it."""
    async with ShapedNode(front, tmp_path) as node:
        request = node.caller.pod_request(POD)
        first = await lose_create(node, "run_pod", request)
        if restarted:
            await node.restart()
            await node.known()
        node.hooks.on("PreRunPodSandbox", of_pod(cgroup_parent="/hooked", labels={"h": "1"}))
        assert await create(node, "run_pod", request) == first
        node.caller.pods[first] = POD
        record = node.inside.store.pod(first)
        assert record is not None
        assert (record.effective, edited(node)) == (await reported(node, first, pod=True), [])
        node.told()
        await node.created(first)
        ((_, hooked),) = node.told()
        assert (hooked.pod_cgroup_parent, "h" in hooked.pod_labels) == (PARENT, False)


# ---- whatever it answers

SHARES = st.sampled_from([0, 100, 200])
VALUES = st.fixed_dictionaries({"cpu_shares": SHARES, "cpuset_cpus": st.sampled_from(["", "0", "1-2"])})
HOOKED = st.tuples(st.sampled_from([{}, {"A": "9"}, {"H": "1"}]), VALUES)
CREATES = st.lists(st.tuples(VALUES, HOOKED, st.booleans()), min_size=1, max_size=3)
"""The kubelet's values and the hook server's at each create of a name; the last is whether the proxy is restarted."""
UPDATES = st.lists(st.tuples(VALUES, HOOKED, st.sampled_from(["done", "lost", "failed"])), min_size=1, max_size=3)


def same(record: ContainerInfo, report: ContainerInfo) -> None:
    """Check that the record has what a runtime reports; some report no resources, or no variables."""
    if report.resources is not None and record.resources is not None:
        for name in RESOURCE_FIELDS:
            if not name.startswith("memory_swap"):  # some set one without being requested to
                assert getattr(record.resources, name) == getattr(report.resources, name), name
    if report.envs:
        assert record.envs.items() <= report.envs.items()
    assert (record.annotations, record.name, record.pod_id) == (report.annotations, report.name, report.pod_id)


class Lives:
    """Containers of one pod, made and updated with whatever a runtime answers."""

    def __init__(self, node: ShapedNode, pod_id: str, other: str) -> None:
        self.node, self.pod_id, self.other = node, pod_id, other
        self.made = 0

    async def check(self, any_id: str) -> None:
        record = self.node.inside.store.container(any_id)
        if record is not None:
            report = await reported(self.node, any_id)
            assert isinstance(report, ContainerInfo)
            same(record.effective, report)

    async def live(self, creates: Sequence[Any], another: bool, updates: Sequence[Any]) -> None:
        node, self.made, first = self.node, self.made + 1, ""
        for number, (values, (envs, hooked), restarts) in enumerate(creates, 1):
            given = {**CONTAINER.resources, **{name: value for name, value in values.items() if value}}
            container = replace(CONTAINER, name=f"c{self.made}", resources=given)
            request = node.caller.container_request(self.pod_id, container)
            node.hooks.on("PreCreateContainer", of_container(envs, **hooked))
            if number < len(creates):
                first = await lose_create(node, "create", request, first)
                if restarts:
                    await node.restart()
                    await node.known()
                await self.check(first)
                continue
            if another:
                await until(lambda: node.inside.store.container(self.other) is not None, "it is read after a lost call")
                answer_with(node, "create", self.other)
            any_id = await create(node, "create", request)
            assert node.inside.store.container(any_id) is not None, "it was read or made"
            await self.check(any_id)
        for values, (_, hooked), fate in updates:
            node.hooks.on("PreUpdateContainerResources", of_container(**hooked))
            request = node.caller.update_request(any_id, {"cpu_shares": 5, **values}, {})
            if fate == "lost":
                await lose(node, "update", request)
            elif fate == "failed":
                node.runtime.upset("update", text="not now")
                with pytest.raises(Failed):
                    await node.caller.send("update", request)
                node.runtime.upset("update")
            else:
                await node.caller.send("update", request)
            await idle(node)
            await self.check(any_id)


@pytest.mark.slow
@EVERY
async def test_record_equals_what_the_runtime_reports(front: Front, tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with ShapedNode(front, tmp_path) as node:
        pod_id = await node.caller.run_pod()
        lives = Lives(node, pod_id, await node.caller.create(pod_id, replace(CONTAINER, name="other")))

        @settings(max_examples=amounts.examples(15), deadline=None)
        @given(CREATES, st.booleans(), UPDATES)
        def holds(creates: Sequence[Any], another: bool, updates: Sequence[Any]) -> None:
            asyncio.run_coroutine_threadsafe(lives.live(creates, another, updates), loop).result()

        await asyncio.to_thread(holds)
