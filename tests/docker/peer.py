"""Scripted peers for both sides of a Docker connection: a ``Reader`` without sockets between a client and a daemon.

Nothing that a side got is taken back, and nothing follows its EOF. ``steps`` has the steps of conversations.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from runtimeproxy.core.call import PROCESS_LIMIT, MemoryBudget
from runtimeproxy.docker.exchange import Action, DockerHeld, Known, ReaderEvent, RefusedRequest, Route, Shared
from runtimeproxy.docker.reader import Reader
from runtimeproxy.wire.http1 import Send
from tests.docker.messages import error
from tests.docker.replies import EOF, ours

_OURS = re.compile(rb'HTTP/1\.1 [^\r]+\r\n(?:[^\r]+\r\n)+\r\n\{"message": "[^"]*"\}\n')


def _told(found: re.Match[bytes]) -> bytes:
    status, closes, _ = error(found[0])
    return ours(status, closes)


class Side:
    """One peer: its bytes go into ``feed``, what the proxy sends it comes from ``out``."""

    def __init__(self, feed: Callable[[bytes], None], out: list[bytes]) -> None:
        self._feed = feed
        self.out = out
        self._got = b""
        self.ended = False
        """True once it saw EOF."""

    def sends(self, *pieces: bytes) -> None:
        for piece in filter(None, pieces):
            self._feed(piece)

    def takes(self, data: bytes | bytearray) -> None:
        assert not (data and self.ended), "bytes follow the EOF"
        self._got += data

    def settle(self) -> None:
        self.takes(b"".join(self.out))
        self.out.clear()

    def got(self) -> bytes:
        """Return the bytes that came since the last call."""
        self.settle()
        data, self._got = self._got, b""
        return data

    def sees_end(self) -> None:
        assert not self.ended, "ended twice"
        self.settle()
        self.ended = True


PlainHeld: Any = type("PlainHeld", (DockerHeld,), dict.fromkeys(DockerHeld.__abstractmethods__))
"""A held call without a meaning."""


class Play:
    """A reader between a scripted client and a scripted daemon, and its connection; calls in ``holds`` are held."""

    def __init__(
        self,
        holds: Iterable[Action] = tuple(Action),
        limit: int = PROCESS_LIMIT,
        known: Known | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        self.holds = frozenset(holds)
        self.budget = budget or MemoryBudget(limit)
        self.known = known or Known()
        self.shared = False
        """Whether what comes is read into a buffer that is used again, and offered to pass from there."""
        self.calls: list[DockerHeld] = []
        self.settled_calls: list[DockerHeld] = []
        self.refusals: list[RefusedRequest] = []
        self.http2_may_pass = True
        self.http2_clients = self.redials = self.daemons = 0
        """Counts of HTTP/2 clients and of redials, and how many redials succeed."""
        self.reading = True
        self.at_once: Callable[[DockerHeld], object] = lambda exchange: None
        """Called with each held call within the read that completes it."""
        self._told = (0, False, False)
        shared = Shared(self.budget, self.known, dict.fromkeys(Action, PlainHeld), self.intercepts, self.admit_http2)
        self.reader = Reader(shared, self.wake, self.redial)
        self.client = Side(self._of_client, self.reader.to_client)
        self.daemon = Side(self._of_daemon, self.reader.to_daemon)

    # What the reader calls.

    def intercepts(self, route: Route) -> bool:
        return route.action in self.holds

    def admit_http2(self) -> bool:
        self.http2_clients += 1
        return self.http2_may_pass

    def redial(self) -> bool:
        self.redials += 1
        return self.redials <= self.daemons

    def wake(self) -> None:
        self.act()
        self.client.settle()
        self.daemon.settle()

    # For tests.

    def act(self) -> None:
        """Do what the connection would do, and record the calls that it would start or resume."""
        while self.reader.ready:
            match self.reader.ready.popleft():
                case DockerHeld() as call if call.reply is not None:
                    self.settled_calls.append(call)
                    if call.is_plain:
                        call.answer()
                case DockerHeld() as call:
                    assert call not in self.calls, "reported twice"
                    self.calls.append(call)
                    self.at_once(call)
                case RefusedRequest() as refused:
                    self.refusals.append(refused)
                case ReaderEvent.TUNNEL_HTTP2:
                    pass
                case ReaderEvent.PASS_CLIENT_EOF:
                    self.daemon.sees_end()
                case ReaderEvent.FINISH:
                    self.client.sees_end()
                case event:
                    self.reading = event is ReaderEvent.RESUME

    def _of_client(self, data: bytes) -> None:
        if not self._passes(data, self.reader.client_passes, self.daemon):
            self.reader.client_bytes(data)
        self.act()

    def _of_daemon(self, data: bytes) -> None:
        try:
            if not self._passes(data, self.reader.backend_passes, self.client):
                self.reader.daemon_bytes(data)
        finally:
            self.act()

    def _passes(self, data: bytes, passes: Callable[[bytearray, int, Send], bool], other: Side) -> bool:
        """Offer bytes for passing as a pair does: only if nothing waits to be sent before them."""
        buffer = bytearray(data + b"0\r\n\r\nof an earlier read")
        return self.shared and not other.out and passes(buffer, len(data), lambda size: other.takes(buffer[:size]))

    @property
    def call(self) -> DockerHeld:
        return self.calls[-1]

    def client_ends(self) -> None:
        """Play the client's EOF; the daemon sees it at once unless it waits."""
        waits = self.reader.client_ended()
        self.act()
        if not waits:
            self.daemon.sees_end()

    def daemon_ends(self) -> bool:
        """Play the daemon's EOF; return whether the client is kept, else it sees EOF at once."""
        kept = self.reader.daemon_ended()
        self.act()
        if not kept and not self.client.ended:
            self.client.sees_end()
        return kept

    def came(self) -> tuple[bytes, bytes, int]:
        """Return what has come since the last call to the client and the daemon, and how many calls were held."""
        asked, *ended = self._told
        self._told = len(self.calls), self.client.ended, self.daemon.ended
        outs = [
            _OURS.sub(_told, side.got()) + EOF * (side.ended and not before)
            for side, before in zip((self.client, self.daemon), ended, strict=True)
        ]
        return outs[0], outs[1], len(self.calls) - asked

    def leave(self) -> None:
        """Close the client and end each call; check that nothing of a held request is kept then."""
        self.reader.stop()
        self.act()
        for call in self.calls:
            call.answer()
        assert self.budget.count == 0


class Step(NamedTuple):
    """An action and all its effects: what each side gets, and for how many calls hooks are asked."""

    act: Callable[[Play], object]
    to_client: bytes = b""
    to_daemon: bytes = b""
    asks: int = 0
    reads: bool = True
    """Whether the proxy reads on from the client."""


def passed(sent: bytes, replied: bytes) -> Step:
    """Return a step in which a request and its answer pass."""
    return Step(lambda play: (play.client.sends(sent), play.daemon.sends(replied)), replied, sent)


def asked(sent: bytes) -> Step:
    """Return a step in which the client sends a request that is held and released unchanged."""
    return Step(lambda play: (play.client.sends(sent), play.call.send_request(None)), to_daemon=sent, asks=1)


def settled(replied: bytes, **came: Any) -> Step:
    """Return a step in which the daemon answers the newest call, and the kept answer is sent on."""

    def do(play: Play) -> None:
        play.daemon.sends(replied)
        assert play.client.got() == b"", "the Post hooks are asked first"
        play.call.answer()

    return Step(do, replied, **came)


def converse(steps: Iterable[Step], *, daemons: int = 0, **options: Any) -> Play:
    """Play the steps on a connection with a shared read buffer, then on one without; return the latter.

    The effects of each step are checked; the daemon can be dialled again ``daemons`` times.
    """
    steps = tuple(steps)
    for shared in (True, False):
        play = Play(**options)
        play.shared, play.daemons = shared, daemons
        for number, step in enumerate(steps):
            step.act(play)
            came = (*play.came(), play.reading)
            assert came == step[1:], f"step {number}: {came}"
    return play
