"""The fault relay passes every byte and half-close as it came, and goes wrong exactly as told."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.dockerd_client import Raw, until
from tests.fakes.faults import FaultRelay


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.write(b" end")
    writer.close()


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[FaultRelay]:
    backend = await asyncio.start_unix_server(echo, tmp_path / "echo.sock")
    async with FaultRelay(str(tmp_path / "front.sock"), str(tmp_path / "echo.sock")) as front:
        yield front
    backend.close()


@pytest.fixture
async def client(relay: FaultRelay) -> AsyncIterator[Raw]:
    async with await Raw.connect(relay.listen) as raw:
        await until(lambda: relay.connections)
        yield raw


async def test_bytes_and_half_closes_pass_and_are_kept(relay: FaultRelay, client: Raw) -> None:
    client.send(b"hello")
    client.end()
    assert await client.rest() == b"hello end"
    [kept] = relay.connections
    assert (bytes(kept.to_backend), bytes(kept.to_client)) == (b"hello", b"hello end")
    assert (kept.client_half_closed, kept.backend_half_closed) == (True, True)


async def test_cut_lets_exactly_so_many_bytes_pass(relay: FaultRelay, client: Raw) -> None:
    relay.to_client.cut_after_bytes = 7
    client.send(b"0123456789")
    assert await client.rest() == b"0123456"


async def test_stopped_reader_takes_nothing_and_its_reset_is_seen(relay: FaultRelay, client: Raw) -> None:
    relay.to_backend.stop_reading()
    client.send(b"late")
    relay.to_backend.resume_reading()
    assert await client.exactly(4) == b"late"
    relay.to_backend.stop_reading()
    client.send(b"lost")
    relay.reset()
    with pytest.raises(ConnectionResetError):
        await client.rest()
    assert bytes(relay.connections[0].to_backend) == b"late"


async def test_half_close_of_the_backend_on_command(relay: FaultRelay, client: Raw) -> None:
    relay.half_close_backend()
    assert await client.rest() == b" end"


async def test_absent_backend_ends_the_client(tmp_path: Path) -> None:
    path = str(tmp_path / "front.sock")
    async with FaultRelay(path, str(tmp_path / "nobody.sock")), await Raw.connect(path) as raw:
        assert await raw.rest() == b""
