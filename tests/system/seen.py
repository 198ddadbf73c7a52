"""What a client may see of an answer that may be broken: the runtime's own bytes as far as they came.

A part is enough, as the connection may end anywhere; what the runtime did not send is never enough.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from hpack import Decoder, HPACKError

from runtimeproxy.cri.image import AWAY
from tests.cri.peer import block, refusal

_DATA, _HEADERS, _RESET, _PUSH_PROMISE, _CONTINUATION = 0x0, 0x1, 0x3, 0x5, 0x9
_END_STREAM, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x4, 0x8, 0x20
_REFUSED_STREAM = (7).to_bytes(4, "big")
"""How the proxy tells that a stream is above the last id of the runtime's GOAWAY."""
_CANCEL = (8).to_bytes(4, "big")
_SIZE_UPDATE = b"\x20"
"""A dynamic table of no bytes: the proxy may put that before a block (relay-rules A1)."""


@dataclass
class Stream:
    """What came on an HTTP/2 stream; a header block is its bytes and, if they can be decoded, its fields."""

    data: bytearray = field(default_factory=bytearray)
    blocks: list[frozenset[object]] = field(default_factory=list)
    resets: set[bytes] = field(default_factory=set)
    ended: bool = False

    def has(self, part: "Stream") -> bool:
        """Tell whether nothing is in ``part`` that is not here, in the same order."""
        blocks = iter(self.blocks)
        return (
            self.data.startswith(part.data)
            and all(any(block & mine for mine in blocks) for block in part.blocks)
            and part.resets <= self.resets | {_REFUSED_STREAM}
            and part.ended <= self.ended
        )


def cri_passed_on(sent: bytes, came: bytes) -> bool:
    """Tell whether all messages, headers and ends of streams that came were sent."""
    there = _streams(sent)
    return all(there[number].has(stream) for number, stream in _streams(came).items())


def image_passed_on(sent: bytes, came: bytes) -> bool:
    """Tell the same of an image service's stream 1, which the proxy ends with a refusal, or a reset in an answer."""
    there, here = _streams(sent), _streams(came)
    if len(here[1].blocks) == 1 and here[1].blocks[0] & _REFUSED:
        here[1].blocks, here[1].ended = [], False
    here[1].resets -= {_CANCEL} | there[1].resets
    return all(there[number].has(stream) for number, stream in here.items())


def docker_passed_on(sent: bytes, came: bytes) -> bool:
    """Tell whether what came is how the answer begins."""
    return sent.startswith(came)


PASSED_ON: Mapping[str, Callable[[bytes, bytes], bool]] = {"cri": cri_passed_on, "docker": docker_passed_on}


def _streams(data: bytes) -> defaultdict[int, Stream]:
    streams: defaultdict[int, Stream] = defaultdict(Stream)
    decoder, fragments = Decoder(), b""
    for kind, flags, number, payload in _frames(data):
        stream = streams[number]
        if kind == _DATA:
            stream.data += payload
        elif kind == _RESET:
            stream.resets.add(payload)
        elif kind in (_HEADERS, _PUSH_PROMISE, _CONTINUATION):
            fragments += _fragment(kind, flags, payload)
            if flags & _END_HEADERS:
                stream.blocks.append(_forms(decoder, fragments))
                fragments = b""
        stream.ended |= kind in (_DATA, _HEADERS) and bool(flags & _END_STREAM)
    return streams


def _frames(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield type, flags, stream and payload of each frame; of DATA that is cut, what is there."""
    at = 0
    while len(data) - at >= 9:
        kind, flags, end = data[at + 3], data[at + 4], at + 9 + int.from_bytes(data[at : at + 3], "big")
        if end <= len(data) or kind == _DATA:
            yield kind, flags, int.from_bytes(data[at + 5 : at + 9], "big") & 0x7FFF_FFFF, data[at + 9 : end]
        at = end


def _fragment(kind: int, flags: int, payload: bytes) -> bytes:
    """Return a frame's part of a header block (RFC 9113, 6.2, 6.6, 6.10)."""
    if kind == _CONTINUATION:
        return payload
    if flags & _PADDED and payload:
        payload = payload[1 : len(payload) - payload[0]]
    if kind == _PUSH_PROMISE:
        return payload[4:]
    return payload[5:] if flags & _PRIORITY else payload


def _forms(decoder: Decoder, block: bytes) -> frozenset[object]:
    plain = block.removeprefix(_SIZE_UPDATE)
    try:
        return frozenset({plain, tuple(map(tuple, decoder.decode(block, raw=True)))})
    except HPACKError:
        return frozenset({plain})


_REFUSED = _forms(Decoder(), block(refusal(14, AWAY.encode())))
