"""Split the daemon's bytes on one connection into the heads and bodies of responses.

Owns where the next answer starts.
Must not know: the client's bytes, sockets, hook servers.
Invariant: an answer passes as it comes; only that of a held call is kept until its Post hooks are done.
"""

from runtimeproxy.docker.exchange import DockerHeld, Exchange, Exchanges
from runtimeproxy.errors import WireError
from runtimeproxy.wire import http1
from runtimeproxy.wire.bodies import Body, Send, follow
from runtimeproxy.wire.http1 import Framing, ResponseHead

_CONTINUE = 100
_SWITCHING = 101


class Answers:
    """Reads the answers of the daemon on one connection."""

    def __init__(self, exchanges: Exchanges) -> None:
        self._exchanges = exchanges
        known = exchanges.shared.known
        self._known_answers, self._known_bytes = known.answers, known.longest
        self._rest = bytearray()
        self._seen = 0
        self._body: Body | None = None
        self._head_bytes = 0
        """Length in bytes of a head that waits to be sent with its body's first bytes, uncopied if both fill a read."""
        self._tunnel = False
        self._no_more = False

    @property
    def begun(self) -> bool:
        """Return whether the client has got a part of an answer whose end has not come."""
        return self._body is not None

    def feed(self, data: bytes) -> None:
        """Read the daemon's bytes, split at any point. Raises WireError if they are not valid answers."""
        if self._no_more:
            return
        exchange = self._exchanges.awaited()
        if (
            exchange is not None
            and exchange.plain
            and len(data) <= self._known_bytes
            and (data, exchange.method) in self._known_answers
            and self._body is None
            and not self._rest
        ):
            self._exchanges.to_client.append(data)
            self._exchanges.answered(exchange)
            return
        if self._rest:
            self._rest += data
            if not http1.head_end(self._rest, 0, self._seen):
                self._seen = len(self._rest)
                return
            data = bytes(self._rest)
            self._rest.clear()
        at, size = 0, len(data)
        while at < size:
            end = self._read_head(data, at) if self._body is None else self._read_body(data, at)
            if end == at:
                break
            at = end
        if self._head_bytes:
            self._exchanges.to_client.append(data[-self._head_bytes :])
            self._head_bytes = 0
        if at < size:
            self._rest += data[at:]
            self._seen = size - at

    def passes(self, buffer: bytearray, size: int, send: Send) -> bool:
        """Send the first ``size`` bytes if all belong to one body that passes; return whether they were sent."""
        body, exchange = self._body, self._exchanges.awaited()
        if body is None or exchange is None or isinstance(exchange, DockerHeld) or not body.passes(buffer, size):
            return False
        send(size)
        self._end_if_done(body, exchange)
        return True

    def _read_head(self, data: bytes, at: int) -> int:
        if self._tunnel:
            self._exchanges.to_client.append(data[at:])
            return len(data)
        if self._no_more:
            return len(data)
        exchange = self._exchanges.awaited()
        if exchange is None:
            raise WireError(f"an answer without a request{_another_protocol(data, at)}")
        try:
            end = http1.head_end(data, at)
        except WireError as error:
            raise WireError(f"{error}{_another_protocol(data, at)}") from None
        if end:
            head = http1.response_head(data[at:end], exchange.method)
            if exchange.plain and end + head.length == len(data) <= self._known_bytes and at == 0:
                self._remember(data, exchange, head)
            self._begin(exchange, head)
        return end or at

    def _remember(self, data: bytes, exchange: Exchange, head: ResponseHead) -> None:
        """Remember a complete answer, unless the connection changes after it."""
        if head.status >= 200 and head.framing in (Framing.EMPTY, Framing.SIZED) and not head.closes:
            self._known_answers.keep((data, exchange.method), None, len(data))

    def _begin(self, exchange: Exchange, head: ResponseHead) -> None:
        if head.status == _SWITCHING or head.framing is Framing.UNTIL_CLOSE:
            self._begin_tunnel(exchange, head)
        elif head.status < 200:
            if head.status != _CONTINUE or not exchange.continued:
                self._exchanges.to_client.append(head.raw)
        else:
            self._begin_final(exchange, head)

    def _begin_final(self, exchange: Exchange, head: ResponseHead) -> None:
        if head.closes:
            self._exchanges.closes()
        self._body = follow(head.framing, head.length)
        if isinstance(exchange, DockerHeld):
            exchange.begin_reply(head)
        elif self._body is None:
            self._exchanges.to_client.append(head.raw)
        else:
            self._head_bytes = len(head.raw)
        if self._body is None:
            self._exchanges.answered(exchange)

    def _begin_tunnel(self, exchange: Exchange, head: ResponseHead) -> None:
        """Pass all bytes from now on, whatever the status (relay-rules B2)."""
        self._exchanges.to_client.append(head.raw)
        self._tunnel = True
        self._exchanges.become_tunnel()  # before the call continues: the client already gets this head
        if isinstance(exchange, DockerHeld):
            exchange.begin_reply(head)
            exchange.reply_whole()

    def _read_body(self, data: bytes, at: int) -> int:
        body, exchange = self._body, self._exchanges.awaited()
        assert body is not None and exchange is not None
        end = body.feed(data, at)
        start, self._head_bytes = at - self._head_bytes, 0
        part = data[start:end] if start or end < len(data) else data
        if isinstance(exchange, DockerHeld):
            part = exchange.collect_reply(part)
        if part:
            self._exchanges.to_client.append(part)
        self._end_if_done(body, exchange)
        return end

    def _end_if_done(self, body: Body, exchange: Exchange) -> None:
        if body.done:
            self._body = None
            self._exchanges.answered(exchange)

    def stop(self) -> None:
        """Ignore all further bytes of the daemon."""
        self._no_more = True


def _another_protocol(data: bytes, at: int) -> str:
    """Return a hint for the error text if an HTTP/2 server's first frame is here: SETTINGS below 64 KiB on stream 0."""
    settings = data[at : at + 1] == b"\0" and data[at + 3 : at + 9] == b"\x04" + bytes(5)
    return "; it speaks HTTP/2: is --backend-runtime-mode right?" if settings else ""
