"""Scripted peers for every side of a CRI pair; frames are built by hand, and hpack reads header blocks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from struct import pack
from typing import NamedTuple

from hpack import Decoder, Encoder

from runtimeproxy.core.call import PROCESS_LIMIT, MemoryBudget
from runtimeproxy.cri.calls import KINDS
from runtimeproxy.cri.frame_relay import FrameRelay, Shared
from runtimeproxy.cri.image import ImageLink
from runtimeproxy.cri.reader import CriHeld, Reader
from runtimeproxy.observe.metric_table import Key
from runtimeproxy.wire.http2 import FlowControlledSender

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, CONTINUATION = 0, 1, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20

Fields = tuple[tuple[bytes, bytes], ...]


def request(path: bytes, *more: tuple[bytes, bytes]) -> Fields:
    first = (b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"localhost")
    return (*first, (b"content-type", b"application/grpc"), *more)


VERSION = request(b"/runtime.v1.RuntimeService/Version")
CREATE = request(b"/runtime.v1.RuntimeService/CreateContainer")
PULL = request(b"/runtime.v1.ImageService/PullImage")
REPLY: Fields = ((b":status", b"200"), (b"content-type", b"application/grpc"))
TRAILERS: Fields = ((b"grpc-status", b"0"),)


def refusal(code: int, text: bytes) -> Fields:
    return (*REPLY, (b"grpc-status", str(code).encode()), (b"grpc-message", text))


def grpc(body: bytes, compressed: int = 0) -> bytes:
    return bytes((compressed,)) + len(body).to_bytes(4, "big") + body


def block(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode header fields without HPACK's dynamic table."""
    encoder = Encoder()
    encoder.header_table_size = 0
    return encoder.encode(list(fields)).removeprefix(b"\x20")


@dataclass(frozen=True)
class Raw:
    kind: int
    flags: int
    stream: int
    body: bytes = b""

    def wire(self) -> bytes:
        head = len(self.body).to_bytes(3, "big") + bytes((self.kind, self.flags))
        return head + self.stream.to_bytes(4, "big") + self.body


@dataclass(frozen=True)
class Headers:
    stream: int
    fields: Fields
    end: bool = False

    def wire(self) -> bytes:
        return raw_headers(self.stream, block(self.fields), end=self.end)


Frame = Headers | Raw

# The constructors of frames have the names of their types.
Ack = partial(Raw, 4, ACK, 0)


def Data(stream: int, payload: bytes, end: bool = False, pad: int | None = None) -> Raw:
    """Return a DATA frame; ``pad`` bytes of padding (None: not padded)."""
    padded = payload if pad is None else bytes((pad,)) + payload + bytes(pad)
    return Raw(DATA, END_STREAM * end | PADDED * (pad is not None), stream, padded)


def Reset(stream: int, code: int) -> Raw:
    return Raw(3, 0, stream, pack(">L", code))


def Settings(entries: Sequence[tuple[int, int]] = ()) -> Raw:
    return Raw(4, 0, 0, b"".join(pack(">HL", *entry) for entry in entries))


def Ping(payload: bytes, ack: bool = False) -> Raw:
    return Raw(6, ACK * ack, 0, payload)


def GoAway(last: int, code: int = 0, debug: bytes = b"") -> Raw:
    return Raw(7, 0, 0, pack(">LL", last, code) + debug)


def Credit(stream: int, increment: int) -> Raw:
    return Raw(8, 0, stream, pack(">L", increment))


SETTINGS, OPENED = Settings(), Credit(0, 2**20 - 65_535)


def raw_headers(stream: int, fragment: bytes, end: bool = False, end_headers: bool = True) -> bytes:
    return Raw(HEADERS, END_STREAM * end | END_HEADERS * end_headers, stream, fragment).wire()


def continuation(stream: int, fragment: bytes, end_headers: bool = True) -> bytes:
    return Raw(CONTINUATION, END_HEADERS * end_headers, stream, fragment).wire()


def wire(*frames: Frame | bytes) -> bytes:
    return b"".join(frame if isinstance(frame, bytes) else frame.wire() for frame in frames)


def split(data: bytes) -> Iterator[Raw]:
    while data:
        end = 9 + int.from_bytes(data[:3], "big")
        assert end <= len(data), "the last frame is cut"
        yield Raw(data[3], data[4], int.from_bytes(data[5:9], "big"), data[9:end])
        data = data[end:]


def content(frame: Raw) -> bytes:
    """Return a frame's body without padding and priority."""
    body = frame.body
    if frame.kind in (DATA, HEADERS) and frame.flags & PADDED:
        body = body[1 : len(body) - body[0]]
    return body[5:] if frame.kind == HEADERS and frame.flags & PRIORITY else body


def frames(data: bytes, decoder: Decoder | None = None) -> Iterator[Frame]:
    """Yield the frames of whole header blocks."""
    decoder = decoder or Decoder(max_header_list_size=2**24)
    first, fragments = None, b""
    for frame in split(data):
        assert (first is None) == (frame.kind != CONTINUATION), "a frame inside a header block"
        if frame.kind not in (HEADERS, CONTINUATION):
            yield frame
            continue
        first = first or frame
        assert frame.stream == first.stream
        fragments += content(frame)
        if frame.flags & END_HEADERS:
            fields = tuple((bytes(name), bytes(value)) for name, value in decoder.decode(fragments, raw=True))
            yield Headers(first.stream, fields, bool(first.flags & END_STREAM))
            first, fragments = None, b""
    assert first is None, "a header block is cut"


class Side:
    """A peer: ``feed`` is called with its bytes; ``sender`` has the proxy's output to it."""

    def __init__(self, feed: Callable[[bytes], None], sender: FlowControlledSender, preface: bool) -> None:
        self.decoder = Decoder(max_header_list_size=2**24)
        self._feed, self._sender, self._preface = feed, sender, preface

    def sends(self, *frames: Frame | bytes) -> None:
        self._feed(wire(*frames))

    def received_bytes(self) -> bytes:
        """Return the bytes received since the last call, with the pending ACKs, as the front sends them."""
        if self._sender.out:
            self._sender.acknowledge()
        data = b"".join(self._sender.out)
        self._sender.out.clear()
        return data

    def got(self) -> list[Frame]:
        """Return the frames received since the last call; the preface must precede the first one."""
        data = self.received_bytes()
        if self._preface and data:
            assert data.startswith(PREFACE)
            self._preface, data = False, data.removeprefix(PREFACE)
        return [*frames(data, self.decoder)]


class Play:
    """A connection's reader between two peers; ``settled``: the calls that have a reply, or ended without one."""

    def __init__(self, separate_image: bool = False, process_limit: int = PROCESS_LIMIT) -> None:
        self.passes_ambiguous, self.start_and_stop_pass, self.restore_refusal = True, False, ""
        self.budget, self.now = MemoryBudget(process_limit), 0.0
        self.counters: dict[Key, int] = {}
        answers = (lambda: self.start_and_stop_pass, lambda: self.passes_ambiguous, lambda: self.restore_refusal)
        shared = Shared(self.budget, lambda: self.now, self.counters, KINDS, separate_image, *answers)
        self.reader = Reader(shared, lambda: None)
        self._calls, self.settled = list[CriHeld](), list[CriHeld]()
        self.links, self._images = list[ImageLink](), list[Side]()
        self.client = Side(partial(self._feed, self.reader.from_client), self.reader.to_client, preface=False)
        self.runtime = Side(partial(self._feed, self.reader.from_runtime), self.reader.to_runtime, preface=True)

    def greet(self, client: Raw = SETTINGS, runtime: Raw = SETTINGS) -> "Play":
        """Exchange SETTINGS and their ACKs, and drop the bytes that both sides received."""
        self.client.sends(PREFACE, client)
        self.runtime.sends(runtime, Ack())
        self.client.sends(Ack())
        self.client.got(), self.runtime.got()
        return self

    def _feed(self, direction: FrameRelay, data: bytes) -> None:
        try:
            direction.feed(data)
        finally:
            self.act()

    def act(self) -> None:
        """Record the events of the reader."""
        ready = self.reader.ready
        while ready:
            match ready.popleft():
                case CriHeld() as call:
                    (self._calls if call.reply is None else self.settled).append(call)
                case ImageLink() as link:
                    self.links.append(link)

    @property
    def calls(self) -> list[CriHeld]:
        """Return the held calls whose requests are complete."""
        self.act()
        return self._calls

    @property
    def call(self) -> CriHeld:
        return self.calls[-1]

    @property
    def image(self) -> Side:
        """Return the image service's side of the latest link."""
        self._images += [Side(link.receive, link.sender, preface=True) for link in self.links[len(self._images) :]]
        return self._images[-1]


Act = Callable[[Play], object]
Frames = bytes | Sequence[Frame]


class Step(NamedTuple):
    """An action and all its effects: the frames to each side, and the number of calls whose hooks are called."""

    act: Act
    to_client: Frames = ()
    to_runtime: Frames = ()
    to_image: Frames = ()
    hooked: int = 0


def sending(side: str) -> Callable[..., Act]:
    return lambda *frames: lambda play: getattr(play, side).sends(*frames)


client, runtime, image = map(sending, ("client", "runtime", "image"))


def passes(*frames: Frame) -> Step:
    """Send the client's frames, which the runtime must get unchanged."""
    return Step(client(*frames), to_runtime=frames)


def returns(*frames: Frame) -> Step:
    return Step(runtime(*frames), to_client=frames)


def release(play: Play) -> None:
    assert play.call.send_request(None)


def refuse(play: Play) -> None:
    assert play.call.send_refusal(13, "no")


def answered(play: Play) -> None:
    """Send the answer to the newest call, as when its Post hooks are done."""
    play.call.answer()


@dataclass(frozen=True)
class Greets:
    """The first action of a conversation that does not begin with the usual exchange of SETTINGS."""

    client: Raw = SETTINGS
    runtime: Raw = SETTINGS

    def __call__(self, play: Play) -> None:
        play.greet(self.client, self.runtime)


def converse(*steps: Step, play: Play | None = None, separate_image: bool = False) -> Play:
    """Play the steps and check the effects of each; SETTINGS are exchanged before, unless ``play`` is given."""
    if play is None:
        play = Play(separate_image) if isinstance(steps[0].act, Greets) else Play(separate_image).greet()
    for number, step in enumerate(steps):
        before = len(play.calls)
        step.act(play)
        for name, expected in zip(("client", "runtime", "image"), step[1:4], strict=True):
            if name == "image" and not (expected or play.links):
                continue
            side = getattr(play, name)
            received = side.received_bytes() if isinstance(expected, bytes) else side.got()
            assert received == (expected if isinstance(expected, bytes) else list(expected)), f"step {number}: {name}"
        assert len(play.calls) - before == step.hooked, f"step {number}: hooked calls"
    return play
