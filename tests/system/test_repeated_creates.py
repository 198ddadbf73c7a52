"""A create may be answered with what an earlier one of its name made: the record equals what the runtime reports.

CRI-O does so if the earlier one's caller had left (relay-rules C3); a test lets each shape of a runtime do so. Lost
updates and other answers: tests/core/test_lifecycle_answered.py.
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
from runtimeproxy.model.fields import RESOURCE_FIELDS
from tests import amounts
from tests.fakes import hookanswers
from tests.fakes.dockerd_wire import Injection as DockerInjection
from tests.fakes.runtime import Injection
from tests.system.cri_front import METHODS, CriRuntime
from tests.system.docker_front import CREATE, DockerRuntime
from tests.system.fronts import CONTAINER, POD, Failed, Front
from tests.system.proxy import until
from tests.system.shaped import EVERY, ShapedNode

SHARES, CPUS = st.sampled_from([0, 100, 200]), st.sampled_from(["", "0", "1-2"])
ENTRIES = st.sampled_from([{}, {"A": "9"}, {"H": "1"}])
OF_POD = st.fixed_dictionaries({"labels": ENTRIES, "cgroup_parent": st.sampled_from(["", "/hooked"])})
OF_CONTAINER = st.fixed_dictionaries({"cpu_shares": SHARES, "cpuset_cpus": CPUS})
PODS = st.lists(st.tuples(OF_POD, st.booleans()), min_size=1, max_size=2)
"""The hook server's values at each create of a pod; the last is whether the proxy is restarted after it."""
CREATES = st.lists(st.tuples(SHARES, ENTRIES, OF_CONTAINER, st.booleans()), min_size=1, max_size=3)
"""The same of a container, with the kubelet's value first."""


async def lose_create(node: ShapedNode, verb: str, request: bytes, first: str) -> str:
    """Send a create that the runtime carries out, and whose client leaves before the answer.

    Return the id of what it made, or of the ``first`` of its name: the next one of its name is answered with it.
    """
    before = {*node.runtime.pod_ids(), *node.runtime.container_ids()}
    arrived = len(node.runtime.arrived(verb))
    if isinstance(node.runtime, DockerRuntime):
        node.runtime.inject(CREATE, DockerInjection(cut_after_bytes=0, times=1))
        with pytest.raises(Failed):
            await node.caller.send(verb, request)
    else:
        assert isinstance(node.runtime, CriRuntime)
        node.runtime.state.shape = replace(node.runtime.state.shape, repeats_answers=True)
        node.runtime.inject(METHODS[verb], Injection(gate=asyncio.Event(), times=1))
        sent = asyncio.ensure_future(node.caller.send(verb, request))
        await until(lambda: len(node.runtime.arrived(verb)) > arrived, "the runtime has the request")
        received = node.runtime.requests(METHODS[verb])[-1]
        sent.cancel()
        await until(lambda: received.cancelled, "the runtime knows that its caller has left")
    await until(lambda: not node.inside.app.lifecycle.running, "no call is under way")
    (made,) = {*node.runtime.pod_ids(), *node.runtime.container_ids()} - before or {first}
    if isinstance(node.runtime, DockerRuntime):
        reply = json.dumps({"Id": made, "Warnings": []}).encode()
        head = b"HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(reply)
        node.runtime.inject(CREATE, DockerInjection(raw=head + reply, times=1))
    return made


async def check(node: ShapedNode, any_id: str, *, is_last: bool = False) -> None:
    """Compare a record with what a proxy without records reads; the ``last`` create has a record.

    Some runtimes report no resources, variables or cgroup parent.
    """
    pod, container = node.inside.store.pod(any_id), node.inside.store.container(any_id)
    assert pod or container or not is_last
    reader: CriState | Lookup
    if isinstance(node.runtime, CriRuntime):
        cri = CriBackend(node.runtime.socket_path)
        reader, close = CriState(cri, Store()), cri.close
    else:
        docker = DockerBackend(node.runtime.socket_path)
        reader, close = Lookup(docker, Store()), docker.close
    if pod is not None:
        report = await reader.pod(any_id)
        assert report is not None
        names = ("name", "attempt", "annotations", "labels")
        assert [getattr(pod.effective, name) for name in names] == [getattr(report.effective, name) for name in names]
        assert report.effective.cgroup_parent in (None, pod.effective.cgroup_parent)
    elif container is not None:
        found = await reader.container(any_id)
        assert found is not None
        ours, theirs = container.effective, found.container.effective
        names = ("name", "attempt", "annotations", "pod_id")
        assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]
        if theirs.resources is not None and ours.resources is not None:
            for name in RESOURCE_FIELDS:
                if not name.startswith("memory_swap"):  # some set one without being requested to
                    assert getattr(ours.resources, name) == getattr(theirs.resources, name), name
        assert not theirs.envs or ours.envs.items() <= theirs.envs.items()
    await close()


async def create(node: ShapedNode, verb: str, requests: Sequence[tuple[bytes, hookanswers.Answer, bool]]) -> str:
    """Send the creates of one name; all but the last lose their answers."""
    first = ""
    for number, (request, answer, restarts) in enumerate(requests, 1):
        node.hooks.on("PreRunPodSandbox" if verb == "run_pod" else "PreCreateContainer", answer)
        if number < len(requests):
            first = await lose_create(node, verb, request, first)
            if restarts:
                await node.restart()
                await node.known()
            await check(node, first)
    any_id = node.caller.id_in(verb, await node.caller.send(verb, request))
    await until(lambda: not node.inside.app.lifecycle.running, "no call is under way")
    assert first in ("", any_id)
    await check(node, any_id, is_last=True)
    return any_id


@EVERY
async def test_record_equals_what_the_runtime_reports(front: Front, tmp_path: Path) -> None:
    loop, made = asyncio.get_running_loop(), 0
    async with ShapedNode(front, tmp_path) as node:
        await node.known()

        async def live(pods: Sequence[Any], creates: Sequence[Any]) -> None:
            nonlocal made
            made += 1
            pod = replace(POD, name=f"p{made}")
            request, requests = node.caller.pod_request(pod), []
            for hooked, restarts in pods:
                requests.append((request, hookanswers.reply(api_pb2.PodSandboxHookResponse(**hooked)), restarts))
            pod_id = await create(node, "run_pod", requests)
            node.caller.pods[pod_id], requests = pod, []
            for shares, envs, hooked, restarts in creates:
                given = CONTAINER.resources | ({"cpu_shares": shares} if shares else {})
                request = node.caller.container_request(pod_id, replace(CONTAINER, resources=given))
                answer = api_pb2.ContainerResourceHookResponse(container_envs=envs, container_resources=hooked)
                requests.append((request, hookanswers.reply(answer), restarts))
            await create(node, "create", requests)

        # Shrinking would take minutes.
        @settings(max_examples=amounts.examples(15), deadline=None, phases=[Phase.reuse, Phase.generate])
        @given(PODS, CREATES)
        def holds(pods: Any, creates: Any) -> None:
            asyncio.run_coroutine_threadsafe(live(pods, creates), loop).result()

        await asyncio.to_thread(holds)
