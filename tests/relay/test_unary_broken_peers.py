"""The unary client against peers that break off or talk nonsense: a call fails once, the next one dials anew."""

import os
from collections.abc import Awaitable, Callable

import pytest

from runtimeproxy.relay.unary import Kind, UnaryClient
from runtimeproxy.wire import http2
from tests.relay.calls import failing, start
from tests.relay.peers import Connection, Peer, answer


async def _garbage(connection: Connection) -> None:
    connection.send(os.urandom(1000).replace(b"\0", b"x"))


async def _http1(connection: Connection) -> None:
    connection.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


async def _end_at_once(connection: Connection) -> None:
    connection.close()


async def _half_close(connection: Connection) -> None:
    connection.writer.write_eof()


async def _end_inside_a_frame(connection: Connection) -> None:
    connection.send(http2.settings({}) + answer(1, b"reply")[:-8])
    connection.writer.write_eof()


async def _answer_then_garbage(connection: Connection) -> None:
    connection.send(http2.settings({}) + http2.SETTINGS_ACK + http2.rst_stream(1, 2) + b"\xff" * 20)


@pytest.mark.parametrize(
    "misbehave", [_garbage, _http1, _end_at_once, _half_close, _end_inside_a_frame, _answer_then_garbage]
)
async def test_a_peer_that_breaks_fails_its_calls_once_and_the_next_call_dials_anew(
    path: str, client: UnaryClient, misbehave: Callable[[Connection], Awaitable[None]]
) -> None:
    async with Peer(path, begins=False) as peer:
        call = start(client)
        connection = await peer.connection()
        await misbehave(connection)
        assert (await failing(call)).kind is Kind.BROKEN
        assert peer.accepted == 1  # it was not tried again
        later = start(client)
        second = await peer.connection()
        await second.begin({})
        second.send(answer(await second.request(), b"x"))
        assert await later == b"x"


async def test_one_call_that_fails_leaves_the_others(path: str, client: UnaryClient) -> None:
    async with Peer(path) as peer:
        calls = [start(client) for _ in range(3)]
        connection = await peer.connection()
        streams = [await connection.request() for _ in calls]
        connection.send(http2.rst_stream(streams[1], 2))
        assert (await failing(calls[1])).kind is Kind.BROKEN
        connection.send(answer(streams[2], b"third") + answer(streams[0], b"first"))
        assert (await calls[0], await calls[2]) == (b"first", b"third")


async def test_close_fails_calls_in_flight_and_a_later_call_dials_anew(path: str, client: UnaryClient) -> None:
    async with Peer(path) as peer:
        call = start(client)
        connection = await peer.connection()
        await connection.request()
        await client.close()
        assert (await failing(call)).kind is Kind.UNREACHABLE
        with pytest.raises(EOFError):
            await connection.next(http2.RST_STREAM)
        later = start(client)
        second = await peer.connection()
        second.send(answer(await second.request(), b"x"))
        assert await later == b"x"
