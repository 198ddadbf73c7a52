"""What came in at the fake dockerd, and what shall go wrong with it.

What is recorded is what came, byte for byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.fakes.dockerd_heads import Head

Header = tuple[str, str]


@dataclass(slots=True, eq=False)
class Received:
    head: Head
    route: str
    """The row of dockerd_routes.ROUTES, or "not found", or "unclean path"."""
    connection: int
    """Number of its connection, from 0 in order of accept."""
    at: float
    """Clock of ``time.monotonic``, in seconds."""
    keep_bytes: int
    body: bytearray = field(default_factory=bytearray)
    """Without framing, as far as it was read; only its first ``keep_bytes``."""
    wire_body: bytearray = field(default_factory=bytearray)
    """As ``body``, with the framing."""
    body_bytes: int = 0
    """How long the body was, as far as it was read."""
    early_bytes: int = 0
    """What lay behind a request for an upgrade when it was answered: a client must wait."""
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
        self.body_bytes += len(body)
        if len(self.body) < self.keep_bytes or len(self.wire_body) < self.keep_bytes:
            self.wire_body += wire[: self.keep_bytes - len(self.wire_body)]
            self.body += body[: self.keep_bytes - len(self.body)]


@dataclass(slots=True, eq=False)
class Injection:
    """What goes wrong with a route's calls, in this order: a delay, a hang until ``release``, raw bytes, an error.

    ``cut_after_bytes`` counts the reply's bytes: that many are sent, then the connection is closed (0: at once; what
    was asked for is done nevertheless). ``raw`` and an error are sent instead of doing what was asked for. ``close``
    closes the connection after the reply. ``times`` calls are hit; None means all.
    """

    delay_seconds: float = 0.0
    hang: bool = False
    raw: bytes | None = None
    status: int = 0
    message: str = ""
    cut_after_bytes: int | None = None
    close: bool = False
    times: int | None = None
    hanging: int = 0
    """How many calls hang now."""
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        """Let the calls that hang go on, and those to come."""
        self._released.set()

    async def wait(self) -> None:
        await asyncio.sleep(self.delay_seconds)
        if self.hang:
            self.hanging += 1
            try:
                await self._released.wait()
            finally:
                self.hanging -= 1
