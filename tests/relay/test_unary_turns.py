"""Calls of the unary client that wait for the peer to take more, or that it sends back (RFC 9113, 5.1.2 and 8.7)."""

import asyncio
from typing import Any

import grpc
import pytest

from runtimeproxy.relay import unary
from runtimeproxy.relay.unary import Kind, UnaryClient
from runtimeproxy.wire import http2
from tests.relay.calls import LONG_SECONDS, METHOD, failing, start
from tests.relay.peers import Peer, answer

MOST = 10
REFUSED = http2.REFUSED_STREAM


async def test_a_server_that_takes_few_at_a_time_answers_all_that_come_before_it_could_say_so(
    path: str, client: UnaryClient
) -> None:
    """grpcio resets what is above its limit, with an error that says nothing of why."""

    async def slowly(message: bytes, context: Any) -> bytes:
        await asyncio.sleep(0.005)
        return message

    class Handlers:
        def service(self, details: grpc.HandlerCallDetails) -> Any:
            return grpc.unary_unary_rpc_method_handler(slowly)

    server = grpc.aio.server(options=[("grpc.max_concurrent_streams", MOST)])
    server.add_generic_rpc_handlers((Handlers(),))  # type: ignore[arg-type]
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    messages = [str(number).encode() for number in range(6 * MOST)]
    assert await asyncio.gather(*(client.call(METHOD, each, LONG_SECONDS) for each in messages)) == messages
    await server.stop(None)


@pytest.mark.parametrize("by", ["reset", "goaway"])
async def test_what_the_peer_did_nothing_for_is_sent_again(path: str, client: UnaryClient, by: str) -> None:
    async with Peer(path) as peer:
        asked = start(client)
        connection = await peer.connection()
        stream = await connection.request()
        if by == "reset":
            connection.send(http2.rst_stream(stream, REFUSED))
        else:
            connection.send(http2.goaway(0, 0))
            connection = await peer.connection()
        again = await connection.request()
        connection.send(answer(again, b"x"))
        assert await asked == b"x"
        assert (again, peer.accepted) == ((3, 1) if by == "reset" else (1, 2))


async def test_who_does_nothing_for_anybody_is_asked_until_the_deadline(path: str, client: UnaryClient) -> None:
    async with Peer(path) as peer:
        asked = asyncio.ensure_future(failing(client.call(METHOD, b"", 0.1)))
        connection = await peer.connection()
        times = 0
        while not asked.done():
            try:
                async with asyncio.timeout(0.2):
                    connection.send(http2.rst_stream(await connection.request(), REFUSED))
            except (TimeoutError, EOFError):
                break
            times += 1
        assert (await asked).kind in (Kind.UNREACHABLE, Kind.DEADLINE)
        assert 1 < times <= 0.1 / unary.RETRY_SECONDS + 1


async def test_as_many_are_woken_as_there_is_room_for_in_their_order(path: str, client: UnaryClient) -> None:
    async with Peer(path, {http2.MAX_CONCURRENT_STREAMS: 1}) as peer:
        calls = [start(client)]
        connection = await peer.connection()
        stream = await connection.request()
        calls += [start(client) for _ in range(5)]
        await asyncio.sleep(0.02)
        (link,) = client.links
        waits, room = 0, link.room

        async def counted() -> None:
            nonlocal waits
            waits += 1
            await room()

        link.room = counted  # type: ignore[method-assign]
        for number, done in enumerate(calls):
            connection.send(answer(stream, b"x"))
            assert await done == b"x"
            assert [each.done() for each in calls].count(True) == number + 1
            if done is not calls[-1]:
                stream = await connection.request()
        assert waits == 0, "nobody is woken in vain"


async def test_who_gives_up_hands_its_turn_on(path: str, client: UnaryClient) -> None:
    async with Peer(path, {http2.MAX_CONCURRENT_STREAMS: 1}) as peer:
        first = start(client)
        connection = await peer.connection()
        stream = await connection.request()
        connection.send(http2.frame(http2.PING, 0, 0, bytes(8)))
        await connection.next(http2.PING)
        second, third = start(client), start(client)
        await asyncio.sleep(0.02)
        (link,) = client.links
        woken, wake = link._waiting[0], link._wake

        def woken_and_cancelled() -> None:
            wake()
            if woken.done():
                second.cancel()

        link._wake = woken_and_cancelled  # type: ignore[method-assign]
        connection.send(answer(stream, b"x"))
        assert await first == b"x"
        connection.send(answer(await connection.request(), b"y"))
        assert await third == b"y"
        with pytest.raises(asyncio.CancelledError):
            await second
        assert link._promised == 0
