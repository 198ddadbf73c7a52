"""The fake dockerd's HTTP: requests as received, faults to inject, and replies as Go's net/http writes them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

from tests.fakes.dockerd_shapes import go_json
from tests.fakes.dockerd_state import Refused, bad_request

MAX_HEAD_BYTES = 1 << 20
Header = tuple[str, str]
SMALL_REPLY_BYTES = 2048
"""A body up to this size is sent with its length, a longer one as one chunk: the buffer of Go's response writer."""

BODYLESS = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
JSON = ("Content-Type", "application/json")
PLAIN = ("Content-Type", "text/plain; charset=utf-8")
CHUNKED = ("Transfer-Encoding", "chunked")
CLOSE = ("Connection", "close")
RAW_STREAM = "application/vnd.docker.raw-stream"
CRLF = b"\r\n"
READ_BYTES = 256 << 10


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """A request's head: ``length`` is the body's, None if it is chunked; ``query`` has the first value of each key."""

    raw: bytes
    method: str
    target: str
    headers: Mapping[str, str]
    """The first value of each header by its name in lower case."""
    path: str
    query: Mapping[str, str]
    length: int | None
    keep_alive: bool

    def get(self, name: str) -> str:
        return self.headers.get(name, "")

    def flag(self, name: str) -> bool:
        """Return a boolean of the query as Docker reads it, false if it is absent."""
        return self.query.get(name, "").lower() not in ("", "0", "no", "false", "none")


@functools.lru_cache(maxsize=256)
def parse(raw: bytes) -> Head:
    """Return the head in ``raw``, which includes the empty line. Raises ValueError if it is not a head."""
    first, *lines = raw[:-4].decode("latin-1").split("\r\n")
    method, target, version = first.split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"{version} is not served")
    headers = {name.lower(): value.strip(" \t") for name, value in (line.split(":", 1) for line in reversed(lines))}
    spelt, _, query = target.partition("?")
    path = unquote_to_bytes(spelt.encode("latin-1")).decode(errors="surrogateescape")
    length = None if "transfer-encoding" in headers else int(headers.get("content-length", "0"))
    values = dict(reversed(parse_qsl(query, keep_blank_values=True)))
    keep_alive = "close" not in headers.get("connection", "").lower()
    return Head(raw, method, target, headers, path, values, length, keep_alive)


@dataclass(slots=True, eq=False)
class Received:
    head: Head
    route: str
    """The key of dockerd.ROUTES, or "not found"."""
    connection: int
    """Number of its connection, from 0 in order of accept."""
    at: float
    keep_bytes: int
    body: bytearray = field(default_factory=bytearray)
    """Without framing, as far as it was read; only its first ``keep_bytes``."""
    wire_body: bytearray = field(default_factory=bytearray)
    """As ``body``, with the framing."""
    cancelled: bool = False
    """The client had half-closed or closed before the answer was complete."""

    @property
    def target(self) -> str:
        return self.head.target

    @property
    def raw(self) -> bytes:
        return self.head.raw + bytes(self.wire_body)

    def record(self, wire: bytes, body: bytes = b"") -> None:
        if len(self.body) < self.keep_bytes or len(self.wire_body) < self.keep_bytes:
            self.wire_body += wire[: self.keep_bytes - len(self.wire_body)]
            self.body += body[: self.keep_bytes - len(self.body)]


@dataclass(slots=True, eq=False)
class Injection:
    """The faults of a route's calls, in this order: a delay, a hang until ``release``, raw bytes, an error.

    After ``cut_after_bytes`` bytes of the reply the connection is closed, although the request is carried out. ``raw``
    and an error replace the request's execution. ``times`` is the number of affected calls; None means all.
    """

    delay_seconds: float = 0.0
    hang: bool = False
    raw: bytes | None = None
    status: int = 0
    message: str = ""
    cut_after_bytes: int | None = None
    times: int | None = None
    hanging: int = 0
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        self._released.set()

    async def wait(self) -> None:
        await asyncio.sleep(self.delay_seconds)
        if self.hang:
            self.hanging += 1
            try:
                await self._released.wait()
            finally:
                self.hanging -= 1


def encode(head: Head, status: int, body: bytes, headers: Sequence[Header], keep_alive: bool = True) -> list[bytes]:
    """Return a complete reply in parts; a body without a type is plain text."""
    framing: list[Header] = []
    if status in BODYLESS:
        body, headers = b"", [header for header in headers if header != JSON]
    elif len(body) > SMALL_REPLY_BYTES and head.method != "HEAD":
        # A body of megabytes is not copied.
        return [stream(headers, keep_alive, status) + b"%x\r\n" % len(body), body, CRLF + chunk(b"")]
    elif body or head.method != "HEAD":
        framing.append(("Content-Length", str(len(body))))
    if body and "Content-Type" not in dict(headers):
        framing.append(PLAIN)
    start = _lines(status, headers, framing if keep_alive else [*framing, CLOSE])
    return [start if head.method == "HEAD" else start + body]


def stream(headers: Sequence[Header], keep_alive: bool, status: int = HTTPStatus.OK) -> bytes:
    return _lines(status, headers, [CHUNKED] if keep_alive else [CLOSE, CHUNKED])


def chunk(data: bytes) -> bytes:
    """Return a chunk; the last one if there is no data."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _lines(status: int, headers: Iterable[Header], framing: Iterable[Header]) -> bytes:
    """Return a head in Go's order: the handler's headers sorted, the date, then the server's own."""
    lines = [*sorted(headers), ("Date", formatdate(usegmt=True)), *framing]
    text = "".join(f"{key}: {value}\r\n" for key, value in lines)
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{text}\r\n".encode(errors="surrogateescape")


class Cut(Exception):
    """An injected end of the connection."""


class Reader(asyncio.StreamReader):
    """A stream that reports when the client has sent its last byte."""

    def __init__(self) -> None:
        super().__init__(limit=MAX_HEAD_BYTES, loop=asyncio.get_running_loop())
        self.current: Received | None = None
        self.on_end: Callable[[], None] = lambda: None

    def feed_eof(self) -> None:
        super().feed_eof()
        self._end()

    def set_exception(self, exception: Exception) -> None:
        super().set_exception(exception)
        self._end()

    def _end(self) -> None:
        if self.current is not None:
            self.current.cancelled = True
        self.on_end()


class Exchange:
    """The request, and the writer of its reply; ``common`` are headers of every reply, ``api`` is its API version."""

    def __init__(self, head: Head, received: Received, reader: Reader, writer: asyncio.StreamWriter) -> None:
        self.head, self.received, self.reader, self._writer = head, received, reader, writer
        self.common: Sequence[Header] = ()
        self.api = ""
        self.keep_alive = head.keep_alive
        self.cut_after_bytes: int | None = None
        self._written = 0
        self._body: Any = None

    async def body(self) -> bytes:
        """Read the body. Raises Refused if it is cut or broken."""
        try:
            if self._body is None:
                self._body = []
                await (self._chunks() if self.head.length is None else self._read_bytes(self.head.length))
        except (asyncio.IncompleteReadError, ValueError) as error:
            self.keep_alive = False
            raise bad_request("unexpected EOF") from error
        return b"".join(self._body)

    async def _chunks(self) -> None:
        while size := int((await self._line()).partition(b";")[0], 16):
            await self._read_bytes(size)
            await self._line()
        while await self._line() != CRLF:
            pass

    async def _read_bytes(self, count: int) -> None:
        while count:
            data = await self.reader.read(min(count, READ_BYTES))
            if not data:
                raise asyncio.IncompleteReadError(b"", count)
            self.received.record(data, data)
            self._body.append(data)
            count -= len(data)

    async def _line(self) -> bytes:
        line = await self.reader.readuntil(CRLF)
        self.received.record(line)
        return line

    async def write(self, *chunks: bytes) -> None:
        count = sum(map(len, chunks))
        if self.cut_after_bytes is not None and self._written + count >= self.cut_after_bytes:
            self._writer.write(b"".join(chunks)[: self.cut_after_bytes - self._written])
            raise Cut
        self._written += count
        self._writer.writelines(chunks)
        await self._writer.drain()

    async def reply(self, status: int, body: bytes = b"", *headers: Header) -> None:
        with suppress(Refused):
            await self.body()  # the rest of it, so that the connection can be used again
        await self.write(*encode(self.head, status, body, [*self.common, *headers], self.keep_alive))

    async def json(self, value: object, status: int = HTTPStatus.OK) -> None:
        await self.reply(status, go_json(value, html=False), JSON)

    async def stream(self, *headers: Header) -> None:
        with suppress(Refused):
            await self.body()
        await self.write(stream([*self.common, *headers], self.keep_alive))

    async def hijack(self) -> None:
        """Turn the connection into a stream in both directions, used by the handler."""
        self.keep_alive = False
        lines = [("Content-Type", RAW_STREAM), ("Connection", "Upgrade"), ("Upgrade", "tcp"), *sorted(self.common)]
        text = "".join(f"{key}: {value}\r\n" for key, value in lines)
        await self.write(f"HTTP/1.1 101 UPGRADED\r\n{text}\r\n".encode())

    async def half_close(self) -> None:
        """Shut down writing, and read until the client's EOF, as dockerd ends a hijacked connection."""
        if self._writer.can_write_eof():
            self._writer.write_eof()
        while await self.reader.read(READ_BYTES):
            pass
