"""Replies as Go's net/http server writes them: which header lines, in which order, and how the body is framed.

A reply has a body only where HTTP allows one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from email.utils import formatdate
from http import HTTPStatus

from tests.fakes.dockerd_heads import Head
from tests.fakes.dockerd_received import Header

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
