"""The frames that a client of CRI sees when the runtime leaves behind an answer that waits for Post hooks (C5)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runtimeproxy.cri.front import Connection
from runtimeproxy.relay import pair
from tests.fakes import cri_pb2, hookanswers
from tests.fakes.faults import FaultRelay
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime
from tests.system.clients import Client
from tests.system.proxy import ProxyInside, until
from tests.system.rawclient import RawClient

pytestmark = pytest.mark.slow

POINT = "PostStartContainer"
MOST = 2**31 - 1
SENDS = 20


@asynccontextmanager
async def left_behind(folder: Path) -> AsyncIterator[tuple[RawClient, Connection, asyncio.Event]]:
    """Give a client whose start the runtime answered before it left, its connection, and what lets the hook answer."""
    gate = asyncio.Event()

    async def answer(_: hookanswers.HookCall) -> bytes:
        await gate.wait()
        return b""

    async with (
        FakeRuntime(str(folder / "real.sock")) as runtime,
        HookServer(str(folder / "hooks.sock")) as hooks,
    ):
        proxy = ProxyInside(folder)
        proxy.register("plugin.json", hooks.socket_path, timeout="20s")
        hooks.on(POINT, answer)
        async with FaultRelay(str(proxy.runtime), runtime.socket_path) as relay, proxy:
            async with Client(proxy.socket) as maker:
                container_id = await maker.create(await maker.run_pod())
            await until(lambda: not proxy.app.front.connections, "the maker's connection is closed")
            async with RawClient.connected(proxy.socket) as client:
                start = cri_pb2.StartContainerRequest(container_id=container_id)
                client.call(1, "StartContainer", start.SerializeToString())
                await hooks.wait_for_calls(POINT)
                (connection,) = proxy.app.front.connections
                assert isinstance(connection, Connection)
                relay.cut()
                yield client, connection, gate
            await until(lambda: not proxy.app.front.connections, "the connection is closed with its client")


async def test_it_goes_elsewhere_with_what_is_new_and_may_send_until_it_has_the_answer(tmp_path: Path) -> None:
    """gRPC's clients give up what they have not read as soon as a send fails."""
    async with left_behind(tmp_path) as (client, connection, gate):
        await client.sees("goaway", 1)
        client.call(3, "Version")
        await client.sees("refused", 3)
        gate.set()
        await client.sees("end", 0)
        assert client.told == [("goaway", MOST), ("goaway", 1), ("refused", 3), ("answered", 1), ("end", 0)]
        for _ in range(SENDS):
            client.ping()
            await asyncio.sleep(0.005)
        assert not connection.unfinished().calls


async def test_it_is_not_waited_for_longer_than_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "LINGER_SECONDS", 0.05)
    async with left_behind(tmp_path) as (client, connection, gate):
        gate.set()
        await client.sees("answered", 1)
        await client.sees("end", 0)
        await until(lambda: connection not in connection.front.connections, "the connection is closed")
        with pytest.raises(BrokenPipeError):
            client.ping()


async def test_whoever_cancels_the_call_sees_the_end(tmp_path: Path) -> None:
    async with left_behind(tmp_path) as (client, _, gate):
        await client.sees("goaway", 1)
        client.reset(1)
        await client.sees("end", 0)
        gate.set()
        assert client.told == [("goaway", MOST), ("goaway", 1), ("end", 0)]
