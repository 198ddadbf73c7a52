"""The state of one client's connection to dockerd: the requests that wait for their answers, in order.

Invariant: messages that are not held are sent on unchanged, in order and immediately (relay-rules B).
"""

from collections import deque
from collections.abc import Callable

from runtimeproxy.core.call import CallState
from runtimeproxy.docker.exchange import EVENTS, DockerHeld, Exchange, ProxyAnswer, ReaderEvent, RefusedRequest, Shared
from runtimeproxy.docker.parsers import Answers, Requests
from runtimeproxy.wire import http1
from runtimeproxy.wire.http1 import BadMessage


class Reader:
    """``wake`` is called when an event or output is ready, also outside of a read. ``redial`` connects to the daemon
    again; it returns False on failure."""

    def __init__(self, shared: Shared, wake: Callable[[], None], redial: Callable[[], bool]) -> None:
        self.shared = shared
        self.to_client: list[bytes] = []
        self.to_daemon: list[bytes] = []
        self.ready: deque[object] = deque()
        """Inputs of ``Connection.act``: events, held calls to start in order, and held calls that have their reply."""
        self.pending: deque[Exchange] = deque()
        self.tunnel = False
        self.wake = wake
        self.redial = redial
        self.finished = False
        self.refused = False
        """True once the client sent an unreadable request: its further bytes are dropped, also those of a tunnel."""
        self.daemon_closed = False
        self.requests = Requests(self)
        self._answers = Answers(self)
        self.client_bytes, self.client_passes = self.requests.feed, self.requests.passes
        self.daemon_bytes, self.backend_passes = self._answers.feed, self._answers.passes

    def awaited(self) -> Exchange | None:
        """Return the request whose answer is next; None if the daemon has none to answer."""
        first = self.pending[0] if self.pending else None
        if isinstance(first, DockerHeld) and (first.state is not CallState.RELEASED or first.reply is not None):
            return None
        return first

    def client_ended(self) -> bool:
        """Return True at the client's EOF if it must wait for bytes before it (relay-rules B1)."""
        return self.requests.end() and not self.tunnel and not self.finished

    def daemon_ended(self) -> bool:
        """Return True at the daemon's EOF if the client's connection stays open: for a held call, or a buffered answer.

        A daemon may answer and close before it has read the whole request. A client that cannot write then may never
        read the answer. So a client inside a body may continue to send for a moment, as with Go's servers.
        A request that was sent gets EOF, not a 502. After EOF a Go client repeats GET and HEAD on a connection that has
        served before; after an answer it repeats nothing (run, docker CLI 28)."""
        self.daemon_closed = True
        if self.pending and self.awaited() is None:
            return True
        if self.requests.body is not None and self.requests.blocked_by is None:
            self._finish()
            return True
        self.stop()
        return False

    def stop(self) -> None:
        """Stop reading both sides, and end the held calls. Calls that the daemon has answered complete."""
        self._drop_pending()
        self._answers.is_stopped = True

    def _finish(self) -> None:
        self.finished = True
        self.stop()
        self.ready.append(ReaderEvent.FINISH)

    def _drop_pending(self) -> None:
        """Drop the unanswered requests and the bytes after them, and end the held calls."""
        dropped = tuple(self.pending)
        self.pending.clear()
        self.requests.stop()
        for exchange in dropped:
            if isinstance(exchange, DockerHeld):
                exchange.connection_lost()

    @property
    def between_requests(self) -> bool:
        """Return whether the client is inside no request, and none of its requests may still become a tunnel."""
        may_tunnel = self.tunnel or any(exchange.may_tunnel for exchange in self.pending)
        return self.requests.is_complete and not may_tunnel

    def unfinished(self) -> tuple[int, int, int]:
        """Return the numbers of requests without an answer, of answers that have begun (or a tunnel), and of endless
        answers that have begun: the daemon's events."""
        if self.tunnel:
            return 0, 1, 0
        calls = len(self.pending) or int(not self.requests.is_complete)
        has_begun = self._answers.body is not None
        passing = int(has_begun and bool(self.pending) and not isinstance(self.pending[0], DockerHeld))
        endless = passing if passing and self.pending[0].series == EVENTS else 0
        return calls - passing, passing - endless, endless

    def handle_http2(self) -> bool:
        """Make the connection of an HTTP/2 client a tunnel, or end it (relay-rules B4)."""
        self.tunnel = self.shared.admit_http2()
        if self.tunnel:
            self.ready.append(ReaderEvent.TUNNEL_HTTP2)
        else:
            self._finish()
        return self.tunnel

    def refuse_unreadable(self, error: BadMessage, unfinished: Exchange | None) -> None:
        """Answer an unreadable request in order, and end the connection after the answer (relay-rules B7).
        ``unfinished`` is the request whose body has the error; the daemon never gets all of it."""
        self.refused = True
        self.ready.append(RefusedRequest(error.status, str(error)))
        if unfinished is not None:
            if isinstance(unfinished, DockerHeld):
                has_begun = unfinished.reply_head is not None
            else:
                has_begun = unfinished.answered or (self._answers.body is not None and unfinished is self.pending[0])
            if has_begun:
                self._finish()  # a second answer is not possible
                return
            self.pending.remove(unfinished)
            if isinstance(unfinished, DockerHeld):
                unfinished.connection_lost()
        self.pending.append(ProxyAnswer(http1.response(error.status, f"runtimeproxy: {error}", close=True)))
        self._start_first()

    def close_after_answer(self) -> None:
        """Drop the requests pipelined after a request whose answer has Connection: close (relay-rules B9)."""
        answered = self.pending.popleft()
        if self.pending:
            self._drop_pending()
        self.requests.is_stopped = True
        self.requests.unparsed.clear()
        self.pending.append(answered)

    def answered(self, exchange: Exchange) -> None:
        """Called when an answer is complete. The answer of a held call now waits for the Post hooks."""
        if exchange.is_shared and len(self.pending) == 1:
            self.pending.popleft()
        elif isinstance(exchange, DockerHeld):
            exchange.complete_reply()
        else:
            self.done(exchange)

    def become_tunnel(self) -> None:
        """Send first the bytes that the client sent after its request (relay-rules B3)."""
        self.tunnel = True
        last = self.pending[-1]
        unsent = last.withdraw() if isinstance(last, DockerHeld) else b""
        self.pending.clear()
        unsent += self.requests.stop()
        if unsent:
            self.to_daemon.append(unsent)
        self.ready.append(ReaderEvent.RESUME)
        if self.requests.eof_pending:
            self.ready.append(ReaderEvent.PASS_CLIENT_EOF)

    def done(self, exchange: Exchange) -> None:
        exchange.answered = True
        self.pending.popleft()
        if self.daemon_closed:
            self._finish()
            return
        if self.pending:
            self._start_first()
        self.requests.answered(exchange)

    def _start_first(self) -> None:
        """Send the proxy's own answer, or run the held call, if it is the first exchange."""
        first = self.pending[0]
        if isinstance(first, ProxyAnswer):
            self.answer_and_close(first.answer)
        elif isinstance(first, DockerHeld):
            if self.requests.collecting is first:
                self.requests.start_collecting(first)
            else:
                self.ready.append(first)

    def answer_and_close(self, answer: bytes) -> None:
        """Send the proxy's own answer to the first request, and end the connection after it."""
        self.pending.popleft()
        self.to_client.append(answer)
        self._finish()
