"""HTTP/1.1 heads (RFC 9112, RFC 9110), parsed strictly, as the relay forwards them unchanged, and the ends of bodies,
which also pass unchanged (RFC 9112, 6 and 7).

Invariants: Go's net/http, dockerd's server, either reads an accepted head in the same way, or refuses it and closes.
Ambiguous messages are refused, never corrected (design, section 4). ``Rule`` lists all refused forms. Any split of the
bytes gives the same end of a body; its follower buffers at most one unfinished line, never data.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

from runtimeproxy.errors import WireError

HEAD_LIMIT = 1 << 20
"""Longest head, in bytes: the same limit as in dockerd's server."""
FIELDS_LIMIT = 1_000
"""Most fields of a request: parsing 200,000 of them, which fit into 1 MiB, would delay other connections by 0.2 s."""
CACHED_BYTES = 1024
"""Longest head that is cached, in bytes: clients repeat theirs."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Rule(Enum):
    """The rules for messages, each with the status that answers a breach: the complete list of refused forms. Go
    accepts the forms marked (Go) in one way or another; other recipients may not.
    """

    HEAD_BYTES = 431, "a head has at most 1 MiB"
    """(Go) 4 KiB more."""
    FIELDS = 431, "a head has at most 1,000 fields"
    """(Go) More, if they are not too long."""
    LINE_END = 400, "lines end with CRLF, and no CR or LF occurs anywhere else"
    """(Go) A bare LF."""
    CONTROL = 400, "a head has no control characters; a value may have tabs"
    REQUEST_LINE = 400, "the first line is a method, a target and a version, with one space between them"
    """Also white space before it, and empty lines that are not those after a POST."""
    TARGET = 400, "a target is a path, a URI with a path or an authority, or *, and its percent signs are escapes"
    """(Go) host:port for the method CONNECT, and http:x, which is no path."""
    VERSION = 505, "the version is HTTP/1.1 or HTTP/1.0"
    """(Go) HTTP/1.2 to HTTP/1.9."""
    STATUS_LINE = 400, "the first line of an answer is a version and a status of three digits"
    FOLDED = 400, "a field is on one line"
    """(Go)"""
    FIELD_NAME = 400, "a field is a token, a colon directly after it, and a value"
    """(Go) No name; in answers also a space before the colon: a field of another name."""
    HOST = 400, "there is one Host in HTTP/1.1 and at most one in HTTP/1.0, of characters that a host may have"
    """(Go) None for the method CONNECT."""
    CONTENT_LENGTH = 400, "there is at most one Content-Length, of 1 to 18 digits"
    """(Go) Two equal ones; 19 digits and more; an empty one in versions before 1.21."""
    TRANSFER_CODING = 501, "the only Transfer-Encoding is chunked, once"
    CODING_OF_1_0 = 400, "there is no Transfer-Encoding in HTTP/1.0"
    """(Go) It is ignored."""
    TWO_FRAMINGS = 400, "a message has a Content-Length or a Transfer-Encoding, not both"
    """(Go) The first is ignored."""
    EXPECT = 417, "the only Expect is 100-continue, once"
    """(Go) More than one; "100-continue" in a list; an empty one."""
    CHUNK_SIZE = 400, "a chunk begins with 1 to 15 hex digits, extensions without control characters, and CRLF"
    """(Go) White space after the digits; 16 digits; bare LF; control characters in extensions."""
    CHUNK_LINE_BYTES = 400, "the line of a chunk's size has less than 4 KiB"
    CHUNK_END = 400, "CRLF follows the data of a chunk"
    TRAILER = (
        400,
        "a trailer is a field on one line that ends with CRLF, without control characters; it is not a framing field",
    )
    """(Go) Bare LF, folded lines, no name, space before the colon, control characters, Content-Length and the like."""
    TRAILER_BYTES = 400, "trailers have at most 64 KiB"
    WHOLE_BODY = 400, "a chunked body ends with its last chunk and an empty line"

    @property
    def status(self) -> int:
        """Return the HTTP status that answers a breach."""
        return self.value[0]

    @property
    def text(self) -> str:
        return self.value[1]


class BadMessage(WireError):
    """A message breaks ``rule``; ``status`` is the HTTP status for that. The text never contains a value."""

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule.text)
        self.rule = rule
        self.status = rule.status


class Framing(Enum):
    """How the end of a body is determined."""

    EMPTY = "empty"
    SIZED = "sized"
    CHUNKED = "chunked"
    UNTIL_CLOSE = "until close"


Fields = tuple[tuple[str, str], ...]
Version = tuple[int, int]


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class _Head:
    """The common part of request and response heads."""

    raw: bytes
    """The received head, with its empty line."""
    version: Version
    fields: Fields
    """Names in lower case; values as latin-1, without white space around them."""
    framing: Framing
    length: int
    """Length of a SIZED body in bytes, else 0."""
    closes: bool
    """True if the connection ends after this message: Connection: close, or HTTP/1.0 without keep-alive."""

    def field(self, name: str) -> str:
        """Return the first value of a name in lower case; "" if there is none."""
        for field_name, value in self.fields:
            if field_name == name:
                return value
        return ""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class RequestHead(_Head):
    """The head of a request; its framing is EMPTY, SIZED or CHUNKED."""

    method: str
    target: str
    """The received target, as latin-1."""
    upgrade: str
    """The value of Upgrade in lower case, "" if there is none; dockerd does not check that Connection names it."""
    expects_continue: bool
    """True if the client may wait for 100 Continue before it sends the body."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class ResponseHead(_Head):
    """The head of a response."""

    status: int


# ---- the end of a head


def head_end(buffer: bytes | bytearray, start: int = 0, seen: int = 0) -> int:
    """Return the index after the empty line of the head that begins at ``start``; 0 if it was not received yet.

    Pass as ``seen`` the length that the buffer had in the last call: those bytes are not searched again. Raises
    BadMessage as soon as an unfinished head can no longer become valid in its control characters, line ends or length;
    other breaches are found when the head is parsed.
    """
    end = buffer.find(b"\r\n\r\n", max(start, seen - 3)) + 4
    if end >= 4 and end - start <= HEAD_LIMIT:
        return end
    if len(buffer) - start >= HEAD_LIMIT:
        raise BadMessage(Rule.HEAD_BYTES)
    at = max(start, seen)
    if at > start and buffer[at - 1 : at] == b"\r":
        at -= 1
    lines = buffer.count(b"\r\n", at)
    stray = buffer.count(b"\n", at) != lines or buffer.count(b"\r", at) != lines + buffer.endswith(b"\r", at)
    if stray or buffer.find(0, at) >= 0:
        raise BadMessage(_first_breach(buffer[at:]))
    return 0


_FATAL_BYTES = re.compile(rb"\0|\r(?=[^\n])|(?<!\r)\n")  # refused before the end of the head is received


def _first_breach(raw: bytes | bytearray) -> Rule:
    """Return the rule that control characters break: of two, the one found first however the bytes are split."""
    first = _FATAL_BYTES.search(raw)
    return Rule.CONTROL if first is None or first[0] == b"\0" else Rule.LINE_END


# ---- reading

_TCHAR = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_NAME = re.compile(rf"{_TCHAR}+")
_REQUEST_LINE = re.compile(rf"({_TCHAR}+) ([^ ]+) HTTP/([0-9]\.[0-9])")
_STATUS_LINE = re.compile(r"HTTP/([0-9]\.[0-9]) ([1-9][0-9]{2})(?: .*)?")
_TARGET = re.compile(r"\*|(?:[A-Za-z][A-Za-z0-9+.-]*:)?/[!-~\x80-\xff]*")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_HOST = re.compile(r"[!$%&'()*+,\-.:;=\[\]_~0-9A-Za-z]*")
_LENGTH = re.compile(r"[0-9]{1,18}")

_REQUEST_OCTETS = bytes(octet for octet in range(256) if octet == 0x09 or (octet >= 0x20 and octet != 0x7F))
_RESPONSE_OCTETS = bytes(octet for octet in range(256) if octet not in b"\0\r\n")

_VERSIONS = {"1.0": (1, 0), "1.1": (1, 1)}
_HTTP_1_0 = (1, 0)

_PARSED_NAMES = frozenset({"connection", "content-length", "expect", "host", "transfer-encoding", "upgrade"})
_USUAL_NAMES = {
    name: name.lower()
    for name in (
        *("Accept", "Accept-Encoding", "Api-Version", "Cache-Control", "Connection", "Content-Length", "Content-Type"),
        *("Date", "Docker-Experimental", "Expires", "Host", "Ostype", "Pragma", "Server", "Transfer-Encoding"),
        *("Upgrade", "User-Agent", "X-Registry-Auth", "X-Registry-Config"),
    )
}
_Values = dict[str, list[str]]


def request_head(raw: bytes) -> RequestHead:
    """Parse the head of a request, including its empty line. Raises BadMessage."""
    return _cached_request(raw) if len(raw) <= CACHED_BYTES else _request(raw)


def _request(raw: bytes) -> RequestHead:
    if raw.count(b"\n") > FIELDS_LIMIT + 2:  # the first line and the empty one
        raise BadMessage(Rule.FIELDS)
    lines = _lines(raw, _REQUEST_OCTETS)
    match = _REQUEST_LINE.fullmatch(lines[0])
    if match is None:
        raise BadMessage(Rule.REQUEST_LINE)
    method, target, digits = match.groups()
    if not _TARGET.fullmatch(target) or ("%" in target and _BROKEN_ESCAPE.search(target.partition("?")[0])):
        raise BadMessage(Rule.TARGET)
    version = _version(digits)
    fields, values = _fields(lines)
    hosts = values.get("host")
    if hosts is None:
        if version != _HTTP_1_0:
            raise BadMessage(Rule.HOST)
    elif len(hosts) > 1 or not _HOST.fullmatch(hosts[0]):
        raise BadMessage(Rule.HOST)
    framing, length = _framing(values, version) or (Framing.EMPTY, 0)
    return RequestHead(
        raw=raw,
        method=method,
        target=target,
        version=version,
        fields=fields,
        framing=framing,
        length=length,
        upgrade=", ".join(values["upgrade"]).lower() if "upgrade" in values else "",
        expects_continue=_expects(values, version) and (framing is Framing.CHUNKED or length > 0),
        closes=_closes(values, version),
    )


_cached_request = lru_cache(maxsize=1024)(_request)


def response_head(raw: bytes, method: str) -> ResponseHead:
    """Parse the head of a response to a request with ``method``, including its empty line. Raises BadMessage. Framing
    is checked as strictly as in requests; field values are not checked.
    """
    # Other methods do not change the framing; as cache keys, a client could create any number of them.
    bodiless = method if method in ("HEAD", "CONNECT") else ""
    return _cached_response(raw, bodiless) if len(raw) <= CACHED_BYTES else _response(raw, bodiless)


def _response(raw: bytes, method: str) -> ResponseHead:
    lines = _lines(raw, _RESPONSE_OCTETS)
    match = _STATUS_LINE.fullmatch(lines[0])
    if match is None:
        raise BadMessage(Rule.STATUS_LINE)
    version, status = _version(match[1]), int(match[2])
    fields, values = _fields(lines)
    framing, length = _framing(values, version) or (Framing.UNTIL_CLOSE, 0)
    if method == "HEAD" or status < 200 or status in (204, 304):
        framing, length = Framing.EMPTY, 0
    elif method == "CONNECT" and status < 300:
        framing, length = Framing.UNTIL_CLOSE, 0
    return ResponseHead(
        raw=raw,
        version=version,
        status=status,
        fields=fields,
        framing=framing,
        length=length,
        closes=_closes(values, version),
    )


_cached_response = lru_cache(maxsize=64)(_response)
"""Small, because answers carry a Date and so repeat for a second only."""


def _lines(raw: bytes, allowed: bytes) -> list[str]:
    """Return the lines of a head: the first one, the fields, and two empty ones. Raises BadMessage."""
    lines = raw.decode("latin-1").split("\r\n")
    line_ends = raw.translate(None, allowed)
    if line_ends != b"\r\n" * (len(lines) - 1):
        raise BadMessage(_first_breach(raw))
    if lines[-2:] != ["", ""]:
        raise BadMessage(Rule.LINE_END)
    return lines


def _version(digits: str) -> Version:
    version = _VERSIONS.get(digits)
    if version is None:
        raise BadMessage(Rule.VERSION)
    return version


def _fields(lines: list[str]) -> tuple[Fields, _Values]:
    """Return the fields, and the values of those in ``_PARSED_NAMES`` by name. Raises BadMessage."""
    fields: list[tuple[str, str]] = []
    values: _Values = {}
    for line in lines[1:-2]:
        name, colon, value = line.partition(":")
        lowered = _USUAL_NAMES.get(name)
        if lowered is None:
            if not _NAME.fullmatch(name):
                raise BadMessage(Rule.FOLDED if name[:1] in (" ", "\t") else Rule.FIELD_NAME)
            lowered = name.lower()
        if not colon:
            raise BadMessage(Rule.FIELD_NAME)
        value = value.strip(" \t")
        fields.append((lowered, value))
        if lowered in _PARSED_NAMES:
            values.setdefault(lowered, []).append(value)
    return tuple(fields), values


def _framing(values: _Values, version: Version) -> tuple[Framing, int] | None:
    """Return the framing and length of the body as the fields set them; None if they set none. Raises BadMessage."""
    codings, lengths = values.get("transfer-encoding"), values.get("content-length")
    if codings is None:
        if lengths is None:
            return None
        if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
            raise BadMessage(Rule.CONTENT_LENGTH)
        return Framing.SIZED, int(lengths[0])
    if version == _HTTP_1_0:
        raise BadMessage(Rule.CODING_OF_1_0)
    if lengths is not None:
        raise BadMessage(Rule.TWO_FRAMINGS)
    if len(codings) > 1 or codings[0].lower() != "chunked":
        raise BadMessage(Rule.TRANSFER_CODING)
    return Framing.CHUNKED, 0


def _expects(values: _Values, version: Version) -> bool:
    """Return whether 100 Continue is expected; HTTP/1.0 does not have it (RFC 9110, 10.1.1). Raises BadMessage."""
    expected = values.get("expect")
    if expected is None:
        return False
    if len(expected) > 1 or expected[0].lower() != "100-continue":
        raise BadMessage(Rule.EXPECT)
    return version != _HTTP_1_0


def _closes(values: _Values, version: Version) -> bool:
    options = {option.strip(" \t").lower() for value in values.get("connection", ()) for option in value.split(",")}
    return "close" in options or (version == _HTTP_1_0 and "keep-alive" not in options)


# ---- writing

_FRAMING_NAMES = frozenset({b"content-length", b"trailer", b"transfer-encoding"})


def with_length(raw: bytes, length: int) -> bytes:
    """Return a parsed head changed to a body of ``length`` bytes (relay-rules B8). One Content-Length replaces the
    first line that gives or announces the framing, or is added at the end.
    """
    first, *fields = raw.removesuffix(b"\r\n\r\n").split(b"\r\n")
    framing = [index for index, line in enumerate(fields) if line.partition(b":")[0].lower() in _FRAMING_NAMES]
    retained = [line for index, line in enumerate(fields) if index not in framing]
    retained.insert(framing[0] if framing else len(retained), b"Content-Length: %d" % length)
    return b"\r\n".join((first, *retained, b"", b""))


def response(status: int, message: str, *, close: bool, method: str = "") -> bytes:
    """Return an answer of the proxy's own in the form of dockerd's errors; for the method HEAD it has no body."""
    body = json.dumps({"message": message}).encode() + b"\n"
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *(["Connection: close"] if close else []),
        "\r\n",
    ]
    return "\r\n".join(lines).encode() + (b"" if method == "HEAD" else body)


# ---- bodies

SIZE_LINE_LIMIT = 4095
"""Longest chunk-size line with its CRLF, in bytes: the same limit as in Go."""
TRAILER_LIMIT = 64 << 10
"""Most bytes of all trailers together."""

Octets = bytes | bytearray
Send = Callable[[int], None]
"""Sends the given number of bytes of the present read buffer before it returns."""


class Body(Protocol):
    """Interface of a follower, which finds the end of one body."""

    done: bool

    def feed(self, data: Octets, at: int = 0) -> int:
        """Called with bytes, from ``at`` on: follow them, return the index where the body ends. Raises BadMessage."""

    def passes(self, data: Octets, size: int) -> bool:
        """Called with a large read: follow its first ``size`` bytes and return True if all of them belong to the body.
        Otherwise, or where that is not easy to decide, follow none and return False.
        """


def follow(framing: Framing, length: int, collect: Callable[[Octets], object] | None = None) -> Body | None:
    """Return a body's follower, None if it has no bytes. ``collect`` is called with each part of a chunked body's
    payload."""
    if framing is Framing.CHUNKED:
        return ChunkedBody(collect)
    if framing is Framing.UNTIL_CLOSE:
        return EndlessBody()
    return SizedBody(length) if length else None


class SizedBody:
    """A body of ``length`` bytes, at least one."""

    def __init__(self, length: int) -> None:
        self.done = False
        self._remaining = length

    def feed(self, data: Octets, at: int = 0) -> int:
        """Count the bytes that belong to the body."""
        passed = min(self._remaining, len(data) - at)
        self._remaining -= passed
        self.done = not self._remaining
        return at + passed

    def passes(self, data: Octets, size: int) -> bool:
        """Count the bytes if all of them belong to the body."""
        if size > self._remaining:
            return False
        self._remaining -= size
        self.done = not self._remaining
        return True


class EndlessBody:
    """A body that ends with its connection."""

    done = False

    def feed(self, data: Octets, at: int = 0) -> int:
        return len(data)

    def passes(self, data: Octets, size: int) -> bool:
        return True


class _Line(Enum):
    """The kind of the next line, if no data precedes it."""

    SIZE = "size"
    END = "end"
    """The CRLF after a chunk's data."""
    TRAILER = "trailer"


PASSING_CHUNKS = 128
"""Most chunks per read that may pass unchanged: checking more would delay other connections too long. Go's clients and
dockerd send about 4 to 32 KiB per chunk."""
_END_OF_LINE = b"\r\n"
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t -~\x80-\xff]*)?\r\n")
_PLAIN_NEXT_CHUNK = re.compile(rb"\r\n([0-9A-Fa-f]{1,15})\r\n")
_PLAIN_LINES = {
    _Line.SIZE: re.compile(rb"([0-9A-Fa-f]{1,15})\r\n"),
    _Line.END: _PLAIN_NEXT_CHUNK,
}
"""The usual form in which a chunk begins, without extensions, by the kind of the next line."""
_HEAD_FIELDS = rb"(?i:connection|content-length|expect|host|transfer-encoding|upgrade)"
"""Fields that must not be trailers (RFC 9110, 6.5.1): a recipient that merges them into the head would use them for
framing."""
_TRAILER_LINE = re.compile(rb"(?!" + _HEAD_FIELDS + rb":)[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*\r\n")
_LIMITS = {
    _Line.SIZE: (SIZE_LINE_LIMIT, Rule.CHUNK_LINE_BYTES),
    _Line.END: (len(_END_OF_LINE), Rule.CHUNK_END),
    _Line.TRAILER: (TRAILER_LIMIT, Rule.TRAILER_BYTES),
}


class ChunkedBody:
    """A chunked body, up to the empty line after its trailers; ``collect`` is called with each part of the payload."""

    def __init__(self, collect: Callable[[Octets], object] | None = None) -> None:
        self.done = False
        self._collect = collect
        self._remaining = 0
        """Bytes of the present chunk's data that were not received yet."""
        self._next_line = _Line.SIZE
        self._line = bytearray()
        """The received beginning of an unfinished line."""
        self._trailer_bytes = 0

    def feed(self, data: Octets, at: int = 0) -> int:
        """Follow the chunks; their data is not buffered."""
        while at < len(data) and not self.done:
            at = self._consume_data(data, at) if self._remaining else self._parse_line(data, at)
        return at

    def passes(self, data: Octets, size: int) -> bool:
        """Follow the chunks if each begins in the usual form. No line may be split at the start or the end of the
        bytes. At the end the CRLF after a chunk's data may be without the next chunk's size.
        """
        at, remaining, line, chunks = 0, self._remaining, self._next_line, 0
        if self._line or line is _Line.TRAILER:
            return False
        while at + remaining < size:
            at += remaining
            chunks += 1
            match = _PLAIN_LINES[line].match(data, at, size) if chunks <= PASSING_CHUNKS else None
            if match is None:
                if line is not _Line.END or data[at:size] != _END_OF_LINE:
                    return False
                self._remaining, self._next_line = 0, _Line.SIZE
                return True
            at, remaining, line = match.end(), int(match[1], 16), _Line.END
            if not remaining:
                self.done = data[at:size] == _END_OF_LINE
                return self.done
        self._remaining, self._next_line = at + remaining - size, line
        return True

    def _consume_data(self, data: Octets, at: int) -> int:
        end = min(at + self._remaining, len(data))
        if self._collect is not None:
            self._collect(data[at:end])
        self._remaining -= end - at
        # The CRLF and the next chunk's size are parsed together in the usual form, else line by line.
        match = None if self._remaining else _PLAIN_NEXT_CHUNK.match(data, end)
        if match is None:
            return end
        self._begin_chunk(match[1])
        return match.end()

    def _begin_chunk(self, digits: bytes) -> None:
        self._remaining = int(digits, 16)
        # The last chunk has no data, so no CRLF follows any.
        self._next_line = _Line.END if self._remaining else _Line.TRAILER

    def _parse_line(self, data: Octets, at: int) -> int:
        """Parse a line if it is complete, or buffer its beginning. Return the index after it. Raises BadMessage."""
        limit, rule = _LIMITS[self._next_line]
        room = limit - self._trailer_bytes - len(self._line)
        end = data.find(b"\n", at, at + room) + 1
        if not end and len(data) - at >= room:
            raise BadMessage(rule)
        self._line += data[at : end or None]
        if not end:
            return len(data)
        line = bytes(self._line)
        self._line.clear()
        if self._next_line is _Line.SIZE:
            match = _SIZE_LINE.fullmatch(line)
            if match is None:
                raise BadMessage(Rule.CHUNK_SIZE)
            self._begin_chunk(match[1])
        elif self._next_line is _Line.END:
            if line != _END_OF_LINE:
                raise BadMessage(Rule.CHUNK_END)
            self._next_line = _Line.SIZE
        elif line == _END_OF_LINE:
            self.done = True
        elif _TRAILER_LINE.fullmatch(line):
            self._trailer_bytes += len(line)
        else:
            raise BadMessage(Rule.TRAILER)
        return end


def dechunk(raw: Octets) -> bytes:
    """Return the payload of exactly one complete chunked body. Raises BadMessage, also for bytes after it."""
    payload: list[Octets] = []
    body = ChunkedBody(payload.append)
    if body.feed(raw) != len(raw) or not body.done:
        raise BadMessage(Rule.WHOLE_BODY)
    return b"".join(payload)
