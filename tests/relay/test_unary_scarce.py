"""The unary client where the proxy has no descriptor left for a connection (fault matrix P8)."""

import asyncio
import errno
import socket
from pathlib import Path

import pytest

from runtimeproxy.relay import unary
from runtimeproxy.relay.dial import SCARCE, dial_now
from runtimeproxy.relay.unary import Kind, Peer, Shortage, UnaryClient
from tests.fakes.descriptors import no_descriptors
from tests.relay.calls import LONG_SECONDS, METHOD, failing, start
from tests.relay.peers import Peer as ScriptedPeer
from tests.relay.peers import answer

SHORT_SECONDS = 0.05


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unary, "SCARCE_RETRY_SECONDS", 0.01)


async def test_a_call_waits_for_a_descriptor(path: str, client: UnaryClient) -> None:
    async with ScriptedPeer(path) as server:
        with no_descriptors():
            call = start(client)
            await asyncio.sleep(SHORT_SECONDS)
            assert not call.done()
        connection = await server.connection()
        connection.send(answer(await connection.request(), b"x"))
        assert await call == b"x"


@pytest.mark.parametrize("number", SCARCE, ids=errno.errorcode.get)
async def test_whatever_is_short_is_waited_for(path: str, number: int) -> None:
    failures = [OSError(number, "scarce")] * 3

    def scarce(path: str) -> socket.socket | None:
        if failures:
            raise failures.pop()
        return dial_now(path)

    client = UnaryClient(path, dialler=scarce)
    async with ScriptedPeer(path) as server:
        call = start(client)
        connection = await server.connection()
        connection.send(answer(await connection.request(), b"x"))
        assert await call == b"x"
        await client.close()


async def test_what_stays_short_is_told_as_our_own(path: str, client: UnaryClient) -> None:
    async with ScriptedPeer(path):
        with no_descriptors():
            failed = await failing(client.call(METHOD, b"", SHORT_SECONDS))
        assert isinstance(failed, Shortage)
        assert failed.kind is Kind.UNREACHABLE, "the peer never saw it"
        assert failed.text == "the proxy itself lacks what it needs: Too many open files"


async def test_a_peer_that_hangs_is_late_even_after_a_shortage(path: str, client: UnaryClient) -> None:
    async with ScriptedPeer(path):
        with no_descriptors():
            await failing(client.call(METHOD, b"", SHORT_SECONDS))
        assert (await failing(client.call(METHOD, b"", SHORT_SECONDS))).kind is Kind.DEADLINE


async def test_a_backlog_that_stays_full_is_late_even_after_a_shortage(path: str, client: UnaryClient) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(path)
        listener.listen(0)
        waiting.connect(path)
        with no_descriptors():
            await failing(client.call(METHOD, b"", SHORT_SECONDS))
        assert (await failing(client.call(METHOD, b"", SHORT_SECONDS))).kind is Kind.DEADLINE


async def test_nobody_there_is_told_at_once_even_without_a_descriptor(tmp_path: Path) -> None:
    client = UnaryClient(str(tmp_path / "nobody.sock"))
    with no_descriptors():
        failed = await failing(client.call(METHOD, b"", LONG_SECONDS))
    assert (failed.kind, isinstance(failed, Shortage)) == (Kind.UNREACHABLE, False)


async def test_the_peer_is_there_although_it_cannot_be_dialled(path: str, client: UnaryClient) -> None:
    async with ScriptedPeer(path):
        with no_descriptors():
            before = client.peer()
            assert before.socket is not None
            assert (client.peer(), before.connection) == (before, 0)
        assert client.peer() == Peer((before.socket[0], True), 1)  # type: ignore[index]
