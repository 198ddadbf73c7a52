"""What a hostile client sends in either mode: one row a kind (fault matrix X1 and X2).

Owns the bytes of each kind, and how a client that sends them behaves.
Must not know: sockets, what is measured.
Invariant: an attack goes on for as long as nobody ends it: its bytes are sent again and again, each time on a new
connection.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from scripts.benchmark.cases import CRI, DOCKER
from tests.system.attacks import BY_CLIENT
from tests.system.hostile import pieces

FRAMES = 30_000
MOST_BYTES = 4 << 20
"""Of one connection: it has been ended long before, or it is one of several that go on."""


@dataclass(frozen=True, slots=True)
class Attack:
    """Makes the bytes of a connection; ``connections`` are open at a time and take turns in sending ``step`` bytes.

    ``a_second`` bounds the steps; None: as fast as they are taken.
    """

    make: Callable[[], bytes]
    connections: int = 1
    step: int = 1 << 16
    a_second: int | None = None


def joined(parts: Iterable[bytes]) -> bytes:
    """Join parts up to the most bytes."""
    whole = bytearray()
    for part in parts:
        whole += part
        if len(whole) >= MOST_BYTES:
            break
    return bytes(whole)


def _by_frames(name: str) -> Attack:
    attack = BY_CLIENT[name]
    return Attack(lambda: joined([attack.greeting, *pieces(attack.frames(FRAMES))]))


def _repeated(again: bytes, before: bytes = b"") -> Attack:
    return Attack(lambda: before + again * ((MOST_BYTES - len(before)) // len(again)))


PING = b"GET /_ping HTTP/1.1\r\nHost: h\r\n\r\n"
_UNFINISHED = PING.removesuffix(b"\r\n")
_CHUNKED = b" HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
_IMPORT = b"POST /images/create?fromSrc=-" + _CHUNKED

ATTACKS: Mapping[str, Mapping[str, Attack]] = {
    CRI: {name: _by_frames(name) for name in BY_CLIENT},
    DOCKER: {
        "huge heads": _repeated(b"x", _UNFINISHED + b"X: "),
        "heads of many fields": Attack(lambda: (_UNFINISHED + b"a:b\r\n" * 200_000 + b"\r\n") * 4),
        "heads that are none": Attack(lambda: b"GET /_ping HTTP/1.1\r\nHost : h\r\n\r\n"),
        "chunks of a byte": _repeated(b"1\r\nx\r\n", _IMPORT),
        "chunks of a byte, held": _repeated(b"1\r\nx\r\n", b"POST /containers/create" + _CHUNKED),
        "chunk extensions": _repeated(b"1;a=b\r\nx\r\n", _IMPORT),
        "small chunks behind a long one": _repeated(
            b"40000\r\n" + b"x" * 0x40000 + b"\r\n" + b"1;a=b\r\nx\r\n" * 20_000, _IMPORT
        ),
        "trailers": _repeated(b"a:b\r\n", _IMPORT + b"0\r\n"),
        "pipelined pings": _repeated(PING),
        "pipelined creates": _repeated(
            b"POST /containers/create HTTP/1.1\r\nHost: h\r\n"
            b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        ),
        "slow heads": Attack(lambda: _UNFINISHED + b"X: " + b"x" * 1_000, connections=200, step=1, a_second=2_000),
    },
}
"""By mode and name."""
