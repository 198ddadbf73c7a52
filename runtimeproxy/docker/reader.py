"""The state of one client's connection to dockerd: the requests that wait for their answers, in order.

Invariant: what is not held leaves as exactly the bytes that came, in order and immediately (relay-rules B).
"""

from collections import deque
from collections.abc import Callable

from runtimeproxy.core.call import CallState
from runtimeproxy.docker.exchange import EVENTS, DockerHeld, Exchange, OwnAnswer, ReaderEvent, RefusedRequest, Shared
from runtimeproxy.docker.parsers import Answers, Requests
from runtimeproxy.wire import http1
from runtimeproxy.wire.http1 import BadMessage


class Reader:
    """One connection. ``wake`` is called when there is something to do or to send, also outside of a read; ``redial``
    to make a new connection to the daemon: it returns False if that fails."""

    def __init__(self, shared: Shared, wake: Callable[[], None], redial: Callable[[], bool]) -> None:
        self.shared = shared
        self.to_client: list[bytes] = []
        self.to_daemon: list[bytes] = []
        self.ready: deque[object] = deque()
        """What the connection has to act on: events, held calls to start in their turn, and those with their reply."""
        self.pending: deque[Exchange] = deque()
        self.tunnel = False
        self.wake = wake
        self.redial = redial
        self.finished = False
        self.refused = False
        """True once the client sent an unreadable request: nothing that it sends passes any more, not even a tunnel."""
        self.daemon_gone = False
        self.requests = Requests(self)
        self._answers = Answers(self)
        self.client_bytes, self.client_passes = self.requests.feed, self.requests.passes
        self.daemon_bytes, self.backend_passes = self._answers.feed, self._answers.passes

    def awaited(self) -> Exchange | None:
        """Return the request whose answer comes next; None if the daemon has none to answer."""
        first = self.pending[0] if self.pending else None
        if isinstance(first, DockerHeld) and (first.state is not CallState.RELEASED or first.reply is not None):
            return None
        return first

    def client_ended(self) -> bool:
        """Return True at the client's EOF if it must wait for bytes before it (relay-rules B1)."""
        return self.requests.end() and not self.tunnel and not self.finished

    def daemon_ended(self) -> bool:
        """Return True at the daemon's EOF if the client's connection stays open: for a held call, or a kept answer.

        A client inside a body may send on for a moment: a daemon may answer before it has read the whole request and
        close, and a client that cannot write then may never read the answer. Go's servers wait for their clients, too.
        A request that was sent gets EOF, not a 502: after EOF a Go client repeats what is safe to repeat (GET and HEAD,
        on a connection that has served before), after an answer it repeats nothing (run, docker CLI 28)."""
        self.daemon_gone = True
        if self.pending and self.awaited() is None:
            return True
        if self.requests.body is not None and self.requests.blocked_by is None:
            self._finish()
            return True
        self.stop()
        return False

    def stop(self) -> None:
        """Stop reading both sides, and end the held calls; those that the daemon has answered run to their end."""
        self._drop_pending()
        self._answers.no_more = True

    def _finish(self) -> None:
        self.finished = True
        self.stop()
        self.ready.append(ReaderEvent.FINISH)

    def _drop_pending(self) -> None:
        """Forget the requests without an answer and the bytes after them, and end the held ones."""
        dropped = tuple(self.pending)
        self.pending.clear()
        self.requests.stop()
        for exchange in dropped:
            if isinstance(exchange, DockerHeld):
                exchange.connection_lost()

    @property
    def between_requests(self) -> bool:
        """Return whether the client is inside no request, and none of its requests may still make a tunnel."""
        may_tunnel = self.tunnel or any(exchange.may_tunnel for exchange in self.pending)
        return self.requests.whole and not may_tunnel

    def unfinished(self) -> tuple[int, int, int]:
        """Return how many requests wait for their answers, how many answers have begun to pass, a tunnel among them,
        and how many that have no end have begun: the daemon's events."""
        if self.tunnel:
            return 0, 1, 0
        calls = len(self.pending) or int(not self.requests.whole)
        begun = self._answers.body is not None
        passing = int(begun and bool(self.pending) and not isinstance(self.pending[0], DockerHeld))
        endless = passing if passing and self.pending[0].series == EVENTS else 0
        return calls - passing, passing - endless, endless

    def speaks_http2(self) -> bool:
        """Called when the client speaks HTTP/2: make the connection a tunnel, or end it (relay-rules B4)."""
        self.tunnel = self.shared.admit_http2()
        if self.tunnel:
            self.ready.append(ReaderEvent.TUNNEL_HTTP2)
        else:
            self._finish()
        return self.tunnel

    def unreadable(self, error: BadMessage, inside: Exchange | None) -> None:
        """Answer an unreadable request in its turn, and end the connection after the answer (relay-rules B7).
        ``inside`` is the request inside whose body the error was found; the daemon will never have all of it."""
        self.refused = True
        self.ready.append(RefusedRequest(error.status, str(error)))
        if inside is not None:
            if isinstance(inside, DockerHeld):
                begun = inside.reply_head is not None
            else:
                begun = inside.answered or (self._answers.body is not None and inside is self.pending[0])
            if begun:
                self._finish()  # a second answer is not possible
                return
            self.pending.remove(inside)
            if isinstance(inside, DockerHeld):
                inside.connection_lost()
        self.pending.append(OwnAnswer(http1.response(error.status, f"runtimeproxy: {error}", close=True)))
        self._turn()

    def closes(self) -> None:
        """Drop the requests pipelined after one whose answer has Connection: close (relay-rules B9)."""
        answered = self.pending.popleft()
        if self.pending:
            self._drop_pending()
        self.requests.no_more = True
        self.requests.rest.clear()
        self.pending.append(answered)

    def answered(self, exchange: Exchange) -> None:
        """Called when an answer is complete; that of a held call now waits for the Post hooks."""
        if exchange.plain and len(self.pending) == 1:
            self.pending.popleft()
        elif isinstance(exchange, DockerHeld):
            exchange.reply_whole()
        else:
            self.done(exchange)

    def become_tunnel(self) -> None:
        """Bytes that the client sent after its request go first (relay-rules B3)."""
        self.tunnel = True
        last = self.pending[-1]
        rest = last.withdraw() if isinstance(last, DockerHeld) else b""
        self.pending.clear()
        rest += self.requests.stop()
        if rest:
            self.to_daemon.append(rest)
        self.ready.append(ReaderEvent.RESUME)
        if self.requests.end_waits:
            self.ready.append(ReaderEvent.PASS_CLIENT_EOF)

    def done(self, exchange: Exchange) -> None:
        exchange.answered = True
        self.pending.popleft()
        if self.daemon_gone:
            self._finish()
            return
        if self.pending:
            self._turn()
        self.requests.answered(exchange)

    def _turn(self) -> None:
        """Begin the turn of the first exchange: send the proxy's own answer, or run the held call."""
        first = self.pending[0]
        if isinstance(first, OwnAnswer):
            self.answer_last(first.answer)
        elif isinstance(first, DockerHeld):
            if self.requests.collecting is first:
                self.requests.turn(first)
            else:
                self.ready.append(first)

    def answer_last(self, answer: bytes) -> None:
        """Send an answer of the proxy's own to the first request, and end the connection after it."""
        self.pending.popleft()
        self.to_client.append(answer)
        self._finish()
