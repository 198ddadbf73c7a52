"""The client of exports and imports: one long chunked stream through a socket, with as little work as there can be.

Owns the two transfers, and what makes one whole.
Must not know: who listens, what is compared.
Invariant: a transfer that is not whole is no measurement; it raises.
"""

import socket
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from scripts.benchmark.h2load import Run
from scripts.demonstration.processes import DemoError

CHUNK_BYTES = 32 << 10
"""The chunks of Go's io.Copy, by which Docker's clients and the daemon stream."""
BUFFER_BYTES = 1 << 20
LAST_CHUNK = b"0\r\n\r\n"
TAIL_BYTES = 100
TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Transfer(ABC):
    """``size`` zero bytes, a multiple of BUFFER_BYTES, in one call on a connection of its own to ``path``."""

    path: Path
    target: str
    headers: tuple[str, ...]
    size: int

    def run(self, calls: int) -> Run:
        """Make transfers, one after the other. Raises DemoError if one is not whole."""
        took = [self._timed() for _ in range(calls)]
        return Run(tuple(round(seconds * 1e6) for seconds in took), sum(took))

    def _timed(self) -> float:
        start = time.perf_counter()
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(TIMEOUT_SECONDS)
                connection.connect(str(self.path))
                self._transfer(connection)
        except OSError as error:
            raise self._broken(str(error)) from None
        return time.perf_counter() - start

    @abstractmethod
    def _transfer(self, connection: socket.socket) -> None:
        """Make the transfer. Raises OSError, DemoError."""

    def _head(self, method: str, *more: str) -> bytes:
        lines = [f"{method} {self.target} HTTP/1.1", "Host: docker", *self.headers, *more]
        return "\r\n".join([*lines, "", ""]).encode()

    def _read_reply(self, connection: socket.socket) -> tuple[int, bytes]:
        """Read a chunked reply to its end; return how many bytes it has with head and framing, and the last ones."""
        buffer = memoryview(bytearray(BUFFER_BYTES))
        count, tail = 0, b""
        while not tail.endswith(LAST_CHUNK):
            got = connection.recv_into(buffer)
            if not got:
                raise self._broken(f"the reply ended after {count} bytes")
            if not count and not bytes(buffer[:got]).startswith(b"HTTP/1.1 200 "):
                raise self._broken(f"the reply is {bytes(buffer[:got])[:500]!r}")
            count += got
            tail = (tail + bytes(buffer[max(got - TAIL_BYTES, 0) : got]))[-TAIL_BYTES:]
        return count, tail

    def _broken(self, reason: str) -> DemoError:
        return DemoError(f"{type(self).__name__.lower()} of {self.size} bytes: {reason}")


class Export(Transfer):
    """From the daemon to the client."""

    __slots__ = ()

    def _transfer(self, connection: socket.socket) -> None:
        connection.sendall(self._head("GET"))
        count, _ = self._read_reply(connection)
        if count < self.size:
            raise self._broken(f"only {count} bytes came")


class Import(Transfer):
    """From the client to the daemon, whose reply tells how many bytes came with their framing."""

    __slots__ = ()

    def _transfer(self, connection: socket.socket) -> None:
        chunk = b"%x\r\n%b\r\n" % (CHUNK_BYTES, bytes(CHUNK_BYTES))
        block = chunk * (BUFFER_BYTES // CHUNK_BYTES)
        blocks = self.size // BUFFER_BYTES
        connection.sendall(self._head("POST", "Content-Type: text/plain", "Transfer-Encoding: chunked"))
        for _ in range(blocks):
            connection.sendall(block)
        connection.sendall(LAST_CHUNK)
        _, tail = self._read_reply(connection)
        if imported(blocks * len(block) + len(LAST_CHUNK)) not in tail:
            raise self._broken(f"the daemon says {tail!r}")


def imported(count: int) -> bytes:
    """Return what the bench's daemon says at the end of an import."""
    return b'{"status":"%d bytes"}\n' % count
