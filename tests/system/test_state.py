"""The Store beside the calls, on each shape of a runtime: filled, swept, and settled where an answer was lost.

What the runtime did is known and told whoever has left (relay-rules C2, C3).
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.system.fronts import Failed
from tests.system.proxy import until
from tests.system.shaped import FRONTS, ShapedNode, named

pytestmark = pytest.mark.slow


@pytest.fixture(params=FRONTS, ids=named)
async def node(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ShapedNode]:
    async with ShapedNode(request.param, tmp_path, between=True) as made:
        yield made


@pytest.mark.parametrize("way", ["cancel", "connection"])
async def test_create_without_an_answer_is_in_the_store(way: str, node: ShapedNode) -> None:
    pod_id = await node.caller.run_pod()
    request = node.caller.create_request(pod_id)
    node.relay.to_client.stop_reading()
    call = asyncio.ensure_future(node.caller.send("create", request))
    await until(lambda: bool(node.runtime.container_ids()), "the runtime has made the container")
    if way == "cancel":
        call.cancel()
    else:
        node.relay.cut()
    with pytest.raises((Failed, asyncio.CancelledError)):
        await call
    counted = {"operation": "CreateContainer", "outcome": "unsettled"}
    await until(lambda: node.inside.recorder.counted("calls", **counted) == 1, "it is unsettled")
    node.relay.to_client.resume_reading()
    (made,) = node.runtime.container_ids()
    await until(lambda: node.inside.store.container(made) is not None, "it is listed")
    record = node.inside.store.container(made)
    assert record is not None
    assert record.effective.pod_id == pod_id
    assert node.inside.recorder.total("unsettled") == 0


@pytest.mark.parametrize("gone", [False, True], ids=["stopped", "gone meanwhile"])
async def test_stop_without_an_answer_is_told(gone: bool, node: ShapedNode) -> None:
    """The runtime is asked what became of the container; each says in its own way that there is none."""
    container_id = await node.caller.create(await node.caller.run_pod())
    await node.caller.act("start", container_id)
    node.relay.to_client.stop_reading()
    call = asyncio.ensure_future(node.caller.act("stop", container_id))
    await until(lambda: node.runtime.verbs()[-1] == "stop", "the runtime has the request")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert node.hooks.calls_of("PostStopContainer") == []
    if gone:
        node.runtime.vanish(container_id)
    node.relay.to_client.resume_reading()
    (told,) = await asyncio.wait_for(node.hooks.wait_for_calls("PostStopContainer"), 20)
    assert told.request.container_meta.id == container_id
    assert node.inside.recorder.counted("unsettled", operation="StopContainer", result="agreed") == 1


async def test_runtime_that_comes_back_is_read_and_swept(node: ShapedNode) -> None:
    pod_id = await node.caller.run_pod()
    gone, stays = [await node.caller.create(pod_id) for _ in range(2)]
    await node.relay.stop()  # the socket is gone, and every connection ends
    node.runtime.vanish(gone)
    async with node.new_caller(node.runtime.socket_path) as kubelet:
        new = await kubelet.create(pod_id)
    await asyncio.sleep(0.2)
    store = node.inside.store
    assert store.ids() == {pod_id, gone, stays}
    await node.relay.start()
    await until(lambda: store.ids() == {pod_id, stays, new}, "the state is read again")
