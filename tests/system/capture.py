"""What passed on both sides of the proxy, read by hyperframe and hpack, and not by what is being judged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import hpack
from hyperframe.frame import ContinuationFrame, DataFrame, Frame, HeadersFrame, RstStreamFrame

from tests.fakes.faults import Connection, FaultRelay

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@dataclass(slots=True)
class Half:
    """One direction of a stream: its header lists, its DATA, how it ended."""

    lists: list[list[tuple[bytes, bytes]]] = field(default_factory=list)
    data: bytes = b""
    end: str = ""
    reset: int | None = None

    @property
    def fields(self) -> dict[bytes, bytes]:
        return {name: value for fields in self.lists for name, value in fields}


def read(stream_bytes: bytes) -> dict[int, Half]:
    """Read one direction of a connection, up to the last whole frame."""
    view = memoryview(stream_bytes.removeprefix(PREFACE))
    decoder, halves, block = hpack.Decoder(), dict[int, Half](), b""
    while len(view) >= 9:
        frame, length = Frame.parse_frame_header(view[:9])
        if len(view) < 9 + length:
            break
        frame.parse_body(view[9 : 9 + length])
        view = view[9 + length :]
        half = halves.setdefault(frame.stream_id, Half()) if frame.stream_id else Half()
        if isinstance(frame, (HeadersFrame, ContinuationFrame)):
            block += frame.data
        if "END_HEADERS" in frame.flags:
            half.lists.append([(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)])
            block = b""
        if isinstance(frame, DataFrame):
            half.data += frame.data
        if isinstance(frame, RstStreamFrame):
            half.reset = frame.error_code
        if "END_STREAM" in frame.flags:
            half.end = "DATA" if isinstance(frame, DataFrame) else "HEADERS"
    return halves


Halves = Mapping[tuple[int, int], Half]
"""By the numbers of connection and stream."""


@dataclass(slots=True)
class Sides:
    """The streams of all connections as the client's side and the runtime's saw them."""

    requests: tuple[Halves, Halves]
    replies: tuple[Halves, Halves]

    @property
    def equal(self) -> bool:
        return all(_used(ours) == _used(theirs) for ours, theirs in (self.requests, self.replies))


def _used(halves: Halves) -> Halves:
    """Leave out streams that had nothing but window updates: windows are not what is compared."""
    return {key: half for key, half in halves.items() if half != Half()}


class Capture:
    """A relay before the proxy and one behind it; ``socket`` is the client's, the runtime listens on ``runtime``."""

    def __init__(self, folder: Path, proxy: Path, to_runtime: Path) -> None:
        self.socket = folder / "client.sock"
        self.runtime = folder / "real.sock"
        self.before = FaultRelay(str(self.socket), str(proxy))
        self.behind = FaultRelay(str(to_runtime), str(self.runtime))

    async def __aenter__(self) -> Self:
        await self.before.start()
        await self.behind.start()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.before.stop()
        await self.behind.stop()

    def sides(self) -> Sides:
        """Read what has passed until now; what the proxy asked the runtime on its own connections is left out."""
        pairs = [each for each in self.behind.connections if not _is_the_proxys(each)]
        both = (self.before.connections, pairs)
        requests, replies = ([_streams(side, forward) for side in both] for forward in (True, False))
        return Sides((requests[0], requests[1]), (replies[0], replies[1]))


def _is_the_proxys(connection: Connection) -> bool:
    """Tell whether the proxy asks by itself on a connection: on a busy machine it may be the first."""
    halves = read(bytes(connection.to_backend)).values()
    return any(half.fields.get(b"user-agent") == b"runtimeproxy" for half in halves)


def _streams(connections: Sequence[Connection], forward: bool) -> Halves:
    return {
        (number, stream): half
        for number, connection in enumerate(connections)
        for stream, half in read(bytes(connection.to_backend if forward else connection.to_client)).items()
    }
