"""A runtime whose answers are broken, by a number always in the same way, and what a client may see of them.

That is a part, as the connection may end anywhere, but nothing that the runtime did not send.
"""

import asyncio
import random
import re
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from hpack import Decoder, HPACKError

from runtimeproxy.wire.http2 import FrameBuffer
from tests.cri import peer
from tests.docker.client import chunked
from tests.fakes import cri_pb2
from tests.system import hostile
from tests.system.cri_front import CRI
from tests.system.docker_front import DOCKER
from tests.system.fronts import Front

MOST_CHANGES = 4
AT_ONCE_BYTES = 1 << 16
CONTAINER_ID = "c" * 64
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Call:
    """A call as bytes: the request, what of it the runtime waits for, and good answers."""

    front: Front
    request: bytes
    whole: Callable[[bytes], bool]
    answers: tuple[bytes, ...]
    good: bytes
    """What is in a good answer as the client sees it."""

    def answer(self, number: int) -> bytes:
        return mutated(self.answers[number % len(self.answers)], random.Random(number))


def mutated(answer: bytes, chance: random.Random) -> bytes:
    data = bytearray(answer)
    for _ in range(chance.randint(1, MOST_CHANGES)):
        at = chance.randrange(len(data) + 1)
        end = min(at + chance.choice((1, 2, 9, 100)), len(data))
        piece = data[at:end]
        flipped = bytes(byte ^ 1 << chance.randrange(8) for byte in piece)
        inserted = chance.choice((chance.randbytes(9), b"\r\n", b"\0" * 9, b"\xff" * 9))
        put = {
            "flip": flipped,
            "replace": chance.randbytes(len(piece)),
            "insert": inserted + piece,
            "double": piece * 2,
        }
        change = chance.choice(("flip", "remove", "move", "cut", *put))
        data[at : None if change == "cut" else end] = put.get(change, b"")
        data[:0] = piece if change == "move" else b""
    return bytes(data)


def _cri_whole(data: bytes) -> bool:
    return any(kind in (0, 1) and flags & 0x1 for kind, flags, _, _ in FrameBuffer().feed(data[len(peer.PREFACE) :]))


def _docker_whole(data: bytes) -> bool:
    head, found, body = data.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    return bool(found) and len(body) >= int(length[1] if length else 0)


def _http(status: str, body: bytes, *lines: str) -> bytes:
    head = [f"HTTP/1.1 {status}", "Content-Type: application/json", *lines]
    return "\r\n".join([*head, "", ""]).encode() + body


def _docker_answers(status: str, body: bytes) -> tuple[bytes, ...]:
    return (
        _http(status, body, f"Content-Length: {len(body)}"),
        _http(status, chunked(body), "Transfer-Encoding: chunked"),
        _http(status, body, "Connection: close"),
        _http("101 UPGRADED", body, "Connection: Upgrade", "Upgrade: tcp"),
    )


def calls() -> dict[str, Call]:
    """Return one call that passes and one that is held, of each front."""
    cri, docker = CRI.caller("nowhere"), DOCKER.caller("nowhere")
    created = cri_pb2.CreateContainerResponse(container_id=CONTAINER_ID).SerializeToString()
    body = f'{{"Id":"{CONTAINER_ID}","Warnings":[]}}\n'.encode()

    def of_cri(fields: peer.Fields, request: bytes, message: bytes) -> Call:
        sent = hostile.GREETING + peer.Headers(1, fields).wire() + peer.Data(1, peer.grpc(request), end=True).wire()
        answer = peer.Settings().wire() + peer.Ack().wire() + hostile.answer(1, message)
        return Call(CRI, sent, _cri_whole, (answer,), peer.grpc(message))

    def of_docker(request: bytes, status: str, body: bytes) -> Call:
        return Call(DOCKER, request, _docker_whole, _docker_answers(status, body), body.strip())

    return {
        "cri": of_cri(peer.VERSION, b"", b"\x0a\x010"),
        "cri-held": of_cri(peer.CREATE, cri.create_request("pod"), created),
        "docker": of_docker(docker.request("ping"), "200 OK", b"OK"),
        "docker-held": of_docker(docker.create_request("pod"), "201 Created", body),
    }


class BrokenRuntime:
    """Answers each connection's first request, and closes; ``answer`` says with what."""

    def __init__(self, path: Path, call: Call) -> None:
        self.answer = call.answers[0]
        self._path = path
        self._whole = call.whole

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["BrokenRuntime"]:
        async with await asyncio.start_unix_server(self._serve, self._path):
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = b""
        with suppress(OSError):
            while not self._whole(data) and (more := await reader.read(AT_ONCE_BYTES)):
                data += more
            if self._whole(data):
                writer.write(self.answer)
                await writer.drain()
        writer.close()


async def ask(path: Path, request: bytes) -> bytes:
    """Send a request on a connection of its own; return all that comes until the end."""
    loop, got = asyncio.get_running_loop(), bytearray()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, str(path))
        with suppress(OSError):
            await loop.sock_sendall(sock, request)
            while data := await loop.sock_recv(sock, AT_ONCE_BYTES):
                got += data
    return bytes(got)


# ---- what a client may see of a broken answer: the runtime's own bytes as far as they came

_DATA, _HEADERS, _RESET, _PUSH_PROMISE, _CONTINUATION = 0x0, 0x1, 0x3, 0x5, 0x9
_END_STREAM, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x4, 0x8, 0x20
_REFUSED_STREAM = (7).to_bytes(4, "big")
"""How the proxy tells that a stream is above the last id of the runtime's GOAWAY."""
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


def _cri_passed_on(sent: bytes, came: bytes) -> bool:
    """Tell whether all messages, headers and ends of streams that came were sent."""
    there = _streams(sent)
    return all(there[number].has(stream) for number, stream in _streams(came).items())


PASSED_ON: Mapping[str, Callable[[bytes, bytes], bool]] = {"cri": _cri_passed_on, "docker": bytes.startswith}
"""By front: takes what was sent, and what came of it; tells whether it is the runtime's own."""


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
