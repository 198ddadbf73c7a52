"""Generators of a case's calls: a kubelet, nghttp2's h2load, a long transfer; and the times of their calls.

A run in which any call failed raises DemoError.
"""

import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import NamedTuple

from scripts.benchmark.cases import CRI
from scripts.benchmark.ends import Client
from scripts.demonstration.processes import DemoError

CHUNK_BYTES = 32 << 10
"""The chunk size of Go's io.Copy, by which Docker's clients and the daemon stream."""
BUFFER_BYTES = 1 << 20
BLOCK = (b"%x\r\n%b\r\n" % (CHUNK_BYTES, bytes(CHUNK_BYTES))) * (BUFFER_BYTES // CHUNK_BYTES)
"""BUFFER_BYTES zero bytes in chunks."""
LAST_CHUNK = b"0\r\n\r\n"
SECONDS = 1200.0
CLIENT = "Docker-Client/20.10.24 (linux)"


class Run(NamedTuple):
    """The calls of one or more runs: the microseconds of each, and the seconds of all together."""

    microseconds: Sequence[int] = ()
    seconds: float = 0.0

    def plus(self, other: "Run") -> "Run":
        return Run((*self.microseconds, *other.microseconds), self.seconds + other.seconds)

    def percentile(self, percent: float) -> int:
        """Return the microseconds that ``percent`` of the calls did not exceed (nearest rank)."""
        return sorted(self.microseconds)[max(ceil(len(self.microseconds) * percent / 100), 1) - 1]


class Kubelet:
    """One call after the other, with a pause before each."""

    def __init__(self, client: Client, route: str, pause: float = 0.0) -> None:
        self._client, self._pause = client, pause
        self._call = client.prepare(route)

    def run(self, calls: int) -> Run:
        began, durations = time.perf_counter(), []
        for _ in range(calls):
            if self._pause:
                self._client.flush()
                time.sleep(self._pause)
            start = time.perf_counter_ns()
            self._call()
            durations.append((time.perf_counter_ns() - start) // 1000)
        return Run(durations, time.perf_counter() - began)


@dataclass(frozen=True, slots=True)
class H2load:
    """Calls without content to a socket, ``concurrency`` at a time: streams of so many connections, or in Docker mode
    one connection each. The paths of its files begin with ``files``."""

    mode: str
    target: str
    path: Path
    files: Path
    concurrency: int = 1
    connections: int = 1

    def command(self, calls: int) -> list[str]:
        concurrency = min(self.concurrency, calls)
        if self.mode == CRI:
            # Windows of 1 GiB, so that the client never makes the sender wait.
            how = [
                *(f"--clients={self.connections}", f"--max-concurrent-streams={concurrency // self.connections}"),
                *("--window-bits=30", "--connection-window-bits=30", f"--data={self.files}.body"),
                *("--header=content-type: application/grpc", "--header=te: trailers", "--header=grpc-timeout: 1200S"),
            ]
        else:
            how = ["--h1", f"--clients={concurrency}", f"--header=user-agent: {CLIENT}"]
        uri = f"--base-uri=unix:{self.path}"
        return ["h2load", f"--requests={calls}", f"--log-file={self.files}.log", *how, uri, f"http://h{self.target}"]

    def run(self, calls: int) -> Run:
        log = Path(f"{self.files}.log")
        log.unlink(missing_ok=True)  # h2load would append to it
        Path(f"{self.files}.body").write_bytes(bytes(5))  # an empty gRPC message
        try:
            done = subprocess.run(self.command(calls), capture_output=True, text=True, timeout=SECONDS)
        except FileNotFoundError:
            raise DemoError("h2load is missing: apt-get install nghttp2-client") from None
        except subprocess.TimeoutExpired:
            raise DemoError(f"{calls} calls of {self.target} did not end in {SECONDS:.0f} s") from None
        if done.returncode:
            raise DemoError(f"h2load ended with exit code {done.returncode}: {done.stderr[-500:]}")
        # Columns: start in microseconds, HTTP status (-1 if the call failed), duration in microseconds. In CRI mode
        # only the runtime's count shows whether calls succeeded.
        rows = [tuple(map(int, line.split("\t")[:3])) for line in log.read_text().splitlines()]
        if [status for _, status, _ in rows] != [200] * calls:
            raise DemoError(f"h2load made {len(rows)} requests of {calls}, or not all succeeded: {rows[-1:]}")
        starts, _, durations = zip(*rows, strict=True)
        return Run(durations, (max(map(sum, zip(starts, durations, strict=True))) - min(starts)) / 1e6)


@dataclass(frozen=True, slots=True)
class Transfer:
    """``size`` bytes, a multiple of BUFFER_BYTES, in one call on a connection of its own. A GET is an export from the
    daemon; a POST is an import, whose reply contains the number of received bytes, including framing."""

    method: str
    target: str
    path: Path
    size: int

    def run(self, calls: int) -> Run:
        durations = []
        for _ in range(calls):
            start = time.perf_counter()
            try:
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(SECONDS)
                    connection.connect(str(self.path))
                    self._transfer(connection)
            except OSError as error:
                raise self._failure(str(error)) from None
            durations.append(time.perf_counter() - start)
        return Run([round(seconds * 1e6) for seconds in durations], sum(durations))

    def _transfer(self, connection: socket.socket) -> None:
        is_import = self.method == "POST"
        body = ["Content-Type: text/plain", "Transfer-Encoding: chunked"] if is_import else []
        head = [f"{self.method} {self.target} HTTP/1.1", "Host: docker", f"User-Agent: {CLIENT}", *body, "", ""]
        connection.sendall("\r\n".join(head).encode())
        blocks = self.size // BUFFER_BYTES
        if is_import:
            for _ in range(blocks):
                connection.sendall(BLOCK)
            connection.sendall(LAST_CHUNK)
        count, tail = self._reply(connection)
        if is_import and import_result(blocks * len(BLOCK) + len(LAST_CHUNK)) not in tail:
            raise self._failure(f"the daemon's answer is {tail!r}")
        if not is_import and count < self.size:
            raise self._failure(f"only {count} bytes were received")

    def _reply(self, connection: socket.socket) -> tuple[int, bytes]:
        """Read a chunked reply to its end; return its length including head and framing, and its last bytes."""
        buffer = memoryview(bytearray(BUFFER_BYTES))
        count, tail = 0, b""
        while not tail.endswith(LAST_CHUNK):
            got = connection.recv_into(buffer)
            if not got:
                raise self._failure(f"the reply ended after {count} bytes")
            if not count and not bytes(buffer[:got]).startswith(b"HTTP/1.1 200 "):
                raise self._failure(f"the reply is {bytes(buffer[:got])[:500]!r}")
            count += got
            tail = (tail + bytes(buffer[max(got - 100, 0) : got]))[-100:]
        return count, tail

    def _failure(self, reason: str) -> DemoError:
        return DemoError(f"{self.method} of {self.size} bytes: {reason}")


def import_result(count: int) -> bytes:
    """Return the answer of the bench's daemon at the end of an import."""
    return b'{"status":"%d bytes"}\n' % count
