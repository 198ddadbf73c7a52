"""Two connections whose bytes flow into each other: order, half-close, back-pressure, the order of closing."""

import asyncio
import socket
from array import array
from collections.abc import Callable

import pytest

from tests.relay.paired import MIB, Rig


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so. Raises TimeoutError if it does not come."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


async def test_bytes_flow_both_ways_and_half_close_passes(rig: Rig) -> None:
    rig.client.send(b"question")
    assert await rig.read(rig.backend) == b"question"
    rig.client.shutdown(socket.SHUT_WR)
    assert await rig.read(rig.backend) == b""
    rig.backend.send(b"answer")
    assert await rig.read(rig.client) == b"answer"
    rig.backend.close()
    assert await rig.read(rig.client) == b""
    await rig.until("closed")
    assert rig.flow.events == ["client ended", "backend ended", "closed"]


async def test_call_goes_on_behind_what_is_read_and_leaves_in_one_write_with_it(rig: Rig) -> None:
    seen: list[tuple[bool, bytes]] = []

    def go_on() -> None:
        seen.append((rig.pair.reading, b"".join(rig.flow.to_backend)))
        rig.flow.to_backend.append(b" and more")

    rig.flow.call = lambda: rig.pair.later(go_on)
    rig.client.send(b"question")
    assert await rig.read(rig.backend) == b"question and more"
    assert seen == [(False, b"question")]
    rig.pair.later(go_on)
    assert len(seen) == 2


async def test_answer_that_is_kept_goes_out_before_the_end(rig: Rig) -> None:
    rig.flow.keeps = True
    rig.backend.close()
    await rig.until("backend ended")
    rig.flow.to_client.append(b"kept answer")
    rig.pair.backend_done()
    assert await rig.read(rig.client) == b"kept answer"
    assert await rig.read(rig.client) == b""
    assert rig.flow.events == ["backend ended", "closed"]


@pytest.mark.parametrize("side", ["client", "backend"])
async def test_broken_protocol_ends_both_connections(rig: Rig, side: str) -> None:
    getattr(rig, side).send(b"nonsense")
    await rig.until("closed")
    assert await rig.read(rig.client) == (b"last words" if side == "backend" else b"")
    assert await rig.read(rig.backend) == b""


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("slow", ["client", "backend"])
async def test_side_that_does_not_read_stops_the_other(rig: Rig, slow: str, bulk: bool) -> None:
    """What waits stays bounded, and everything arrives once the slow side reads (fault matrix S7)."""
    rig.flow.bulk = bulk
    fast_socket, slow_socket = (rig.backend, rig.client) if slow == "client" else (rig.client, rig.backend)
    loop = asyncio.get_running_loop()
    sending = asyncio.create_task(loop.sock_sendall(fast_socket, b"z" * 8 * MIB))
    endpoint = rig.pair._client if slow == "client" else rig.pair._backend
    await until(lambda: endpoint.waiting > 0)
    await asyncio.sleep(0.1)
    assert not sending.done(), "the sender is held back"
    assert 0 < endpoint.waiting < MIB
    got = 0
    while got < 8 * MIB:
        got += len(await rig.read(slow_socket, MIB))
    await sending
    assert got == 8 * MIB


@pytest.mark.parametrize("side", ["client", "backend"])
async def test_big_read_passes_from_the_shared_buffer_in_order(rig: Rig, side: str) -> None:
    """Pieces that pass, that are read and that wait for the socket keep their order; nothing is overwritten."""
    sender, receiver = (rig.client, rig.backend) if side == "client" else (rig.backend, rig.client)
    data = array("I", range(2 * MIB)).tobytes()
    sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(sender, data))
    got = bytearray()
    while len(got) < len(data):
        rig.flow.bulk = not rig.flow.bulk
        got += await rig.read(receiver, 300_000)
    await sending
    assert got == data
    assert 0 < rig.flow.passed < len(data)


async def test_what_waits_goes_before_what_could_pass(rig: Rig) -> None:
    rig.flow.bulk = True
    rig.flow.to_client.append(b"before")
    rig.backend.send(b"z" * 50_000)
    got = b""
    while len(got) < 50_006:
        got += await rig.read(rig.client)
    assert got == b"before" + b"z" * 50_000
    assert rig.flow.passed == 0


async def test_end_waits_for_a_slow_client(rig: Rig) -> None:
    sent = await rig.fill(rig.backend)
    rig.backend.close()
    assert await rig.read_to_end(rig.client) == sent
    await rig.until("closed")


# ---- half-close


async def test_eof_that_waits_passes_when_the_flow_says_so(rig: Rig) -> None:
    rig.flow.waits = True
    rig.client.shutdown(socket.SHUT_WR)
    await rig.until("client ended")
    rig.flow.to_backend.append(b"held till now")
    rig.pair.client_done()
    assert await rig.read(rig.backend) == b"held till now"
    assert await rig.read(rig.backend) == b""
    rig.backend.send(b"answer")
    assert await rig.read(rig.client) == b"answer"


@pytest.mark.parametrize("first", ["client", "backend"])
async def test_in_a_tunnel_each_side_ends_by_itself(watching: Rig, first: str) -> None:
    rig = watching
    rig.flow.keeps = True
    if first == "client":
        rig.client.shutdown(socket.SHUT_WR)
        assert await rig.read(rig.backend) == b""
        rig.backend.send(b"late output")
        assert await rig.read(rig.client) == b"late output"
        assert await rig.stays_open()
    rig.backend.shutdown(socket.SHUT_WR)
    await rig.until("backend ended")
    rig.flow.to_client.append(b"last output")
    rig.pair.half_close()
    assert await rig.read(rig.client) == b"last output"
    assert await rig.read(rig.client) == b""
    if first == "backend":
        rig.client.send(b"late input")
        assert await rig.read(rig.backend) == b"late input"
        assert await rig.stays_open()
        rig.client.shutdown(socket.SHUT_WR)
        assert await rig.read(rig.backend) == b""
    await rig.until("closed")


async def test_tunnel_closes_only_when_a_slow_backend_has_everything(rig: Rig) -> None:
    rig.flow.keeps = True
    rig.backend.shutdown(socket.SHUT_WR)
    await rig.until("backend ended")
    rig.pair.half_close()
    sent = await rig.fill(rig.client)
    rig.client.shutdown(socket.SHUT_WR)
    assert await rig.stays_open()
    assert await rig.read_to_end(rig.backend) == sent
    await rig.until("closed")


async def test_tunnel_to_a_backend_that_has_gone_is_closed(watching: Rig) -> None:
    """It read nothing any more: the client need not find that out by itself."""
    rig = watching
    rig.flow.keeps = True
    rig.backend.send(b"last output")
    rig.backend.close()
    await rig.until("backend ended")
    rig.pair.half_close()
    assert await rig.read(rig.client) == b"last output"
    assert await rig.read(rig.client) == b""
    await rig.until("closed")
    assert rig.flow.events == ["backend ended", "closed"]


async def test_also_behind_a_slow_client_that_gets_everything(watching: Rig) -> None:
    rig = watching
    rig.flow.keeps = True
    sent = await rig.fill(rig.backend)
    rig.backend.close()
    reading = asyncio.create_task(rig.read_to_end(rig.client))
    await rig.until("backend ended")
    rig.pair.half_close()
    assert await reading == sent
    await rig.until("closed")


# ---- the client is held


async def test_client_that_is_held_is_not_read(rig: Rig) -> None:
    rig.pair.hold_client(True)
    rig.client.send(b"one")
    await asyncio.sleep(0.02)
    rig.backend.setblocking(False)
    with pytest.raises(BlockingIOError):
        rig.backend.recv(9)
    rig.pair.hold_client(False)
    assert await rig.read(rig.backend) == b"one"


async def test_held_client_is_not_read_when_the_backend_has_drained(rig: Rig) -> None:
    sent = await rig.fill(rig.client)
    rig.pair.hold_client(True)
    reading = asyncio.create_task(rig.read_to_end(rig.backend))
    await until(lambda: not rig.pair._backend.waiting)
    rig.client.shutdown(socket.SHUT_WR)
    await asyncio.sleep(0.02)
    assert not rig.flow.events, "its EOF is behind bytes that are not read"
    rig.pair.hold_client(False)
    assert await reading == sent


async def test_client_is_not_read_for_a_slow_backend_though_it_is_held_no_longer(rig: Rig) -> None:
    sent = await rig.fill(rig.client)
    rig.pair.hold_client(True)
    rig.pair.hold_client(False)
    with pytest.raises(BlockingIOError):
        rig.client.send(b"more")
    await asyncio.sleep(0.02)
    with pytest.raises(BlockingIOError):
        rig.client.send(b"more")
    rig.client.shutdown(socket.SHUT_WR)
    assert await rig.read_to_end(rig.backend) == sent
