"""Scripted peers for every side of a CRI pair; what is sent and what is expected are written in the same form.

Bytes are built and read with hyperframe and hpack, so that the proxy's code is not tested with itself.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from struct import Struct
from typing import NamedTuple

from hpack import Decoder, Encoder
from hyperframe import frame as hyper

from runtimeproxy.core.call import PROCESS_LIMIT, MemoryBudget
from runtimeproxy.cri.calls import KINDS
from runtimeproxy.cri.frame_relay import FrameRelay, Shared
from runtimeproxy.cri.image import ImageLink
from runtimeproxy.cri.reader import CriHeld, NotHttp2, Reader
from runtimeproxy.observe.metric_table import Key
from runtimeproxy.wire.http2 import FlowControlledSender

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

Fields = tuple[tuple[bytes, bytes], ...]
_SETTING = Struct(">HL")


def request(path: bytes, *more: tuple[bytes, bytes]) -> Fields:
    return (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        *more,
    )


VERSION = request(b"/runtime.v1.RuntimeService/Version")
CREATE = request(b"/runtime.v1.RuntimeService/CreateContainer")
PULL = request(b"/runtime.v1.ImageService/PullImage")
REPLY: Fields = ((b":status", b"200"), (b"content-type", b"application/grpc"))
TRAILERS: Fields = ((b"grpc-status", b"0"),)


def refusal(code: int, text: bytes) -> Fields:
    return (*REPLY, (b"grpc-status", str(code).encode()), (b"grpc-message", text))


def grpc(body: bytes, compressed: int = 0) -> bytes:
    """Return a message with its 5-byte gRPC prefix."""
    return bytes((compressed,)) + len(body).to_bytes(4, "big") + body


def block(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode header fields without HPACK's dynamic table."""
    encoder = Encoder()
    encoder.header_table_size = 0
    return encoder.encode(list(fields)).removeprefix(b"\x20")


@dataclass(frozen=True)
class Headers:
    stream: int
    fields: Fields
    end: bool = False

    def wire(self) -> bytes:
        return raw_headers(self.stream, block(self.fields), end=self.end)


@dataclass(frozen=True)
class Data:
    """A DATA frame; ``pad`` bytes of padding (None: not padded)."""

    stream: int
    payload: bytes
    end: bool = False
    pad: int | None = None

    def __repr__(self) -> str:
        return f"Data({self.stream}, {self.payload[:30]!r} of {len(self.payload)}, {self.end}, {self.pad})"

    def wire(self) -> bytes:
        flags = ["END_STREAM"] * self.end + ["PADDED"] * (self.pad is not None)
        return hyper.DataFrame(self.stream, self.payload, flags=flags, pad_length=self.pad or 0).serialize()


@dataclass(frozen=True)
class Reset:
    stream: int
    code: int

    def wire(self) -> bytes:
        return hyper.RstStreamFrame(self.stream, error_code=self.code).serialize()


@dataclass(frozen=True)
class Credit:
    stream: int
    increment: int

    def wire(self) -> bytes:
        # By hand, as hyperframe cannot build padding of 0 bytes.
        return (4).to_bytes(3, "big") + b"\x08\x00" + self.stream.to_bytes(4, "big") + self.increment.to_bytes(4, "big")


@dataclass(frozen=True)
class Settings:
    """A SETTINGS frame, its entries in order."""

    entries: tuple[tuple[int, int], ...] = ()

    def wire(self) -> bytes:
        # By hand, as hyperframe cannot build an entry twice.
        body = b"".join(_SETTING.pack(*entry) for entry in self.entries)
        return len(body).to_bytes(3, "big") + b"\x04\x00" + bytes(4) + body


@dataclass(frozen=True)
class Ack:
    def wire(self) -> bytes:
        return hyper.SettingsFrame(flags=["ACK"]).serialize()


@dataclass(frozen=True)
class Ping:
    payload: bytes
    ack: bool = False

    def wire(self) -> bytes:
        return hyper.PingFrame(opaque_data=self.payload, flags=["ACK"] * self.ack).serialize()


@dataclass(frozen=True)
class GoAway:
    last: int
    code: int = 0
    debug: bytes = b""

    def wire(self) -> bytes:
        return hyper.GoAwayFrame(0, self.last, self.code, self.debug).serialize()


@dataclass(frozen=True)
class Raw:
    """A frame of any type, given by its bytes."""

    kind: int
    flags: int
    stream: int
    body: bytes = b""

    def wire(self) -> bytes:
        head = len(self.body).to_bytes(3, "big") + bytes((self.kind, self.flags))
        return head + self.stream.to_bytes(4, "big") + self.body


Frame = Headers | Data | Reset | Credit | Settings | Ack | Ping | GoAway | Raw

OPENED = Credit(0, 2**20 - 65_535)


def raw_headers(stream: int, fragment: bytes, end: bool = False, whole: bool = True) -> bytes:
    return Raw(1, 0x1 * end | 0x4 * whole, stream, fragment).wire()


def continuation(stream: int, fragment: bytes, whole: bool = True) -> bytes:
    return Raw(9, 0x4 * whole, stream, fragment).wire()


class Side:
    """One peer: its bytes go into ``feed``, what the proxy sends it comes from ``sender``."""

    def __init__(self, feed: Callable[[bytes], None], sender: FlowControlledSender, preface: bool) -> None:
        self.decoder = Decoder(max_header_list_size=2**24)
        self._feed = feed
        self._sender = sender
        self._preface = preface

    def sends(self, *frames: Frame | bytes) -> None:
        self._feed(b"".join(frame if isinstance(frame, bytes) else frame.wire() for frame in frames))

    def got_bytes(self) -> bytes:
        """Return the bytes that came since the last call, with the ACKs that wait, as the front sends them."""
        if self._sender.out:
            self._sender.acknowledge()
        data = b"".join(self._sender.out)
        self._sender.out.clear()
        return data

    def got(self) -> list[Frame]:
        """Return the frames that came since the last call; the preface must come before the first one."""
        data = self.got_bytes()
        if self._preface and data:
            assert data.startswith(PREFACE)
            data = data.removeprefix(PREFACE)
            self._preface = False
        return list(self._read(data))

    def _read(self, data: bytes) -> Iterable[Frame]:
        fragments, first = b"", Raw(0, 0, 0)
        for raw in split(data):
            assert bool(fragments or first.kind) == (raw.kind == 9), "something stands inside a header block"
            if raw.kind in (1, 9):
                first = first if raw.kind == 9 else raw
                assert raw.stream == first.stream
                fragments += _fragment(raw)
                if raw.flags & 0x4:
                    decoded = self.decoder.decode(fragments, raw=True)
                    fields = tuple((bytes(name), bytes(value)) for name, value in decoded)
                    yield Headers(first.stream, fields, bool(first.flags & 1))
                    fragments, first = b"", Raw(0, 0, 0)
            else:
                yield _value(raw)
        assert not first.kind, "a header block is cut"


def _fragment(raw: Raw) -> bytes:
    head, _ = hyper.Frame.parse_frame_header(memoryview(raw.wire()[:9]))
    head.parse_body(memoryview(raw.body))
    assert isinstance(head, hyper.HeadersFrame | hyper.ContinuationFrame)
    return head.data


def _value(raw: Raw) -> Frame:
    frame, _ = hyper.Frame.parse_frame_header(memoryview(raw.wire()[:9]))
    frame.parse_body(memoryview(raw.body))
    match frame:
        case hyper.DataFrame():
            pad = frame.pad_length if raw.flags & 0x8 else None
            return Data(raw.stream, frame.data, bool(raw.flags & 1), pad)
        case hyper.RstStreamFrame():
            return Reset(raw.stream, frame.error_code)
        case hyper.WindowUpdateFrame():
            return Credit(raw.stream, frame.window_increment)
        case hyper.SettingsFrame():
            return Ack() if raw.flags & 1 else Settings(tuple(_SETTING.iter_unpack(raw.body)))
        case hyper.PingFrame():
            return Ping(frame.opaque_data, bool(raw.flags & 1))
        case hyper.GoAwayFrame():
            return GoAway(frame.last_stream_id, frame.error_code, frame.additional_data)
    return raw


def split(data: bytes) -> Iterable[Raw]:
    at = 0
    while at < len(data):
        end = at + 9 + int.from_bytes(data[at : at + 3], "big")
        assert end <= len(data), "the last frame is cut"
        yield Raw(data[at + 3], data[at + 4], int.from_bytes(data[at + 5 : at + 9], "big"), data[at + 9 : end])
        at = end


def shared_by_calls(clock: Callable[[], float], counters: dict[Key, int], image_apart: bool) -> Shared:
    """Return what the connections of a front share; every call that can be held is held."""
    return Shared(MemoryBudget(), clock, counters, KINDS, image_apart, lambda: False, lambda: True, str)


class Play:
    def __init__(
        self, image_apart: bool = False, process_limit: int = PROCESS_LIMIT, shared: Shared | None = None
    ) -> None:
        self.may_pass = True
        self.restore_refused = ""
        self.unrecorded_pass = False
        self.budget = MemoryBudget(process_limit)
        self.now = 0.0
        self.counters: dict[Key, int] = {}
        if shared is None:
            shared = replace(
                shared_by_calls(lambda: self.now, self.counters, image_apart),
                budget=self.budget,
                start_and_stop_pass=lambda: self.unrecorded_pass,
                passes_ambiguous=lambda: self.may_pass,
                restore_refusal=lambda: self.restore_refused,
            )
        self.reader = Reader(shared, lambda: None)
        self._calls: list[CriHeld] = []
        self.settled: list[CriHeld] = []
        """The calls that have had their reply, or ended without one."""
        self.links: list[ImageLink] = []
        self.image_away = False
        self.not_http2_bytes: list[bytes] = []
        self.client = Side(partial(self._feed, self.reader.from_client), self.reader.client_out, preface=False)
        self.runtime = Side(partial(self._feed, self.reader.from_runtime), self.reader.runtime_out, preface=True)
        self._images: list[Side] = []

    def greet(self, client: Settings = Settings(), runtime: Settings = Settings()) -> "Play":
        """Exchange SETTINGS and their ACKs, and drop what both sides got."""
        self.client.sends(PREFACE, client)
        self.runtime.sends(runtime, Ack())
        self.client.sends(Ack())
        self.client.got()
        self.runtime.got()
        return self

    def _feed(self, direction: FrameRelay, data: bytes) -> None:
        try:
            direction.feed(data)
        finally:
            self.act()

    def act(self) -> None:
        """Record what the reader has read."""
        ready = self.reader.ready
        while ready:
            match ready.popleft():
                case CriHeld() as call:
                    (self._calls if call.reply is None else self.settled).append(call)
                case ImageLink() as link:
                    self.links.append(link)
                    if self.image_away:
                        link.close()
                case NotHttp2(data):
                    self.not_http2_bytes.append(data)

    @property
    def calls(self) -> list[CriHeld]:
        """Return the held calls whose requests are complete."""
        self.act()
        return self._calls

    @property
    def call(self) -> CriHeld:
        """Return the newest held call."""
        return self.calls[-1]

    @property
    def image(self) -> Side:
        """Return the image service's side of the latest link."""
        for link in self.links[len(self._images) :]:
            self._images.append(Side(link.receive, link.sender, preface=True))
        return self._images[-1]


def greeted(image_apart: bool = False, process_limit: int = PROCESS_LIMIT) -> Play:
    return Play(image_apart, process_limit).greet()


Act = Callable[[Play], object]
Frames = bytes | Sequence[Frame]


class Step(NamedTuple):
    """An action and all its effects: what each side gets, and for how many calls hooks are called."""

    act: Act
    to_client: Frames = ()
    to_runtime: Frames = ()
    to_image: Frames = ()
    asks: int = 0


def client(*frames: Frame | bytes) -> Act:
    return lambda play: play.client.sends(*frames)


def runtime(*frames: Frame | bytes) -> Act:
    return lambda play: play.runtime.sends(*frames)


def image(*frames: Frame | bytes) -> Act:
    return lambda play: play.image.sends(*frames)


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
    """Send the answer to the newest call on, as when its Post hooks are done."""
    play.call.answer()


@dataclass(frozen=True)
class Greets:
    """The first action of a conversation that does not begin with the usual exchange of SETTINGS."""

    client: Settings = Settings()
    runtime: Settings = Settings()

    def __call__(self, play: Play) -> None:
        play.greet(self.client, self.runtime)


def converse(*steps: Step, play: Play | None = None) -> Play:
    """Play the steps and check the effects of each; SETTINGS are exchanged before, unless ``play`` is given."""
    if play is None:
        play = Play() if isinstance(steps[0].act, Greets) else greeted()
    for number, step in enumerate(steps):
        asked = len(play.calls)
        step.act(play)
        for name in ("client", "runtime", "image"):
            expected = getattr(step, f"to_{name}")
            if name == "image" and not (expected or play.links):
                continue
            side = getattr(play, name)
            came = side.got_bytes() if isinstance(expected, bytes) else side.got()
            assert came == (expected if isinstance(expected, bytes) else list(expected)), (
                f"step {number}: {name} got {came}"
            )
        assert len(play.calls) - asked == step.asks, f"step {number}: asked {len(play.calls) - asked}"
    return play
