"""The unary client tells who is at its path: what stays the same, what changes with a socket and with a connection."""

import socket

import pytest

from runtimeproxy.relay.dial import UntrustedSocket
from runtimeproxy.relay.unary import Kind, Peer, UnaryClient
from tests.relay.calls import LONG_SECONDS, METHOD, failing, start
from tests.relay.peers import Peer as ScriptedPeer
from tests.relay.peers import answer


async def asked(client: UnaryClient, server: ScriptedPeer) -> None:
    """Make the first call on a connection, which is answered."""
    call = start(client)
    connection = await server.connection()
    connection.send(answer(await connection.request(), b"x"))
    assert await call == b"x"


async def test_the_peer_stays_the_same_as_long_as_the_socket_and_the_connection_do(
    path: str, client: UnaryClient
) -> None:
    assert client.peer() == Peer(None, 0)
    async with ScriptedPeer(path) as server:
        first = client.peer()
        assert first.connection == 1
        await asked(client, server)
        assert client.peer() == first
        await client.close()
        assert client.peer() == Peer(first.socket, 0)
        await asked(client, server)
        assert client.peer() == Peer(first.socket, 2)
    async with ScriptedPeer(path) as server:
        second = client.peer()
        assert second.socket not in (None, first.socket)
        assert second.connection == 3
        await asked(client, server)
        assert client.peer() == second
    assert client.peer() == Peer(None, 0)


async def test_a_deadline_and_the_peers_end_make_another_connection_and_no_other_socket(
    path: str, client: UnaryClient
) -> None:
    async with ScriptedPeer(path) as server:
        before = client.peer()
        assert (await failing(client.call(METHOD, b"", 0.02))).kind is Kind.DEADLINE
        assert client.peer() == Peer(before.socket, 0)
        await server.connection()
        call = start(client)
        connection = await server.connection()
        await connection.request()
        assert client.peer() == Peer(before.socket, 2)
        connection.close()
        await failing(call)
        assert client.peer() == Peer(before.socket, 0)


async def test_a_socket_that_nobody_listens_on_is_dialled_each_time(path: str, client: UnaryClient) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        assert client.peer() == client.peer() == Peer(None, 0)
        sock.listen(1)
        assert client.peer().connection == 1


async def test_the_first_connection_after_a_full_backlog_is_seen(path: str, client: UnaryClient) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(path)
        listener.listen(0)
        waiting.connect(path)
        before = client.peer()
        assert (client.peer(), before.connection) == (before, 0)
        listener.accept()[0].close()
        after = client.peer()
        assert after.socket not in (None, before.socket)
        assert after.connection == 1


async def test_what_the_dialler_raises_is_the_callers(path: str) -> None:
    def untrusting(path: str) -> None:
        raise UntrustedSocket("not this one")

    client = UnaryClient(path, dialler=untrusting)
    async with ScriptedPeer(path):
        assert client.peer() == Peer(None, 0)
        with pytest.raises(UntrustedSocket, match="not this one"):
            await client.call(METHOD, b"", LONG_SECONDS)
