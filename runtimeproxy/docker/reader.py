"""The state of one client's connection to dockerd: the requests that wait for their answers, in order.

Owns whose turn it is, the proxy's own answers among the daemon's, and the change to a tunnel.
Must not know: sockets, the clock, what a body means, hook servers.
Invariant: what is not held leaves as exactly the bytes that came, in order and immediately (relay-rules B).
"""

from collections import deque
from collections.abc import Callable

from runtimeproxy.docker.answers import Answers
from runtimeproxy.docker.exchange import DockerHeld, Exchange, OwnAnswer, ReaderEvent, RefusedRequest, Shared
from runtimeproxy.docker.requests import Requests
from runtimeproxy.docker.routes import EVENTS
from runtimeproxy.wire import http1
from runtimeproxy.wire.bodies import Send
from runtimeproxy.wire.http1 import BadMessage

DAEMON_AWAY = "the Docker daemon is not reachable: check --remote-runtime-service-endpoint and dockerd"


class Reader:
    """One connection; ``to_client`` and ``to_daemon`` collect the bytes to send. ``wake`` is called when there is
    something to do or to send, also outside of a read; ``redial`` to make a new connection to the daemon: it returns
    False if that fails."""

    def __init__(self, shared: Shared, wake: Callable[[], None], redial: Callable[[], bool]) -> None:
        self.shared = shared
        self.to_client: list[bytes] = []
        self.to_daemon: list[bytes] = []
        self.ready: deque[object] = deque()
        """What the connection has to act on: events, held calls to start in their turn, and those with their reply."""
        self.tunnel = False
        """True once the connection is a tunnel: bytes pass unread."""
        self._wake = wake
        self._redial = redial
        self._pending: deque[Exchange] = deque()
        self._finished = False
        self._refused = False
        """True once the client sent an unreadable request: nothing that it sends passes any more, not even a tunnel."""
        self._daemon_ended = False
        self._requests = Requests(self)
        self._answers = Answers(self)

    # From both sides.

    def client_bytes(self, data: bytes) -> None:
        """Read the client's bytes, split at any point."""
        if self._refused or self._finished:
            return
        if self.tunnel:
            self.to_daemon.append(data)
        else:
            self._requests.feed(data)

    def client_passes(self, buffer: bytearray, size: int, send: Send) -> bool:
        """Send the client's first ``size`` bytes on if they pass unchanged; return whether they do."""
        if self.tunnel and not self._refused:
            send(size)
        return self.tunnel or self._requests.passes(buffer, size, send)

    def client_ended(self) -> bool:
        """Return True at the client's EOF if it must wait for bytes before it (relay-rules B1)."""
        return self._requests.end() and not self.tunnel and not self._finished

    def client_gone(self) -> None:
        """End the held calls of a client that has closed; those that the daemon has answered run to their end."""
        self._stop()

    def daemon_bytes(self, data: bytes) -> None:
        """Read the daemon's bytes, split at any point. Raises WireError if they are not valid answers."""
        if self.tunnel:
            self.to_client.append(data)
        else:
            self._answers.feed(data)

    def backend_passes(self, buffer: bytearray, size: int, send: Send) -> bool:
        """Send the daemon's first ``size`` bytes on if they pass unchanged; return whether they do."""
        if self.tunnel:
            send(size)
        return self.tunnel or self._answers.passes(buffer, size, send)

    def daemon_ended(self) -> bool:
        """Return True at the daemon's EOF if the client's connection stays open: for a held call, or a kept answer.

        A client inside a body may send on for a moment: a daemon may answer before it has read the whole request and
        close, and a client that cannot write then may never read the answer. Go's servers wait for their clients, too.
        A request that was sent gets EOF, not a 502 by the proxy: after EOF a Go client repeats what is safe to repeat
        (GET and HEAD, on a connection that has served before), after an answer it repeats nothing (run, docker CLI 28).
        """
        self._daemon_ended = True
        first = self._pending[0] if self._pending else None
        if isinstance(first, DockerHeld) and not first.awaits_reply:
            return True
        if self._requests.inside_body:
            self._finish()
            return True
        self._stop()
        return False

    # The end of the connection.

    @property
    def between_requests(self) -> bool:
        """Return whether the client is inside no request, and none of its requests may still make a tunnel."""
        may_tunnel = self.tunnel or any(exchange.may_tunnel for exchange in self._pending)
        return self._requests.whole and not may_tunnel

    @property
    def has_begun_request(self) -> bool:
        """Return whether the client has begun a request since it connected."""
        return self._requests.began

    def unfinished(self) -> tuple[int, int, int]:
        """Return how many requests wait for their answers, how many answers have begun to pass, a tunnel among them,
        and how many that have no end have begun: the daemon's events."""
        if self.tunnel:
            return 0, 1, 0
        calls = len(self._pending) or int(not self._requests.whole)
        passing = int(self._answers.begun and bool(self._pending) and not isinstance(self._pending[0], DockerHeld))
        endless = passing if passing and self._pending[0].series == EVENTS else 0
        return calls - passing, passing - endless, endless

    # Requests.

    def begun(self, exchange: Exchange) -> None:
        """Called when a request's head was read: its answer is expected in this order."""
        self._pending.append(exchange)
        if exchange.head is not None and exchange.head.expects_continue and self.is_turn_of(exchange):
            self._continue(exchange)

    def is_turn_of(self, exchange: Exchange) -> bool:
        """Return whether every earlier request has its answer."""
        return exchange is self._pending[0]

    def held_whole(self, exchange: DockerHeld) -> None:
        """Called when a held request is complete, or no more of it is read. Its call runs once all requests before it
        are answered (relay-rules B7).
        """
        if self.is_turn_of(exchange):
            self.ready.append(exchange)

    def speaks_http2(self) -> bool:
        """Turn the connection of a client that speaks HTTP/2 into a tunnel, or end it (relay-rules B4)."""
        self.tunnel = self.shared.admit_http2()
        if self.tunnel:
            self.ready.append(ReaderEvent.TUNNEL_HTTP2)
        else:
            self._finish()
        return self.tunnel

    def unreadable(self, error: BadMessage, inside: Exchange | None) -> None:
        """Answer an unreadable request in its turn, and end the connection after the answer (relay-rules B7).
        ``inside`` is the request inside whose body the error was found; the daemon will never have all of it.
        """
        self._refused = True
        self.ready.append(RefusedRequest(error.status, str(error)))
        if inside is not None:
            if self._has_begun(inside):
                self._finish()  # a second answer is not possible
                return
            self._pending.remove(inside)
            if isinstance(inside, DockerHeld):
                inside.connection_lost()
        self._pending.append(OwnAnswer(http1.response(error.status, f"runtimeproxy: {error}", close=True)))
        self._turn()

    def _has_begun(self, exchange: Exchange) -> bool:
        """Return whether the daemon has answered a request, or has begun to."""
        if isinstance(exchange, DockerHeld):
            return exchange.reply_head is not None
        return exchange.answered or (self._answers.begun and exchange is self._pending[0])

    def _continue(self, exchange: Exchange) -> None:
        """Send 100 Continue if the client waits for it before the body of a held request (relay-rules B6)."""
        assert exchange.head is not None
        if exchange.head.expects_continue and self._requests.collecting(exchange):
            exchange.continued = True
            self.to_client.append(http1.CONTINUE)

    # Answers.

    def awaited(self) -> Exchange | None:
        """Return the request whose answer comes next; None if the daemon has none to answer."""
        if not self._pending:
            return None
        first = self._pending[0]
        return None if isinstance(first, DockerHeld) and not first.awaits_reply else first

    def closes(self) -> None:
        """Drop the requests pipelined after one whose answer has Connection: close (relay-rules B9)."""
        answered = self._pending.popleft()
        if self._pending:
            self._drop_pending()
        self._requests.last()
        self._pending.append(answered)

    def answered(self, exchange: Exchange) -> None:
        """Called when an answer is complete; that of a held call now waits for the Post hooks."""
        if exchange.plain and len(self._pending) == 1:
            self._pending.popleft()
        elif isinstance(exchange, DockerHeld):
            exchange.reply_whole()
        else:
            self._done(exchange)

    def become_tunnel(self) -> None:
        """Turn the connection into a tunnel; bytes that the client sent after its request go first (relay-rules B3)."""
        self.tunnel = True
        last = self._pending[-1]
        rest = last.withdraw() if isinstance(last, DockerHeld) else b""
        self._pending.clear()
        rest += self._requests.stop()
        if rest:
            self.to_daemon.append(rest)
        self.ready.append(ReaderEvent.RESUME)
        if self._requests.end_waits:
            self.ready.append(ReaderEvent.PASS_CLIENT_EOF)

    # Turns.

    def _done(self, exchange: Exchange) -> None:
        """Forget an exchange whose answer was sent, and begin the next one's turn."""
        exchange.answered = True
        self._pending.popleft()
        if self._daemon_ended:
            self._finish()
            return
        self._turn()
        self._requests.answered(exchange)

    def _turn(self) -> None:
        """Begin the turn of the first exchange: send the proxy's own answer, or run the held call."""
        first = self._pending[0] if self._pending else None
        if isinstance(first, OwnAnswer):
            self._answer_last(first.answer)
        elif isinstance(first, DockerHeld):
            if self._requests.collecting(first):
                self._continue(first)
                self._requests.turn()
            else:
                self.ready.append(first)

    def _answer_last(self, answer: bytes) -> None:
        """Send an answer of the proxy's own to the first request, and end the connection after it."""
        self._pending.popleft()
        self.to_client.append(answer)
        self._finish()

    def _finish(self) -> None:
        self._finished = True
        self._stop()
        self.ready.append(ReaderEvent.FINISH)

    def _stop(self) -> None:
        """Stop reading both sides."""
        self._drop_pending()
        self._answers.stop()

    def _drop_pending(self) -> None:
        """Forget the requests without an answer and the bytes after them, and end the held ones."""
        dropped = tuple(self._pending)
        self._pending.clear()
        self._requests.stop()
        for exchange in dropped:
            if isinstance(exchange, DockerHeld):
                exchange.connection_lost()

    # From held exchanges.

    def send_request(self, exchange: DockerHeld, request: bytes, body: bytes = b"") -> None:
        """Send a released request, on a new connection if the daemon's has ended meanwhile (relay-rules B9). A long
        body is passed as ``body`` and written by itself, since joining it with the head would copy it.
        """
        if self._daemon_ended and not self._redial():
            exchange.not_sent()
            self._answer_last(http1.response(502, f"runtimeproxy: {DAEMON_AWAY}", close=True))
            self._wake()
            return
        self._daemon_ended = False
        self.to_daemon.append(request)
        if body:
            self._wake()
            self.to_daemon.append(body)
        self._requests.released()
        self._wake()

    def send_refusal(self, exchange: DockerHeld, status: int, message: str, close: bool) -> None:
        """Answer a held request in the daemon's place; with ``close`` end the connection after it."""
        close |= self._daemon_ended
        answer = http1.response(status, message, close=close)
        if close:
            self._answer_last(answer)
        else:
            self.to_client.append(answer)
            self._done(exchange)
        self._wake()

    def answer(self, exchange: DockerHeld) -> None:
        """Send the client the answer to a held call."""
        if self._pending and self._pending[0] is exchange and exchange.reply is not None:
            self.to_client.append(bytes(exchange.kept))
            self._done(exchange)
            self._wake()
