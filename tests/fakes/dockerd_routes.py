"""The routes of the fake dockerd: its router's table, and its decision about a path.

The path is matched decoded, as gorilla/mux does; a reference may contain slashes.
"""

from __future__ import annotations

import functools
import posixpath
import re
from dataclasses import dataclass
from urllib.parse import quote

from tests.fakes import dockerd_calls as calls
from tests.fakes import dockerd_streams as streams
from tests.fakes.dockerd_calls import Handler, done, flag, text
from tests.fakes.dockerd_received import Head

REF = "{ref}"
PATH_SAFE = "$&+,/:;=@"
"""Characters that Go leaves unescaped in a path, beside letters, digits and -_.~ ."""


@dataclass(frozen=True, slots=True)
class Route:
    """A row: ``cancels`` means that the daemon stops as soon as it sees that its client sends no more."""

    key: str
    """Method and path with ``{ref}`` for the reference, as FakeDockerd's injector takes it."""
    handler: Handler
    cancels: bool = False


PING = Route("GET /_ping", calls.ping)
NOT_FOUND = Route("not found", calls.not_found)
UNCLEAN = Route("unclean path", calls.not_found)

ROUTES = (
    Route("GET /containers/json", calls.list_containers),
    Route("GET /containers/{ref}/json", calls.inspect),
    Route("GET /containers/{ref}/logs", streams.logs, cancels=True),
    Route("GET /exec/{ref}/json", calls.exec_inspect),
    Route("POST /containers/create", calls.create),
    Route("POST /containers/{ref}/start", done(204, lambda state, sent, ref: state.start(ref))),
    Route("POST /containers/{ref}/stop", done(204, lambda state, sent, ref: state.stop(ref))),
    Route("POST /containers/{ref}/resize", done(200, lambda state, sent, ref: state.find(ref))),
    Route("POST /containers/{ref}/attach", streams.attach),
    Route("POST /containers/{ref}/exec", calls.exec_create),
    Route("POST /exec/{ref}/start", streams.exec_start),
    Route("POST /exec/{ref}/resize", done(200, lambda state, sent, ref: state.exec_find(ref))),
    Route("POST /containers/{ref}/rename", done(204, lambda state, sent, ref: state.rename(ref, text(sent, "name")))),
    Route("POST /containers/{ref}/update", calls.update),
    Route("DELETE /containers/{ref}", done(204, lambda state, sent, ref: state.remove(ref, flag(sent, "force")))),
    Route("GET /images/json", calls.list_images),
    Route("GET /images/{ref}/json", calls.image_inspect),
    Route("POST /images/load", streams.load),
    Route("POST /images/create", streams.pull, cancels=True),
    Route("HEAD /_ping", calls.ping_head),
    PING,
    Route("GET /events", streams.events, cancels=True),
    Route("GET /info", calls.info),
    Route("GET /version", calls.version),
    Route("POST /build", streams.build, cancels=True),
)


def _pattern(route: Route) -> re.Pattern[str]:
    method, path = route.key.split(" ")
    return re.compile(f"{method} (?:/v(?P<version>[0-9.]+))?{re.escape(path).replace(re.escape(REF), '(?P<ref>.*)')}")


_PATTERNS = {route: _pattern(route) for route in ROUTES}


@dataclass(frozen=True, slots=True)
class Match:
    """The router's decision.

    ``version`` is "" if the path has none; ``location`` is the redirect of an unclean path.
    """

    route: Route
    version: str = ""
    reference: str = ""
    location: str = ""


@functools.lru_cache(maxsize=256)
def match(head: Head) -> Match:
    clean = _clean(head.path)
    if clean != head.path:
        # Bytes that are not UTF-8 came as surrogates, and are sent as they came.
        location = quote(clean, safe=PATH_SAFE, errors="surrogateescape")
        return Match(UNCLEAN, location=f"{location}?{head.raw_query}" if head.raw_query else location)
    for route, pattern in _PATTERNS.items():
        if found := pattern.fullmatch(f"{head.method} {head.path}"):
            parts = found.groupdict()
            return Match(route, parts["version"] or "", parts.get("ref") or "")
    return Match(NOT_FOUND)


def _clean(path: str) -> str:
    clean = posixpath.normpath("/" + path.lstrip("/"))
    return f"{clean}/" if path.endswith("/") and clean != "/" else clean
