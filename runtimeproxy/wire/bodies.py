"""Bodies of HTTP/1.1 messages that pass unchanged (RFC 9112, 6 and 7): only their ends are found.

Owns the followers of sized, chunked and endless bodies, and the payload of a chunked one.
Must not know: heads, sockets, what a body means.
Invariant: any split of the bytes gives the same end; a follower keeps at most one unfinished line, never data.
"""

import re
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from runtimeproxy.wire.http1 import BadMessage, Framing, Rule

SIZE_LINE_LIMIT = 4095
"""Longest chunk-size line with its CRLF, in bytes: the same limit as in Go."""
TRAILER_LIMIT = 64 << 10
"""Most bytes of all trailers together."""

Octets = bytes | bytearray
Send = Callable[[int], None]
"""Sends so many bytes of the buffer that was just read into, before it returns."""


class Body(Protocol):
    """Interface of a follower, which finds the end of one body."""

    done: bool

    def feed(self, data: Octets, at: int = 0) -> int:
        """Called with bytes, from ``at`` on: follow them, return the index where the body ends. Raises BadMessage."""

    def passes(self, data: Octets, size: int) -> bool:
        """Called with a large read: follow its first ``size`` bytes and return True if all of them belong to the body.
        Otherwise, or where that is not easy to decide, follow none and return False.
        """


def follow(framing: Framing, length: int, keep: Callable[[Octets], object] | None = None) -> Body | None:
    """Return a body's follower, None if it has no bytes. ``keep`` gets each piece of a chunked body's payload."""
    if framing is Framing.CHUNKED:
        return ChunkedBody(keep)
    if framing is Framing.UNTIL_CLOSE:
        return EndlessBody()
    return SizedBody(length) if length else None


class SizedBody:
    """A body of ``length`` bytes, at least one."""

    def __init__(self, length: int) -> None:
        self.done = False
        self._left = length

    def feed(self, data: Octets, at: int = 0) -> int:
        """Count the bytes that belong to the body."""
        passed = min(self._left, len(data) - at)
        self._left -= passed
        self.done = not self._left
        return at + passed

    def passes(self, data: Octets, size: int) -> bool:
        """Count the bytes if all of them belong to the body."""
        if size > self._left:
            return False
        self._left -= size
        self.done = not self._left
        return True


class EndlessBody:
    """A body that ends with its connection."""

    done = False

    def feed(self, data: Octets, at: int = 0) -> int:
        return len(data)

    def passes(self, data: Octets, size: int) -> bool:
        return True


class _Line(Enum):
    """The kind of the next line, where no data comes next."""

    SIZE = "size"
    END = "end"
    """The CRLF behind a chunk's data."""
    TRAILER = "trailer"


PASSING_CHUNKS = 128
"""Most chunks per read that may pass unchanged: checking more would keep other connections waiting too long. Go's
clients and dockerd send about 4 to 32 KiB per chunk."""
_END_OF_LINE = b"\r\n"
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t -~\x80-\xff]*)?\r\n")
_PLAIN_NEXT_CHUNK = re.compile(rb"\r\n([0-9A-Fa-f]{1,15})\r\n")
_PLAIN_LINES = {
    _Line.SIZE: re.compile(rb"([0-9A-Fa-f]{1,15})\r\n"),
    _Line.END: _PLAIN_NEXT_CHUNK,
}
"""The usual form in which a chunk begins, without extensions, by the kind of the next line."""
_OF_HEADS = rb"(?i:connection|content-length|expect|host|transfer-encoding|upgrade)"
"""Fields that must not be trailers (RFC 9110, 6.5.1): a recipient that merges them into the head frames by them."""
_TRAILER_LINE = re.compile(rb"(?!" + _OF_HEADS + rb":)[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*\r\n")
_LIMITS = {
    _Line.SIZE: (SIZE_LINE_LIMIT, Rule.CHUNK_LINE_BYTES),
    _Line.END: (len(_END_OF_LINE), Rule.CHUNK_END),
    _Line.TRAILER: (TRAILER_LIMIT, Rule.TRAILER_BYTES),
}


class ChunkedBody:
    """A chunked body, up to the empty line behind its trailers; ``keep`` is called with each piece of the payload."""

    def __init__(self, keep: Callable[[Octets], object] | None = None) -> None:
        self.done = False
        self._keep = keep
        self._left = 0
        """How many bytes of the present chunk's data are still to come."""
        self._next = _Line.SIZE
        self._line = bytearray()
        """The beginning of a line whose end has not come yet."""
        self._trailer_bytes = 0

    def feed(self, data: Octets, at: int = 0) -> int:
        """Follow the chunks; their data is not collected."""
        while at < len(data) and not self.done:
            at = self._pass_data(data, at) if self._left else self._take_line(data, at)
        return at

    def passes(self, data: Octets, size: int) -> bool:
        """Follow the chunks if each begins in the usual form. No line may be split at the start or the end of the
        bytes. At the end the CRLF behind a chunk's data may be without the next chunk's size.
        """
        at, left, line, chunks = 0, self._left, self._next, 0
        if self._line or line is _Line.TRAILER:
            return False
        while at + left < size:
            at += left
            chunks += 1
            match = _PLAIN_LINES[line].match(data, at, size) if chunks <= PASSING_CHUNKS else None
            if match is None:
                if line is not _Line.END or data[at:size] != _END_OF_LINE:
                    return False
                self._left, self._next = 0, _Line.SIZE
                return True
            at, left, line = match.end(), int(match[1], 16), _Line.END
            if not left:
                self.done = data[at:size] == _END_OF_LINE
                return self.done
        self._left, self._next = at + left - size, line
        return True

    def _pass_data(self, data: Octets, at: int) -> int:
        end = min(at + self._left, len(data))
        if self._keep is not None:
            self._keep(data[at:end])
        self._left -= end - at
        # The CRLF and the next chunk's size are parsed together in the usual form, else line by line.
        match = None if self._left else _PLAIN_NEXT_CHUNK.match(data, end)
        if match is None:
            return end
        self._begin_chunk(match[1])
        return match.end()

    def _begin_chunk(self, digits: bytes) -> None:
        self._left = int(digits, 16)
        # The last chunk has no data, so no CRLF follows any.
        self._next = _Line.END if self._left else _Line.TRAILER

    def _take_line(self, data: Octets, at: int) -> int:
        """Process a line if its end has come, or keep its beginning. Return the index behind it. Raises BadMessage."""
        limit, rule = _LIMITS[self._next]
        room = limit - self._trailer_bytes - len(self._line)
        end = data.find(b"\n", at, at + room) + 1
        if not end and len(data) - at >= room:
            raise BadMessage(rule)
        self._line += data[at : end or None]
        if not end:
            return len(data)
        line = bytes(self._line)
        self._line.clear()
        if self._next is _Line.SIZE:
            match = _SIZE_LINE.fullmatch(line)
            if match is None:
                raise BadMessage(Rule.CHUNK_SIZE)
            self._begin_chunk(match[1])
        elif self._next is _Line.END:
            if line != _END_OF_LINE:
                raise BadMessage(Rule.CHUNK_END)
            self._next = _Line.SIZE
        elif line == _END_OF_LINE:
            self.done = True
        elif _TRAILER_LINE.fullmatch(line):
            self._trailer_bytes += len(line)
        else:
            raise BadMessage(Rule.TRAILER)
        return end


def dechunk(raw: Octets) -> bytes:
    """Return the payload of one whole chunked body. Raises BadMessage, also for bytes behind it."""
    payload: list[Octets] = []
    body = ChunkedBody(payload.append)
    if body.feed(raw) != len(raw) or not body.done:
        raise BadMessage(Rule.WHOLE_BODY)
    return b"".join(payload)
