"""The routes of the fake dockerd: its router's table, and its decision about a path.

The path is matched decoded, as gorilla/mux does; a reference may hold slashes.
"""

from __future__ import annotations

import functools
import posixpath
import re
from dataclasses import dataclass
from urllib.parse import quote

from tests.fakes.dockerd_received import Head

REF = "{ref}"
PATH_SAFE = "$&+,/:;=@"
"""What Go leaves as it is in a path, beside letters, digits and -_.~ ."""


@dataclass(frozen=True, slots=True)
class Route:
    """A row: ``cancels`` means that the daemon stops as soon as it sees that its client sends no more."""

    key: str
    """Method and path with ``{ref}`` for the reference, as FakeDockerd's injector takes it."""
    cancels: bool = False

    @property
    def method(self) -> str:
        return self.key.partition(" ")[0]

    @property
    def pattern(self) -> str:
        path = self.key.partition(" ")[2]
        return re.escape(path).replace(re.escape(REF), "(?P<ref>.*)")


PING = Route("GET /_ping")
PING_HEAD = Route("HEAD /_ping")
NOT_FOUND = Route("not found")
UNCLEAN = Route("unclean path")

ROUTES = (
    Route("HEAD /containers/{ref}/archive"),
    Route("GET /containers/json"),
    Route("GET /containers/{ref}/export", cancels=True),
    Route("GET /containers/{ref}/json"),
    Route("GET /containers/{ref}/logs", cancels=True),
    Route("GET /containers/{ref}/stats", cancels=True),
    Route("GET /exec/{ref}/json"),
    Route("POST /containers/create"),
    Route("POST /containers/{ref}/kill"),
    Route("POST /containers/{ref}/restart"),
    Route("POST /containers/{ref}/start"),
    Route("POST /containers/{ref}/stop"),
    Route("POST /containers/{ref}/wait", cancels=True),
    Route("POST /containers/{ref}/resize"),
    Route("POST /containers/{ref}/attach"),
    Route("POST /containers/{ref}/exec"),
    Route("POST /exec/{ref}/start"),
    Route("POST /exec/{ref}/resize"),
    Route("POST /containers/{ref}/rename"),
    Route("POST /containers/{ref}/update"),
    Route("POST /containers/prune"),
    Route("PUT /containers/{ref}/archive"),
    Route("DELETE /containers/{ref}"),
    Route("GET /images/json"),
    Route("GET /images/{ref}/json"),
    Route("POST /images/load"),
    Route("POST /images/create", cancels=True),
    PING_HEAD,
    PING,
    Route("GET /events", cancels=True),
    Route("GET /info"),
    Route("GET /version"),
    Route("POST /build", cancels=True),
)
_COMPILED = tuple((route, re.compile(f"(?:/v(?P<version>[0-9.]+))?{route.pattern}")) for route in ROUTES)


@dataclass(frozen=True, slots=True)
class Match:
    """The router's decision; ``version`` is "" where the path has none; ``location`` is where an unclean path goes."""

    route: Route
    version: str = ""
    reference: str = ""
    location: str = ""


@functools.lru_cache(maxsize=256)
def match(head: Head) -> Match:
    clean = _clean(head.path)
    if clean != head.path:
        # Bytes that are not UTF-8 came as surrogates, and go out as they came.
        location = quote(clean, safe=PATH_SAFE, errors="surrogateescape")
        return Match(UNCLEAN, location=f"{location}?{head.raw_query}" if head.raw_query else location)
    for route, pattern in _COMPILED:
        if route.method == head.method and (found := pattern.fullmatch(head.path)) is not None:
            parts = found.groupdict()
            return Match(route, parts["version"] or "", parts.get("ref") or "")
    return Match(NOT_FOUND)


def _clean(path: str) -> str:
    clean = posixpath.normpath("/" + path.lstrip("/"))
    return f"{clean}/" if path.endswith("/") and clean != "/" else clean


def version_number(version: str) -> tuple[int, ...]:
    """Return an API version so that it can be compared."""
    return tuple(int(part or 0) for part in version.split("."))
