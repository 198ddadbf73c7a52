"""Route requests of Docker's API that are held or may become a tunnel; the exchange of a request and its answer.

Invariants: exactly the requests that dockerd's router passes to one of the five handlers have a route. The exception is
an absolute target with a malformed authority, which dockerd refuses itself. A held request is sent once and complete,
or never; its answer waits for the Post hooks (relay-rules B, C1). Targets are latin-1 text without control characters.
Source: Go's net/url (ParseRequestURI), gorilla/mux 1.8 (ServeHTTP, cleanPath) and moby's api/server, 20.10 to 28.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from runtimeproxy.core import call
from runtimeproxy.core.call import CallState, HeldCall, MemoryBudget, Reply, Unreadable
from runtimeproxy.observe.metric_table import OTHER_LABEL, Key
from runtimeproxy.wire import JOINED_BYTES, http1
from runtimeproxy.wire.cache import Cache
from runtimeproxy.wire.http1 import Framing, RequestHead, ResponseHead

if TYPE_CHECKING:
    from runtimeproxy.docker.reader import Reader


class Action(Enum):
    __hash__ = object.__hash__  # members are singletons; Enum's own hash is slow

    CREATE = "create"
    START = "start"
    STOP = "stop"
    UPDATE = "update"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Route:
    """``reference`` is the id, id prefix or name, decoded as dockerd does ("" for create). ``name`` is the name that a
    create requests ("" if dockerd generates it)."""

    action: Action
    reference: str = ""
    name: str = ""


_VERSION = r"(?:/v[0-9.]+)?"
_HELD = {
    "POST": re.compile(_VERSION + r"/containers/(?:create|(.*)/(start|stop|update))"),
    # Deleting a checkpoint is a separate route, registered before the container's.
    "DELETE": re.compile(_VERSION + r"/containers/(?![^/]+/checkpoints/[^/]+\Z)(.+)"),
}
_UPGRADING = {
    "POST": re.compile(_VERSION + r"/(?:containers/.*/attach|exec/.*/start|session|grpc)"),
    "GET": re.compile(_VERSION + r"/containers/.*/attach/ws"),
}

_CACHED_LENGTH = 512
"""Longest target that is cached, in characters."""

_ABSOLUTE = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*:(?://[^/?]*)?")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_UNCLEAN = re.compile(r"//|/\.\.?(?:/|\Z)")


def find_route(method: str, target: str) -> Route | None:
    """Return the route of a request to hold; None if it passes, as does a DELETE without a reference."""
    if method not in _HELD or ("containers/" not in target and "%" not in target):
        return None
    return _parse_route(method, target) if len(target) <= _CACHED_LENGTH else _parse_route.__wrapped__(method, target)


def without_authority(target: str) -> str:
    """Return an absolute target's path and query, which is all that dockerd routes by (RFC 9112, 3.2.2)."""
    return _ABSOLUTE.sub("", target)


def may_upgrade(method: str, target: str) -> bool:
    """Return whether the connection may become a tunnel without an Upgrade field (dockerd's old-style hijack)."""
    if method not in _UPGRADING or (method == "GET" and "/ws" not in target and "%" not in target):
        return False
    return (_matches_upgrade if len(target) <= _CACHED_LENGTH else _matches_upgrade.__wrapped__)(method, target)


@lru_cache(1024)
def _parse_route(method: str, target: str) -> Route | None:
    path, query = _split_target(target)
    match = _HELD[method].fullmatch(path)
    if match is None:
        return None
    if method == "DELETE":
        return Route(Action.REMOVE, match[1])
    if match[2]:
        return Route(Action(match[2]), match[1])
    name = _NAME_PARAMETER.search(query)
    return Route(Action.CREATE, name=_decoded((name[1] or "").replace("+", " ")) if name else "")


@lru_cache(1024)
def _matches_upgrade(method: str, target: str) -> bool:
    path, _ = _split_target(target)
    return _UPGRADING[method].fullmatch(path) is not None


def _split_target(target: str) -> tuple[str, str]:
    """Return the decoded path, "" if Go's parser rejects the target or mux redirects it, and the raw query."""
    path, _, query = target.partition("?")
    if not path.startswith("/"):
        path = without_authority(path)
    if "%" in path or not path.isascii():
        path = _decoded(path) if path.startswith("/") and not _BAD_ESCAPE.search(path) else ""
    return ("", "") if _UNCLEAN.search(path) else (path, query)


def _decoded(text: str) -> str:
    return unquote_to_bytes(text.encode("latin-1")).decode(errors="replace")


_COUNTED_ROUTES = """
    GET /_ping, HEAD /_ping, GET /version, GET /info, GET /events, GET /system/df, POST /auth, POST /session, POST /grpc
    GET /containers/json, POST /containers/create, POST /containers/prune, DELETE /containers/{id}
    GET /containers/{id}/json, GET /containers/{id}/top, GET /containers/{id}/logs, GET /containers/{id}/stats
    GET /containers/{id}/changes, GET /containers/{id}/export, GET /containers/{id}/attach/ws
    GET /containers/{id}/archive, HEAD /containers/{id}/archive, PUT /containers/{id}/archive
    POST /containers/{id}/start, POST /containers/{id}/stop, POST /containers/{id}/restart, POST /containers/{id}/kill
    POST /containers/{id}/update, POST /containers/{id}/rename, POST /containers/{id}/pause
    POST /containers/{id}/unpause, POST /containers/{id}/wait, POST /containers/{id}/resize
    POST /containers/{id}/attach, POST /containers/{id}/exec
    POST /exec/{id}/start, POST /exec/{id}/resize, GET /exec/{id}/json
    GET /images/json, GET /images/search, GET /images/get, POST /images/create, POST /images/load, POST /images/prune
    GET /images/{name}/json, GET /images/{name}/history, GET /images/{name}/get, POST /images/{name}/push
    POST /images/{name}/tag, DELETE /images/{name}, POST /build, POST /commit
    GET /networks, GET /networks/{id}, POST /networks/create, DELETE /networks/{id}
    GET /volumes, GET /volumes/{id}, POST /volumes/create, DELETE /volumes/{id}
"""
_TEMPLATES = [template for line in _COUNTED_ROUTES.split("\n") for template in line.strip().split(", ") if template]


def _pattern(template: str) -> str:
    method, _, path = template.partition(" ")
    path = path.replace("{id}", "[^/?]{1,255}").replace("{name}", "[^?]{1,255}?")
    return f"({method} {_VERSION}{path}(?:\\?|\\Z))"


match_passing = re.compile("|".join(map(_pattern, _TEMPLATES))).match
"""Match "METHOD target" of a passing request; ``lastindex`` is the index of its series."""
PASSING_SERIES: tuple[Key, ...] = tuple(("calls_passed", (template,)) for template in (OTHER_LABEL, *_TEMPLATES))
"""The series that count passing requests; the first counts requests without a match."""
CREATE_SERIES = PASSING_SERIES[1 + _TEMPLATES.index("POST /containers/create")]
EVENTS = PASSING_SERIES[1 + _TEMPLATES.index("GET /events")]

_NAME_PARAMETER = re.compile(r"(?:\A|&)(?:n|%6[Ee])(?:a|%61)(?:m|%6[Dd])(?:e|%65)(?:=([^&]*))?(?=&|\Z)")
"""The ``name`` parameter in any percent-encoding. Nothing else is decoded, as a query may be long."""


DAEMON_UNAVAILABLE = "the Docker daemon is not reachable: check --remote-runtime-service-endpoint and dockerd"
REPLY_LIMIT = 1 << 20
"""Longest answer to a held call that is buffered, in bytes; dockerd's have some hundred bytes."""

_NOT_MODIFIED = 304
_AGREED_STATUSES = {Action.STOP: frozenset({_NOT_MODIFIED, 404}), Action.REMOVE: frozenset({404})}
"""Statuses other than 2xx that count as agreement (hook-api, "Applied to"); a start answered 304 started nothing."""


class ReaderEvent(Enum):
    """An action of the connection after a read."""

    PAUSE = "read no more from the client"
    RESUME = "read from the client again"
    PASS_CLIENT_EOF = "pass the client's EOF on: all that came before it was sent"
    FINISH = "end the connection: the last answer was sent"
    TUNNEL_HTTP2 = "remember the connection: its client speaks HTTP/2, past the hook servers"


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    status: int
    reason: str


class Exchange:
    """A request that passes, and its answer."""

    __slots__ = ("answered", "continued", "empty_lines", "head", "is_shared", "may_tunnel", "method", "series")

    def __init__(self, head: RequestHead | None, may_tunnel: bool = False) -> None:
        self.head = head
        self.method = "" if head is None else head.method
        """The answer to a HEAD has no body."""
        self.empty_lines = 2 if self.method == "POST" else 0
        """Most empty lines after the request: dockerd skips 4 bytes of CR and LF after a POST (relay-rules B11)."""
        self.may_tunnel = may_tunnel
        self.series = PASSING_SERIES[0]
        self.is_shared = False
        """True for an immutable exchange that all requests with the same bytes share; see ``MessageCaches``."""
        self.answered = False
        self.continued = False
        """True once the proxy sent the client 100 Continue, so that the daemon's own one is dropped."""


class ProxyAnswer(Exchange):
    """The proxy's answer to a request that the daemon never gets, sent in the order of the requests."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(None)
        self.answer = answer


CACHE_BYTES = 1 << 20


class MessageCaches:
    """Caches of messages, for all connections: clients and the daemon repeat theirs within a second. A cached message
    passes without being parsed. Messages above ``max_bytes`` bytes are not cached."""

    def __init__(self, max_bytes: int = 1024, counters: MutableMapping[Key, int] | None = None) -> None:
        self.max_bytes = max_bytes
        self.counters: MutableMapping[Key, int] = {} if counters is None else counters
        """The requests that passed, by their series; each cached request has a series."""
        self.requests: Cache[bytes, Exchange] = Cache(CACHE_BYTES)
        """Passing requests without a body, each with the exchange that all requests with the same bytes share."""
        self.answers: Cache[tuple[bytes, str], None] = Cache(CACHE_BYTES)
        """Answers, each with the method of its request."""


@dataclass(frozen=True, slots=True)
class Shared:
    budget: MemoryBudget
    caches: MessageCaches
    kinds: "Mapping[Action, type[DockerHeld]]"
    intercepts: Callable[[Route], bool]
    admit_http2: Callable[[], bool]
    """Count a client that speaks HTTP/2; return whether it may pass, bypassing the hook servers."""


class DockerHeld(Exchange, HeldCall):
    """A request that waits for the hook servers, and whose answer waits for the Store and the Post hooks."""

    head: RequestHead
    is_plain = False
    """True if the call has no hooks and changes no record: its complete answer is sent on immediately."""

    def __init__(self, reader: "Reader", head: RequestHead, route: Route) -> None:
        super().__init__(head)
        self._reader = reader
        self.shared = reader.shared
        self.route = route
        self.problem = ""
        """Why the request cannot be read; "" if it can."""
        self._is_complete = False
        self._counted_bytes = 0
        self._collected = bytearray()
        """The received part of the body, with its chunking; empty once ``_body`` has all of it."""
        self._payload: bytes | bytearray = bytearray()
        """The received content of a chunked body without its chunking."""
        self._body = b""
        self.reply_head: ResponseHead | None = None
        self._reply_body: bytearray | None = bytearray()
        """The received body of the daemon's answer; None once the answer is above REPLY_LIMIT."""
        self.retained = bytearray()

    @abstractmethod
    def identify(self) -> bool:
        """Identify the call; called when the request is complete and all requests before it are answered. Return False
        if it ``is_plain``; then it has been sent on."""

    def collect(self, part: bytes) -> bool:
        """Buffer a part of the body; return False if the body is too long, or the memory budget used up."""
        self._collected += part
        if len(self._collected) > call.MESSAGE_LIMIT:
            self.problem = "the request is longer than the limit"
        else:
            length = 2 * len(part) if self.head.framing is Framing.CHUNKED else len(part)
            self._counted_bytes += length
            if not self.shared.budget.add(length):
                self.problem = call.NO_ROOM
        return not self.problem

    def add_payload(self, payload: bytes | bytearray) -> None:
        if not self.problem:
            self._payload += payload

    def withdraw(self) -> bytes:
        """Return the bytes of a held request that was never started, and end the call; b"" if it is no longer held."""
        if self.state is not CallState.HOLDING:
            return b""
        self.state = CallState.ENDED
        request = self.head.raw + self._body + self._collected
        self._free()
        return request

    def complete_request(self) -> None:
        self._is_complete = True
        self._body = bytes(self._collected)
        self._collected.clear()
        self._payload = bytes(self._payload)

    @property
    def body(self) -> bytes:
        """Return the body without its chunking, until the answer is sent. Raises Unreadable if it cannot be read or has
        a Content-Encoding."""
        if self.problem:
            raise Unreadable(self.problem)
        if self.head.field("content-encoding"):
            raise Unreadable("the request's body is encoded")
        return bytes(self._payload) if self.head.framing is Framing.CHUNKED else self._body

    def send_request(self, body: bytes | None) -> bool:
        """Send the request's own bytes, or its head with ``body`` (relay-rules B8); on a new connection if the daemon
        has closed the old one (relay-rules B9). Return False if no longer held."""
        if self.state is not CallState.HOLDING:
            return False
        self.state = CallState.RELEASED
        reader, head = self._reader, self.head.raw if body is None else http1.with_length(self.head.raw, len(body))
        body = self._body or bytes(self._collected) if body is None else body
        if self.problem:
            self._free()
        if reader.daemon_closed and not reader.redial():
            self._free()
            self.reply = Reply(agreed=False, no_op=True)
            reader.ready.append(self)
            reader.answer_and_close(http1.response(502, f"runtimeproxy: {DAEMON_UNAVAILABLE}", close=True))
        else:
            reader.daemon_closed = False
            reader.to_daemon.append(head)
            if len(body) > JOINED_BYTES:  # joining it with the head would copy it
                reader.wake()
            reader.to_daemon.append(body)
            reader.requests.released()
        reader.wake()
        return True

    def send_refusal(self, status: int, message: str) -> bool:
        """Answer instead of the daemon. Return False if the request is no longer held."""
        if self.state is not CallState.HOLDING:
            return False
        self.state = CallState.REFUSED
        self._free()
        reader = self._reader
        close = reader.daemon_closed or self.head.closes or not self._is_complete
        answer = http1.response(status, message, close=close)
        if close:
            reader.answer_and_close(answer)
        else:
            reader.to_client.append(answer)
            reader.done(self)
        reader.wake()
        return True

    def connection_lost(self) -> None:
        if self.state is CallState.HOLDING:
            self.state = CallState.ENDED
            self._free()
        if self.reply is None:
            self.reply = call.UNANSWERED
            self._reader.ready.append(self)

    def _free(self) -> None:
        self.shared.budget.credit(self._counted_bytes)
        self._counted_bytes = 0
        self._collected.clear()
        self._payload = b""
        self._body = b""

    def collect_reply(self, part: bytes) -> bytes:
        """Buffer a part of the answer's body. Of an answer above REPLY_LIMIT return all but one byte, to send now."""
        self.retained += part
        if self._reply_body is not None and len(self.retained) <= REPLY_LIMIT:
            self._reply_body += part
            return b""
        self._reply_body = None
        sendable = bytes(self.retained[:-1])
        del self.retained[:-1]
        return sendable

    def complete_reply(self) -> None:
        """Set ``reply`` by the complete answer; an answer that was too long has no message."""
        head = self.reply_head
        assert head is not None
        body = bytes(self._reply_body or b"")
        if head.framing is Framing.CHUNKED and body:
            body = http1.dechunk(body)
        agreed = 200 <= head.status < 300 or head.status in _AGREED_STATUSES.get(self.route.action, ())
        self.reply = Reply(agreed, body, no_op=not agreed and head.status == _NOT_MODIFIED)
        self._reader.ready.append(self)

    def answer(self) -> None:
        reader = self._reader
        self._free()
        if reader.pending and reader.pending[0] is self and self.reply is not None:
            reader.to_client.append(bytes(self.retained))
            reader.done(self)
            reader.wake()

    def release_buffers(self) -> None:
        """Do nothing: calls with a body have no Post hooks, so their buffers are freed with the answer."""
