"""Whatever a runtime answers to creates and updates, the record equals what it reports afterwards (relay-rules C3).

CRI-O answers a create with what an earlier one of its name made if that one's caller had left; a test lets each shape
of a runtime do so. There are also answers with the id of another container, and lost and failed updates.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from runtimeproxy.core.store import Store
from runtimeproxy.cri.backend import Backend as CriBackend
from runtimeproxy.cri.backend import CriState
from runtimeproxy.docker.backend import Backend as DockerBackend
from runtimeproxy.docker.sync import Lookup
from runtimeproxy.hookapi import api_pb2
from runtimeproxy.model.fields import RESOURCE_FIELDS, ContainerInfo, PodInfo, PodRecord
from tests import amounts
from tests.fakes import hookanswers
from tests.fakes.dockerd_wire import Injection as DockerInjection
from tests.fakes.runtime import Injection
from tests.system.cri_front import METHODS, CriRuntime
from tests.system.docker_front import CREATE, ROUTES, DockerRuntime
from tests.system.fronts import CONTAINER, POD, Failed, Front
from tests.system.proxy import until
from tests.system.shaped import EVERY, ShapedNode

CREATED = b"HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"


def of_pod(**fields: Any) -> hookanswers.Answer:
    return hookanswers.reply(api_pb2.PodSandboxHookResponse(**fields))


def of_container(
    envs: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **resources: Any
) -> hookanswers.Answer:
    values = api_pb2.LinuxContainerResources(**resources)
    return hookanswers.reply(
        api_pb2.ContainerResourceHookResponse(
            container_envs=envs, container_annotations=annotations, container_resources=values
        )
    )


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
    before = len(node.runtime.arrived(verb))
    if isinstance(node.runtime, DockerRuntime):
        node.runtime.inject(ROUTES[verb], DockerInjection(cut_after_bytes=0, times=1))
        with pytest.raises(Failed):
            await node.caller.send(verb, request)
    else:
        assert isinstance(node.runtime, CriRuntime)
        node.runtime.inject(METHODS[verb], Injection(gate=asyncio.Event(), times=1))
        sent = asyncio.ensure_future(node.caller.send(verb, request))
        await until(lambda: len(node.runtime.arrived(verb)) > before, "the runtime has the request")
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


SHARES = st.sampled_from([0, 100, 200])
VALUES = {"cpu_shares": SHARES, "cpuset_cpus": st.sampled_from(["", "0", "1-2"])}
OF_KUBELET = st.fixed_dictionaries(VALUES)
OF_HOOKS = st.fixed_dictionaries({**VALUES, "unified": st.sampled_from([{}, {"memory.high": "7"}])})
ENTRIES = st.sampled_from([{}, {"A": "9"}, {"H": "1"}])
"""Variables at a create, annotations at an update."""
OF_POD = st.fixed_dictionaries({"labels": ENTRIES, "cgroup_parent": st.sampled_from(["", "/hooked"])})
PODS = st.lists(st.tuples(OF_POD, st.booleans()), min_size=1, max_size=2)
"""The hook server's values at each create of a pod; the last is whether the proxy is restarted after it."""
CREATES = st.lists(st.tuples(OF_KUBELET, ENTRIES, OF_HOOKS, st.booleans()), min_size=1, max_size=3)
"""The same of a container, with the kubelet's values first."""
UPDATES = st.lists(
    st.tuples(OF_KUBELET, ENTRIES, OF_HOOKS, st.sampled_from(["done", "lost", "failed"])), min_size=1, max_size=3
)


def same(record: PodInfo | ContainerInfo, report: PodInfo | ContainerInfo) -> None:
    """Check that the record has what a runtime reports; some report no resources, variables or cgroup parent."""
    assert (record.name, record.attempt, record.annotations) == (report.name, report.attempt, report.annotations)
    if isinstance(record, PodInfo) and isinstance(report, PodInfo):
        assert record.labels == report.labels
        assert report.cgroup_parent in (None, record.cgroup_parent)
        return
    assert isinstance(record, ContainerInfo)
    assert isinstance(report, ContainerInfo)
    if report.resources is not None and record.resources is not None:
        for name in RESOURCE_FIELDS:
            if not name.startswith("memory_swap"):  # some set one without being requested to
                assert getattr(record.resources, name) == getattr(report.resources, name), name
    if report.envs:
        assert record.envs.items() <= report.envs.items()
    assert record.pod_id == report.pod_id


class Lives:
    """Pods and containers, made and updated with whatever a runtime answers."""

    def __init__(self, node: ShapedNode, other: str) -> None:
        self.node, self.other = node, other
        self.made = 0

    async def check(self, any_id: str, *, has_record: bool = False) -> None:
        """Compare a record with what is reported; there may be none unless it ``has_record``."""
        store = self.node.inside.store
        record = store.pod(any_id) or store.container(any_id)
        assert record or not has_record
        if record is not None:
            same(record.effective, await reported(self.node, any_id, pod=isinstance(record, PodRecord)))

    async def create(self, verb: str, requests: Sequence[tuple[bytes, hookanswers.Answer, bool]], other: str) -> str:
        """Send the creates of one name; all but the last lose their answers. The last is answered with an ``other`` id,
        if there is one."""
        node, first = self.node, ""
        for number, (request, answer, restarts) in enumerate(requests, 1):
            node.hooks.on("PreRunPodSandbox" if verb == "run_pod" else "PreCreateContainer", answer)
            if number < len(requests):
                first = await lose_create(node, verb, request, first)
                if restarts:
                    await node.restart()
                    await node.known()
                await self.check(first)
        if other:
            await until(lambda: node.inside.store.container(other) is not None, "it is read after a lost call")
            answer_with(node, verb, other)
        any_id = node.caller.id_in(verb, await node.caller.send(verb, request))
        await idle(node)
        assert any_id == (other or first or any_id)
        await self.check(any_id, has_record=True)
        return any_id

    async def live(self, pods: Sequence[Any], creates: Sequence[Any], another: bool, updates: Sequence[Any]) -> None:
        node, self.made = self.node, self.made + 1
        pod = replace(POD, name=f"p{self.made}")
        request = node.caller.pod_request(pod)
        pod_id = await self.create("run_pod", [(request, of_pod(**hooked), restarts) for hooked, restarts in pods], "")
        node.caller.pods[pod_id] = pod
        requests = []
        for values, envs, hooked, restarts in creates:
            given = {**CONTAINER.resources, **{name: value for name, value in values.items() if value}}
            request = node.caller.container_request(pod_id, replace(CONTAINER, resources=given))
            requests.append((request, of_container(envs, **hooked), restarts))
        any_id = await self.create("create", requests, self.other if another else "")
        is_unlisted = isinstance(node.runtime, CriRuntime) and node.runtime.state.shape.runtime_name == "fake"
        for values, annotations, hooked, end in updates:
            entries = {} if is_unlisted else annotations  # an unlisted runtime counts as one that uses them
            node.hooks.on("PreUpdateContainerResources", of_container(annotations=entries, **hooked))
            request = node.caller.update_request(any_id, {"cpu_shares": 5, **values}, {})
            if end == "lost":
                await lose(node, "update", request)
            elif end == "failed":
                node.runtime.set_fault("update", text="not now")
                with pytest.raises(Failed):
                    await node.caller.send("update", request)
                node.runtime.set_fault("update")
            else:
                await node.caller.send("update", request)
            await idle(node)
            await self.check(any_id)


@EVERY
async def test_record_equals_what_the_runtime_reports(front: Front, tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with ShapedNode(front, tmp_path) as node:
        await node.known()
        lives = Lives(node, await node.caller.create(await node.caller.run_pod(), replace(CONTAINER, name="other")))

        # Shrinking would take minutes.
        @settings(max_examples=amounts.examples(15), deadline=None, phases=[Phase.reuse, Phase.generate])
        @given(st.tuples(PODS, CREATES, st.booleans(), UPDATES))
        def holds(drawn: Any) -> None:
            asyncio.run_coroutine_threadsafe(lives.live(*drawn), loop).result()

        await asyncio.to_thread(holds)
