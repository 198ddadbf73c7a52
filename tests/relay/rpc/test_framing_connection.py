"""What all connections of the proxy's own have in common, whatever they carry."""

import pytest
from hpack import Encoder

from runtimeproxy.errors import WireError
from runtimeproxy.relay.rpc.framing import HEADER_LIMIT, ClientConnection
from runtimeproxy.wire import headers, http2
from runtimeproxy.wire.http2 import CREDIT_STEP, PAIR_WINDOW

BLOCK = headers.build([(b":status", b"200")])


class Noted(ClientConnection):
    def __init__(self, settings: dict[int, int] | None = None) -> None:
        super().__init__(settings or {}, 7)
        self.events: list[tuple[object, ...]] = []

    def data(self, stream: int, payload: bytes, length: int, end: bool) -> None:
        self.events.append(("data", stream, payload, length, end))
        self.sender.credit(length)

    def block(self, stream: int, block: bytes, end: bool) -> None:
        self.events.append(("block", stream, headers.read(block), end))

    def reset(self, stream: int, code: int) -> None:
        self.events.append(("reset", stream, code))

    def goaway(self, last_stream: int) -> None:
        self.events.append(("goaway", last_stream))

    def sent(self) -> list[tuple[int, int, int, bytes]]:
        """Return the frames sent since the last call."""
        data = b"".join(self.sender.out)
        self.sender.out.clear()
        return http2.FrameBuffer(PAIR_WINDOW).feed(data)


@pytest.fixture
def link() -> Noted:
    made = Noted()
    made.receive(http2.settings({http2.MAX_CONCURRENT_STREAMS: 7}))
    made.sender.out.clear()
    return made


def test_connection_opens_with_preface_settings_and_window() -> None:
    made = Noted({http2.INITIAL_WINDOW_SIZE: 5})
    opening = b"".join(made.sender.out)
    assert opening.startswith(http2.PREFACE)
    settings, window = http2.FrameBuffer().feed(opening[len(http2.PREFACE) :])
    assert http2.read_settings(settings[3]) == [(http2.INITIAL_WINDOW_SIZE, 5), (http2.HEADER_TABLE_SIZE, 0)]
    assert window == (http2.WINDOW_UPDATE, 0, 0, (2**20 - 65_535).to_bytes(4))


def test_settings_are_acknowledged_and_say_how_many_streams_may_be_open() -> None:
    link = Noted()
    link.sender.out.clear()
    assert link.stream_limit == 7
    link.receive(http2.settings({}))
    assert link.stream_limit == http2.MAX_STREAM_ID, "no limit is the default"
    link.receive(http2.settings({http2.MAX_CONCURRENT_STREAMS: 3, http2.MAX_FRAME_SIZE: 20_000}))
    link.receive(http2.settings({}))
    assert (link.stream_limit, link.sender.max_frame) == (3, 20_000)
    assert link.sent() == [(http2.SETTINGS, http2.ACK, 0, b"")] * 3


def test_pings_are_answered_and_answers_are_not(link: Noted) -> None:
    link.receive(http2.frame(http2.PING, 0, 0, b"12345678") + http2.frame(http2.PING, http2.ACK, 0, b"87654321"))
    assert link.sent() == [(http2.PING, http2.ACK, 0, b"12345678")]


def test_data_is_counted_with_its_padding_and_credited(link: Noted) -> None:
    link.receive(http2.frame(http2.DATA, http2.PADDED | http2.END_STREAM, 1, b"\x02ab\0\0"))
    assert link.events == [("data", 1, b"ab", 5, True)]
    big = http2.frame(http2.DATA, 0, 1, bytes(http2.DEFAULT_FRAME_SIZE))
    for _ in range(CREDIT_STEP // http2.DEFAULT_FRAME_SIZE):
        link.receive(big)
    assert [kind for kind, *_ in link.sent()] == [http2.WINDOW_UPDATE]


def test_blocks_are_joined_and_decoded_until_the_ack(link: Noted) -> None:
    """Until the server acknowledged the table size of 0 its table is followed; after that every block stands alone."""
    encoder, fields = Encoder(), [(b":status", b"200"), (b"x", b"y")]
    first, second = (encoder.encode(fields) for _ in range(2))
    for block in (first, second):
        link.receive(http2.frame(http2.HEADERS, 0, 1, block[:1]))
        link.receive(http2.frame(http2.CONTINUATION, http2.END_HEADERS, 1, block[1:]))
    link.receive(http2.SETTINGS_ACK + http2.header_frames(3, BLOCK, end=True))
    assert link.events == [("block", 1, fields, False)] * 2 + [("block", 3, fields[:1], True)]
    with pytest.raises(WireError):
        link.receive(http2.header_frames(5, second, end=True))


def test_resets_goaway_and_unknown_frames(link: Noted) -> None:
    odd = http2.frame(http2.RST_STREAM, 0, 7, b"\x88\x00\x00\x01")  # a code has 32 bits
    link.receive(http2.rst_stream(5, http2.CANCEL) + odd + http2.frame(0x42, 0, 0, b"?") + http2.goaway(3, 0))
    assert link.events == [("reset", 5, http2.CANCEL), ("reset", 7, 0x8800_0001), ("goaway", 3)]
    assert link.closing


def test_windows_are_opened_by_updates_and_by_settings_once_all_is_read(link: Noted) -> None:
    wider, narrower = (http2.settings({http2.INITIAL_WINDOW_SIZE: size}) for size in (3, 0))
    link.receive(narrower)
    link.sender.stream_windows[1] = 0
    link.sender.send_data(1, b"abc", False, None, 0)
    link.receive(wider + narrower)
    assert http2.DATA not in [kind for kind, *_ in link.sent()]
    link.receive(narrower + wider)
    assert link.sent()[-1] == (http2.DATA, 0, 1, b"abc")
    link.sender.send_data(1, b"def", True, None, 0)
    assert link.sent() == []
    link.receive(http2.window_update(1, 3))
    assert link.sent() == [(http2.DATA, http2.END_STREAM, 1, b"def")]
    before = link.sender.window
    link.receive(http2.window_update(0, 10))
    assert link.sender.window == before + 10


CUT = http2.frame(http2.HEADERS, 0, 1, BLOCK)
BROKEN = {
    "lone continuation": (http2.frame(http2.CONTINUATION, http2.END_HEADERS, 1, BLOCK), "out of place"),
    "interleaved": (CUT + http2.frame(http2.DATA, 0, 1, b"x"), "out of place"),
    "other stream": (CUT + http2.frame(http2.CONTINUATION, 0, 3, BLOCK), "another stream"),
    "endless block": (CUT + http2.frame(http2.CONTINUATION, 0, 1) * (HEADER_LIMIT // http2.HEAD_BYTES), "too long"),
    "push": (http2.frame(http2.PUSH_PROMISE, http2.END_HEADERS, 1, bytes(4) + BLOCK), "push is off"),
    "short ping": (http2.frame(http2.PING, 0, 0, b"short"), "PING frame whose length is not 8"),
    "long frame": (http2.frame(http2.DATA, 0, 1, bytes(http2.DEFAULT_FRAME_SIZE + 1)), "longer than the receiver"),
    "long reset": (http2.frame(http2.RST_STREAM, 0, 5, bytes(14)), "RST_STREAM frame whose length is not 4"),
    **{
        f"window update of {size}": (http2.frame(http2.WINDOW_UPDATE, 0, 5, bytes(size)), "length is not 4")
        for size in (0, 3, 5)
    },
}


@pytest.mark.parametrize(("data", "problem"), BROKEN.values(), ids=BROKEN)
def test_server_that_breaks_the_protocol_is_named(link: Noted, data: bytes, problem: str) -> None:
    with pytest.raises(WireError, match=problem):
        link.receive(data)


@pytest.mark.parametrize("first", [http2.SETTINGS_ACK, http2.frame(http2.PING, 0, 0, bytes(8))])
def test_first_frame_is_settings(first: bytes) -> None:
    with pytest.raises(WireError, match="SETTINGS"):
        Noted().receive(first)
