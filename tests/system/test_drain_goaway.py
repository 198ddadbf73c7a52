"""The frames of a drain as a client of CRI sees them (relay-rules A11)."""

import asyncio
import socket
from pathlib import Path

import pytest

from runtimeproxy.cri.front import Connection, Front
from runtimeproxy.relay import drain
from tests.fakes.runtime import FakeRuntime, Injection
from tests.system.clients import Client
from tests.system.proxy import WAIT_SECONDS, ProxyInside, until
from tests.system.rawclient import RawClient

pytestmark = pytest.mark.slow

NEVER_SECONDS = 1000.0
CALL_SECONDS = 1.0
MOST = 2**31 - 1


async def test_two_goaways_then_refusals_then_the_last_answer_and_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client may take long to read the first GOAWAY, on a machine that has a lot to do."""
    notice_seconds, gate = drain.NOTICE_SECONDS, asyncio.Event()
    monkeypatch.setattr(drain, "NOTICE_SECONDS", NEVER_SECONDS)
    async with FakeRuntime(str(tmp_path / "runtime.sock")) as runtime, ProxyInside(tmp_path) as proxy:
        runtime.inject("ListContainers", Injection(gate=gate))
        async with RawClient.connected(proxy.socket) as client:
            client.call(1, "ListContainers")
            await until(lambda: bool(runtime.requests("ListContainers")), "the runtime has the request")
            draining = asyncio.create_task(proxy.app.front.drain(WAIT_SECONDS))
            await client.sees("goaway", MOST)
            client.call(3, "Version")
            await client.sees("answered", 3)
            monkeypatch.setattr(drain, "NOTICE_SECONDS", notice_seconds)
            await client.sees("goaway", 3)
            client.call(5, "Version")
            client.call(7, "RunPodSandbox")
            await client.sees("refused", 7)
            gate.set()
            await client.sees("end", 0)
            await draining
        assert client.told == [
            ("goaway", MOST),
            ("answered", 3),
            ("goaway", 3),
            ("refused", 5),
            ("refused", 7),
            ("answered", 1),
            ("end", 0),
        ]
        assert not runtime.requests("RunPodSandbox")
        assert len(runtime.requests("Version")) == 1


async def test_a_call_at_the_image_endpoint_is_waited_for(tmp_path: Path) -> None:
    images = str(tmp_path / "images.sock")
    async with (
        FakeRuntime(str(tmp_path / "runtime.sock")),
        FakeRuntime(images) as service,
        ProxyInside(tmp_path, remote_image_service_endpoint=images) as proxy,
        Client(proxy.socket) as client,
    ):
        service.inject("ListImages", Injection(delay_seconds=CALL_SECONDS))
        call = asyncio.ensure_future(client.call("ListImages"))
        await until(lambda: bool(service.requests("ListImages")), "the image service has the request")
        draining = asyncio.create_task(proxy.app.front.drain(WAIT_SECONDS))
        await call
        await asyncio.wait_for(draining, WAIT_SECONDS / 2)


async def test_a_client_that_has_left_is_not_waited_for(tmp_path: Path) -> None:
    """Although the runtime does not even see that."""
    with socket.socket(socket.AF_UNIX) as runtime:
        runtime.bind(str(tmp_path / "runtime.sock"))
        runtime.listen()
        async with ProxyInside(tmp_path) as proxy:
            async with RawClient.connected(proxy.socket) as client:
                client.call(1, "Version")
                await until(lambda: bool(_connections(proxy)), "the client is there")
                (connection,) = _connections(proxy)
                await until(lambda: connection.unfinished().calls == 1, "its call is open")
            await until(lambda: connection.pair.client_ended, "the client has left")
            assert connection in _connections(proxy)
            await asyncio.wait_for(proxy.app.front.drain(WAIT_SECONDS), WAIT_SECONDS / 2)


def _connections(proxy: ProxyInside) -> set[Connection]:
    front = proxy.app.front
    assert isinstance(front, Front)
    return {one for one in front.connections if isinstance(one, Connection)}
