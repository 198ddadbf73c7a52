"""A scripted peer for both sides of a Docker connection: a reader without sockets between a client and a daemon.

Owns messages as bytes, the sides of a ``Reader``, its fake ``Events``, and the steps of which tests' tables are made.
Must not know: how the reader works.
Invariant: nothing that a side got is taken back, and nothing follows its EOF.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from runtimeproxy.docker.exchange import HeldExchange, Known
from runtimeproxy.docker.reader import Reader
from runtimeproxy.docker.routes import Action, Route
from runtimeproxy.heldbytes import PROCESS_LIMIT, HeldBytes
from runtimeproxy.wire.bodies import Send
from runtimeproxy.wire.http1 import BadMessage

ID = "f25e2652ca87d84b3474297e8ad9e595d4b9380bd870e2b152fcf2b0650a958f"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
UPGRADE = ("Connection: Upgrade", "Upgrade: tcp")
EXPECT = "Expect: 100-continue"
CLOSE = "Connection: close"
CHUNKED = "Transfer-Encoding: chunked"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def head(*lines: str) -> bytes:
    return "\r\n".join((*lines, "", "")).encode()


def request(method: str, target: str, *fields: str, body: bytes | None = None) -> bytes:
    """Return a request; ``body`` is sized."""
    length = () if body is None else (f"Content-Length: {len(body)}",)
    return head(f"{method} {target} HTTP/1.1", "Host: docker", *length, *fields) + (body or b"")


def answer(status: int, *fields: str, body: bytes | None = b"") -> bytes:
    """Return an answer; ``body`` is sized, None means that nothing is said of one."""
    length = () if body is None else (f"Content-Length: {len(body)}",)
    return head(f"HTTP/1.1 {status} Words", *length, *fields) + (body or b"")


def chunks(*pieces: bytes, trailers: tuple[str, ...] = ()) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n" + head(*trailers)


PING = request("GET", "/_ping")
INFO = request("GET", "/v1.41/info")
CREATE = request("POST", "/v1.41/containers/create?name=box", "Content-Type: application/json", body=b'{"Image":"i"}')
START = request("POST", f"/v1.41/containers/{ID}/start")
STOP = request("POST", f"/v1.41/containers/{ID}/stop?t=10", body=b"")
ATTACH = request("POST", f"/v1.41/containers/{ID}/attach?stream=1", *UPGRADE)
EXEC = request("POST", f"/v1.41/exec/{ID}/start", "Content-Type: application/json", body=b'{"Detach":false}')

OK = answer(200, "Api-Version: 1.41", body=b"OK")
CREATED = answer(201, "Content-Type: application/json", body=b'{"Id":"1","Warnings":[]}')
NO_CONTENT = answer(204, body=None)
NOT_FOUND = answer(404, "Content-Type: application/json", body=b'{"message":"No such container: x"}\n')
SWITCHING = head("HTTP/1.1 101 UPGRADED", "Content-Type: application/vnd.docker.raw-stream", *UPGRADE)
HIJACKED = answer(200, "Content-Type: application/vnd.docker.raw-stream", body=None)
"""The old-style hijack: neither a length nor chunks."""


class Side:
    """One peer: its bytes go into ``feed``, what the proxy has for it comes out of ``out``."""

    def __init__(self, feed: Callable[[bytes], None], out: list[bytes]) -> None:
        self._feed = feed
        self._out = out
        self._got = bytearray()
        self.ended = False
        """True once it saw EOF."""

    def sends(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._feed(piece)

    def settle(self) -> None:
        data = b"".join(self._out)
        self._out.clear()
        assert not (data and self.ended), "bytes follow the EOF"
        self._got += data

    def got(self) -> bytes:
        """Return the bytes that came since the last time."""
        self.settle()
        data = bytes(self._got)
        self._got.clear()
        return data

    @property
    def takes_at_once(self) -> bool:
        return not self._out

    def takes(self, data: bytes | bytearray) -> None:
        assert self.takes_at_once, "something waits to be sent before"
        assert not self.ended, "bytes follow the EOF"
        self._got += data

    def sees_end(self) -> None:
        self.settle()
        self.ended = True


class FakeEvents:
    """The connection of a reader: keeps what it is told, and answers as it is set."""

    def __init__(self, holds: Iterable[Action]) -> None:
        self.holds = frozenset(holds)
        self.calls: list[HeldExchange] = []
        self.settled_calls: list[HeldExchange] = []
        self.refusals: list[BadMessage] = []
        self.http2_clients = 0
        self.http2_may_pass = True
        self.daemons = 0
        """How many times the daemon can be dialled anew."""
        self.redials = 0
        self.reading = True
        self.at_once: Callable[[HeldExchange], object] = lambda exchange: None
        """What is done with a held call within the turn in which it is told."""
        self.play: Play

    def intercepts(self, route: Route) -> bool:
        return route.action in self.holds

    def held(self, exchange: HeldExchange) -> None:
        assert exchange not in self.calls, "told twice"
        self.calls.append(exchange)
        self.at_once(exchange)

    def settled(self, exchange: HeldExchange) -> None:
        self.settled_calls.append(exchange)
        exchange.go_on()

    def speaks_http2(self) -> bool:
        self.http2_clients += 1
        return self.http2_may_pass

    def refused(self, error: BadMessage) -> None:
        self.refusals.append(error)

    def redial(self) -> bool:
        self.redials += 1
        return self.redials <= self.daemons

    def read_client(self, further: bool) -> None:
        self.reading = further

    def client_done(self) -> None:
        assert not self.play.daemon.ended, "EOF is passed twice"
        self.play.daemon.sees_end()

    def wake(self) -> None:
        self.play.client.settle()
        self.play.daemon.settle()

    def finish(self) -> None:
        assert not self.play.client.ended, "ended twice"
        self.play.client.sees_end()


class Play:
    """A reader between a scripted client and a scripted daemon; calls of the actions in ``holds`` are held."""

    def __init__(
        self,
        holds: Iterable[Action] = tuple(Action),
        limit: int = PROCESS_LIMIT,
        shared: bool = False,
        known: Known | None = None,
    ) -> None:
        self.events = FakeEvents(holds)
        self.held_bytes = HeldBytes(limit)
        self.known = known or Known()
        self.reader = Reader(self.events, self.held_bytes, self.known)
        self.shared = shared
        """Whether what comes is read into a buffer that is used again, and offered to pass from there."""
        self._told = (0, False, False)
        self.client = Side(self._of_client, self.reader.to_client)
        self.daemon = Side(self._of_daemon, self.reader.to_daemon)
        self.events.play = self

    def _of_client(self, data: bytes) -> None:
        if not self._passes(data, self.reader.client_passes, self.daemon):
            self.reader.client_bytes(data)

    def _of_daemon(self, data: bytes) -> None:
        if not self._passes(data, self.reader.backend_passes, self.client):
            self.reader.daemon_bytes(data)

    def _passes(self, data: bytes, passes: Callable[[bytearray, int, Send], bool], other: Side) -> bool:
        """Offer bytes as a pair does: only if nothing waits to be sent before them."""
        buffer = bytearray(data + b"0\r\n\r\nof an earlier read")
        if not self.shared or not other.takes_at_once:
            return False
        return passes(buffer, len(data), lambda size: other.takes(buffer[:size]))

    @property
    def call(self) -> HeldExchange:
        return self.events.calls[-1]

    def client_ends(self) -> None:
        """Play the client's EOF; the daemon sees it at once unless it waits."""
        if not self.reader.client_ended():
            self.daemon.sees_end()

    def daemon_ends(self) -> bool:
        """Play the daemon's EOF; the client sees it at once unless it is kept. Tell whether it is kept."""
        kept = self.reader.daemon_ended()
        if not kept and not self.client.ended:
            self.client.sees_end()
        return kept

    def passes(self, sent: bytes, replied: bytes) -> None:
        """Play a request and its answer, and check that both pass as they are."""
        self.client.sends(sent)
        assert self.daemon.got() == sent
        self.daemon.sends(replied)
        assert self.client.got() == replied

    def came(self) -> tuple[bytes, bytes, int]:
        """Return what has come since the last time: to the client, to the daemon, and how many calls were asked."""
        asked, *ended = self._told
        self._told = len(self.events.calls), self.client.ended, self.daemon.ended
        outs = [
            _OURS.sub(_told, side.got()) + EOF * (side.ended and not before)
            for side, before in zip((self.client, self.daemon), ended, strict=True)
        ]
        return outs[0], outs[1], len(self.events.calls) - asked

    def leave(self) -> None:
        """Have the client leave and each call end; nothing of a held request may be kept then."""
        self.reader.client_gone()
        for call in self.events.calls:
            call.answer()
        assert self.held_bytes.count == 0


# ---- conversations as tables

EOF = b"<EOF>"
_OURS = re.compile(rb'HTTP/1\.1 [^\r]+\r\n(?:[^\r]+\r\n)+\r\n\{"message": "[^"]*"\}\n')


def ours(status: int, closes: bool = False) -> bytes:
    """Return what stands in a table for an answer of ours."""
    return b"<%d, close>" % status if closes else b"<%d>" % status


def _told(found: re.Match[bytes]) -> bytes:
    status, closes, _ = error(found[0])
    return ours(status, closes)


class Step(NamedTuple):
    """What somebody does, and all that comes of it: what each side gets, and for how many calls hooks are asked."""

    act: Callable[[Play], object]
    to_client: bytes = b""
    to_daemon: bytes = b""
    asks: int = 0
    reads: bool = True
    """Whether the client is read further."""


def client(*pieces: bytes, **came: Any) -> Step:
    return Step(lambda play: play.client.sends(*pieces), **came)


def daemon(*pieces: bytes, **came: Any) -> Step:
    return Step(lambda play: play.daemon.sends(*pieces), **came)


def release(**came: Any) -> Step:
    """Release the newest call as it came."""
    return Step(lambda play: play.call.release(None), **came)


def refuse(**came: Any) -> Step:
    """Refuse the newest call."""
    return Step(lambda play: play.call.refuse(500, "no"), **came)


def answered(**came: Any) -> Step:
    """Let the answer to the newest call go: its Post hooks are done."""
    return Step(lambda play: play.call.answer(), **came)


def ends(side: str, **came: Any) -> Step:
    return Step(Play.client_ends if side == "client" else Play.daemon_ends, **came)


def leaves(**came: Any) -> Step:
    return Step(lambda play: play.reader.client_gone(), **came)


def at_once(act: Callable[[HeldExchange], object], sends: Step, **came: Any) -> Step:
    """Do something with each call from now on within the turn in which it is told, then have somebody send."""

    def do(play: Play) -> None:
        play.events.at_once = act
        sends.act(play)

    return Step(do, **came)


def passed(sent: bytes, replied: bytes) -> Step:
    """Have a request and its answer pass."""
    return Step(lambda play: (play.client.sends(sent), play.daemon.sends(replied)), replied, sent)


def asked(sent: bytes) -> Step:
    """Have the client send what is held, and release it as it came."""
    return Step(lambda play: (play.client.sends(sent), play.call.release(None)), to_daemon=sent, asks=1)


def settled(replied: bytes, **came: Any) -> Step:
    """Have the daemon answer the newest call, which is kept, and let the answer go."""

    def do(play: Play) -> None:
        play.daemon.sends(replied)
        assert play.client.got() == b"", "the Post hooks are asked first"
        play.call.answer()

    return Step(do, replied, **came)


def converse(steps: Iterable[Step], *, daemons: int = 0, **options: Any) -> Play:
    """Play the steps, and check after each what came of it; the daemon can be dialled anew ``daemons`` times."""
    play = Play(**options)
    play.events.daemons = daemons
    for number, step in enumerate(steps):
        step.act(play)
        came = (*play.came(), play.events.reading)
        assert came == step[1:], f"step {number}: {came}"
    return play


def error(data: bytes) -> tuple[int, bool, bytes]:
    """Read an answer of ours: its status, whether it closes, its body; it is of the right length, and whole."""
    top, _, body = data.partition(b"\r\n\r\n")
    status, *fields = top.decode().split("\r\n")
    assert f"Content-Length: {len(body)}" in fields
    assert "Content-Type: application/json" in fields
    return int(status.split()[1]), CLOSE in fields, body
