"""A request and its answer: what is kept of a held request and of its answer, and its state.

Invariant: a held request leaves once and whole, or not at all; its answer waits for the Post hooks (relay-rules B, C1).
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from runtimeproxy.core.call import (
    MESSAGE_LIMIT,
    NO_ROOM,
    UNANSWERED,
    CallState,
    HeldCall,
    MemoryBudget,
    Reply,
    Unreadable,
)
from runtimeproxy.docker.routes import PASSING, Action, Route
from runtimeproxy.model.caches import Cache
from runtimeproxy.observe.metric_table import Key
from runtimeproxy.wire import JOINED_BYTES, http1
from runtimeproxy.wire.http1 import Framing, RequestHead, ResponseHead

if TYPE_CHECKING:
    from runtimeproxy.docker.reader import Reader

REPLY_LIMIT = 1 << 20
"""Longest answer to a held call that is kept, in bytes; dockerd's have some hundred bytes."""

_NOT_MODIFIED = 304
_ALSO_AGREED = {Action.STOP: frozenset({_NOT_MODIFIED, 404}), Action.REMOVE: frozenset({404})}
"""Statuses that count as agreement beside 2xx (hook-api, "Applied to"); a start answered 304 started nothing."""

_AFTER_A_POST = 2
"""dockerd's server skips 4 bytes of CR and LF after a POST, and after no other request."""


class ReaderEvent(Enum):
    """What the connection has to do after a read."""

    PAUSE = "read no more from the client"
    RESUME = "read from the client again"
    PASS_CLIENT_EOF = "pass the client's EOF on: all that came before it was sent"
    FINISH = "end the connection: the last answer was sent"
    TUNNEL_HTTP2 = "remember the connection: its client speaks HTTP/2, past the hook servers"


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """A request that the proxy answers itself as malformed or ambiguous."""

    status: int
    why: str


class Exchange:
    """A request that passes, and its answer."""

    __slots__ = ("answered", "continued", "empty_lines", "head", "may_tunnel", "method", "plain", "series")

    def __init__(self, head: RequestHead | None, may_tunnel: bool = False) -> None:
        self.head = head
        self.method = "" if head is None else head.method
        """The answer to a HEAD has no body."""
        self.empty_lines = _AFTER_A_POST if self.method == "POST" else 0
        """Most empty lines that may follow the request (relay-rules B11)."""
        self.may_tunnel = may_tunnel
        self.series = PASSING[0]
        """What counts the request, if it passes."""
        self.plain = False
        """True for an immutable exchange that all requests with the same bytes share; see ``Known``."""
        self.answered = False
        """True once the whole answer has been sent to the client."""
        self.continued = False
        """True once the proxy sent the client 100 Continue, so that the daemon's own one is dropped."""


class OwnAnswer(Exchange):
    """An answer by the proxy to a request that the daemon never gets, in its place among the other answers."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(None)
        self.answer = answer


KNOWN_BYTES = 1 << 20


class Known:
    """Caches of messages, for all connections: clients and the daemon repeat theirs within a second. A message that is
    cached passes without being parsed. Those of more than ``longest`` bytes are not."""

    def __init__(self, longest: int = 1024, counters: MutableMapping[Key, int] | None = None) -> None:
        self.longest = longest
        self.counters: MutableMapping[Key, int] = {} if counters is None else counters
        """The requests that passed, by their series; that of a known request is there."""
        self.requests: Cache[bytes, Exchange] = Cache(KNOWN_BYTES)
        """Requests that pass and have no body, with the exchange that all requests with the same bytes share."""
        self.answers: Cache[tuple[bytes, str], None] = Cache(KNOWN_BYTES)
        """Answers, each with the method of its request."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the connections of a front share."""

    budget: MemoryBudget
    known: Known
    kinds: "Mapping[Action, type[DockerHeld]]"
    """The class of held call for each action."""
    intercepts: Callable[[Route], bool]
    admit_http2: Callable[[], bool]
    """Count a client that speaks HTTP/2; return whether it may pass, bypassing the hook servers."""


class DockerHeld(Exchange, HeldCall):
    """A request that waits for the hook servers, and whose answer waits for the Store and the Post hooks."""

    head: RequestHead
    is_plain = False
    """True if the call calls no hook server and changes no record: its answer is sent on as soon as it is complete."""

    def __init__(self, reader: "Reader", head: RequestHead, route: Route) -> None:
        super().__init__(head)
        self._reader = reader
        self.shared = reader.shared
        self.route = route
        self.problem = ""
        """Why the request cannot be read; "" if it can."""
        self._whole = False
        self._counted = 0
        self._collected = bytearray()
        """The part of the body that has come, as it came; empty once ``_body`` has all of it."""
        self._payload: bytes | bytearray = bytearray()
        """The content of a chunked body without its chunking, as far as it has come."""
        self._body = b""
        self.reply_head: ResponseHead | None = None
        """The head of the daemon's answer; None before it has come."""
        self._reply_body: bytearray | None = bytearray()
        """The body of the daemon's answer, as it came; None once the answer is too long to be kept."""
        self.kept = bytearray()
        """The bytes of the answer that wait for the Post hooks."""

    @abstractmethod
    def identify(self) -> bool:
        """Called when the request is complete and all requests before it are answered, to find out what it is. Return
        False if it ``is_plain``; then it has been sent on."""

    # The request.

    def collect(self, part: bytes) -> bool:
        """Keep a part of the body as it came; return False if the body is too long, or the memory budget used up."""
        self._collected += part
        if len(self._collected) > MESSAGE_LIMIT:
            self.problem = "the request is longer than the limit"
        else:
            length = 2 * len(part) if self.head.framing is Framing.CHUNKED else len(part)
            self._counted += length
            if not self.shared.budget.add(length):
                self.problem = NO_ROOM
        return not self.problem

    def keep(self, payload: bytes | bytearray) -> None:
        if not self.problem:
            self._payload += payload

    def withdraw(self) -> bytes:
        """End the holding of a request whose turn never came, and return its bytes; b"" if it is no longer held."""
        if self.state is not CallState.HOLDING:
            return b""
        self.state = CallState.ENDED
        request = self.head.raw + self._body + self._collected
        self._free()
        return request

    def request_whole(self) -> None:
        self._whole = True
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
        """Send the request's own bytes, or its head with ``body`` (relay-rules B8). Return False if no longer held."""
        if self.state is not CallState.HOLDING:
            return False
        self.state = CallState.RELEASED
        raw = self.head.raw if body is None else http1.with_length(self.head.raw, len(body))
        body = self._body or bytes(self._collected) if body is None else body
        if self.problem:
            self._free()
        if len(body) > JOINED_BYTES:
            self._reader.send_request(self, raw, body)
        else:
            self._reader.send_request(self, raw + body)
        return True

    def send_refusal(self, status: int, message: str) -> bool:
        """Answer in the daemon's place. Return False if the request is no longer held."""
        if self.state is not CallState.HOLDING:
            return False
        self.state = CallState.REFUSED
        self._free()
        self._reader.send_refusal(self, status, message, self.head.closes or not self._whole)
        return True

    def connection_lost(self) -> None:
        if self.state is CallState.HOLDING:
            self.state = CallState.ENDED
            self._free()
        if self.reply is None:
            self.reply = UNANSWERED
            self._reader.ready.append(self)

    def _free(self) -> None:
        self.shared.budget.credit(self._counted)
        self._counted = 0
        self._collected.clear()
        self._payload = b""
        self._body = b""

    # The answer.

    def collect_reply(self, part: bytes) -> bytes:
        """Keep a part of the answer's body; of an answer above REPLY_LIMIT return all but one byte, to send now."""
        self.kept += part
        if self._reply_body is not None and len(self.kept) <= REPLY_LIMIT:
            self._reply_body += part
            return b""
        self._reply_body = None
        going = bytes(self.kept[:-1])
        del self.kept[:-1]
        return going

    def reply_whole(self) -> None:
        """Called when the whole answer has come: settle the call; an answer that was too long has no message."""
        head = self.reply_head
        assert head is not None
        body = bytes(self._reply_body or b"")
        if head.framing is Framing.CHUNKED and body:
            body = http1.dechunk(body)
        agreed = 200 <= head.status < 300 or head.status in _ALSO_AGREED.get(self.route.action, ())
        self.reply = Reply(agreed, body, no_op=not agreed and head.status == _NOT_MODIFIED)
        self._reader.ready.append(self)

    def not_sent(self) -> None:
        """Called when the daemon could not be reached to send the request: settle the call as one that did nothing."""
        self._free()
        self.reply = Reply(agreed=False, no_op=True)
        self._reader.ready.append(self)

    def answer(self) -> None:
        self._free()
        self._reader.answer(self)

    def release_buffers(self) -> None:
        """Do nothing: calls with a body have no Post hooks, so their buffers are freed with the answer."""
