"""Real HTTP/2 traffic through the reader: what h2 writes on one side h2 reads on the other (promise 4)."""

from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from hpack import NeverIndexedHeaderTuple
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.amounts import examples
from tests.cri.peer import PREFACE, Play, split

pytestmark = pytest.mark.slow

NAMES = st.sampled_from([b"x-a", b"x-b", b"user-agent", b"grpc-timeout", b"authorization", b"x-trace-bin"])
VALUES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=30).map(str.encode)
EXTRA = st.lists(st.tuples(NAMES, VALUES, st.booleans()), max_size=5)
LONG = st.sampled_from([0, 0, 20_000])
"""Length of one long field: above 16,384 the block needs CONTINUATION."""

PATHS = st.sampled_from([b"/runtime.v1.RuntimeService/Version", b"/a.B/C"])
SIZE = st.integers(0, 300) | st.just(18_000)
"""Length of a body: above 16,384 it needs two DATA frames."""


@dataclass
class Seen:
    """What one end was told of a stream."""

    blocks: list[list[tuple[bytes, bytes]]] = field(default_factory=list)
    body: bytes = b""
    end: str = ""


class End:
    """An h2 connection, what it saw, and all bytes that it wrote."""

    def __init__(self, client: bool) -> None:
        config = H2Configuration(client_side=client, header_encoding=None, validate_inbound_headers=False)
        self.h2 = H2Connection(config)
        self.seen: dict[int, Seen] = defaultdict(Seen)
        self.h2.initiate_connection()

    def receives(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            if isinstance(event, RequestReceived | ResponseReceived | TrailersReceived):
                self.seen[event.stream_id].blocks.append([(bytes(name), bytes(value)) for name, value in event.headers])
            elif isinstance(event, DataReceived):
                self.seen[event.stream_id].body += event.data
            elif isinstance(event, StreamEnded):
                self.seen[event.stream_id].end = "END_STREAM"
            elif isinstance(event, StreamReset):
                self.seen[event.stream_id].end = f"RST_STREAM {event.error_code}"


class Wire:
    """A client and a runtime of h2 with the reader between them; bytes move in pieces of the sizes drawn."""

    def __init__(self, sizes: list[int]) -> None:
        self.play = Play()
        self.client, self.runtime = End(client=True), End(client=False)
        self.sizes = sizes
        self.out: dict[str, bytearray] = {"client": bytearray(), "runtime": bytearray()}

    def settle(self) -> None:
        """Move bytes until nobody has any."""
        while self._move("client") | self._move("runtime"):
            pass

    def _move(self, name: str) -> bool:
        data = getattr(self, name).h2.data_to_send()
        at = turn = 0
        while at < len(data):
            size = self.sizes[turn % len(self.sizes)]
            getattr(self.play, name).sends(data[at : at + size])
            at, turn = at + size, turn + 1
        for other in ("client", "runtime"):
            got = getattr(self.play, other).got_bytes()
            self.out[other] += got
            getattr(self, other).receives(got)
        return bool(data)


@dataclass
class Call:
    """One call as it is played."""

    path: bytes
    request: list[tuple[bytes, bytes, bool]]
    reply: list[tuple[bytes, bytes, bool]]
    long: int
    size: int
    pad: int | None
    ending: str

    @property
    def body(self) -> bytes:
        """Return the body of the request and of the reply."""
        return bytes(at % 251 for at in range(self.size))


PADS, ENDINGS = st.none() | st.integers(0, 255), st.sampled_from(["data", "trailers", "reset", "late"])
CALL = st.builds(Call, PATHS, EXTRA, EXTRA, LONG, SIZE, PADS, ENDINGS)
SIZES = st.lists(st.integers(1, 40) | st.integers(1, 20_000), max_size=8).map(lambda sizes: [*sizes, 3_000])


HEAD = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"localhost")]


def marked(fields: list[tuple[bytes, bytes, bool]], long: int) -> list[tuple[bytes, bytes]]:
    found = [NeverIndexedHeaderTuple(name, value) if secret else (name, value) for name, value, secret in fields]
    return [*found, (b"x-long", b"v" * long)] if long else found


def play_call(wire: Wire, call: Call, step: int) -> None:
    """Play one call, both ends taking turns, with a ping, credit and new SETTINGS thrown in."""
    client, runtime = wire.client.h2, wire.runtime.h2
    stream = client.get_next_available_stream_id()
    head = [*HEAD, (b":path", call.path)]
    weight = 7 if step % 2 == 1 and not call.long else None  # h2 cannot split a block that has a priority
    client.send_headers(stream, [*head, *marked(call.request, call.long)], priority_weight=weight)
    for at in range(0, len(call.body), 16_000):
        client.send_data(stream, call.body[at : at + 16_000], pad_length=call.pad)
    if call.ending == "trailers":
        client.send_headers(stream, [(b"x-trailer", b"t")], end_stream=True)
    elif call.ending != "late":
        client.end_stream(stream)
    client.ping(b"%08d" % step)
    wire.settle()
    runtime.increment_flow_control_window(1_000 + step, stream)
    runtime.increment_flow_control_window(len(call.body) + 1)
    runtime.send_headers(stream, [(b":status", b"200"), *marked(call.reply, call.long)])
    for at in range(0, len(call.body), 16_000):
        runtime.send_data(stream, call.body[at : at + 16_000], pad_length=call.pad)
    if call.ending == "reset":
        runtime.reset_stream(stream, 5)
    else:
        runtime.send_headers(stream, [(b"grpc-status", b"0")], end_stream=True)
    wire.settle()
    if call.ending == "late":
        client.reset_stream(stream, 8)
    client.increment_flow_control_window(len(call.body) + 1)
    client.update_settings({0x4: 70_000 + step})
    runtime.ping(b"r%07d" % step)
    wire.settle()


def played(calls: list[Call], sizes: list[int]) -> Wire:
    wire = Wire(sizes)
    wire.settle()
    for step, call in enumerate(calls):
        play_call(wire, call, step)
    return wire


def expected(call: Call) -> tuple[Seen, Seen]:
    """Return what the runtime and the client are to see of a call."""
    head = [*HEAD, (b":path", call.path)]
    fields = [(bytes(name), bytes(value)) for name, value in marked(call.request, call.long)]
    reply = [(bytes(name), bytes(value)) for name, value in marked(call.reply, call.long)]
    asked = Seen([[*head, *fields]], call.body, "RST_STREAM 8" if call.ending == "late" else "END_STREAM")
    end = "RST_STREAM 5" if call.ending == "reset" else "END_STREAM"
    answered = Seen([[(b":status", b"200"), *reply]], call.body, end)
    if call.ending == "trailers":
        asked.blocks.append([(b"x-trailer", b"t")])
    if call.ending != "reset":
        answered.blocks.append([(b"grpc-status", b"0")])
    return asked, answered


def without_pings(data: bytearray) -> bytes:
    """Return all frames but PINGs, which are acknowledged as it comes."""
    return b"".join(frame.wire() for frame in split(bytes(data).removeprefix(PREFACE)) if frame.kind != 6)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(CALL, min_size=1, max_size=4), SIZES)
def test_each_end_sees_what_the_other_sent_in_any_split(calls: list[Call], sizes: list[int]) -> None:
    """Also before the ACK of SETTINGS, when h2 indexes what it sends; behind it conversations compare each byte."""
    wire, whole = played(calls, sizes), played(calls, [2**20])
    for stream, call in zip(range(1, 2 * len(calls), 2), calls, strict=True):
        assert (wire.runtime.seen[stream], wire.client.seen[stream]) == expected(call)
    for name, out in whole.out.items():
        assert without_pings(out) == without_pings(wire.out[name])
