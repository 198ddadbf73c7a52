"""Split the bytes of both sides of one connection into the heads and bodies of requests and of answers.

Invariants: parsing stops after a request that is held or may become a tunnel. The body of a held request is collected
only once it is the first (relay-rules B3, B7). An answer passes immediately; only a held call's is buffered.
"""

from typing import TYPE_CHECKING

from runtimeproxy.core.call import CallState
from runtimeproxy.docker import exchange
from runtimeproxy.docker.exchange import DockerHeld, Exchange, ReaderEvent
from runtimeproxy.errors import WireError
from runtimeproxy.wire import http1
from runtimeproxy.wire.http1 import BadMessage, Body, Framing, RequestHead, ResponseHead, Send, follow

if TYPE_CHECKING:
    from runtimeproxy.docker.reader import Reader

READ_AHEAD_BYTES = 64 * 1024
"""Bytes that may wait unparsed after a request that stops the parsing, before reading pauses (relay-rules B1)."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\n"
"""The beginning of the connection preface of a client that speaks HTTP/2 without upgrade (RFC 9113, 3.4)."""

_EMPTY_LINE = b"\r\n"
_CONTINUE = 100
_SWITCHING = 101


class Requests:
    def __init__(self, reader: "Reader") -> None:
        self._reader = reader
        self._shared = reader.shared
        caches = reader.shared.caches
        self._cached_requests, self._cached_bytes, self._counters = caches.requests, caches.max_bytes, caches.counters
        self.unparsed = bytearray()
        self._searched_bytes = 0
        self.has_started = False
        self.body: Body | None = None
        self._latest: Exchange | None = None
        """The request whose body is being read, or the last request read."""
        self.collecting: DockerHeld | None = None
        self.blocked_by: Exchange | None = None
        self.is_stopped = False
        self._empty_lines = 0
        """How many may still come before the next request."""
        self._may_read = True
        self.eof_pending = False
        """True while the client's EOF waits for the bytes before it."""

    def feed(self, data: bytes) -> None:
        reader = self._reader
        if (
            len(data) <= self._cached_bytes
            and data in self._cached_requests
            and self.body is None
            and self.blocked_by is None
            and not self.is_stopped
            and not self.unparsed
        ):
            self.has_started = True
            reader.to_daemon.append(data)
            exchange = self._cached_requests[data]
            self._empty_lines = exchange.empty_lines
            self._counters[exchange.series] += 1
            reader.pending.append(exchange)
        elif self.is_stopped and self.body is None:
            if reader.tunnel and not reader.refused and not reader.finished:
                reader.to_daemon.append(data)
        elif self.blocked_by is not None:
            self.unparsed += data
            self._read_ahead()
        elif not self.unparsed:
            self._read(data)
        else:
            self.unparsed += data
            self._read_unparsed()

    def passes(self, buffer: bytearray, size: int, send: Send) -> bool:
        """If the first ``size`` bytes all belong to a tunnel or to one body that passes, send them and return True."""
        if self._reader.tunnel:
            if not self._reader.refused:
                send(size)
            return True
        body = self.body
        if body is None or self.collecting is not None or self.blocked_by is not None or not body.passes(buffer, size):
            return False
        send(size)
        if body.done:
            self._end_body()
        return True

    @property
    def is_complete(self) -> bool:
        """Return whether all received bytes were complete requests, and all of them are parsed."""
        return self.body is None and not self.unparsed

    def _read_unparsed(self) -> None:
        if self.body is None and self.has_started and not (self._empty_lines and self.unparsed.startswith(_EMPTY_LINE)):
            try:
                if not http1.head_end(self.unparsed, 0, self._searched_bytes):
                    self._searched_bytes = len(self.unparsed)
                    return
            except BadMessage as error:
                self._reject(error)
                return
        data = bytes(self.unparsed)
        self.unparsed.clear()
        self._searched_bytes = 0
        self._read(data)

    def _read(self, data: bytes) -> None:
        at, size = 0, len(data)
        try:
            while at < size and self.blocked_by is None:
                end = self._read_head(data, at) if self.body is None else self._read_body(data, at)
                if end == at:
                    break
                at = end
        except BadMessage as error:
            self._reject(error)
            return
        if at < size:
            self.unparsed += data[at:]
            if self.blocked_by is None:
                self._searched_bytes = size - at
            else:
                self._read_ahead()

    def _read_head(self, data: bytes, at: int) -> int:
        if self.is_stopped:
            return len(data)
        if not self.has_started:
            if PREFACE.startswith(data[: len(PREFACE)]):
                if len(data) < len(PREFACE):
                    return at
                self.is_stopped = True
                if self._reader.handle_http2():
                    self._reader.to_daemon.append(data)
                return len(data)
            self.has_started = True
        if self._empty_lines and data.startswith(_EMPTY_LINE, at):
            self._empty_lines -= 1
            return at + len(_EMPTY_LINE)
        end = http1.head_end(data, at)
        if end:
            self._begin(http1.request_head(data[at:end]))
        return end or at

    def _begin(self, head: RequestHead) -> None:
        reader = self._reader
        route = exchange.find_route(head.method, head.target)
        if route is not None and self._shared.intercepts(route):
            held = self._latest = self._shared.kinds[route.action](reader, head, route)
            self.body = follow(head.framing, head.length, held.add_payload)
            reader.pending.append(held)
            if self.body is not None:
                self.collecting = held
                if held is not reader.pending[0]:
                    self.blocked_by = held  # hook servers are called for it only once it is the first
                elif head.expects_continue:
                    self._continue(held)
        else:
            self.body = follow(head.framing, head.length)
            passed = self._latest = Exchange(head, bool(head.upgrade) or exchange.may_upgrade(head.method, head.target))
            reader.to_daemon.append(head.raw)
            target = head.target if head.target[0] == "/" else exchange.without_authority(head.target)
            match = exchange.match_passing(f"{head.method} {target}")
            series = passed.series = exchange.PASSING_SERIES[match.lastindex or 0 if match else 0]
            self._counters[series] = self._counters.get(series, 0) + 1
            reader.pending.append(passed)
            is_cacheable = route is None and self.body is None and not passed.may_tunnel
            if is_cacheable and len(head.raw) <= self._cached_bytes:
                passed.is_shared = True
                self._cached_requests.keep(head.raw, passed, len(head.raw))
        self._empty_lines = self._latest.empty_lines
        if self.body is None:
            self._end_body()

    def _read_body(self, data: bytes, at: int) -> int:
        body = self.body
        assert body is not None
        end = body.feed(data, at)
        part = data[at:end] if at or end < len(data) else data
        if self.collecting is None:
            self._reader.to_daemon.append(part)
        elif not self.collecting.collect(part):
            self._stop_at(self.collecting)
        if body.done:
            self._end_body()
        return end

    def _end_body(self) -> None:
        """Report a complete held request, and stop parsing after a request that must be answered first."""
        self.body = None
        request = self._latest
        assert request is not None
        if isinstance(request, DockerHeld) and request.state is CallState.HOLDING:
            request.complete_request()
            self._stop_at(request)
        elif (request.may_tunnel or isinstance(request, DockerHeld)) and not request.answered:
            self.blocked_by = request

    def _continue(self, held: DockerHeld) -> None:
        """Send 100 Continue, for which the client waits before the body of a held request (relay-rules B6)."""
        held.continued = True
        self._reader.to_client.append(http1.CONTINUE)

    def _stop_at(self, held: DockerHeld) -> None:
        """Stop parsing after a held request that is complete or abandoned. Its call runs once all requests before it
        are answered (relay-rules B7)."""
        self.collecting = None
        if self.blocked_by is None:
            self.blocked_by = held
            if held is self._reader.pending[0]:
                self._reader.ready.append(held)

    def _reject(self, error: BadMessage) -> None:
        unfinished = self._latest if self.body is not None else None
        self.stop()
        self._reader.refuse_unreadable(error, unfinished)

    def start_collecting(self, held: DockerHeld) -> None:
        """Collect the body of a held request, now that all requests before it are answered."""
        if held.head.expects_continue:
            self._continue(held)
        self.blocked_by = None
        self._resume_parsing()

    def released(self) -> None:
        """Continue after the held request was sent: with the remainder of a body above the limit, or with the EOF."""
        if self.body is not None:
            self.blocked_by = None
        self._resume_parsing()

    def answered(self, exchange: Exchange) -> None:
        """Forget an answered request, and resume parsing if it was blocked by that request."""
        if self._latest is exchange and self.body is None:
            self._latest = None
        if self.blocked_by is exchange:
            self.blocked_by = None
            self._resume_parsing()

    def _resume_parsing(self) -> None:
        if self.blocked_by is None and self.unparsed:
            self._read_unparsed()
        self._read_ahead()
        if self.eof_pending:
            self._end_collecting()
        if self.eof_pending and not self._has_unsent:
            self.eof_pending = False
            self._reader.ready.append(ReaderEvent.PASS_CLIENT_EOF)

    def _read_ahead(self) -> None:
        """Resume reading from the client, or pause it while more than READ_AHEAD_BYTES wait unparsed."""
        may_read = self.blocked_by is None or len(self.unparsed) <= READ_AHEAD_BYTES
        if may_read != self._may_read:
            self._may_read = may_read
            self._reader.ready.append(ReaderEvent.RESUME if may_read else ReaderEvent.PAUSE)

    def end(self) -> bool:
        """Return True at the client's EOF if it must wait for bytes before it (relay-rules B1). An incomplete head is
        dropped: no daemon acts on it."""
        self._end_collecting()
        self.eof_pending = self._has_unsent
        return self.eof_pending

    def _end_collecting(self) -> None:
        if self.collecting is not None and self.blocked_by is None:
            self.collecting.problem = "the request ends inside its body"
            self.body = None
            self._stop_at(self.collecting)

    @property
    def _has_unsent(self) -> bool:
        first = self.blocked_by
        holding = isinstance(first, DockerHeld) and first.state is CallState.HOLDING
        return holding or (first is not None and bool(self.unparsed))

    def stop(self) -> bytes:
        unparsed = bytes(self.unparsed)
        self.unparsed.clear()
        self.body = self.collecting = self.blocked_by = self._latest = None
        self.is_stopped = True
        return unparsed


class Answers:
    def __init__(self, reader: "Reader") -> None:
        self._reader = reader
        caches = reader.shared.caches
        self._cached_answers, self._cached_bytes = caches.answers, caches.max_bytes
        self._unparsed = bytearray()
        self._searched_bytes = 0
        self.body: Body | None = None
        """The body of the answer whose head was sent."""
        self._head_bytes = 0
        """Bytes of a head that is sent together with the first bytes of its body, to avoid a copy."""
        self.is_stopped = False

    def feed(self, data: bytes) -> None:
        """Read the daemon's bytes, split at any point. Raises WireError if they are not valid answers."""
        reader = self._reader
        if reader.tunnel:
            reader.to_client.append(data)
            return
        if self.is_stopped:
            return
        exchange = reader.awaited()
        if (
            exchange is not None
            and exchange.is_shared
            and len(data) <= self._cached_bytes
            and (data, exchange.method) in self._cached_answers
            and self.body is None
            and not self._unparsed
        ):
            reader.to_client.append(data)
            reader.answered(exchange)
            return
        if self._unparsed:
            self._unparsed += data
            if not http1.head_end(self._unparsed, 0, self._searched_bytes):
                self._searched_bytes = len(self._unparsed)
                return
            data = bytes(self._unparsed)
            self._unparsed.clear()
        at, size = 0, len(data)
        while at < size:
            end = self._read_head(data, at) if self.body is None else self._read_body(data, at)
            if end == at:
                break
            at = end
        if self._head_bytes:
            reader.to_client.append(data[-self._head_bytes :])
            self._head_bytes = 0
        if at < size:
            self._unparsed += data[at:]
            self._searched_bytes = size - at

    def passes(self, buffer: bytearray, size: int, send: Send) -> bool:
        """If the first ``size`` bytes all belong to a tunnel or to one body that passes, send them and return True."""
        if self._reader.tunnel:
            send(size)
            return True
        body, exchange = self.body, self._reader.awaited()
        if body is None or exchange is None or isinstance(exchange, DockerHeld) or not body.passes(buffer, size):
            return False
        send(size)
        if body.done:
            self.body = None
            self._reader.answered(exchange)
        return True

    def _read_head(self, data: bytes, at: int) -> int:
        if self._reader.tunnel:
            self._reader.to_client.append(data[at:])
        if self._reader.tunnel or self.is_stopped:
            return len(data)
        exchange = self._reader.awaited()
        if exchange is None:
            raise WireError(f"an answer without a request{_protocol_hint(data, at)}")
        try:
            end = http1.head_end(data, at)
        except WireError as error:
            raise WireError(f"{error}{_protocol_hint(data, at)}") from None
        if end:
            head = http1.response_head(data[at:end], exchange.method)
            if (
                exchange.is_shared
                and at == 0
                and end + head.length == len(data) <= self._cached_bytes
                and head.framing in (Framing.EMPTY, Framing.SIZED)
                and head.status >= 200
                and not head.closes
            ):
                self._cached_answers.keep((data, exchange.method), None, len(data))
            self._begin(exchange, head)
        return end or at

    def _begin(self, exchange: Exchange, head: ResponseHead) -> None:
        """Pass an answer's head on, or buffer it. After 101, and without framing, all bytes pass (relay-rules B2)."""
        reader = self._reader
        tunnel = head.status == _SWITCHING or head.framing is Framing.UNTIL_CLOSE
        if head.status < 200 and not tunnel:
            if head.status != _CONTINUE or not exchange.continued:
                reader.to_client.append(head.raw)
            return
        held = exchange if isinstance(exchange, DockerHeld) else None
        if held is not None:
            held.reply_head = head
            held.retained += head.raw
        if tunnel:
            reader.to_client.append(head.raw)
            reader.become_tunnel()  # before the call continues: the client already gets this head
            if held is not None:
                held.complete_reply()
            return
        if head.closes:
            reader.close_after_answer()
        self.body = follow(head.framing, head.length)
        if self.body is None:
            if held is None:
                reader.to_client.append(head.raw)
            reader.answered(exchange)
        elif held is None:
            self._head_bytes = len(head.raw)

    def _read_body(self, data: bytes, at: int) -> int:
        body, exchange = self.body, self._reader.awaited()
        assert body is not None and exchange is not None
        end = body.feed(data, at)
        start, self._head_bytes = at - self._head_bytes, 0
        part = data[start:end] if start or end < len(data) else data
        if isinstance(exchange, DockerHeld):
            part = exchange.collect_reply(part)
        if part:
            self._reader.to_client.append(part)
        if body.done:
            self.body = None
            self._reader.answered(exchange)
        return end


def _protocol_hint(data: bytes, at: int) -> str:
    """Return a hint for the error text if an HTTP/2 server's first frame is here: SETTINGS below 64 KiB on stream 0."""
    settings = data[at : at + 1] == b"\0" and data[at + 3 : at + 9] == b"\x04" + bytes(5)
    return "; it speaks HTTP/2: is --backend-runtime-mode right?" if settings else ""
