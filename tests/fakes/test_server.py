"""The servers that tests run leave no connection open."""

import asyncio
import socket
from pathlib import Path

import pytest

from tests.fakes.server import StreamServer


@pytest.mark.parametrize("iterations", [2, 3, 4])
async def test_connection_is_known_when_its_server_is_stopped(tmp_path: Path, iterations: int) -> None:
    writers = list[asyncio.StreamWriter]()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    with socket.socket(socket.AF_UNIX) as client:
        async with StreamServer(tmp_path / "some.sock", accept):
            client.connect(str(tmp_path / "some.sock"))
            for _ in range(iterations):
                await asyncio.sleep(0)
        (writer,) = writers
        writer.transport.abort()
