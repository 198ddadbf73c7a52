"""A ``Reader`` without sockets between a scripted client and a scripted daemon, and the steps of their conversations.

A step's keyword arguments are all its effects: the bytes that each side receives, new held calls, whether it reads.
"""

import re
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from runtimeproxy.core.call import PROCESS_LIMIT, MemoryBudget
from runtimeproxy.docker.exchange import Action, DockerHeld, MessageCaches, ReaderEvent, RefusedRequest, Shared
from runtimeproxy.docker.reader import Reader
from tests.docker.messages import EOF, error, proxy_answer

CUT_BYTES = 10_000
_ERROR = re.compile(rb'HTTP/1\.1 [^\r]+\r\n(?:[^\r]+\r\n)+\r\n\{"message": "[^"]*"\}\n')
PlainHeld: Any = type("PlainHeld", (DockerHeld,), dict.fromkeys(DockerHeld.__abstractmethods__))
MODES: tuple[dict[str, Any], ...] = ({"shared": True}, {"caches": MessageCaches(max_bytes=-1)}, {})
CUT_MODES: tuple[dict[str, Any], ...] = ({"octets": True}, {"octets": True, "shared": True})


@dataclass
class Side:
    """A peer: ``feed`` is called with its bytes; ``out`` has the proxy's output to it."""

    feed: Callable[[bytes], None]
    out: list[bytes]
    octets: bool = False
    """True to send a part of up to ``CUT_BYTES`` byte by byte."""
    buffer: bytes = b""
    ended: bool = False

    def sends(self, *parts: bytes) -> None:
        for part in filter(None, parts):
            size = 1 if self.octets and len(part) <= CUT_BYTES else len(part)
            for at in range(0, len(part), size):
                self.feed(part[at : at + size])

    def receive(self, data: bytes | bytearray) -> None:
        assert not (data and self.ended), "bytes follow the EOF"
        self.buffer += data

    def flush(self) -> None:
        self.receive(b"".join(self.out))
        self.out.clear()

    def got(self) -> bytes:
        self.flush()
        data, self.buffer = self.buffer, b""
        return data

    def receive_eof(self) -> None:
        assert not self.ended, "ended twice"
        self.flush()
        self.ended = True


@dataclass(eq=False)
class Play:
    """One connection; calls with an action in ``holds`` are held."""

    holds: Container[Action] = frozenset(Action)
    limit: int = PROCESS_LIMIT
    caches: MessageCaches = field(default_factory=MessageCaches)
    budget: MemoryBudget | None = None
    octets: bool = False
    shared: bool = False
    """True to read into a buffer that is used again, and to offer bytes to pass from there."""
    http2_may_pass: bool = True
    daemons: int = 0

    def __post_init__(self) -> None:
        self.memory = self.budget or MemoryBudget(self.limit)
        self.calls: list[DockerHeld] = []
        self.settled_calls: list[DockerHeld] = []
        self.refusals: list[RefusedRequest] = []
        self.http2_clients = self.redials = 0
        self.reading = True
        self.on_held: Callable[[DockerHeld], object] = lambda call: None
        """Called with each held call within the read that completes it."""
        self._before = (0, False, False)
        kinds = dict.fromkeys(Action, PlainHeld)
        shared = Shared(self.memory, self.caches, kinds, lambda route: route.action in self.holds, self._admit_http2)
        self.reader = Reader(shared, self.wake, self._redial)
        self.client = Side(partial(self._feed, "client"), self.reader.to_client, self.octets)
        self.daemon = Side(partial(self._feed, "daemon"), self.reader.to_daemon, self.octets)

    def _admit_http2(self) -> bool:
        self.http2_clients += 1
        return self.http2_may_pass

    def _redial(self) -> bool:
        self.redials += 1
        return self.redials <= self.daemons

    def wake(self) -> None:
        self.act()
        self.client.flush()
        self.daemon.flush()

    def act(self) -> None:
        """Act as the connection, and record the calls that it would start or resume."""
        while self.reader.ready:
            match self.reader.ready.popleft():
                case DockerHeld() as call if call.reply is not None:
                    self.settled_calls.append(call)
                case DockerHeld() as call:
                    assert call not in self.calls, "reported twice"
                    self.calls.append(call)
                    self.on_held(call)
                case RefusedRequest() as refused:
                    self.refusals.append(refused)
                case ReaderEvent.PASS_CLIENT_EOF:
                    self.daemon.receive_eof()
                case ReaderEvent.FINISH:
                    self.client.receive_eof()
                case ReaderEvent.PAUSE | ReaderEvent.RESUME as event:
                    self.reading = event is ReaderEvent.RESUME

    def _feed(self, sender: str, data: bytes) -> None:
        """Read bytes, or offer them for passing as a pair does: only if nothing waits to be sent before them."""
        reader, buffer = self.reader, bytearray(data + b"0\r\n\r\nof an earlier read")
        passes, feed, target = reader.client_passes, reader.client_bytes, self.daemon
        if sender == "daemon":
            passes, feed, target = reader.backend_passes, reader.daemon_bytes, self.client
        try:
            offered = self.shared and not target.out
            if not (offered and passes(buffer, len(data), lambda size: target.receive(buffer[:size]))):
                feed(data)
        finally:
            self.act()

    @property
    def call(self) -> DockerHeld:
        return self.calls[-1]

    def client_ends(self) -> None:
        """Play the client's EOF; the daemon sees it immediately unless it waits."""
        waits = self.reader.client_ended()
        self.act()
        if not waits:
            self.daemon.receive_eof()

    def daemon_ends(self) -> None:
        """Play the daemon's EOF; the client sees it immediately unless it stays."""
        stays_open = self.reader.daemon_ended()
        self.act()
        if not stays_open and not self.client.ended:
            self.client.receive_eof()

    def effects(self) -> tuple[bytes, bytes, int]:
        """Return the bytes of client and daemon since the last call, and the number of newly held calls."""
        count, *ended = self._before
        self._before = len(self.calls), self.client.ended, self.daemon.ended
        client, daemon = (
            _ERROR.sub(lambda match: proxy_answer(*error(match[0])[:2]), side.got()) + EOF * (side.ended and not before)
            for side, before in zip((self.client, self.daemon), ended, strict=True)
        )
        return client, daemon, len(self.calls) - count


class Step(NamedTuple):
    act: Callable[[Play], object]
    to_client: bytes = b""
    to_daemon: bytes = b""
    held: int = 0
    reads: bool = True


def steps(*row: Step) -> list[Step]:
    return list(row)


def client(*parts: bytes, **effects: Any) -> Step:
    return Step(lambda play: play.client.sends(*parts), **effects)


def daemon(*parts: bytes, **effects: Any) -> Step:
    return Step(lambda play: play.daemon.sends(*parts), **effects)


def passes(*parts: bytes) -> Step:
    """The client sends bytes that pass immediately and unchanged."""
    return client(*parts, to_daemon=b"".join(parts))


def returns(*parts: bytes) -> Step:
    """The daemon sends bytes that pass immediately and unchanged."""
    return daemon(*parts, to_client=b"".join(parts))


def exchange(sent: bytes, replied: bytes) -> Step:
    return Step(lambda play: (play.client.sends(sent), play.daemon.sends(replied)), replied, sent)


release = partial(Step, lambda play: play.call.send_request(None))
refuse = partial(Step, lambda play: play.call.send_refusal(500, "no"))
answered = partial(Step, lambda play: play.call.answer())
"""The Post hooks are done, so the answer is sent on."""
disconnects = partial(Step, lambda play: play.reader.stop())


def hold(sent: bytes) -> Step:
    """The client sends a request that is held and released unchanged."""
    return Step(lambda play: (play.client.sends(sent), play.call.send_request(None)), to_daemon=sent, held=1)


def settle(replied: bytes, **effects: Any) -> Step:
    """The daemon answers the newest call; the answer is sent on after the Post hooks."""

    def act(play: Play) -> None:
        play.daemon.sends(replied)
        assert play.client.got() == b"", "the Post hooks are called first"
        play.call.answer()

    return Step(act, replied, **effects)


def ends(side: str, **effects: Any) -> Step:
    return Step(Play.client_ends if side == "client" else Play.daemon_ends, **effects)


def converse(steps: Iterable[Step], modes: Iterable[dict[str, Any]] = (*CUT_MODES, *MODES), **options: Any) -> Play:
    """Play the steps in each mode, which must change no effect; return the last play, which has no mode."""
    steps = tuple(steps)
    for mode in modes:
        play = Play(**options, **mode)
        for number, step in enumerate(steps):
            step.act(play)
            effects = (*play.effects(), play.reading)
            assert effects == step[1:], f"step {number}, {mode}: {effects}"
    return play
