"""Clients that make one call and leave it: they reset its stream, or close its connection.

A call is marked for the fake runtime; the rest of it is as the front's clients send it.
"""

import asyncio
from abc import ABC, abstractmethod
from pathlib import Path

from tests.docker.client import Client, request
from tests.system.cancelling import MARK, Moment, Trial
from tests.system.cri_front import METHODS
from tests.system.h2client import PREFIX_BYTES, Answer, H2Client


class LeavingClient(H2Client):
    """A client that may send no more than a part of a request."""

    _most: int | None = None

    async def open_part(self, path: str, message: bytes, mark: str, size: int) -> tuple[int, asyncio.Future[Answer]]:
        """Send the headers, and so many bytes of the body."""
        self._most = size
        try:
            return await self.open(path, message, [(MARK, mark)])
        finally:
            self._most = None

    async def _send(self, stream: int, body: bytes) -> None:
        if self._most is None:
            await super()._send(stream, body)
        else:
            self._h2.send_data(stream, body[: self._most])
            self._flush()


class Line(ABC):
    """A client's way to make one call, and to leave."""

    @abstractmethod
    async def send(self, trial: Trial, message: bytes) -> None:
        """Send a trial's request, or a part of it."""

    @abstractmethod
    async def leave(self) -> None:
        """Leave in the front's way."""

    @property
    def answered(self) -> bool:
        """Tell whether the client has seen the end of the call."""
        return False


class CriLine(Line):
    """A stream: of a connection that is closed with it, or of one that others share, where it is reset."""

    def __init__(self, client: LeavingClient, shared: bool) -> None:
        self._client = client
        self._shared = shared
        self._stream = 0
        self._answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    async def send(self, trial: Trial, message: bytes) -> None:
        path = f"/runtime.v1.RuntimeService/{METHODS[trial.verb]}"
        if not self._shared:
            await self._client.__aenter__()
        if trial.moment is Moment.PART:
            size = int(trial.share * (PREFIX_BYTES + len(message)))
            self._stream, self._answer = await self._client.open_part(path, message, trial.name, size)
        else:
            self._stream, self._answer = await self._client.open(path, message, [(MARK, trial.name)])

    async def leave(self) -> None:
        if not self._shared:
            await self._client.__aexit__(None, None, None)
        elif not self._answer.done():
            self._client.reset(self._stream)
        self._answer.cancel()

    @property
    def answered(self) -> bool:
        return self._answer.done()


class DockerLine(Line):
    """A connection over which something was asked before, as dockershim keeps its connections."""

    def __init__(self, socket: Path) -> None:
        self._socket = str(socket)
        self.client: Client

    async def send(self, trial: Trial, message: bytes) -> None:
        self.client = await Client.connect(self._socket)
        self.client.send(request("GET", f"/_ping?trial={trial.name}"))
        await self.client.answer("GET")
        head, _, rest = message.partition(b" HTTP/1.1")
        mark = b"%btrial=%b HTTP/1.1" % (b"&" if b"?" in head else b"?", trial.name.encode())
        self.client.send(trial.part(head + mark + rest))

    async def leave(self) -> None:
        self.client.abort()
