"""The state of one client's connection to dockerd: the requests that wait for their answers, in order.

Owns whose turn it is, our own answers among the daemon's, and the change to a tunnel.
Must not know: sockets, the clock, what a body means, hook servers.
Invariant: whatever is not held leaves as the very bytes that came, in order and at once (relay-rules B).
"""

from collections import deque
from typing import Protocol

from runtimeproxy.core.memory_budget import MemoryBudget
from runtimeproxy.docker.answers import Answers
from runtimeproxy.docker.exchange import Exchange, HeldExchange, Known, OwnAnswer
from runtimeproxy.docker.requests import Requests
from runtimeproxy.docker.routes import Route
from runtimeproxy.wire import http1
from runtimeproxy.wire.bodies import Send
from runtimeproxy.wire.http1 import BadMessage

DAEMON_AWAY = "the Docker daemon is not reachable: check --remote-runtime-service-endpoint and dockerd"


class ReaderEvents(Protocol):
    """What the reader tells its connection."""

    def intercepts(self, route: Route) -> bool: ...
    def held(self, exchange: HeldExchange) -> None:
        """Take a held request that is whole, or cannot be read, and whose turn it is."""

    def settled(self, exchange: HeldExchange) -> None:
        """Have a call that waits for the daemon no longer ``go_on``."""

    def speaks_http2(self) -> bool:
        """Take a client that speaks HTTP/2; False if it is not to pass."""

    def refused(self, error: BadMessage) -> None: ...
    def redial(self) -> bool:
        """Connect to the daemon anew; False if it is away."""

    def read_client(self, further: bool) -> None: ...
    def client_done(self) -> None:
        """Pass the client's EOF now."""

    def wake(self) -> None:
        """Write what waits, outside of any reading."""

    def finish(self) -> None:
        """End the connection behind the last answer."""


class Reader:
    """One connection; ``to_client`` and ``to_daemon`` collect what goes out."""

    def __init__(self, events: ReaderEvents, held_bytes: MemoryBudget, known: Known) -> None:
        self.to_client: list[bytes] = []
        self.to_daemon: list[bytes] = []
        self.held_bytes = held_bytes
        self.tunnel = False
        """True once the connection is a pipe: bytes pass unread."""
        self._events = events
        self._pending: deque[Exchange] = deque()
        self._finished = False
        self._refused = False
        """True once the client sent what cannot be read: nothing that it sends passes any more, nor in a tunnel."""
        self._daemon_ended = False
        self._requests = Requests(self, known)
        self._answers = Answers(self, known)
        self.intercepts = events.intercepts
        self.read_client = events.read_client
        self.client_done = events.client_done
        self.settled = events.settled

    # From both sides.

    def client_bytes(self, data: bytes) -> None:
        """Take the client's bytes in any split."""
        if self._refused or self._finished:
            return
        if self.tunnel:
            self.to_daemon.append(data)
        else:
            self._requests.feed(data)

    def client_passes(self, buffer: bytearray, size: int, send: Send) -> bool:
        """Send the client's first ``size`` bytes on if they pass as they are."""
        if self.tunnel and not self._refused:
            send(size)
        return self.tunnel or self._requests.passes(buffer, size, send)

    def client_ended(self) -> bool:
        """Take the client's EOF; True if it must wait for what comes before it (relay-rules B1)."""
        return self._requests.end() and not self.tunnel and not self._finished

    def client_gone(self) -> None:
        """End the held calls of a client that gets nothing more; those the daemon answered go on."""
        self._stop()

    def daemon_bytes(self, data: bytes) -> None:
        """Take the daemon's bytes in any split. Raises WireError if they are no answers."""
        if self.tunnel:
            self.to_client.append(data)
        else:
            self._answers.feed(data)

    def backend_passes(self, buffer: bytearray, size: int, send: Send) -> bool:
        """Send the daemon's first ``size`` bytes on if they pass as they are."""
        if self.tunnel:
            send(size)
        return self.tunnel or self._answers.passes(buffer, size, send)

    def daemon_ended(self) -> bool:
        """Take the daemon's EOF; True if the client must be kept: for a held call, or an answer that waits.

        Whoever is inside a body is let send on for a moment: a daemon may answer before it has read a request and
        leave, and a client that cannot write then may never read the answer. Go's servers wait for their clients, too.
        A request that was sent gets EOF and no 502 of ours: behind EOF a Go client repeats what is safe to repeat (GET
        and HEAD, on a connection that has served before), and behind an answer it repeats nothing (run, docker CLI 28).
        """
        self._daemon_ended = True
        first = self._pending[0] if self._pending else None
        if isinstance(first, HeldExchange) and not first.awaits_reply:
            return True
        if self._requests.inside_body:
            self._finish()
            return True
        self._stop()
        return False

    # The end of the connection.

    @property
    def asks_nothing(self) -> bool:
        """Tell whether the client is inside no request, and none of its requests may yet make a tunnel."""
        may_tunnel = self.tunnel or any(exchange.may_tunnel for exchange in self._pending)
        return self._requests.whole and not may_tunnel

    @property
    def was_asked(self) -> bool:
        """Tell whether the client has begun a request since it connected."""
        return self._requests.began

    def unfinished(self) -> tuple[int, int, int]:
        """Count the requests that wait for their answers, the answers that have begun to pass, and the tunnel."""
        if self.tunnel:
            return 0, 0, 1
        calls = len(self._pending) or int(not self._requests.whole)
        passing = int(self._answers.begun and bool(self._pending) and not isinstance(self._pending[0], HeldExchange))
        return calls - passing, passing, 0

    # Requests.

    def begun(self, exchange: Exchange) -> None:
        """Take a request whose head was read."""
        self._pending.append(exchange)
        if exchange.head is not None and exchange.head.expects_continue and self.is_turn_of(exchange):
            self._continue(exchange)

    def is_turn_of(self, exchange: Exchange) -> bool:
        """Tell whether every earlier request has its answer."""
        return exchange is self._pending[0]

    def held_whole(self, exchange: HeldExchange) -> None:
        """Take a held request that is whole; the hook servers are asked when all before it are answered (B7)."""
        if self.is_turn_of(exchange):
            self._events.held(exchange)

    def speaks_http2(self) -> bool:
        """Make a tunnel for a client that speaks HTTP/2, or end its connection (relay-rules B4)."""
        self.tunnel = self._events.speaks_http2()
        if not self.tunnel:
            self._finish()
        return self.tunnel

    def unreadable(self, error: BadMessage, inside: Exchange | None) -> None:
        """Answer what cannot be read, in its turn, and end the connection behind it (relay-rules B7).

        ``inside`` is the request whose body it broke; the daemon will never have it whole.
        """
        self._refused = True
        self._events.refused(error)
        if inside is not None:
            if self._has_begun(inside):
                self._finish()  # there is no place for another answer
                return
            self._pending.remove(inside)
            if isinstance(inside, HeldExchange):
                inside.end()
        self._pending.append(OwnAnswer(http1.response(error.status, f"runtimeproxy: {error}", close=True)))
        self._turn()

    def _has_begun(self, exchange: Exchange) -> bool:
        """Tell whether the daemon has answered a request, or has begun to."""
        if isinstance(exchange, HeldExchange):
            return exchange.reply_head is not None
        return exchange.answered or (self._answers.begun and exchange is self._pending[0])

    def _continue(self, exchange: Exchange) -> None:
        """Tell a client that waits for it to send the body of a held request (relay-rules B6)."""
        assert exchange.head is not None
        if exchange.head.expects_continue and self._requests.collecting(exchange):
            exchange.continued = True
            self.to_client.append(http1.CONTINUE)

    # Answers.

    def awaited(self) -> Exchange | None:
        """Name the request whose answer comes next; None if none was sent."""
        if not self._pending:
            return None
        first = self._pending[0]
        return None if isinstance(first, HeldExchange) and not first.awaits_reply else first

    def closes(self) -> None:
        """Drop what is pipelined behind an answer with Connection: close (relay-rules B9)."""
        answered = self._pending.popleft()
        if self._pending:
            self._drop_pending()
        self._requests.last()
        self._pending.append(answered)

    def answered(self, exchange: Exchange) -> None:
        """Take the end of an answer; that of a held call waits for the Post hooks."""
        if exchange.plain and len(self._pending) == 1:
            self._pending.popleft()
        elif isinstance(exchange, HeldExchange):
            exchange.reply_whole()
        else:
            self._done(exchange)

    def become_tunnel(self) -> None:
        """Make a pipe of the connection: what the client sent behind its request goes on first (relay-rules B3)."""
        self.tunnel = True
        last = self._pending[-1]
        rest = last.withdraw() if isinstance(last, HeldExchange) else b""
        self._pending.clear()
        rest += self._requests.stop()
        if rest:
            self.to_daemon.append(rest)
        self._events.read_client(True)
        if self._requests.end_waits:
            self._events.client_done()

    # Turns.

    def _done(self, exchange: Exchange) -> None:
        """Forget an exchange whose answer the client has, and let the next one have its turn."""
        exchange.answered = True
        self._pending.popleft()
        if self._daemon_ended:
            self._finish()
            return
        self._turn()
        self._requests.answered(exchange)

    def _turn(self) -> None:
        """Let the first exchange have its turn."""
        first = self._pending[0] if self._pending else None
        if isinstance(first, OwnAnswer):
            self._answer_last(first.answer)
        elif isinstance(first, HeldExchange):
            if self._requests.collecting(first):
                self._continue(first)
                self._requests.turn()
            else:
                self._events.held(first)

    def _answer_last(self, answer: bytes) -> None:
        """Give the client an answer of ours to the first request, and end the connection behind it."""
        self._pending.popleft()
        self.to_client.append(answer)
        self._finish()

    def _finish(self) -> None:
        self._finished = True
        self._stop()
        self._events.finish()

    def _stop(self) -> None:
        """Read nothing more of either side."""
        self._drop_pending()
        self._answers.stop()

    def _drop_pending(self) -> None:
        """Forget the requests that the client has no answer to, and what follows them."""
        dropped = tuple(self._pending)
        self._pending.clear()
        self._requests.stop()
        for exchange in dropped:
            if isinstance(exchange, HeldExchange):
                exchange.end()

    # From held exchanges.

    def send_request(self, exchange: HeldExchange, request: bytes, body: bytes = b"") -> None:
        """Send a released request; the daemon's connection may have ended meanwhile (relay-rules B9).

        ``body`` is a long one: it is written by itself, as nothing is put before it without a copy.
        """
        if self._daemon_ended and not self._events.redial():
            self._answer_last(http1.response(502, f"runtimeproxy: {DAEMON_AWAY}", close=True))
            exchange.not_sent()
            return
        self._daemon_ended = False
        self.to_daemon.append(request)
        if body:
            self._events.wake()
            self.to_daemon.append(body)
        self._requests.released()
        self._events.wake()

    def send_refusal(self, exchange: HeldExchange, status: int, message: str, close: bool) -> None:
        """Answer a held request in the daemon's place."""
        close |= self._daemon_ended
        answer = http1.response(status, message, close=close)
        if close:
            self._answer_last(answer)
            return
        self.to_client.append(answer)
        self._done(exchange)
        self._events.wake()

    def answer(self, exchange: HeldExchange) -> None:
        """Let the answer to a held call go."""
        if self._pending and self._pending[0] is exchange and exchange.reply is not None:
            self.to_client.append(bytes(exchange.kept))
            self._done(exchange)
            self._events.wake()
