"""One request and its answer on a client's connection.

Owns what is kept of a held request and of its answer, and its state.
Must not know: other exchanges, sockets, what a body means.
Invariant: a held request leaves once, whole, or not at all; its answer waits for the Post hooks (relay-rules B, C1).
"""

from collections.abc import Callable
from typing import Protocol

from runtimeproxy.core.call import MESSAGE_LIMIT, UNANSWERED, CallState, Reply
from runtimeproxy.core.memory_budget import NO_ROOM, MemoryBudget
from runtimeproxy.docker.routes import Action, Route
from runtimeproxy.errors import WireError
from runtimeproxy.model.caches import Cache
from runtimeproxy.wire import JOINED_BYTES, bodies, http1
from runtimeproxy.wire.http1 import Framing, RequestHead, ResponseHead

REPLY_LIMIT = 1 << 20
"""Longest answer to a held call that is kept, in bytes; dockerd's own are some hundred bytes."""

_NOT_MODIFIED = 304
_ALSO_AGREED = {Action.STOP: frozenset({_NOT_MODIFIED, 404}), Action.REMOVE: frozenset({404})}
"""Statuses beside 2xx with which the daemon agreed (hook-api, "Applied to"); a start answered 304 started nothing."""


def _nothing() -> None:
    """Stand in for a listener that is not there yet."""


class Exchange:
    """A request that passes, and its answer."""

    __slots__ = ("answered", "continued", "head", "may_tunnel", "method", "plain")

    def __init__(self, head: RequestHead | None, may_tunnel: bool = False) -> None:
        self.head = head
        self.method = "" if head is None else head.method
        """The answer to a HEAD has no body."""
        self.may_tunnel = may_tunnel
        self.plain = False
        """True for one that stands for all requests of the same bytes: nothing in it changes."""
        self.answered = False
        """True once the client has the whole answer."""
        self.continued = False
        """True once we told the client to go on (Expect: 100-continue), so that the daemon's word is swallowed."""


class OwnAnswer(Exchange):
    """An answer of ours to a request that the daemon never sees, in its turn among the others."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(None)
        self.answer = answer


KNOWN_BYTES = 1 << 20


class Known:
    """Whole messages of all connections that are known again: clients and the daemon repeat theirs within a second.

    A message of more than ``longest`` bytes is not kept.
    """

    def __init__(self, longest: int = 1024) -> None:
        self.longest = longest
        self.requests: Cache[bytes, Exchange] = Cache(KNOWN_BYTES)
        """Requests that pass and have no body, with the exchange that all of the same bytes share."""
        self.answers: Cache[tuple[bytes, str], None] = Cache(KNOWN_BYTES)
        """Answers, with the method that they answer."""

    def add_request(self, exchange: Exchange) -> None:
        """Keep a request that is no more than a head, and that nobody holds."""
        assert exchange.head is not None
        raw = exchange.head.raw
        if len(raw) <= self.longest:
            exchange.plain = True
            self.requests.keep(raw, exchange, len(raw))


class ExchangeOwner(Protocol):
    """What a held exchange needs of its connection's reader."""

    held_bytes: MemoryBudget
    settled: Callable[["HeldExchange"], None]

    def send_request(self, exchange: "HeldExchange", request: bytes, body: bytes = b"") -> None: ...
    def send_refusal(self, exchange: "HeldExchange", status: int, message: str, close: bool) -> None: ...
    def answer(self, exchange: "HeldExchange") -> None: ...


class HeldExchange(Exchange):
    """A request that waits for the hook servers, and whose answer waits for the Store."""

    head: RequestHead

    def __init__(self, owner: ExchangeOwner, head: RequestHead, route: Route) -> None:
        super().__init__(head)
        self._owner = owner
        self.route = route
        self.state = CallState.HOLDING
        self.problem = ""
        """Why the request cannot be read; "" if it can."""
        self.reply: Reply | None = None
        self.on_ended: Callable[[], object] = _nothing
        self.on_reply: Callable[[], object] = _nothing
        self._whole = False
        self._counted = 0
        self._collected = bytearray()
        """What has come of the body; nothing once ``_body`` has it whole."""
        self._payload: bytes | bytearray = bytearray()
        """What has come in the chunks of a chunked one."""
        self._body = b""
        self.reply_head: ResponseHead | None = None
        """That of the daemon's answer, once it has begun."""
        self._reply_body: bytearray | None = bytearray()
        """None once the answer is too long to be kept."""
        self.kept = bytearray()
        """What waits of the answer for the Post hooks."""

    # The request.

    def collect(self, part: bytes) -> bool:
        """Take a part of the body as it came; False if it is too much to be kept."""
        self._collected += part
        if len(self._collected) > MESSAGE_LIMIT:
            self.problem = "the request is longer than the limit"
        else:
            length = 2 * len(part) if self.head.framing is Framing.CHUNKED else len(part)
            self._counted += length
            if not self._owner.held_bytes.add(length):
                self.problem = NO_ROOM
        return not self.problem

    def keep(self, payload: bytes | bytearray) -> None:
        """Take what is in the chunks of the body's next part."""
        if not self.problem:
            self._payload += payload

    def withdraw(self) -> bytes:
        """Hold a request no longer whose turn never came; return what came of it, b"" if it is not held."""
        if self.state is not CallState.HOLDING:
            return b""
        self.state = CallState.ENDED
        request = self.head.raw + self._body + self._collected
        self._free()
        return request

    def request_whole(self) -> None:
        """Keep the request once from here on, whoever reads it: nothing more of it comes."""
        self._whole = True
        self._body = bytes(self._collected)
        self._collected.clear()
        self._payload = bytes(self._payload)

    def cut(self) -> None:
        """Make a request unreadable whose client ended inside it."""
        self.problem = "the request ends inside its body"

    def body(self) -> bytes:
        """Return the body without its chunking. Raises WireError if it cannot be read."""
        if self.problem:
            raise WireError(self.problem)
        if self.head.field("content-encoding"):
            raise WireError("the request's body is encoded")
        return bytes(self._payload) if self.head.framing is Framing.CHUNKED else self._body

    def release(self, body: bytes | None) -> bool:
        """Send the request on: its own bytes if ``body`` is None, else with that body (relay-rules B8).

        Returns False if it is no longer held; then nothing is sent.
        """
        if self.state is not CallState.HOLDING:
            return False
        self.state = CallState.RELEASED
        raw = self.head.raw if body is None else http1.with_length(self.head.raw, len(body))
        body = self._body or bytes(self._collected) if body is None else body
        if self.problem:
            self._free()
        self._forget_body()
        if len(body) > JOINED_BYTES:
            self._owner.send_request(self, raw, body)
        else:
            self._owner.send_request(self, raw + body)
        return True

    def refuse(self, status: int, message: str) -> bool:
        """Answer in the daemon's place, which never sees the request. Returns False if it is no longer held."""
        if self.state is not CallState.HOLDING:
            return False
        self.state = CallState.REFUSED
        self._free()
        self._owner.send_refusal(self, status, message, self.head.closes or not self._whole)
        self._forget_listeners()
        return True

    def end(self) -> None:
        """End the call without the daemon's answer: the client or the daemon has gone."""
        ended: Callable[[], object] = _nothing
        if self.state is CallState.HOLDING:
            self.state, ended = CallState.ENDED, self.on_ended
            self._free()
        if self.reply is None:
            self._settle(UNANSWERED)
        ended()

    def _free(self) -> None:
        """Count nothing of the request any more: it is not kept."""
        self._owner.held_bytes.free(self._counted)
        self._counted = 0
        self._forget_body()

    def _forget_body(self) -> None:
        self._collected.clear()
        self._payload = b""
        self._body = b""

    # The answer.

    @property
    def awaits_reply(self) -> bool:
        """Tell whether the daemon has the request, and has not given its whole answer."""
        return self.state is CallState.RELEASED and self.reply is None

    def begin_reply(self, head: ResponseHead) -> None:
        self.reply_head = head
        self.kept += head.raw

    def collect_reply(self, part: bytes) -> bytes:
        """Keep a part of the answer's body; return what is too much to be kept and goes on now: all but one byte."""
        self.kept += part
        if self._reply_body is not None and len(self.kept) <= REPLY_LIMIT:
            self._reply_body += part
            return b""
        self._reply_body = None
        going = bytes(self.kept[:-1])
        del self.kept[:-1]
        return going

    def reply_whole(self) -> None:
        """Settle the call with the answer; one that was too long has no message."""
        head = self.reply_head
        assert head is not None
        body = bytes(self._reply_body or b"")
        if head.framing is Framing.CHUNKED and body:
            body = bodies.dechunk(body)
        agreed = 200 <= head.status < 300 or head.status in _ALSO_AGREED.get(self.route.action, ())
        self._settle(Reply(agreed, body, no_op=not agreed and head.status == _NOT_MODIFIED))

    def not_sent(self) -> None:
        """Settle the call of a request that the daemon could not be given: nothing happened."""
        self._settle(Reply(agreed=False, no_op=True))

    def answer(self) -> None:
        self._free()
        self._owner.answer(self)

    def _settle(self, reply: Reply) -> None:
        self.reply = reply
        self._owner.settled(self)

    def go_on(self) -> None:
        """Tell whoever waits for the reply."""
        self.on_reply()
        self._forget_listeners()

    def _forget_listeners(self) -> None:
        """Leave no cycle for the garbage collector: they lead to the call and its fiber, which keep the exchange."""
        self.on_reply = self.on_ended = _nothing
