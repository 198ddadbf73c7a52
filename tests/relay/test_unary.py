"""The unary client on real sockets: against grpcio's server, and against a scripted peer that does everything wrong."""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
import uvloop

from runtimeproxy.relay.unary import Kind, UnaryClient
from runtimeproxy.wire import http2
from tests.relay.calls import LONG_SECONDS, METHOD, failing, start
from tests.relay.peers import Peer, answer

Handler = Callable[[bytes, Any], Awaitable[bytes]]


class GrpcServer:
    """grpcio's server with one handler for every method."""

    def __init__(self, path: str, handler: Handler) -> None:
        size = 64 * 2**20
        options = [("grpc.max_receive_message_length", size), ("grpc.max_send_message_length", size)]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((self,))  # type: ignore[arg-type]
        self._server.add_insecure_port(f"unix:{path}")
        self._handler: Any = grpc.unary_unary_rpc_method_handler(handler)

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return self._handler

    async def __aenter__(self) -> None:
        await self._server.start()

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)


async def echo(message: bytes, context: Any) -> bytes:
    return message


# Against grpcio.


async def test_an_answer(path: str, client: UnaryClient) -> None:
    async with GrpcServer(path, echo):
        assert await client.call(METHOD, b"message", LONG_SECONDS) == b"message"
        assert await client.call(METHOD, b"", LONG_SECONDS) == b""


def test_it_works_on_uvloop(path: str) -> None:
    async def scenario() -> None:
        client = UnaryClient(path)
        async with GrpcServer(path, echo):
            assert await client.call(METHOD, b"x" * 300_000, LONG_SECONDS) == b"x" * 300_000
            await client.close()
        assert (await failing(client.call(METHOD, b"", LONG_SECONDS))).kind is Kind.UNREACHABLE
        with socket.socket(socket.AF_UNIX) as full, socket.socket(socket.AF_UNIX) as waiting:
            full.bind(path)
            full.listen(0)
            waiting.connect(path)
            assert (await failing(client.call(METHOD, b"", 0.05))).kind is Kind.DEADLINE

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


async def test_many_calls_at_once_on_one_connection(path: str, client: UnaryClient) -> None:
    async with GrpcServer(path, echo):
        messages = [str(number).encode() * 1000 for number in range(300)]
        assert await asyncio.gather(*(client.call(METHOD, m, LONG_SECONDS) for m in messages)) == messages
        assert len(client.links) == 1


async def test_big_messages_both_ways(path: str, client: UnaryClient) -> None:
    async with GrpcServer(path, echo):
        message = os.urandom(4 * 2**20)
        assert await client.call(METHOD, message, LONG_SECONDS) == message


async def test_an_answer_above_the_limit(path: str, client: UnaryClient) -> None:
    async with GrpcServer(path, echo):
        failed = await failing(client.call(METHOD, b"x" * (4 * 2**20 + 1), LONG_SECONDS))
        assert (failed.code, failed.kind) == (8, Kind.BROKEN)
        assert await client.call(METHOD, b"still", LONG_SECONDS) == b"still"


async def test_the_limit_is_the_callers(path: str) -> None:
    client = UnaryClient(path, max_reply_bytes=16 * 2**20)
    async with GrpcServer(path, echo):
        assert len(await client.call(METHOD, b"x" * (16 * 2**20), LONG_SECONDS)) == 16 * 2**20
        await client.close()


async def test_an_error_status_with_its_text(path: str, client: UnaryClient) -> None:
    async def refuse(message: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "nicht für dich: 100 %")
        raise AssertionError("unreachable")

    async with GrpcServer(path, refuse):
        failed = await failing(client.call(METHOD, b"", LONG_SECONDS))
        assert (failed.code, failed.text, failed.kind) == (7, "nicht für dich: 100 %", Kind.STATUS)


async def test_the_server_is_told_the_deadline_and_sees_the_cancel(path: str, client: UnaryClient) -> None:
    left: list[float] = []
    cancelled = asyncio.Event()

    async def hang(message: bytes, context: Any) -> bytes:
        left.append(context.time_remaining())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError("unreachable")

    async with GrpcServer(path, hang):
        # A server drops, unseen, what comes to it when its deadline has passed: then there is more time.
        for seconds in (0.3, 3.0, LONG_SECONDS):
            begun = time.monotonic()
            failed = await failing(client.call(METHOD, b"", seconds))
            assert (failed.code, failed.kind) == (4, Kind.DEADLINE)
            assert seconds - 0.01 < time.monotonic() - begun < seconds + LONG_SECONDS
            if left and left[-1] > 0:
                break
        assert 0 < left[-1] <= seconds
        async with asyncio.timeout(20):
            await cancelled.wait()


async def test_a_server_that_restarts_is_found_again(path: str, client: UnaryClient) -> None:
    for _ in range(3):
        async with GrpcServer(path, echo):
            assert await client.call(METHOD, b"x", LONG_SECONDS) == b"x"


# Reaching the peer.


@pytest.mark.parametrize("there", [False, True])
async def test_nobody_listens(path: str, client: UnaryClient, there: bool) -> None:
    if there:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(path)
    begun = time.monotonic()
    failed = await failing(client.call(METHOD, b"", LONG_SECONDS))
    assert (failed.code, failed.kind) == (14, Kind.UNREACHABLE)
    assert failed.text == f"{path}: {'Connection refused' if there else 'No such file or directory'}"
    assert time.monotonic() - begun < LONG_SECONDS / 2


async def test_a_full_backlog_is_waited_for(path: str, client: UnaryClient) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(path)
        listener.listen(0)
        waiting.connect(path)
        assert (await failing(client.call(METHOD, b"", 0.05))).kind is Kind.DEADLINE
        call = start(client)
        await asyncio.sleep(0.05)
        listener.accept()[0].close()
        listener.settimeout(20)
        accepted, _ = await asyncio.to_thread(listener.accept)
        with accepted:
            accepted.settimeout(20)
            assert (await asyncio.to_thread(accepted.recv, 100)).startswith(http2.PREFACE)
        assert (await failing(call)).kind is Kind.BROKEN


@pytest.mark.parametrize("seconds", [0.0, -1.0])
async def test_no_time_left(path: str, client: UnaryClient, seconds: float) -> None:
    async with Peer(path) as peer:
        assert (await failing(client.call(METHOD, b"", seconds))).kind is Kind.DEADLINE
        await asyncio.sleep(0.02)
        assert peer.accepted == 0


async def test_a_socket_that_was_replaced_is_dialled_and_earlier_calls_end_where_they_began(
    path: str, client: UnaryClient
) -> None:
    async with Peer(path) as old:
        earlier = start(client)
        first = await old.connection()
        stream = await first.request()
        os.rename(path, path + ".old")
        async with Peer(path) as new:
            later = start(client)
            second = await new.connection()
            second.send(answer(await second.request(), b"new"))
            assert await later == b"new"
            first.send(answer(stream, b"old"))
            assert await earlier == b"old"
            with pytest.raises(EOFError):
                await first.next(http2.HEADERS)
            assert (old.accepted, new.accepted) == (1, 1)
    os.unlink(path + ".old")


async def test_an_idle_connection_that_ended_is_replaced(path: str, client: UnaryClient) -> None:
    async with Peer(path) as peer:
        for _ in range(3):
            call = start(client)
            connection = await peer.connection()
            connection.send(answer(await connection.request(), b"x"))
            assert await call == b"x"
            connection.close()
            async with asyncio.timeout(20):
                while client.links:
                    await asyncio.sleep(0.001)


async def test_goaway_lets_calls_finish_and_sends_later_ones_elsewhere(path: str, client: UnaryClient) -> None:
    async with Peer(path) as peer:
        earlier = start(client)
        first = await peer.connection()
        stream = await first.request()
        first.send(http2.goaway(stream, 0) + http2.frame(http2.PING, 0, 0, bytes(8)))
        await first.next(http2.PING)
        later = start(client)
        second = await peer.connection()
        second.send(answer(await second.request(), b"second"))
        assert await later == b"second"
        first.send(answer(stream, b"first"))
        assert await earlier == b"first"
        with pytest.raises(EOFError):
            await first.next(http2.HEADERS)


# The peer's limits.


async def test_more_calls_than_the_peer_takes_wait_for_their_turn(path: str, client: UnaryClient) -> None:
    async with Peer(path, {http2.MAX_CONCURRENT_STREAMS: 1}) as peer:
        first = start(client)
        connection = await peer.connection()
        stream = await connection.request()
        connection.send(http2.frame(http2.PING, 0, 0, bytes(8)))
        await connection.next(http2.PING)  # the client has our SETTINGS
        waiting = [start(client) for _ in range(3)]
        assert (await failing(client.call(METHOD, b"", 0.05))).kind is Kind.DEADLINE
        for done in [first, *waiting]:
            connection.send(answer(stream, b"x"))
            assert await done == b"x"
            if done is not waiting[-1]:
                stream = await connection.request()
        assert stream == 7
        assert peer.accepted == 1


async def test_calls_that_wait_for_their_turn_go_on_when_the_connection_ends(path: str, client: UnaryClient) -> None:
    async with Peer(path, {http2.MAX_CONCURRENT_STREAMS: 1}) as peer:
        first = start(client)
        connection = await peer.connection()
        await connection.request()
        connection.send(http2.frame(http2.PING, 0, 0, bytes(8)))
        await connection.next(http2.PING)
        waiting = start(client)
        await asyncio.sleep(0.02)
        connection.close()
        assert (await failing(first)).kind is Kind.BROKEN
        second = await peer.connection()
        second.send(answer(await second.request(), b"x"))
        assert await waiting == b"x"


# Deadlines and cancels.


async def test_a_deadline_resets_the_stream_and_later_calls_use_a_new_connection(
    path: str, client: UnaryClient
) -> None:
    async with Peer(path) as peer:
        failed = await failing(client.call(METHOD, b"", 0.05))
        assert failed.kind is Kind.DEADLINE
        first = await peer.connection()
        assert (await first.next(http2.RST_STREAM))[2:] == (1, b"\0\0\0\x08")
        with pytest.raises(EOFError):
            await first.next(http2.RST_STREAM)
        later = start(client)
        second = await peer.connection()
        second.send(answer(await second.request(), b"x"))
        assert await later == b"x"


async def test_a_reset_at_the_deadline_is_the_deadline(path: str, client: UnaryClient) -> None:
    async with Peer(path) as peer:
        loop = asyncio.get_running_loop()
        call = start(client, 0.2)
        connection = await peer.connection()
        stream = await connection.request()
        # As a server does whose own timer is first. Both ways, early or late, the reason must be the deadline.
        loop.call_at(loop.time() + 0.198, connection.send, http2.rst_stream(stream, http2.CANCEL))
        assert (await failing(call)).kind is Kind.DEADLINE


async def test_a_cancel_resets_the_stream_and_keeps_the_connection(path: str, client: UnaryClient) -> None:
    async with Peer(path) as peer:
        call = start(client)
        connection = await peer.connection()
        stream = await connection.request()
        call.cancel()
        assert (await connection.next(http2.RST_STREAM))[2:] == (stream, b"\0\0\0\x08")
        assert call.cancelled()
        later = start(client)
        connection.send(answer(await connection.request(), b"x"))
        assert await later == b"x"
        assert peer.accepted == 1


async def test_a_peer_that_reads_nothing_costs_the_deadline_only(path: str, client: UnaryClient) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(10)
        message = b"x" * 60_000
        calls = [start(client, 0.3, message) for _ in range(100)]
        begun = time.monotonic()
        failures = [await failing(call) for call in calls]
        assert {failed.kind for failed in failures} == {Kind.DEADLINE}
        assert time.monotonic() - begun < LONG_SECONDS, "each waits for its own deadline alone"


async def test_a_peer_that_asks_and_never_reads_is_no_longer_read(path: str, client: UnaryClient) -> None:
    pings = 100_000
    async with Peer(path) as peer:
        call = start(client)
        connection = await peer.connection()
        transport = connection.writer.transport
        transport.pause_reading()  # type: ignore[attr-defined]
        connection.send(http2.frame(http2.PING, 0, 0, bytes(8)) * pings)
        stuck = 0
        async with asyncio.timeout(20):
            while transport.get_write_buffer_size() != stuck:
                stuck = transport.get_write_buffer_size()
                await asyncio.sleep(0.1)
        assert stuck > 500_000
        transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(pings):
            await connection.next(http2.PING)
        connection.send(answer(1, b"x"))
        assert await call == b"x"
