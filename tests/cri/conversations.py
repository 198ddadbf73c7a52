"""Random conversations of a client with a runtime through the reader.

Several calls at once, framed in every way that HTTP/2 allows, their frames interleaved and split anywhere; held calls
go through the whole core. Both peers have flow-control credit for everything.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import chain, product, repeat
from zlib import compressobj

from hpack import NeverIndexedHeaderTuple
from hypothesis import strategies as st

from runtimeproxy.cri.routes import HELD
from tests.cri import peer
from tests.cri.messages import METHODS, Method, random_messages
from tests.cri.peer import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PRIORITY,
    REPLY,
    TRAILERS,
    Ack,
    Credit,
    Fields,
    Headers,
    Play,
    Raw,
    Settings,
    grpc,
    request,
    split,
)
from tests.fakes.clock import VirtualLoop
from tests.fakes.node import Node
from tests.fakes.plugins import Behaviour

RESET, PING, WINDOW_UPDATE = 3, 6, 8
FRAME_BYTES = 16_384

Unit = tuple[Raw, ...]
"""Frames that must follow each other directly; their stream id is set once the call has one."""

EXTRA: tuple[Fields, ...] = (
    (),
    ((b"user-agent", b"grpc-go/1.59.0"), (b"te", b"trailers"), (b"grpc-timeout", b"30S")),
    ((b"x-trace-bin", b"AAH/"), (b"x-twice", b"1"), (b"x-twice", b"2")),
    (NeverIndexedHeaderTuple(b"authorization", b"Bearer of a secret"),),
)
SHAPES = ("plain", "plain", "plain", "continued", "with priority", "padded")
ASIDES: tuple[tuple[Unit, ...], ...] = (
    (),
    (),
    ((Raw(WINDOW_UPDATE, 0, 0, b"\0\0\x10\0"),),),
    ((Raw(2, 0, 0, b"\0\0\0\0\x07"),), (Raw(0xFA, 0xFF, 0, b"a type that nobody knows"),)),
)
PADS = (None, None, 0, 255)
HOW = st.sampled_from(tuple(product(EXTRA, SHAPES, ASIDES, PADS)))
"""Extra fields, the shape of the header block, frames after it, padding of the first DATA; one draw, for speed."""
PIECES = st.lists(st.integers(0, 40) | st.just(FRAME_BYTES), max_size=3)
REQUEST_ENDS = st.sampled_from(("with data", "with data", "late", "with trailers"))
REPLY_ENDS = st.sampled_from(("agreed", "agreed", "agreed", "failed", "failed at once", "reset", "without trailers"))
FAILED = peer.refusal(5, b"not found: %C3%A9")
encoded = cache(peer.block)


def gzip(message: bytes) -> bytes:
    packer = compressobj(1, wbits=31)
    return packer.compress(message) + packer.flush()


def header_unit(fields: Fields, shape: str = "plain", end: bool = False) -> Unit:
    """Return a header block in one of the shapes that HTTP/2 frames allow."""
    octets, flags = encoded(fields), END_STREAM * end
    match shape:
        case "continued":
            return Raw(HEADERS, flags, 0, octets[:7]), Raw(CONTINUATION, END_HEADERS, 0, octets[7:])
        case "with priority":
            return (Raw(HEADERS, flags | END_HEADERS | PRIORITY, 0, b"\0\0\0\0\x07" + octets),)
        case "padded":
            return (Raw(HEADERS, flags | END_HEADERS | PADDED, 0, b"\x03" + octets + bytes(3)),)
    return (Raw(HEADERS, flags | END_HEADERS, 0, octets),)


def data_units(body: bytes, sizes: Iterable[int], pad: int | None, end: bool) -> Iterator[Unit]:
    """Split a body into DATA frames; only the first one is padded."""
    for size in chain(sizes, repeat(FRAME_BYTES)):
        size -= 0 if pad is None else min(size, pad + 1)
        chunk, body = body[:size], body[size:]
        flags = END_STREAM * (end and not body)
        if pad is None:
            yield (Raw(DATA, flags, 0, chunk),)
        else:
            yield (Raw(DATA, flags | PADDED, 0, bytes((pad,)) + chunk + bytes(pad)),)
        pad = None
        if not body:
            return


@dataclass(frozen=True)
class Call:
    method: Method
    queried: tuple[Unit, ...]
    answered: tuple[Unit, ...]


def plain_call(method: Method, queried: bytes, answered: bytes) -> Call:
    request_units = header_unit(request(method.path)), *data_units(grpc(queried), (), None, True)
    return Call(
        method,
        request_units,
        (header_unit(REPLY), *data_units(grpc(answered), (), None, False), header_unit(TRAILERS, end=True)),
    )


@st.composite
def calls(draw: st.DrawFn, methods: tuple[Method, ...] = METHODS) -> Call:
    method = draw(st.sampled_from(methods))
    message, compressed = draw(random_messages(method.request)), draw(st.sampled_from((False,) * 7 + (True,)))
    extra, shape, asides, pad = draw(HOW)
    encoding: Fields = ((b"grpc-encoding", b"gzip"),) if compressed else ()
    body, end = grpc(gzip(message), 1) if compressed else grpc(message), draw(REQUEST_ENDS)
    head = header_unit(request(method.path, *encoding, *extra), shape)
    units = [head, *asides, *data_units(body, draw(PIECES), pad, end == "with data")]
    if end == "late":
        units.append((Raw(DATA, END_STREAM, 0, b""),))
    elif end == "with trailers":
        units.append(header_unit(((b"x-trailer", b"t"),), end=True))
    return Call(method, tuple(units), tuple(draw(answers(method))))


@st.composite
def answers(draw: st.DrawFn, method: Method) -> list[Unit]:
    """Return the answer to a call; that of GetContainerEvents may have no end."""
    one = random_messages(method.reply)
    replies = draw(st.lists(one, max_size=3)) if method.streams else [draw(one)]
    end = draw(REPLY_ENDS)
    if end == "failed at once":
        return [header_unit(FAILED, end=True)]
    extra, shape, asides, pad = draw(HOW)
    units = [header_unit((*REPLY, *extra), shape), *asides]
    units += data_units(b"".join(map(grpc, replies)), draw(PIECES), pad, end == "without trailers")
    if end == "reset":
        units.append((Raw(RESET, 0, 0, b"\0\0\0\x02"),))
    elif end != "without trailers" and (method.name != "GetContainerEvents" or draw(st.booleans())):
        units.append(header_unit(TRAILERS if end == "agreed" else FAILED[2:], end=True))
    return units


ORDER = st.lists(st.integers(0, 4), max_size=20)
"""Which queue's frames are next, among those that have any left."""
PINGS = st.lists(st.integers(0, 9).map(lambda number: (Raw(PING, number & 1, 0, b"%08d" % number),)), max_size=2)
"""PINGs (even numbers), and ACKs of PINGs that were never sent (odd numbers)."""
FIRST_STREAM = 3


def mixed(queues: list[list[bytes]], order: list[int], in_turn: bool) -> Iterator[tuple[int, bytes]]:
    """Yield the items of several queues interleaved, with the queue's number; ``in_turn``: queues begin in order."""
    left = [list(reversed(queue)) for queue in queues]
    begun = {at for at, queue in enumerate(queues) if not queue}
    for pick in chain(order, repeat(0)):
        next_to_begin = min(set(range(len(left))) - begun, default=0)
        ready = [at for at, queue in enumerate(left) if queue and (at <= next_to_begin or at in begun or not in_turn)]
        if not ready:
            return
        at = ready[pick % len(ready)]
        begun.add(at)
        yield at, left[at].pop()


@dataclass(frozen=True)
class Conversation:
    """Concurrent calls; ``pings`` are the frames of stream 0."""

    calls: list[Call]
    pings: tuple[list[Unit], list[Unit]] = ([], [])
    orders: tuple[list[int], list[int]] = ([], [])

    @cached_property
    def streams(self) -> dict[int, Call]:
        return {FIRST_STREAM + 2 * at: call for at, call in enumerate(self.calls)}

    @cached_property
    def held(self) -> frozenset[int]:
        return frozenset(stream for stream, call in self.streams.items() if call.method.path in HELD)

    @cached_property
    def sent(self) -> bytes:
        queues = [_on(0, self.pings[0]), *(_on(stream, call.queried) for stream, call in self.streams.items())]
        return b"".join(unit for _, unit in mixed(queues, self.orders[0], in_turn=True))

    @cached_property
    def answers(self) -> list[tuple[int, bytes]]:
        """Return what the runtime sends, each with the stream whose request must have come before."""
        queues = [_on(0, self.pings[1]), *(_on(stream, call.answered) for stream, call in self.streams.items())]
        streams = [0, *self.streams]
        return [(streams[at], unit) for at, unit in mixed(queues, self.orders[1], in_turn=False)]

    @cached_property
    def frames(self) -> tuple[list[Raw], list[Raw]]:
        return list(split(self.sent)), list(split(self.replied))

    @cached_property
    def replied(self) -> bytes:
        return b"".join(unit for _, unit in self.answers)

    def allowed(self, whole: set[int]) -> int:
        """Return how many bytes the runtime may have sent once it has these requests."""
        length = 0
        for stream, unit in self.answers:
            if stream not in whole:
                break
            length += len(unit)
        return length


def _on(stream: int, units: Iterable[Unit]) -> list[bytes]:
    return [b"".join(replace(frame, stream=stream).wire() for frame in unit) for unit in units]


def conversations(methods: tuple[Method, ...] = METHODS, most: int = 10) -> st.SearchStrategy[Conversation]:
    several = st.lists(calls(methods), min_size=1, max_size=most)
    return st.builds(Conversation, several, st.tuples(PINGS, PINGS), st.tuples(ORDER, ORDER))


Step = tuple[str, int, float | None]
"""Who sends next, the client ("c") or the runtime, at most how many bytes, and seconds for the core to run after it."""
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(
        st.sampled_from("ccr"), st.integers(1, 60) | st.integers(1, 4_000), st.sampled_from((None, 0.0, 0.0, 0.3))
    ),
    max_size=25,
)
WAIT_SECONDS = 5.0
"""Virtual seconds, enough for all hook calls one after the other."""

ROOM = Settings(((0x4, 2**24),)).wire() + Credit(0, 2**30).wire()
"""Flow-control windows large enough for all that is sent."""
ACK = Ack().wire()
REQUESTED, ANSWERED = Headers(1, peer.VERSION, end=True).wire(), Headers(1, REPLY, end=True).wire()


class Core:
    """The readers' front: held calls go through the core of a fake node, with a hook server or without."""

    def __init__(self, behaviour: Behaviour | None = None, delay_seconds: float = 0.0) -> None:
        self.loop = VirtualLoop()
        self.node = self.loop.run_until_complete(self._start())
        if behaviour is not None:
            self.node.plugins.add("a", behaviour, delay_seconds=delay_seconds)

    @staticmethod
    async def _start() -> Node:
        node = Node()
        node.know()
        return node

    def close(self) -> None:
        self.loop.run_until_complete(self.node.lifecycle.open_calls.stop())
        self.loop.close()

    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def connection(self) -> Play:
        """Return a connection that has exchanged SETTINGS, and on which both sides have sent a header block."""
        play = RunningPlay(self)
        play.client.sends(peer.PREFACE + ROOM)
        play.runtime.sends(ROOM + ACK)
        play.client.sends(ACK + REQUESTED)
        play.runtime.sends(ANSWERED)
        play.client.got_bytes()
        play.runtime.got_bytes()
        return play


class RunningPlay(Play):
    """A connection whose calls the core runs."""

    def __init__(self, core: Core) -> None:
        self._core = core
        super().__init__(shared=replace(core.node.shared(), clock=lambda: 0.0))  # PINGs are answered at once

    def act(self) -> None:
        while self.reader.ready:
            self._core.loop.call_soon(self._core.node.lifecycle.proceed, self.reader.ready.popleft())


@dataclass
class Came:
    frames: list[Raw] = field(default_factory=list)
    ended: set[int] = field(default_factory=lambda: {0})
    """Streams that the other side has ended; the connection itself needs no end."""
    _rest: bytes = b""

    def take(self, data: bytes) -> None:
        data, at = self._rest + data, 0
        while len(data) - at >= 9 and len(data) >= (end := at + 9 + int.from_bytes(data[at : at + 3], "big")):
            [frame] = split(data[at:end])
            self.frames.append(frame)
            if frame.kind in (DATA, HEADERS) and frame.flags & END_STREAM:
                self.ended.add(frame.stream)
            at = end
        self._rest = data[at:]


Half = tuple[list[tuple[int, bytes]], bool]
"""One side of a stream: its blocks, its body and its reset in order, by the frames' types; whether it has ended."""
Compare = Callable[[Call, Half, Half], None]
"""Compares what came of a call's request, the last argument, with what was sent."""


def equal(call: Call, sent: Half, arrived: Half) -> None:
    assert arrived == sent, call.method


class Stage:
    def __init__(self, conversation: Conversation, core: Core) -> None:
        self.conversation = conversation
        self.core = core
        self.play = core.connection()
        self.at_runtime, self.at_client = Came(), Came()
        self._sent = self._replied = 0

    def step(self, who: str, size: int, seconds: float | None = WAIT_SECONDS) -> None:
        """Send up to ``size`` bytes of one side, then run the core for ``seconds``; None: not even one loop turn."""
        (self._send if who == "c" else self._reply)(size)
        if seconds is not None and self.conversation.held:
            self.core.wait(seconds)
        self.at_runtime.take(self.play.runtime.got_bytes())
        self.at_client.take(self.play.client.got_bytes())

    def _send(self, size: int) -> None:
        chunk = self.conversation.sent[self._sent : self._sent + size]
        self._sent += len(chunk)
        self.play.client.sends(*[chunk] * bool(chunk))

    def _reply(self, size: int) -> None:
        end = min(self._replied + size, self.conversation.allowed(self.at_runtime.ended))
        chunk = self.conversation.replied[self._replied : end]
        self._replied += len(chunk)
        self.play.runtime.sends(*[chunk] * bool(chunk))

    def run(self, steps: list[Step]) -> None:
        for step in steps:
            self.step(*step)
        moved: tuple[int, ...] = ()
        while moved != self._moved:
            moved = self._moved
            self.step("c", len(self.conversation.sent))
            self.step("r", len(self.conversation.replied))

    def cut(self, place: int) -> None:
        """Send all bytes of each side in two pieces, cut at ``place``, and run the core after each piece."""
        for who, rest in (("c", len(self.conversation.sent)), ("r", len(self.conversation.replied))):
            self.step(who, place)
            self.step(who, rest)

    @property
    def _moved(self) -> tuple[int, ...]:
        return self._sent, self._replied, len(self.at_runtime.frames), len(self.at_client.frames)

    def check(self, same: Compare = equal) -> None:
        """Check that each side got what the other sent; ``same`` compares a held call's request with what came."""
        conversation, play = self.conversation, self.play
        assert (self._sent, self._replied) == (len(conversation.sent), len(conversation.replied))
        for frames, arrived, back, sender in (
            (conversation.frames[0], self.at_runtime, self.at_client, play.reader.client_out),
            (conversation.frames[1], self.at_client, self.at_runtime, play.reader.runtime_out),
        ):
            last = [frame for ack in sender.acks for frame in split(ack)]
            assert acks([*back.frames, *last]) == acks([replace(frame, flags=1) for frame in frames])
            assert passing(arrived.frames, conversation.held) == passing(frames, conversation.held)
            for stream in conversation.held:
                compare = same if arrived is self.at_runtime else equal
                compare(conversation.streams[stream], half(frames, stream), half(arrived.frames, stream))
        assert play.budget.count == 0
        assert not play.reader.held


def acks(frames: list[Raw]) -> list[Raw]:
    return [frame for frame in frames if frame.kind == PING and frame.flags and not int(frame.body) & 1]


def passing(frames: list[Raw], held: frozenset[int]) -> list[Raw]:
    """Return the frames that pass whatever happens to the held calls."""
    hop_by_hop = {DATA, HEADERS, CONTINUATION, RESET, WINDOW_UPDATE}
    return [
        frame
        for frame in frames
        if not (frame.stream in held and frame.kind in hop_by_hop)
        and (frame.kind, frame.stream) != (WINDOW_UPDATE, 0)
        and not (frame.kind == PING and not int(frame.body) & 1)
    ]


def half(frames: list[Raw], stream: int) -> Half:
    """Return one side of a stream.

    A block that was held back may begin with a table size update that the proxy added (relay-rules A1).
    """
    parts: list[tuple[int, bytes]] = []
    own = [frame for frame in frames if frame.stream == stream and frame.kind in (DATA, HEADERS, CONTINUATION, RESET)]
    for frame in own:
        kind = HEADERS if frame.kind == CONTINUATION else frame.kind
        goes_on = frame.kind == CONTINUATION or (parts and parts[-1][0] == kind == DATA)
        before = parts.pop()[1] if goes_on else b""
        parts.append((kind, (before + peer.content(frame)).removeprefix(b"\x20" if kind == HEADERS else b"")))
    ended = any(frame.flags & END_STREAM for frame in own if frame.kind in (DATA, HEADERS))
    return [part for part in parts if part != (DATA, b"")], ended
