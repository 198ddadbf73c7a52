"""The requests that the proxy itself sends to dockerd: inspect, image, info, list, events, PreStart's extra update.

Only this file uses aiohttp. ``load`` or the first request imports it, so CRI mode never loads it. An object that does
not exist is None; any other failure is a BackendError. Only the error of ``update`` may quote a reply. An update uses a
new connection, which cannot be stale, and is never sent twice. A read may be sent again if an idle connection has
ended (RFC 9110, 9.2.2). Paths have no version prefix: some daemon rejects any version (docs/docker-mode.rst, "Paths").
"""

import asyncio
import errno
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from weakref import WeakSet

from runtimeproxy.docker.messages import TYPE_LABEL
from runtimeproxy.errors import BackendError, BackendFailure
from runtimeproxy.relay.dial import RETRY_SECONDS, SCARCE, SCARCE_RETRY_SECONDS, own_shortage

if TYPE_CHECKING:
    import aiohttp

REQUEST_SECONDS = 10.0
REPLY_LIMIT = 16 * 2**20
"""The longest reply, and the longest line of the event stream, in bytes."""
LIST_LIMIT = 64 * 2**20
"""The longest list, in bytes: 10,000 containers with their labels."""

IDLE_SECONDS = 0.25
"""Seconds for which an idle connection stays open: after a restart the whole node is read in one burst. aiohttp checks
at this interval, so an idle connection is closed after at most twice the time."""
CHECK_SECONDS = 5.0
"""Seconds between two checks whether a quiet event stream still has its connection."""

_MESSAGE_LIMIT = 1024
_LAST_NS = 2**63
_ABSENT = frozenset({301, 404})
"""Statuses of an object that does not exist; dockerd's router answers the names "." and ".." with 301."""

ROWS_PER_ITERATION = 200
"""Rows of a list that are read before the event loop may serve calls."""
_DECODER = json.JSONDecoder()
_LIST_START = re.compile(r"\s*\[\s*")
_ROW_SEPARATOR = re.compile(r"\s*,?\s*")


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a container: dockerd's name of the action, the full id, nanoseconds since 1970."""

    action: str
    id: str
    time_ns: int


UNREADABLE = Event("", "", 0)
"""A line of the event stream that cannot be read."""


class Backend:
    """A client of the daemon's own socket; ``seconds`` is the limit of each short request."""

    def __init__(self, endpoint: str, *, seconds: float = REQUEST_SECONDS) -> None:
        self._endpoint = endpoint
        self._seconds = seconds
        self._sessions: dict[str, aiohttp.ClientSession] = {}  # by HTTP method
        self._replies: WeakSet[aiohttp.ClientResponse] = WeakSet()

    @staticmethod
    def load() -> None:
        """Import aiohttp now, as the import takes a quarter of a second and would delay calls later."""
        import aiohttp  # noqa: F401
        import yarl  # noqa: F401

    async def inspect(self, reference: str) -> bytes | None:
        """Read a container by its id, a prefix of it, or its name. Raises BackendError."""
        name = reference.removeprefix("/")
        return await self._find("/containers/{}/json", name) if name else None

    async def image(self, image_id: str) -> bytes | None:
        return await self._find("/images/{}/json", image_id) if image_id else None

    async def info(self) -> bytes:
        """Raises BackendError."""
        _, body = await self._query("GET /info", "/info", self._seconds, REPLY_LIMIT)
        return body

    async def list_containers(self) -> list[tuple[str, str]]:
        """List all pods' sandboxes and containers, running or not, as (full id, type label). Raises BackendError."""
        route = "GET /containers/json"
        path = f"/containers/json?all=1&filters={_filters(label=[TYPE_LABEL])}"
        _, body = await self._query(route, path, self._seconds, LIST_LIMIT)
        try:
            return [(str(row["Id"]), str(row["Labels"][TYPE_LABEL])) async for row in _rows(body.decode())]
        except (ValueError, RecursionError, TypeError, KeyError, IndexError):
            raise BackendError(f"{route}: the reply is not a list of containers", BackendFailure.OTHER) from None

    async def update(self, container_id: str, body: bytes, seconds: float) -> None:
        """Send an update once, with a timeout in seconds. Raises BackendError. After a rejection the error has the
        daemon's message, which may repeat values and must not be logged."""
        route = "POST /containers/{}/update"
        if seconds <= 0:
            raise _timeout_error(route, seconds)
        await self._query(route, f"/containers/{_quote_segment(container_id)}/update", seconds, REPLY_LIMIT, body)

    @asynccontextmanager
    async def events(self, actions: Collection[str], since_ns: int) -> AsyncIterator[AsyncIterator[Event]]:
        """Open dockerd's stream of container events; it is open once the context is entered.

        The daemon first replays its last 256 events from ``since_ns`` on (nanoseconds since 1970). It answers a moment
        before it subscribes to new events, so none is lost only if ``since_ns`` is before the request. A quiet stream
        has no timeout. Raises BackendError, also from the iterator when the stream ends."""
        route = "GET /events"
        since = f"{since_ns // 10**9}.{since_ns % 10**9:09d}"
        path = f"/events?since={since}&filters={_filters(type=['container'], event=actions)}"
        with _as_backend_errors(route, self._seconds):
            async with asyncio.timeout(self._seconds):
                response = await self._send("GET", path, self._seconds)
        try:
            if response.status != 200:
                raise _status_error(route, response.status)
            async with aclosing(_events(route, response)) as events:
                yield events
        finally:
            response.close()

    async def close(self) -> None:
        """Requests under way fail; a later request opens new connections."""
        sessions, self._sessions = self._sessions, {}
        for reply in list(self._replies):  # closing only the session would leave their readers waiting for ever
            reply.close()
        for session in sessions.values():
            await session.close()

    async def _find(self, template: str, name: str) -> bytes | None:
        route, path = f"GET {template}", template.format(_quote_segment(name))
        status, body = await self._query(route, path, self._seconds, REPLY_LIMIT, accepted=_ABSENT)
        return body if status == 200 else None

    async def _query(
        self,
        route: str,
        path: str,
        seconds: float,
        limit: int,
        body: bytes | None = None,
        accepted: Collection[int] = (),
    ) -> tuple[int, bytes]:
        """Return the reply's status, 200 or one of ``accepted``, and body. ``route`` is for error texts without values.
        Raises BackendError."""
        method = route.partition(" ")[0]
        with _as_backend_errors(route, seconds):
            async with asyncio.timeout(seconds), await self._send(method, path, seconds, body) as response:
                parts, length = [], 0
                async for part in response.content.iter_any():
                    length += len(part)
                    if length > limit:
                        raise BackendError(f"{route}: the reply is longer than {limit} bytes", BackendFailure.OTHER)
                    parts.append(part)
        status, reply = response.status, b"".join(parts)
        if status != 200 and status not in accepted:
            raise _status_error(route, status, "" if body is None else _error_message(reply))
        return status, reply

    async def _send(
        self, method: str, path: str, seconds: float, body: bytes | None = None
    ) -> "aiohttp.ClientResponse":
        """Return the reply once its head was received. Connecting is retried while the daemon's backlog is full, and
        while the proxy lacks file descriptors, as long as another try still fits in ``seconds``."""
        import aiohttp
        from yarl import URL

        url = URL(f"http://docker{path}", encoded=True)
        headers = {} if body is None else {"Content-Type": "application/json"}
        last_try = asyncio.get_running_loop().time() + seconds - SCARCE_RETRY_SECONDS
        while True:
            try:
                reply = await self._session(method).request(
                    method, url, data=body, headers=headers, allow_redirects=False
                )
                self._replies.add(reply)
                return reply
            except aiohttp.ClientConnectorError as error:
                scarce = error.os_error.errno in SCARCE and asyncio.get_running_loop().time() < last_try
                if not scarce and error.os_error.errno != errno.EAGAIN:
                    raise
            await asyncio.sleep(SCARCE_RETRY_SECONDS if scarce else RETRY_SECONDS)

    def _session(self, method: str) -> "aiohttp.ClientSession":
        """Return the session for a method. Its connections are not limited: the number of held calls bounds them."""
        import aiohttp

        if method not in self._sessions:
            options: dict[str, Any] = {"keepalive_timeout": IDLE_SECONDS} if method == "GET" else {"force_close": True}
            self._sessions[method] = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(self._endpoint, limit=0, **options),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(),
                # Newer daemons have several formats of the event stream and choose by Accept.
                headers={"Accept": "application/json", "Accept-Encoding": "identity"},
                auto_decompress=False,
            )
        return self._sessions[method]


async def _rows(text: str) -> AsyncGenerator[Any, None]:
    """Yield the elements of a JSON list. The event loop serves calls in between, as a full node's list takes long.
    Raises ValueError, and IndexError if the text ends inside the list."""
    start, count = _LIST_START.match(text), 0
    if start is None:
        raise ValueError("no list")
    end = start.end()
    while text[end] != "]":
        row, end = _DECODER.raw_decode(text, end)
        yield row
        count += 1
        if not count % ROWS_PER_ITERATION:
            await asyncio.sleep(0)
        end = _ROW_SEPARATOR.match(text, end).end()  # type: ignore[union-attr]  # matches the empty text, too
    if text[end + 1 :].strip():
        raise ValueError("more follows after the list")


async def _events(route: str, response: "aiohttp.ClientResponse") -> AsyncGenerator[Event, None]:
    line_parts: list[bytes] = []  # the parts of an incomplete line
    length = 0
    while part := await _read_part(route, response):
        first, *lines = part.split(b"\n")
        line_parts.append(first)
        length += len(first)
        if length > REPLY_LIMIT:
            raise BackendError(f"{route}: a line is longer than {REPLY_LIMIT} bytes", BackendFailure.OTHER)
        if lines:
            for line in (b"".join(line_parts), *lines[:-1]):
                event = _parse_event(line)
                if event is not None:
                    yield event
            line_parts, length = [lines[-1]], len(lines[-1])
    raise BackendError(f"{route}: the stream ended")


async def _read_part(route: str, response: "aiohttp.ClientResponse") -> bytes:
    """Return the next bytes of a stream, waiting without a limit; b"" at its end. Raises BackendError."""
    while True:
        with _as_backend_errors(route), suppress(TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS):
                return await response.content.readany()
        # After a malformed chunk aiohttp closes the connection, but its reader waits for ever.
        if response.connection is None or response.connection.closed:
            raise BackendError(f"{route}: the stream broke off")


def _parse_event(line: bytes) -> Event | None:
    """Parse a line of the event stream: None if it is empty or not about a container, UNREADABLE if it is invalid."""
    if not line.strip():
        return None
    try:
        document: Any = json.loads(line)
    except (ValueError, RecursionError):
        return UNREADABLE
    match document:
        case {"Type": "container", "Action": str(action), "Actor": {"ID": str(id)}, "timeNano": int(time_ns)}:
            return Event(action, id, time_ns) if 0 < time_ns < _LAST_NS else UNREADABLE
        case {"Type": str(kind)} if kind != "container":
            return None
    return UNREADABLE


def _error_message(reply: bytes) -> str:
    """Return the message of an error reply, cut to _MESSAGE_LIMIT characters; "" if it has none."""
    try:
        return str(json.loads(reply)["message"])[:_MESSAGE_LIMIT]
    except (ValueError, RecursionError, TypeError, KeyError):
        return ""


def _quote_segment(name: str) -> str:
    """Percent-encode a reference as one path segment, keeping bytes that are not UTF-8."""
    return quote(name, safe="", errors="surrogateescape")


def _filters(**values: Collection[str]) -> str:
    return quote(json.dumps({name: dict.fromkeys(kinds, True) for name, kinds in values.items()}), safe="")


@contextmanager
def _as_backend_errors(route: str, seconds: float = 0.0) -> Iterator[None]:
    """Raise aiohttp's exceptions as BackendError, with only the name of their class: their text may quote a reply."""
    import aiohttp

    try:
        yield
    except TimeoutError:
        raise _timeout_error(route, seconds) from None
    except aiohttp.ClientConnectorError as error:
        reason = error.os_error.strerror or type(error.os_error).__name__
        if error.os_error.errno in SCARCE:
            reason = own_shortage(reason)
        raise BackendError(f"{route}: cannot connect: {reason}", not_done=True) from None
    except (aiohttp.ClientError, OSError) as error:
        raise BackendError(f"{route}: no whole answer ({type(error).__name__})") from None


def _timeout_error(route: str, seconds: float) -> BackendError:
    return BackendError(f"{route}: no answer in {max(seconds, 0.0):g} s", BackendFailure.DEADLINE)


def _status_error(route: str, status: int, message: str = "") -> BackendError:
    text = f"{route}: the daemon answered {status}{message and f': {message}'}"
    return BackendError(text, BackendFailure.OTHER, not_done=True)
