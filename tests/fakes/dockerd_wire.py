"""One request and its reply on an asyncio stream, as Go's net/http server handles them for dockerd.

A reply has a body only where HTTP allows one, and Go's order of lines; nothing is read behind the request's body.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

from tests.fakes.dockerd_checks import bad
from tests.fakes.dockerd_received import MAX_HEAD_BYTES, Head, Header, Received
from tests.fakes.dockerd_structs import go_json

SMALL_REPLY_BYTES = 2048
"""A body up to this size is sent with its length, a longer one as one chunk: the buffer of Go's response writer."""

BODYLESS = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
JSON = ("Content-Type", "application/json")
PLAIN = ("Content-Type", "text/plain; charset=utf-8")
CHUNKED = ("Transfer-Encoding", "chunked")


class _Date:
    """The Date header's line, made once a second."""

    second = 0
    line = b""

    @classmethod
    def now(cls) -> bytes:
        now = int(time.time())
        if now != cls.second:
            cls.second, cls.line = now, f"Date: {formatdate(now, usegmt=True)}\r\n".encode()
        return cls.line


def whole(
    head: Head, status: int, body: bytes, headers: Sequence[Header], keep_alive: bool = True
) -> tuple[list[bytes], bool]:
    """Return a whole reply in pieces, and whether the connection lives on; a body without a type is plain text."""
    names = {key for key, _ in headers}
    framing: list[Header] = []
    if status in BODYLESS:
        body = b""
    elif len(body) > SMALL_REPLY_BYTES and head.method != "HEAD":
        start, keep_alive = stream(head, headers, keep_alive, status)
        # A body of megabytes is not copied.
        framed = [start + b"%x\r\n" % len(body), body, b"\r\n" + chunk(b"")]
        return framed if head.minor else [start, body], keep_alive
    elif "Content-Length" not in names and (body or head.method != "HEAD"):
        framing.append(("Content-Length", str(len(body))))
    if body and "Content-Type" not in names:
        framing.append(PLAIN)
    if status == HTTPStatus.NOT_MODIFIED:
        headers = [header for header in headers if header != JSON]
    start = _lines(head, status, headers, [*framing, *_connection(head, keep_alive)])
    return [start if head.method == "HEAD" else start + body], keep_alive


def stream(head: Head, headers: Sequence[Header], keep_alive: bool, status: int = HTTPStatus.OK) -> tuple[bytes, bool]:
    """Return the head of a reply of unknown length, and whether the connection lives on: it is chunked, or closes."""
    keep_alive = keep_alive and head.minor > 0
    framing = [*_connection(head, keep_alive), *([CHUNKED] if head.minor else [])]
    return _lines(head, status, headers, framing), keep_alive


def chunk(data: bytes) -> bytes:
    """Return a chunk; the last one if there is no data."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _connection(head: Head, keep_alive: bool) -> list[Header]:
    if keep_alive and head.minor == 0:
        return [("Connection", "keep-alive")]
    return [("Connection", "close")] if not keep_alive and head.minor > 0 else []


def _lines(head: Head, status: int, headers: Iterable[Header], framing: Iterable[Header]) -> bytes:
    """Return a head in Go's order: the handler's headers sorted, the date, then the server's own."""
    first = f"HTTP/1.{min(head.minor, 1)} {status} {HTTPStatus(status).phrase}\r\n"
    return (
        (first + _spelt(sorted(headers))).encode(errors="surrogateescape")
        + _Date.now()
        + _spelt(framing).encode()
        + b"\r\n"
    )


def _spelt(headers: Iterable[Header]) -> str:
    return "".join(f"{key}: {value}\r\n" for key, value in headers)


CRLF = b"\r\n"
PIECE_BYTES = 256 << 10
DRAINED_BYTES = 256 << 10
"""So much of a body that nobody reads is read before the reply, for the sake of the connection."""

FILLER_CHUNK_BYTES = 32 << 10
_FILLER = chunk(bytes(FILLER_CHUNK_BYTES))


class Cut(Exception):
    """The connection ends here, as was injected."""


class Reader(asyncio.StreamReader):
    """A stream that knows how much of it was not taken yet, and tells when the client has sent its last byte."""

    def __init__(self) -> None:
        super().__init__(limit=MAX_HEAD_BYTES, loop=asyncio.get_running_loop())
        self.untaken = 0
        self.ended = asyncio.Event()
        self.abandoned = False
        """The rest of a body is not wanted."""
        self.current: Received | None = None
        """The request whose reply is not complete."""

    def feed_data(self, data: Any) -> None:
        self.untaken += len(data)
        super().feed_data(data)

    def feed_eof(self) -> None:
        super().feed_eof()
        self._end()

    def set_exception(self, exception: Exception) -> None:
        super().set_exception(exception)
        self._end()

    def _end(self) -> None:
        self.ended.set()
        if self.current is not None:
            self.current.client_ended = True

    async def until(self, end: bytes) -> bytes:
        """Take the bytes up to and with ``end``. Raises as readuntil does."""
        data = await self.readuntil(end)
        self.untaken -= len(data)
        return data

    async def some(self, most: int = PIECE_BYTES) -> bytes:
        """Take what is there; b"" at the end."""
        data = await self.read(most)
        self.untaken -= len(data)
        return data


class Exchange:
    """What a handler has: the request, and the writer of its reply; ``common`` goes with every reply of a handler.

    ``api`` is the API version that the request names, else the daemon's newest.
    """

    def __init__(self, head: Head, received: Received, reader: Reader, writer: asyncio.StreamWriter) -> None:
        self.head = head
        self.received = received
        self.reader = reader
        self.common: Sequence[Header] = ()
        self.api = ""
        self.keep_alive = head.keep_alive
        self.cut_after_bytes: int | None = None
        self._writer = writer
        self._written = 0
        self._expected = head.expects
        self._left = head.length or 0
        self.body_over = asyncio.Event()
        if head.length == 0:
            self.body_over.set()
        self._inside_chunk = False
        self._chunking = False

    # ---- the request's body

    async def piece(self) -> bytes:
        """Return the next bytes of the body, b"" at its end.

        Raises Refused if the body is cut or broken.
        """
        if self.body_over.is_set():
            return b""
        if self._expected:
            self._expected = False
            await self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            if self.head.length is None and self._left == 0:
                await self._next_chunk()
            return await self._next_bytes()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            self.keep_alive = False
            self.body_over.set()
            cut = isinstance(error, asyncio.IncompleteReadError)
            raise bad("unexpected EOF" if cut else "invalid byte in chunk length") from error

    async def _next_bytes(self) -> bytes:
        if self.body_over.is_set():
            return b""
        data = await self.reader.some(min(self._left, PIECE_BYTES))
        if not data:
            raise asyncio.IncompleteReadError(b"", self._left)
        self._left -= len(data)
        self.received.keep(data, data)
        if self._left == 0 and self.head.length is not None:
            self.body_over.set()
        return data

    async def _next_chunk(self) -> None:
        if self._inside_chunk:
            end = await self.reader.until(CRLF)
            self.received.keep(end)
            if end != CRLF:
                raise ValueError("bytes behind a chunk")
        line = await self.reader.until(CRLF)
        self.received.keep(line)
        self._inside_chunk = True
        self._left = int(line.partition(b";")[0], 16)
        while self._left == 0 and not self.body_over.is_set():
            trailer = await self.reader.until(CRLF)
            self.received.keep(trailer)
            if trailer == CRLF:
                self.body_over.set()

    async def body(self) -> bytes:
        """Return the whole body. Raises Refused."""
        pieces = []
        while data := await self.piece():
            pieces.append(data)
        return b"".join(pieces)

    async def _settle_body(self) -> None:
        """Before a reply, do with what was not read of the body as Go does."""
        if self.body_over.is_set():
            return
        if self._expected or self._left >= DRAINED_BYTES:
            self._abandon_body()
            return
        drained = 0
        while drained <= DRAINED_BYTES and (data := await self.piece()):
            drained += len(data)
        if not self.body_over.is_set():
            self._abandon_body()

    def _abandon_body(self) -> None:
        self.keep_alive = False
        self.reader.abandoned = True

    # ---- the reply

    async def write(self, *pieces: bytes) -> None:
        """Send bytes as they are. Raises Cut."""
        count = sum(map(len, pieces))
        if self.cut_after_bytes is not None and self._written + count >= self.cut_after_bytes:
            self._writer.write(b"".join(pieces)[: self.cut_after_bytes - self._written])
            raise Cut
        self._written += count
        self._writer.writelines(pieces)
        await self._writer.drain()

    async def reply(self, status: int, body: bytes = b"", *headers: Header) -> None:
        await self._settle_body()
        self.received.status = status
        pieces, self.keep_alive = whole(self.head, status, body, [*self.common, *headers], self.keep_alive)
        await self.write(*pieces)

    async def json(self, value: object, status: int = HTTPStatus.OK) -> None:
        await self.reply(status, go_json(value, html=False), JSON)

    async def begin(self, *headers: Header, settle: bool = True) -> None:
        """Send the head of a stream; without ``settle`` the rest of the request's body can be read after it."""
        if settle:
            await self._settle_body()
        self.received.status = HTTPStatus.OK
        self._chunking = self.head.minor > 0
        start, self.keep_alive = stream(self.head, [*self.common, *headers], self.keep_alive)
        await self.write(start)

    async def send(self, data: bytes) -> None:
        """Send a piece of a stream, which is not empty: a chunk of its own."""
        await self.write(chunk(data) if self._chunking else data)

    async def fill(self, count: int) -> None:
        """Send so many zero bytes of a stream, in chunks of 32 KiB as io.Copy makes them."""
        pieces, rest = divmod(count, FILLER_CHUNK_BYTES)
        piece = _FILLER if self._chunking else bytes(FILLER_CHUNK_BYTES)
        block = piece * 8
        for _ in range(pieces // 8):
            await self.write(block)
        await self.write(piece * (pieces % 8))
        if rest:
            await self.send(bytes(rest))

    async def finish(self) -> None:
        if self._chunking:
            self._chunking = False
            await self.write(chunk(b""))

    async def hijack(self, status: int, head: bytes) -> None:
        """Take the connection over: send a head that was made by hand; what follows is the handler's, both ways."""
        self.received.status = status
        self.keep_alive = False
        await self.write(head)

    async def half_close(self) -> None:
        """Send no more, take until the client sends no more either: dockerd's end of a hijacked connection."""
        if self._writer.can_write_eof():
            self._writer.write_eof()
        while await self.reader.some():
            pass
