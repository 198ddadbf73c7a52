"""The requests received by the fake dockerd, byte for byte, and the faults to inject.

A head is assumed to be valid; the order and case of its lines are kept.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote_to_bytes

MAX_HEAD_BYTES = 1 << 20
Header = tuple[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """A request's head: ``length`` is the body's, None if it is chunked; ``query`` has the first value of each key."""

    raw: bytes
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    path: str
    """Decoded path."""
    raw_query: str
    query: Mapping[str, str]
    length: int | None
    keep_alive: bool

    def get(self, name: str) -> str:
        """Return the first value of a header, "" if it is absent; ``name`` in any case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), "")


@functools.lru_cache(maxsize=256)
def parse(raw: bytes) -> Head:
    """Return the head in ``raw``, which includes the empty line. Raises ValueError if it is not a head."""
    first, *lines = raw[:-4].decode("latin-1").split("\r\n")
    method, target, version = first.split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"{version} is not served")
    headers = tuple((name, value.strip(" \t")) for name, value in (line.split(":", 1) for line in lines))
    named = {name.lower(): value for name, value in reversed(headers)}
    path, _, raw_query = target.partition("?")
    return Head(
        raw=raw,
        method=method,
        target=target,
        headers=headers,
        path=unquote_to_bytes(path.encode("latin-1")).decode(errors="surrogateescape"),
        raw_query=raw_query,
        query=dict(reversed(parse_qsl(raw_query, keep_blank_values=True))),
        length=None if "transfer-encoding" in named else int(named.get("content-length", "0")),
        keep_alive="close" not in named.get("connection", "").lower(),
    )


@dataclass(slots=True, eq=False)
class Received:
    head: Head
    route: str
    """The row of dockerd_routes.ROUTES, or "not found", or "unclean path"."""
    connection: int
    """Number of its connection, from 0 in order of accept."""
    at: float
    """Time of ``time.monotonic``, in seconds."""
    keep_bytes: int
    body: bytearray = field(default_factory=bytearray)
    """Without framing, as far as it was read; only its first ``keep_bytes``."""
    wire_body: bytearray = field(default_factory=bytearray)
    """As ``body``, with the framing."""
    client_ended: bool = False
    """The client had sent its last byte, or was gone, before the answer was complete."""
    cancelled: bool = False
    """The daemon gave the call up because of that."""
    status: int = 0
    """Of the final reply."""

    @property
    def method(self) -> str:
        return self.head.method

    @property
    def target(self) -> str:
        return self.head.target

    @property
    def headers(self) -> Sequence[Header]:
        return self.head.headers

    @property
    def raw(self) -> bytes:
        return self.head.raw + bytes(self.wire_body)

    def keep(self, wire: bytes, body: bytes = b"") -> None:
        if len(self.body) < self.keep_bytes or len(self.wire_body) < self.keep_bytes:
            self.wire_body += wire[: self.keep_bytes - len(self.wire_body)]
            self.body += body[: self.keep_bytes - len(self.body)]


@dataclass(slots=True, eq=False)
class Injection:
    """The faults of a route's calls, in this order: a delay, a hang until ``release``, raw bytes, an error.

    ``cut_after_bytes`` counts the reply's bytes: after so many the connection is closed (0: at once; the request is
    carried out nevertheless). ``raw`` and an error are sent instead of carrying out the request. ``times`` calls are
    affected; None means all.
    """

    delay_seconds: float = 0.0
    hang: bool = False
    raw: bytes | None = None
    status: int = 0
    message: str = ""
    cut_after_bytes: int | None = None
    times: int | None = None
    hanging: int = 0
    """How many calls hang now."""
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        """Release the calls that hang, and all later ones."""
        self._released.set()

    async def wait(self) -> None:
        await asyncio.sleep(self.delay_seconds)
        if self.hang:
            self.hanging += 1
            try:
                await self._released.wait()
            finally:
                self.hanging -= 1
