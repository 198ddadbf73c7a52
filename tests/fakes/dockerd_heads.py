"""Heads of HTTP/1.x requests, read as Go's net/http server reads them.

The raw bytes and the order and case of the header lines are kept.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote_to_bytes

REQUEST_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+) HTTP/(\d)\.(\d)")
HEADER_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r\n]*?)[ \t]*")
BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
MAX_HEAD_BYTES = 1 << 20


class Malformed(Exception):
    """The request is answered by the server itself, in plain text, and the connection is closed."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """A request's head: ``length`` is the body's, None if it is chunked; ``query`` has the first value of each key."""

    raw: bytes
    method: str
    target: str
    minor: int
    headers: tuple[tuple[str, str], ...]
    path: str
    """Decoded."""
    raw_query: str
    query: Mapping[str, str]
    length: int | None
    keep_alive: bool

    def get(self, name: str) -> str:
        """Return the first value of a header, "" if it is not there; ``name`` in any case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), "")

    @property
    def expects(self) -> bool:
        """Tell whether the client waits for 100 before it sends the body."""
        return self.minor > 0 and self.length != 0 and self.get("Expect").lower() == "100-continue"

    @property
    def upgrade(self) -> bool:
        return any(key.lower() == "upgrade" for key, _ in self.headers)


@functools.lru_cache(maxsize=256)
def parse(raw: bytes) -> Head:
    """Return the head whose bytes, with the empty line, are ``raw``.

    Raises Malformed.
    """
    first, *lines = raw[:-4].decode("latin-1").split("\r\n")
    request = REQUEST_LINE.fullmatch(first)
    if request is None:
        raise Malformed(400, "400 Bad Request")
    method, target, major, minor = request.groups()
    if major != "1":
        raise Malformed(505, "505 HTTP Version Not Supported: unsupported protocol version")
    headers = tuple(_header(line) for line in lines)
    connection = ",".join(_values(headers, "connection")).lower()
    tokens = {token.strip() for token in connection.split(",")}
    if minor != "0" and len(_values(headers, "host")) != 1:
        problem = "too many Host headers" if _values(headers, "host") else "missing required Host header"
        raise Malformed(400, f"400 Bad Request: {problem}")
    path, _, raw_query = re.sub(r"^http://[^/?]*", "", target).partition("?")
    if BROKEN_ESCAPE.search(path):
        raise Malformed(400, "400 Bad Request")
    pairs = parse_qsl(raw_query, keep_blank_values=True)
    return Head(
        raw=raw,
        method=method,
        target=target,
        minor=int(minor),
        headers=headers,
        path=unquote_to_bytes(path.encode("latin-1")).decode(errors="surrogateescape"),
        raw_query=raw_query,
        query=dict(reversed(pairs)),
        length=_length(headers, minor),
        keep_alive="close" not in tokens and (minor != "0" or "keep-alive" in tokens),
    )


def _header(line: str) -> tuple[str, str]:
    match = HEADER_LINE.fullmatch(line)
    if match is None:
        raise Malformed(400, "400 Bad Request")
    return match[1], match[2]


def _values(headers: Sequence[tuple[str, str]], name: str) -> list[str]:
    return [value for key, value in headers if key.lower() == name]


def _length(headers: Sequence[tuple[str, str]], minor: str) -> int | None:
    codings = _values(headers, "transfer-encoding")
    if codings and minor != "0":
        if [coding.lower() for coding in codings] != ["chunked"]:
            raise Malformed(501, "Unsupported transfer encoding")
        return None
    lengths = set(_values(headers, "content-length"))
    if len(lengths) > 1 or not all(text.isdecimal() and text.isascii() for text in lengths):
        raise Malformed(400, "400 Bad Request")
    return int(lengths.pop()) if lengths else 0
