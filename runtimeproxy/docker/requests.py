"""Split the client's bytes on one connection into the heads and bodies of requests.

Owns where the next request starts, and which request stops the parsing.
Must not know: the daemon's answers, sockets, hook servers.
Invariant: nothing is parsed after a request that is held or that may become a tunnel, and the body of a held request is
not collected before its turn (relay-rules B3, B7).
"""

from runtimeproxy.core.call import CallState
from runtimeproxy.docker import routes
from runtimeproxy.docker.exchange import DockerHeld, Exchange, Exchanges, ReaderEvent
from runtimeproxy.wire import http1
from runtimeproxy.wire.bodies import Body, Send, follow
from runtimeproxy.wire.http1 import BadMessage, RequestHead

READ_AHEAD_BYTES = 64 * 1024
"""Bytes that may wait unparsed after a request that stops the parsing, before reading pauses (relay-rules B1)."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\n"
"""The beginning of the connection preface of a client that speaks HTTP/2 without upgrade (RFC 9113, 3.4)."""

_EMPTY_LINE = b"\r\n"


class Requests:
    """Reads the requests of one client."""

    def __init__(self, exchanges: Exchanges) -> None:
        self._exchanges = exchanges
        self._shared = exchanges.shared
        known = self._known = self._shared.known
        self._known_requests, self._known_bytes, self._counters = known.requests, known.longest, known.counters
        self._rest = bytearray()
        self._seen = 0
        self.began = False
        """True once the first byte of a request has come on the connection."""
        self._body: Body | None = None
        self._newest: Exchange | None = None
        """The request whose body is being read, or the last one that was read."""
        self._collecting: DockerHeld | None = None
        self._blocked_by: Exchange | None = None
        self._no_more = False
        self._empty_lines = 0
        """Number of empty lines that may still come before the next request."""
        self._further = True
        self.end_waits = False
        """True while the client's EOF waits for what came before it."""

    def feed(self, data: bytes) -> None:
        """Read the client's bytes, split at any point."""
        if len(data) <= self._known_bytes and data in self._known_requests and self._between:
            self.began = True
            self._exchanges.to_daemon.append(data)
            exchange = self._known_requests[data]
            self._empty_lines = exchange.empty_lines
            self._counters[exchange.series] += 1
            self._exchanges.begun(exchange)
        elif self._no_more and self._body is None:
            return
        elif self._blocked_by is not None:
            self._rest += data
            self._read_ahead()
        elif not self._rest:
            self._read(data)
        else:
            self._rest += data
            self._read_rest()

    def passes(self, buffer: bytearray, size: int, send: Send) -> bool:
        """Send the first ``size`` bytes if all belong to one body that passes; return whether they were sent."""
        body = self._body
        if body is None or self._collecting is not None or self._blocked_by is not None:
            return False
        if not body.passes(buffer, size):
            return False
        send(size)
        self._end_if_done(body)
        return True

    @property
    def inside_body(self) -> bool:
        """Return whether a body is being read and its end has not come."""
        return self._body is not None and self._blocked_by is None

    @property
    def whole(self) -> bool:
        """Return whether all bytes that have come were complete requests, and all of them are parsed."""
        return self._body is None and not self._rest

    @property
    def _between(self) -> bool:
        """Return whether the next byte is the first of a request."""
        return self._body is None and self._blocked_by is None and not self._no_more and not self._rest

    def _read_rest(self) -> None:
        """Parse the bytes that have waited, if they have a complete head now."""
        if self._body is None and self.began and not (self._empty_lines and self._rest.startswith(_EMPTY_LINE)):
            try:
                if not http1.head_end(self._rest, 0, self._seen):
                    self._seen = len(self._rest)
                    return
            except BadMessage as error:
                self._give_up(error)
                return
        data = bytes(self._rest)
        self._rest.clear()
        self._seen = 0
        self._read(data)

    def _read(self, data: bytes) -> None:
        at, size = 0, len(data)
        try:
            while at < size and self._blocked_by is None:
                end = self._read_head(data, at) if self._body is None else self._read_body(data, at)
                if end == at:
                    break
                at = end
        except BadMessage as error:
            self._give_up(error)
            return
        if at < size:
            self._rest += data[at:]
            if self._blocked_by is None:
                self._seen = size - at
            else:
                self._read_ahead()

    def _read_head(self, data: bytes, at: int) -> int:
        if self._no_more:
            return len(data)
        if not self.began:
            if PREFACE.startswith(data[: len(PREFACE)]):
                return self._begin_http2(data, at)
            self.began = True
        if self._empty_lines and data.startswith(_EMPTY_LINE, at):
            self._empty_lines -= 1
            return at + len(_EMPTY_LINE)
        end = http1.head_end(data, at)
        if end:
            self._begin(http1.request_head(data[at:end]))
        return end or at

    def _begin_http2(self, data: bytes, at: int) -> int:
        if len(data) < len(PREFACE):
            return at
        self._no_more = True
        if self._exchanges.speaks_http2():
            self._exchanges.to_daemon.append(data)
        return len(data)

    def _begin(self, head: RequestHead) -> None:
        """Pass a request's head on, or hold the request."""
        route = routes.route(head.method, head.target)
        if route is not None and self._shared.intercepts(route):
            exchange = self._shared.kinds[route.action](self._exchanges, head, route)
            self._body = follow(head.framing, head.length, exchange.keep)
            self._newest = exchange
            self._collecting = exchange if self._body is not None else None
            self._exchanges.begun(exchange)
            if self._collecting is not None:
                if self._exchanges.is_turn_of(exchange):
                    self._continue(exchange)
                else:  # hook servers cannot be called before its turn, so its body is not collected yet
                    self._blocked_by = exchange
        else:
            self._body = follow(head.framing, head.length)
            self._newest = Exchange(head, bool(head.upgrade) or routes.may_upgrade(head.method, head.target))
            self._exchanges.to_daemon.append(head.raw)
            target = head.target if head.target[0] == "/" else routes.without_authority(head.target)
            found = routes.passing(f"{head.method} {target}")
            series = self._newest.series = routes.PASSING[found.lastindex or 0 if found else 0]
            self._counters[series] = self._counters.get(series, 0) + 1
            self._exchanges.begun(self._newest)
            if route is None and self._body is None and not self._newest.may_tunnel:
                self._known.add_request(self._newest)
        self._empty_lines = self._newest.empty_lines
        if self._body is None:
            self._end_body()

    def _read_body(self, data: bytes, at: int) -> int:
        body = self._body
        assert body is not None
        end = body.feed(data, at)
        part = data[at:end] if at or end < len(data) else data
        if self._collecting is None:
            self._exchanges.to_daemon.append(part)
        elif not self._collecting.collect(part):
            self.hold_up(self._collecting)
        self._end_if_done(body)
        return end

    def _end_if_done(self, body: Body) -> None:
        if body.done:
            self._body = None
            self._end_body()

    def _end_body(self) -> None:
        """Report a held request that is complete, and stop parsing after one that must be answered first."""
        newest = self._newest
        assert newest is not None
        if isinstance(newest, DockerHeld) and newest.state is CallState.HOLDING:
            newest.request_whole()
            self.hold_up(newest)
        elif (newest.may_tunnel or isinstance(newest, DockerHeld)) and not newest.answered:
            self._blocked_by = newest

    def _continue(self, exchange: DockerHeld) -> None:
        """Send 100 Continue if the client waits for it before the body of a held request (relay-rules B6)."""
        if exchange.head.expects_continue:
            exchange.continued = True
            self._exchanges.to_client.append(http1.CONTINUE)

    def hold_up(self, exchange: DockerHeld) -> None:
        """Report a held request that is complete or of which no more is read, and stop parsing after it."""
        self._collecting = None
        if self._blocked_by is None:
            self._blocked_by = exchange
            self._exchanges.held_whole(exchange)

    def _give_up(self, error: BadMessage) -> None:
        inside = self._newest if self._body is not None else None
        self.stop()
        self._exchanges.unreadable(error, inside)

    # Called by the reader.

    def collecting(self, exchange: Exchange) -> bool:
        """Return whether the body of a held request is still to come."""
        return self._collecting is exchange

    def turn(self, exchange: DockerHeld) -> None:
        """Read the body of the request that waited for its turn, now that those before it are answered."""
        self._continue(exchange)
        self._blocked_by = None
        self._go_on()

    def released(self) -> None:
        """Continue after the held request was sent: with the rest of a body too long to be kept, or with the EOF."""
        if self._body is not None:
            self._blocked_by = None
        self._go_on()

    def answered(self, exchange: Exchange) -> None:
        """Forget a request that is answered, and continue parsing if that stopped it."""
        if self._newest is exchange and self._body is None:
            self._newest = None
        if self._blocked_by is exchange:
            self._blocked_by = None
            self._go_on()

    def _go_on(self) -> None:
        if self._blocked_by is None and self._rest:
            self._read_rest()
        self._read_ahead()
        if self.end_waits:
            self._cut()
        if self.end_waits and not self._unsent:
            self.end_waits = False
            self._exchanges.ready.append(ReaderEvent.PASS_CLIENT_EOF)

    def _read_ahead(self) -> None:
        """Resume reading from the client, or pause it while more than READ_AHEAD_BYTES wait unparsed."""
        further = self._blocked_by is None or len(self._rest) <= READ_AHEAD_BYTES
        if further != self._further:
            self._further = further
            self._exchanges.ready.append(ReaderEvent.RESUME if further else ReaderEvent.PAUSE)

    def end(self) -> bool:
        """Return True at the client's EOF if it must wait for bytes before it (relay-rules B1). An incomplete head is
        dropped: no daemon acts on it.
        """
        self._cut()
        self.end_waits = self._unsent
        return self.end_waits

    def _cut(self) -> None:
        """Report a held request as unreadable whose body ends before it is complete."""
        if self._collecting is not None and self._blocked_by is None:
            self._collecting.cut()
            self._body = None
            self.hold_up(self._collecting)

    @property
    def _unsent(self) -> bool:
        """Return whether bytes that came are still to be sent to the daemon."""
        first = self._blocked_by
        holding = isinstance(first, DockerHeld) and first.state is CallState.HOLDING
        return holding or (first is not None and bool(self._rest))

    def last(self) -> None:
        """Parse no further request: the daemon closes the connection after an answer."""
        self._no_more = True
        self._rest.clear()

    def stop(self) -> bytes:
        """Stop parsing for good and return the bytes that were not parsed."""
        rest = bytes(self._rest)
        self._rest.clear()
        self._body = self._collecting = self._blocked_by = self._newest = None
        self._no_more = True
        return rest
