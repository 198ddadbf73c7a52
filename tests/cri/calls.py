"""Calls as frames: any method and messages, in every way that HTTP/2 lets a client and a runtime frame them.

Owns the strategies for calls.
Must not know: the proxy, which calls are made at once.
Invariant: each side's frames are what RFC 9113 and gRPC allow; a request is whole when it has ended.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, product, repeat
from zlib import compressobj

from hpack import NeverIndexedHeaderTuple
from hypothesis import strategies as st

from tests.cri.messages import METHODS, Method, messages
from tests.cri.peer import REPLY, TRAILERS, Fields, Raw, block, grpc, refusal, request

DATA, HEADERS, RESET, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 6, 8, 9
END_STREAM, END_HEADERS, PADDED, PRIORITY = 0x1, 0x4, 0x8, 0x20
FRAME_BYTES = 16_384

Unit = tuple[Raw, ...]
"""Frames that nothing may stand between; their stream is put in when the call has one."""

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
"""More fields, the shape of the header block, frames behind it, padding of the first DATA: one draw, as each costs."""
PIECES = st.lists(st.integers(0, 40) | st.just(FRAME_BYTES), max_size=3)
REQUEST_ENDS = st.sampled_from(("with data", "with data", "late", "with trailers"))
REPLY_ENDS = st.sampled_from(("agreed", "agreed", "agreed", "failed", "failed at once", "reset", "without trailers"))
FAILED = refusal(5, b"not found: %C3%A9")
encoded = cache(block)


def gzip(message: bytes) -> bytes:
    packer = compressobj(1, wbits=31)
    return packer.compress(message) + packer.flush()


def header_unit(fields: Fields, shape: str = "plain", end: bool = False) -> Unit:
    """Return a header block in one of the shapes that frames give it."""
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
    """Cut a body into DATA frames; only the first one is padded."""
    for size in chain(sizes, repeat(FRAME_BYTES)):
        size -= 0 if pad is None else min(size, pad + 1)
        piece, body = body[:size], body[size:]
        flags = END_STREAM * (end and not body)
        if pad is None:
            yield (Raw(DATA, flags, 0, piece),)
        else:
            yield (Raw(DATA, flags | PADDED, 0, bytes((pad,)) + piece + bytes(pad)),)
        pad = None
        if not body:
            return


@dataclass(frozen=True)
class Call:
    """A call: what each side sends of it."""

    method: Method
    asked: tuple[Unit, ...]
    answered: tuple[Unit, ...]


def plain_call(method: Method, asked: bytes, answered: bytes) -> Call:
    request_units = header_unit(request(method.path)), *data_units(grpc(asked), (), None, True)
    return Call(
        method,
        request_units,
        (header_unit(REPLY), *data_units(grpc(answered), (), None, False), header_unit(TRAILERS, end=True)),
    )


@st.composite
def calls(draw: st.DrawFn, methods: tuple[Method, ...] = METHODS) -> Call:
    method = draw(st.sampled_from(methods))
    message, compressed = draw(messages(method.request)), draw(st.sampled_from((False,) * 7 + (True,)))
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
    replies = draw(st.lists(messages(method.reply), max_size=3)) if method.streams else [draw(messages(method.reply))]
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
