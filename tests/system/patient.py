"""Kubelets that lose no call by a restart if the proxy follows the protocols' rules: they wait for a listener."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from tests.docker.client import Answer, Client
from tests.system import clients
from tests.system.cri_front import CRI, CriCaller
from tests.system.docker_front import DOCKER, DockerCaller
from tests.system.fronts import SECONDS, Failed

BACKOFF: dict[str, Any] = {f"grpc.{name}_reconnect_backoff_ms": 20 for name in ("initial", "min", "max")}


class PatientCri(CriCaller):
    """grpcio retries what GOAWAY or REFUSED_STREAM marks as not processed, and waits for a connection."""

    def __init__(self, socket: Path | str) -> None:
        super().__init__(socket, **BACKOFF)
        self.of_calls = {"wait_for_ready": True}

    async def follow(self) -> None:
        events: Any = self._client.channel.unary_stream(clients.path("GetContainerEvents"))
        stream = events(b"", wait_for_ready=True)
        with suppress(grpc.aio.AioRpcError):
            while await stream.read():
                pass


class PatientDocker(DockerCaller):
    """Retries as Go's net/http does.

    On a used connection it repeats a request of which nothing was sent, and a read-only one if the connection ended
    before its answer.
    """

    async def _answer(self, data: bytes, seconds: float = SECONDS) -> Answer:
        async with asyncio.timeout(seconds):
            while True:
                used_before = bool(self._idle)
                client = self._idle.pop() if self._idle else await self._connect()
                try:
                    sent = _send(client, data)
                    if sent:
                        answer = await client.answer()
                        break
                except (asyncio.IncompleteReadError, ConnectionError) as error:
                    no_bytes_received = not getattr(error, "partial", b"")
                    sent = not (no_bytes_received and data.startswith(b"GET "))
                client.abort()
                if sent or not used_before:
                    raise Failed(None, f"the connection ended: {data[:60]!r}, used before: {used_before}")
        self._idle.append(client)
        return answer

    async def _connect(self) -> Client:
        while True:
            try:
                return await Client.connect(self._socket)
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(0.02)

    async def follow(self) -> None:
        client = await self._connect()
        client.send(self._request("GET", "/events"))
        try:
            with suppress(ConnectionError):
                await client.reader.read()
        finally:
            client.abort()


def _send(client: Client, data: bytes) -> bool:
    """Send a request immediately; return False if nothing was sent because the peer has closed."""
    try:
        sent = os.write(client.writer.get_extra_info("socket").fileno(), data)
    except BrokenPipeError:
        return False
    assert sent == len(data), "requests of this test are short"
    return True


Patient = PatientCri | PatientDocker
PATIENT: dict[str, Callable[[Path | str], Patient]] = {CRI.name: PatientCri, DOCKER.name: PatientDocker}
