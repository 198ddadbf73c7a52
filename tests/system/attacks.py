"""What peers of a CRI connection send that breaks the protocol, or would be kept: a row a kind (fault matrix X1).

Owns the frames of each kind, the bound that they meet and what a client is told of it.
Must not know: who sends them, sockets.
Invariant: a kind goes beyond its bound with 30,000 frames of a client, 80,000 of a runtime.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat

from tests.cri.peer import (
    CREATE,
    PREFACE,
    VERSION,
    Ack,
    Credit,
    Data,
    GoAway,
    Ping,
    Raw,
    Reset,
    Settings,
    block,
    continuation,
    raw_headers,
)
from tests.system.hostile import GREETING, TARGET_STREAM

CALM, BROKEN = 0xB, 0x1
VERSION_BLOCK, CREATE_BLOCK = block(VERSION), block(CREATE)
BIG_FIELD = b"\x40\x01k\x7f\xa1\x1e" + b"v" * 4_000
"""Goes to the dynamic table as its 62nd entry."""

Frames = Callable[[int], Iterator[bytes]]


def again(frame: bytes) -> Frames:
    """Repeat a frame."""
    return lambda count: repeat(frame, count)


def resets(fragment: bytes) -> Frames:
    """Open a stream and reset it."""

    def frames(count: int) -> Iterator[bytes]:
        for stream in range(101, 101 + 2 * count, 2):
            yield raw_headers(stream, fragment) + Reset(stream, 8).wire()

    return frames


def made_resets(count: int) -> Iterator[bytes]:
    """Open a stream and make the runtime reset it."""
    for stream in range(101, 101 + 2 * count, 2):
        yield raw_headers(stream, VERSION_BLOCK) + Credit(stream, 0).wire()


def unfinished(piece: bytes) -> Frames:
    """Begin a header block and never end it."""
    return lambda count: chain(
        [raw_headers(101, VERSION_BLOCK, whole=False)], repeat(continuation(101, piece, whole=False), count)
    )


def bomb(count: int) -> Iterator[bytes]:
    """Refer to a big field again and again."""
    yield raw_headers(101, VERSION_BLOCK + BIG_FIELD)
    for stream in range(103, 103 + 2 * count, 2):
        yield raw_headers(stream, b"\xbe" * 16_000)


def once(frame: bytes) -> Frames:
    """Send one frame."""
    return lambda _: iter([frame])


@dataclass(frozen=True)
class Attack:
    """``frames`` of a peer; ``kind`` is the bound that ends it, ``code`` what a client is told.

    None: that the runtime's SETTINGS have not come yet; then a frame of ours may not stand there.
    """

    frames: Frames
    kind: str
    code: int | None = CALM
    greeting: bytes = GREETING


LONG = ((1 << 24) - 1).to_bytes(3, "big") + b"\xee\x00" + bytes(4)

BY_CLIENT = {
    "bad preface": Attack(once(bytes(100)), "preface", None, greeting=b"PRI * HTTP/1.1\r\n\r\n"),
    "no SETTINGS": Attack(once(b""), "protocol", None, greeting=PREFACE + Ping(bytes(8)).wire()),
    "oversize frame": Attack(once(LONG), "frame_size", BROKEN),
    "HPACK bomb": Attack(bomb, "protocol", BROKEN, greeting=PREFACE + Settings().wire()),
    "CONTINUATION": Attack(unfinished(b"\x00\x01a\x01b" * 20), "header_block"),
    "empty CONTINUATION": Attack(unfinished(b""), "header_block"),
    "open streams": Attack(
        lambda count: (raw_headers(stream, VERSION_BLOCK) for stream in range(101, 101 + 2 * count, 2)), "open_streams"
    ),
}
BY_RUNTIME = {
    "oversize frame": Attack(once(LONG), "frame_size"),
    "no HTTP/2": Attack(once(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(1 << 16)), "frame_size"),
    "HPACK bomb": Attack(lambda count: chain([Ack().wire()], bomb(count)), "protocol"),
    "CONTINUATION": Attack(unfinished(b""), "header_block"),
    "DATA above every window": Attack(again(Data(TARGET_STREAM, bytes(16_384)).wire()), "protocol"),
}

FLOODS: dict[str, Frames] = {
    "rapid reset": resets(VERSION_BLOCK),
    "rapid reset of held calls": resets(CREATE_BLOCK),
    "MadeYouReset": made_resets,
    "empty DATA": lambda count: chain([raw_headers(1, VERSION_BLOCK)], repeat(Data(1, b"").wire(), count)),
    "PING": again(Ping(bytes(8)).wire()),
    "PING ACK": again(Ping(bytes(8), ack=True).wire()),
    "SETTINGS": again(Settings(((4, 1), (4, 2))).wire()),
    "PRIORITY": again(Raw(2, 0, 1, bytes(5)).wire()),
    "WINDOW_UPDATE": again(Credit(0, 1).wire()),
    "unknown frames": again(Raw(0xEE, 0, 0).wire()),
    "resets of no stream": again(Reset(1, 8).wire()),
    "GOAWAY": again(GoAway(0).wire()),
}
"""What serves nobody: it passes, or that connection ends; nothing of it is kept."""
