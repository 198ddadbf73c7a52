"""The state of one client's connection to dockerd: the requests that wait for their answers, in order.

Owns when a turn begins, the proxy's own answers among the daemon's, and the change to a tunnel.
Must not know: sockets, the clock, what a body means, hook servers.
Invariant: what is not held leaves as exactly the bytes that came, in order and immediately (relay-rules B).
"""

from collections.abc import Callable

from runtimeproxy.docker.answers import Answers
from runtimeproxy.docker.exchange import DockerHeld, Exchange, Exchanges, OwnAnswer, ReaderEvent, RefusedRequest, Shared
from runtimeproxy.docker.requests import Requests
from runtimeproxy.docker.routes import EVENTS
from runtimeproxy.wire import http1
from runtimeproxy.wire.bodies import Send
from runtimeproxy.wire.http1 import BadMessage

DAEMON_AWAY = "the Docker daemon is not reachable: check --remote-runtime-service-endpoint and dockerd"


class Reader(Exchanges):
    """One connection. ``wake`` is called when there is something to do or to send, also outside of a read; ``redial``
    to make a new connection to the daemon: it returns False if that fails."""

    def __init__(self, shared: Shared, wake: Callable[[], None], redial: Callable[[], bool]) -> None:
        super().__init__(shared)
        self.tunnel = False
        """True once the connection is a tunnel: bytes pass unread."""
        self._wake = wake
        self._redial = redial
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
        """End the held calls of a client that has closed, or whose connection ends; those that the daemon has answered
        run to their end."""
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
        first = self.pending[0] if self.pending else None
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
        may_tunnel = self.tunnel or any(exchange.may_tunnel for exchange in self.pending)
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
        calls = len(self.pending) or int(not self._requests.whole)
        passing = int(self._answers.begun and bool(self.pending) and not isinstance(self.pending[0], DockerHeld))
        endless = passing if passing and self.pending[0].series == EVENTS else 0
        return calls - passing, passing - endless, endless

    # Requests.

    def speaks_http2(self) -> bool:
        self.tunnel = self.shared.admit_http2()
        if self.tunnel:
            self.ready.append(ReaderEvent.TUNNEL_HTTP2)
        else:
            self._finish()
        return self.tunnel

    def unreadable(self, error: BadMessage, inside: Exchange | None) -> None:
        self._refused = True
        self.ready.append(RefusedRequest(error.status, str(error)))
        if inside is not None:
            if self._has_begun(inside):
                self._finish()  # a second answer is not possible
                return
            self.pending.remove(inside)
            if isinstance(inside, DockerHeld):
                inside.connection_lost()
        self.pending.append(OwnAnswer(http1.response(error.status, f"runtimeproxy: {error}", close=True)))
        self._turn()

    def _has_begun(self, exchange: Exchange) -> bool:
        """Return whether the daemon has answered a request, or has begun to."""
        if isinstance(exchange, DockerHeld):
            return exchange.reply_head is not None
        return exchange.answered or (self._answers.begun and exchange is self.pending[0])

    # Answers.

    def closes(self) -> None:
        answered = self.pending.popleft()
        if self.pending:
            self._drop_pending()
        self._requests.last()
        self.pending.append(answered)

    def answered(self, exchange: Exchange) -> None:
        if exchange.plain and len(self.pending) == 1:
            self.pending.popleft()
        elif isinstance(exchange, DockerHeld):
            exchange.reply_whole()
        else:
            self._done(exchange)

    def become_tunnel(self) -> None:
        self.tunnel = True
        last = self.pending[-1]
        rest = last.withdraw() if isinstance(last, DockerHeld) else b""
        self.pending.clear()
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
        self.pending.popleft()
        if self._daemon_ended:
            self._finish()
            return
        self._turn()
        self._requests.answered(exchange)

    def _turn(self) -> None:
        """Begin the turn of the first exchange: send the proxy's own answer, or run the held call."""
        first = self.pending[0] if self.pending else None
        if isinstance(first, OwnAnswer):
            self._answer_last(first.answer)
        elif isinstance(first, DockerHeld):
            if self._requests.collecting(first):
                self._requests.turn(first)
            else:
                self.ready.append(first)

    def _answer_last(self, answer: bytes) -> None:
        """Send an answer of the proxy's own to the first request, and end the connection after it."""
        self.pending.popleft()
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
        dropped = tuple(self.pending)
        self.pending.clear()
        self._requests.stop()
        for exchange in dropped:
            if isinstance(exchange, DockerHeld):
                exchange.connection_lost()

    # From held exchanges.

    def send_request(self, exchange: DockerHeld, request: bytes, body: bytes = b"") -> None:
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
        close |= self._daemon_ended
        answer = http1.response(status, message, close=close)
        if close:
            self._answer_last(answer)
        else:
            self.to_client.append(answer)
            self._done(exchange)
        self._wake()

    def answer(self, exchange: DockerHeld) -> None:
        if self.pending and self.pending[0] is exchange and exchange.reply is not None:
            self.to_client.append(bytes(exchange.kept))
            self._done(exchange)
            self._wake()
