"""The generators of a case's calls: a kubelet, nghttp2's h2load, a long transfer, execs; and the times of their calls.

A run in which any call failed raises DemoError.
"""

import asyncio
import json
import socket
import subprocess
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import NamedTuple, Protocol

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
_DOCKER_HEAD = (f"user-agent: {CLIENT}", "content-type: application/json")
_CRI_HEAD = ("content-type: application/grpc", "te: trailers", "grpc-timeout: 1200S")


class Run(NamedTuple):
    """The calls of one or more runs: the microseconds of each, and the seconds of all together. ``meanwhile`` is how
    many calls ended while each one was in progress, including itself; it may be empty."""

    microseconds: Sequence[int] = ()
    seconds: float = 0.0
    meanwhile: Sequence[int] = ()

    def plus(self, other: "Run") -> "Run":
        return Run(
            (*self.microseconds, *other.microseconds),
            self.seconds + other.seconds,
            (*self.meanwhile, *other.meanwhile),
        )

    def percentile(self, percent: float) -> int:
        """Return the microseconds that ``percent`` of the calls did not exceed (nearest rank)."""
        return sorted(self.microseconds)[max(ceil(len(self.microseconds) * percent / 100), 1) - 1]


class Load(Protocol):
    """Interface of a generator of calls, for a case on a way."""

    def run(self, calls: int) -> Run:
        """Called per portion: make so many calls and return their times. Raises DemoError if one fails."""


class Kubelet:
    """One call after the other, with a pause before each."""

    def __init__(self, client: Client, route: str, pause: float = 0.0) -> None:
        self._client, self._pause = client, pause
        self._call = client.prepare(route)

    def run(self, calls: int) -> Run:
        began, took = time.perf_counter(), []
        for _ in range(calls):
            if self._pause:
                self._client.flush()
                time.sleep(self._pause)
            start = time.perf_counter_ns()
            self._call()
            took.append((time.perf_counter_ns() - start) // 1000)
        return Run(took, time.perf_counter() - began)


def read_log(text: str, calls: int, status: int) -> Run:
    """Return the run in h2load's log. Its columns are tab-separated: start in microseconds, HTTP status (-1 = failed),
    duration in microseconds. Raises DemoError unless it has ``calls`` requests with the status."""
    rows = [tuple(map(int, line.split("\t")[:3])) for line in text.splitlines()]
    good = sum(found == status for _, found, _ in rows)
    if not good == len(rows) == calls:
        raise DemoError(f"h2load made {len(rows)} requests of {calls}, {good} of them with status {status}")
    first = min(start for start, _, _ in rows)
    ends = sorted(start + took for start, _, took in rows)
    meanwhile = [bisect_right(ends, start + took) - bisect_left(ends, start) for start, _, took in rows]
    return Run([took for *_, took in rows], (ends[-1] - first) / 1e6, meanwhile)


@dataclass(frozen=True, slots=True)
class H2load:
    """Calls to a socket, ``concurrency`` at a time: streams of so many connections, or in Docker mode one each.

    The paths of its files begin with ``files``. In CRI mode the runtime's count shows whether calls succeeded: h2load
    sees only the HTTP status.
    """

    mode: str
    target: str
    path: Path
    files: Path
    body: bytes = b""
    concurrency: int = 1
    connections: int = 1
    status: int = 200

    def command(self, calls: int) -> list[str]:
        at_once = min(self.concurrency, calls)
        if self.mode == CRI:
            # Windows of 1 GiB, so that the client never makes the sender wait.
            how = [f"--clients={self.connections}", f"--max-concurrent-streams={max(at_once // self.connections, 1)}"]
            how += ["--window-bits=30", "--connection-window-bits=30"]
        else:
            how = ["--h1", f"--clients={at_once}", "--max-concurrent-streams=1"]
        return [
            *("h2load", f"--requests={calls}", *how, f"--log-file={self.files}.log"),
            *(f"--header={header}" for header in (_CRI_HEAD if self.mode == CRI else _DOCKER_HEAD)),
            *([f"--data={self.files}.body"] if self.body else []),
            *(f"--base-uri=unix:{self.path}", f"http://localhost{self.target}"),
        ]

    def run(self, calls: int) -> Run:
        log = Path(f"{self.files}.log")
        log.unlink(missing_ok=True)  # h2load would append to it
        Path(f"{self.files}.body").write_bytes(self.body)
        try:
            done = subprocess.run(self.command(calls), capture_output=True, text=True, timeout=SECONDS)
        except FileNotFoundError:
            raise DemoError("h2load is missing: apt-get install nghttp2-client") from None
        except subprocess.TimeoutExpired:
            raise DemoError(f"{calls} calls of {self.target} did not end in {SECONDS:.0f} s") from None
        if done.returncode:
            raise DemoError(f"h2load ended with exit code {done.returncode}: {done.stderr[-500:]}")
        return read_log(log.read_text(), calls, self.status)


@dataclass(frozen=True, slots=True)
class Transfer:
    """``size`` bytes, a multiple of BUFFER_BYTES, in one call on a connection of its own. A GET is an export from the
    daemon; a POST is an import, whose reply says how many bytes came, including framing."""

    method: str
    target: str
    path: Path
    size: int

    def run(self, calls: int) -> Run:
        took = []
        for _ in range(calls):
            start = time.perf_counter()
            try:
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(SECONDS)
                    connection.connect(str(self.path))
                    self._transfer(connection)
            except OSError as error:
                raise self._broken(str(error)) from None
            took.append(time.perf_counter() - start)
        return Run([round(seconds * 1e6) for seconds in took], sum(took))

    def _transfer(self, connection: socket.socket) -> None:
        imports = self.method == "POST"
        body = ["Content-Type: text/plain", "Transfer-Encoding: chunked"] if imports else []
        head = [f"{self.method} {self.target} HTTP/1.1", "Host: docker", f"User-Agent: {CLIENT}", *body, "", ""]
        connection.sendall("\r\n".join(head).encode())
        blocks = self.size // BUFFER_BYTES
        if imports:
            for _ in range(blocks):
                connection.sendall(BLOCK)
            connection.sendall(LAST_CHUNK)
        count, tail = self._reply(connection)
        if imports and imported(blocks * len(BLOCK) + len(LAST_CHUNK)) not in tail:
            raise self._broken(f"the daemon says {tail!r}")
        if not imports and count < self.size:
            raise self._broken(f"only {count} bytes came")

    def _reply(self, connection: socket.socket) -> tuple[int, bytes]:
        """Read a chunked reply to its end; return its length including head and framing, and its last bytes."""
        buffer = memoryview(bytearray(BUFFER_BYTES))
        count, tail = 0, b""
        while not tail.endswith(LAST_CHUNK):
            got = connection.recv_into(buffer)
            if not got:
                raise self._broken(f"the reply ended after {count} bytes")
            if not count and not bytes(buffer[:got]).startswith(b"HTTP/1.1 200 "):
                raise self._broken(f"the reply is {bytes(buffer[:got])[:500]!r}")
            count += got
            tail = (tail + bytes(buffer[max(got - 100, 0) : got]))[-100:]
        return count, tail

    def _broken(self, reason: str) -> DemoError:
        return DemoError(f"{self.method} of {self.size} bytes: {reason}")


def imported(count: int) -> bytes:
    """Return what the bench's daemon answers at the end of an import."""
    return b'{"status":"%d bytes"}\n' % count


EXEC_OUTPUT = b"\1\0\0\0\0\0\0\6ready\n"
"""One frame of stdout."""


@dataclass(frozen=True, slots=True)
class Execs:
    """Docker's execs like ``docker exec``'s, ``concurrency`` at a time, timed from the create to the output's end."""

    path: Path
    container: str
    concurrency: int

    def run(self, calls: int) -> Run:
        return asyncio.run(self._all(calls))

    async def _all(self, calls: int) -> Run:
        numbers, took, began = iter(range(calls)), list[int](), time.perf_counter()

        async def make() -> None:
            for _ in numbers:
                start = time.perf_counter_ns()
                await self._exec()
                took.append((time.perf_counter_ns() - start) // 1000)

        try:
            async with asyncio.timeout(SECONDS):
                await asyncio.gather(*(make() for _ in range(min(self.concurrency, calls))))
        except (OSError, TimeoutError) as error:
            raise DemoError(f"an exec failed: {type(error).__name__}: {error}") from None
        return Run(took, time.perf_counter() - began)

    async def _exec(self) -> None:
        """Make one exec, each of its requests on a connection of its own."""
        made = await self._ask(f"/containers/{self.container}/exec", {"Cmd": ["echo", "ready"], "AttachStdout": True})
        head, _, body = made.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 201 "):
            raise DemoError(f"an exec's create was answered {head[:40]!r}")
        target = f"/exec/{json.loads(body)['Id']}/start"
        upgrade = "Connection: Upgrade\r\nUpgrade: tcp\r\n"
        head, _, output = (await self._ask(target, {"Detach": False, "Tty": False}, upgrade)).partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101 ") or output != EXEC_OUTPUT:
            raise DemoError(f"an exec's start was answered {head[:40]!r} and {len(output)} bytes")

    async def _ask(self, target: str, body: object, more: str = "Connection: close\r\n") -> bytes:
        text = json.dumps(body)
        head = f"POST /v1.41{target} HTTP/1.1\r\nHost: docker\r\nUser-Agent: {CLIENT}\r\n{more}"
        reader, writer = await asyncio.open_unix_connection(self.path)
        try:
            writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
            if "Upgrade" in more:
                writer.write_eof()  # there is no stdin
            return await reader.read()
        finally:
            writer.close()
