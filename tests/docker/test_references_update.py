"""Docker's update: what hooks are told, what the daemon gets, and whose update its event then tells of."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from runtimeproxy.call import NOT_DONE, UNANSWERED
from runtimeproxy.docker.call import DockerCall
from runtimeproxy.docker.exchange import HeldExchange
from runtimeproxy.model import NO_ADJUSTMENT, HookAnswer, HookRequest, Resources
from tests.docker.client import request
from tests.docker.daemon import until
from tests.docker.node import ASKED, MIB, UPDATE, Node, written
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.dockerd_received import Injection
from tests.fakes.plugins import FAIL

CANARY = "canary-4711"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(tmp_path) as node:
        await node.follow()
        yield node


def scaled(request: HookRequest) -> HookAnswer:
    """Answer as a hook that scales does: a whole echo with half the shares."""
    assert request.container is not None
    told = request.container.resources
    assert told is not None
    return HookAnswer({}, request.container.annotations, resources=replace(told, cpu_shares=told.cpu_shares // 2))


async def test_a_hook_that_scales_never_scales_twice_and_the_bytes_differ_only_where_they_must(node: Node) -> None:
    node.plugins.add("a", scaled, points=("PreCreateContainer", "PreUpdateContainerResources"))
    _, container_id = await node.made()
    for asked, told_shares, shares in (
        ({"cpuset_cpus": "0-3"}, 1024, None),
        ({"cpu_shares": 800}, 800, b"400"),
        ({"memory_limit_in_bytes": 128 * MIB}, 800, None),
        ({"cpu_shares": 1024}, 1024, b"512"),
    ):
        body = written(bodies.update_body(asked, moves_swap=True))
        assert (await node.act("update", container_id, body)).status == 200
        assert node.told_container.resources is not None
        assert node.told_container.resources.cpu_shares == told_shares
        if shares is not None:
            body = body.replace(b'"CpuShares":%d' % told_shares, b'"CpuShares":' + shares)
        assert node.came(UPDATE) == body
    now = replace(ASKED, cpuset_cpus="0-3", memory_limit_in_bytes=128 * MIB, memory_swap_limit_in_bytes=128 * MIB)
    container = node.container(container_id)
    assert container.original.resources == now
    assert container.effective.resources == replace(now, cpu_shares=512)
    assert node.dockerd.container(container_id).host["CpuShares"] == 512


@pytest.mark.parametrize("moves_swap", [True, False])
async def test_a_hook_that_scales_memory_takes_the_swap_limit_along(node: Node, moves_swap: bool) -> None:
    def doubled(request: HookRequest) -> HookAnswer:
        assert request.container is not None
        told = request.container.resources
        assert told is not None
        return HookAnswer(resources=replace(told, memory_limit_in_bytes=2 * told.memory_limit_in_bytes))

    node.plugins.add("a", doubled, points=("PreCreateContainer", "PreUpdateContainerResources"))
    _, container_id = await node.made()
    for asked, memory in (
        ({"cpuset_cpus": "0-3"}, 128),
        ({"memory_limit_in_bytes": 100 * MIB}, 200),
        ({"cpu_shares": 2}, 200),
        ({"memory_limit_in_bytes": 32 * MIB}, 64),
    ):
        body = bodies.update_body(asked, moves_swap)
        assert (await node.act("update", container_id, body)).status == 200
        host = node.dockerd.container(container_id).host
        assert (host["Memory"], host["MemorySwap"]) == (memory * MIB, memory * MIB)
        effective = node.container(container_id).effective.resources
        assert effective is not None
        assert effective.memory_limit_in_bytes == effective.memory_swap_limit_in_bytes == memory * MIB


async def test_what_an_update_cannot_say_is_left_out_and_named(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    resources = Resources(memory_limit_in_bytes=-1, oom_score_adj=5, cpu_shares=2)
    node.plugins.add(
        "a", HookAnswer(annotations={"n": CANARY}, resources=resources), points=("PreUpdateContainerResources",)
    )
    _, container_id = await node.made()
    assert (await node.act("update", container_id, b'{"cpuShares": 0}')).status == 200
    assert node.came(UPDATE) == b'{"cpuShares": 2}'
    left_out = ("memory_limit_in_bytes", "oom_score_adj", "annotations")
    for field in left_out:
        assert node.recorder.counted("fields_left_out", operation="UpdateContainerResources", field=field) == 1
    assert f"UpdateContainerResources: Docker cannot set {', '.join(left_out)} of a container: left out" in caplog.text
    assert CANARY not in caplog.text
    effective = node.container(container_id).effective
    assert effective.resources == replace(ASKED, cpu_shares=2)
    assert "n" not in effective.annotations, "the daemon was not told of it"


@pytest.mark.parametrize("registered", [True, False])
async def test_our_clients_updates_keep_the_record_and_those_of_others_drop_it(node: Node, registered: bool) -> None:
    if registered:
        node.plugins.add("a")
    pod_id, container_id = await node.running()
    assert (await node.act("update", container_id, {"CpuShares": 7})).status == 200
    await node.event("update")
    assert node.recorder.total("updates_of_others") == 0
    assert node.container(container_id).original.resources == replace(ASKED, cpu_shares=7)
    assert await node.updated_by_others(container_id) == 0
    assert node.store.counts() == (1, 0)
    node.plugins.add("b")
    await node.act("stop", container_id)
    assert node.told_container.resources == replace(ASKED, cpu_shares=4711)
    assert node.told.pod == node.pod_of(pod_id).effective


async def test_an_update_by_name_is_our_own_once_it_is_known_whose_it_is(node: Node) -> None:
    _, container_id = await node.made()
    name = node.dockerd.container(container_id).name
    assert (await node.act("update", name, {"CpuShares": 7})).status == 200
    await until(lambda: node.store.container(container_id) is None)
    assert node.recorder.total("updates_of_others") == 1, "nobody is asked for a name where no plugin wants it"
    node.plugins.add("a")
    assert (await node.act("update", name, {"CpuShares": 8})).status == 200
    await node.event("update", 2)
    assert node.recorder.total("updates_of_others") == 1
    assert node.container(container_id).effective.resources == replace(ASKED, cpu_shares=8)


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize(
    ("body", "lines", "status"),
    [
        (b'{"CpuShares":-1}', (), 400),
        (b'{"CpuShares":5,"cpushares":6}', (), 200),
        (b'{"CpuShares":5}', ("Content-Encoding: gzip",), 200),  # dockerd reads it as it is
        (b"{", (), 400),
    ],
)
async def test_an_update_that_fails_or_cannot_be_read_is_not_waited_for(
    node: Node, registered: bool, body: bytes, lines: tuple[str, ...], status: int
) -> None:
    _, container_id = await node.made()
    if registered:
        node.plugins.add("a")
    assert (await node.act("update", container_id, body, *lines)).status == status
    assert node.came(UPDATE) == body
    if status == 200:  # what it set is not known, so the container is read again when it is needed
        await until(lambda: node.store.container(container_id) is None)
        assert node.recorder.counted("calls_unreadable", operation="UpdateContainerResources") == 1
    else:
        assert node.container(container_id).effective.resources == ASKED
        assert await node.updated_by_others(container_id) == 0


async def test_an_update_that_cannot_be_read_is_refused_under_fail(node: Node) -> None:
    _, container_id = await node.made()
    node.plugins.add("koordlet", policy=FAIL, points=("PreUpdateContainerResources",))
    answer = await node.act("update", container_id, b'{"Memory":1,"memory":2}')
    assert answer.status == 500
    assert "refused: hook server 'koordlet' at PreUpdateContainerResources: unreadable" in answer.message
    assert (node.points, node.dockerd.requests(UPDATE)) == ([], [])


@pytest.mark.parametrize("done", [True, False])
async def test_an_update_without_an_answer_has_the_container_read_again(node: Node, done: bool) -> None:
    _, container_id = await node.running()
    injection = Injection(cut_after_bytes=0, times=1) if done else Injection(raw=b"", cut_after_bytes=0, times=1)
    node.dockerd.inject(UPDATE, injection)
    client = await node.client()
    client.send(request("POST", f"/containers/{container_id}/update", b'{"CpuShares":7}'))
    assert await client.ended() == b""
    await until(lambda: node.store.container(container_id) is None)
    node.plugins.add("a")
    await node.act("stop", container_id)
    assert node.told_container.resources == (replace(ASKED, cpu_shares=7) if done else ASKED)


@pytest.mark.parametrize("by_name", [False, True])
async def test_an_update_of_a_sandbox_has_no_hook_and_its_pod_is_read_again(node: Node, by_name: bool) -> None:
    node.plugins.add("a", policy=FAIL)
    pod_id, _ = await node.made()
    reference = node.dockerd.container(pod_id).name if by_name else pod_id
    assert (await node.act("update", reference, {"CpuShares": 77})).status == 200
    assert node.points == []
    await until(lambda: node.store.pod(pod_id) is None)
    await node.act("stop", pod_id)
    assert node.told.pod.resources == Resources(cpu_shares=77)
    assert node.points == ["PostStopPodSandbox"]


async def test_an_update_whose_call_has_ended_is_not_sent_and_not_waited_for(node: Node) -> None:
    _, container_id = await node.made()
    hook = node.plugins.gated("a")
    made: list[tuple[HeldExchange, DockerCall]] = []
    make = node.front.call

    def watched(exchange: HeldExchange) -> DockerCall | None:
        call = make(exchange)
        assert call is not None
        made.append((exchange, call))
        return call

    node.front.call = watched  # type: ignore[method-assign]
    client = await node.client()
    client.send(request("POST", f"/containers/{container_id}/update", b'{"CpuShares":7}'))
    await until(lambda: hook.waiting == 1)
    [(exchange, call)] = made
    exchange.end()
    assert await call.release(None, NO_ADJUSTMENT) == UNANSWERED
    assert (node.dockerd.requests(UPDATE), node.front._events.expected_updates) == ([], {})
    assert await call.settle() == NOT_DONE
    await until(lambda: hook.cancelled == 1)


async def test_what_somebody_else_changes_while_a_call_that_had_to_read_it_is_held_is_read_anew(node: Node) -> None:
    _, container_id = await node.made()
    node.forget()
    gated = node.plugins.gated("a", points=("PreStartContainer",))
    started = asyncio.create_task(node.act("start", container_id))
    await until(lambda: gated.waiting == 1)
    node.dockerd.state.update(container_id, {"CpuShares": 4711})
    await until(lambda: node.recorder.total("updates_of_others") == 1)
    gated.gate.set()
    assert (await started).status == 204
    assert node.store.container(container_id) is None
    node.plugins.add("b", points=("PostStopContainer",))
    await node.act("stop", container_id)
    assert node.told_container.resources is not None
    assert node.told_container.resources.cpu_shares == 4711


@pytest.mark.parametrize("through", ["the proxy", "the daemon"])
async def test_an_update_of_a_sandbox_leaves_what_the_kubelet_asked_for_its_containers(
    node: Node, through: str
) -> None:
    """Else a hook that scales scales its own result: the daemon tells that as the container's."""
    node.plugins.add("a", scaled, points=("PreCreateContainer", "PreUpdateContainerResources"))
    pod_id, container_id = await node.made()
    asked = node.container(container_id).original.resources
    assert asked is not None
    if through == "the proxy":
        assert (await node.act("update", pod_id, {"CpuShares": 3})).status == 200
    else:
        node.dockerd.state.update(pod_id, {"CpuShares": 3})
    await until(lambda: node.store.pod(pod_id) is None)
    assert (await node.act("update", container_id, {"CpusetCpus": "0"})).status == 200
    assert node.told_container.resources is not None
    assert node.told_container.resources.cpu_shares == asked.cpu_shares


async def test_what_a_lost_update_leaves_unsure_is_not_kept_by_a_call_that_had_read_it(node: Node) -> None:
    _, container_id = await node.made()
    node.forget()
    gated = node.plugins.gated("a", points=("PreStartContainer",))
    started = asyncio.create_task(node.act("start", container_id))
    await until(lambda: gated.waiting == 1)
    node.dockerd.inject(UPDATE, Injection(cut_after_bytes=0))
    client = await node.client()
    client.send(request("POST", f"{node.prefix}/containers/{container_id}/update", b'{"CpuShares": 4711}'))
    assert await client.ended() == b""
    gated.gate.set()
    assert (await started).status == 204
    assert node.store.container(container_id) is None
