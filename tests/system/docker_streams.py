"""A command's streams as a client sees them, figures in milliseconds, and a process's memory and open files.

Nothing is read ahead of what is asked for, beyond one buffer.
"""

import json
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from tests.docker.client import request
from tests.fakes.dockerd_client import UnixHttpConnection

MIB = 1 << 20
API = "/v1.41"
UPGRADE = ("Connection: Upgrade", "Upgrade: tcp")
SECONDS = 60.0
"""How long a client waits for anything before its test fails."""
LAST_CHUNK = b"0\r\n\r\n"

STDOUT, STDERR = 1, 2
FRAME_HEAD_BYTES = 8


# ---- the streams of a command


@dataclass(frozen=True, slots=True)
class Sum:
    """How many bytes, and which."""

    count: int
    digest: str


class Hijacked:
    """A command's streams on a connection of their own. All calls block: they are a thread's.

    ``ends`` half-closes right behind the request, before any answer.
    """

    def __init__(self, path: str, target: str, body: bytes, *, upgrade: bool = True, ends: bool = False) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(SECONDS)
        self._socket.connect(path)
        self._socket.sendall(request("POST", API + target, body, *(UPGRADE if upgrade else ())))
        if ends:
            self.end()
        self._file = self._socket.makefile("rb", MIB)
        head = b"".join(iter(self._file.readline, b"\r\n"))
        assert head.startswith(b"HTTP/1.1 101 " if upgrade else b"HTTP/1.1 200 "), head

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._file.close()
        self._socket.close()

    def end(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def feed(self, count: int) -> Sum:
        """Send so many random bytes, and then the end."""
        digest, left = sha256(), count
        while left:
            piece = os.urandom(min(left, MIB))
            digest.update(piece)
            self._socket.sendall(piece)
            left -= len(piece)
        self.end()
        return Sum(count, digest.hexdigest())

    def shown(self, text: bytes) -> bytes:
        """Return what a terminal shows from here up to and with a text."""
        output = b""
        while not output.endswith(text):
            data = self._file.read(1)
            assert data, f"the stream ends with {output!r}"
            output += data
        return output

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield which stream, and bytes of it, up to the end of the connection."""
        while head := self._file.read(FRAME_HEAD_BYTES):
            size = int.from_bytes(head[4:])
            data = self._file.read(size)
            assert len(data) == size, f"the stream ends inside a frame of {size} bytes"
            yield head[0], data

    def output(self) -> tuple[bytes, bytes]:
        kept = {STDOUT: bytearray(), STDERR: bytearray()}
        for stream, data in self.frames():
            kept[stream] += data
        return bytes(kept[STDOUT]), bytes(kept[STDERR])

    def collect(self) -> tuple[Sum, bytes]:
        """Return the sum of all of stdout, and stderr as it is."""
        digest, count, errors = sha256(), 0, b""
        for stream, data in self.frames():
            if stream == STDERR:
                errors += data
                continue
            count += len(data)
            digest.update(data)
        return Sum(count, digest.hexdigest()), errors

    def both(self, count: int) -> tuple[Sum, Sum]:
        """Feed and collect at once; return what was sent and what came."""
        sent: list[Sum] = []
        feeding = threading.Thread(target=lambda: sent.append(self.feed(count)))
        feeding.start()
        came, errors = self.collect()
        feeding.join()
        assert not errors, errors
        return sent[0], came


class Exec(Hijacked):
    """A command in a container; ``more`` as in ``Hijacked``."""

    def __init__(
        self, path: str, container: str, command: Sequence[str], *, stdin: bool, tty: bool = False, **more: bool
    ) -> None:
        outputs = {"AttachStdout": True, "AttachStderr": True}
        config = {"Cmd": list(command), "AttachStdin": stdin, "Tty": tty, **outputs}
        self.id = str(post(path, f"/containers/{container}/exec", config)["Id"])
        super().__init__(path, f"/exec/{self.id}/start", json.dumps({"Detach": False, "Tty": tty}).encode(), **more)


class Attach(Hijacked):
    """A container's own command."""

    def __init__(self, path: str, container: str, *, upgrade: bool = True) -> None:
        target = f"/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1"
        super().__init__(path, target, b"", upgrade=upgrade)


@contextmanager
def resized(path: str, target: str) -> Iterator[list[int]]:
    """Resize a terminal again and again until the end of the block; give the widths so far."""
    widths, over = [80], threading.Event()

    def resize() -> None:
        while not over.is_set():
            post(path, f"{target}/resize?h=33&w={widths[-1]}")
            widths.append(widths[-1] + 1)

    with ThreadPoolExecutor(1) as pool:
        resizing = pool.submit(resize)
        try:
            yield widths
        finally:
            over.set()
        resizing.result()


def post(path: str, target: str, body: Any = None) -> Any:
    """Send a POST with JSON on a connection of its own; return what is answered, None if that is empty."""
    connection = UnixHttpConnection(path)
    try:
        data, headers = (None, {}) if body is None else (json.dumps(body), {"Content-Type": "application/json"})
        connection.request("POST", API + target, data, {"Host": "docker", **headers})
        response = connection.getresponse()
        answer = response.read()
    finally:
        connection.close()
    assert response.status < 300, (response.status, answer)
    return json.loads(answer) if answer else None


# ---- a process


def resident_bytes(pid: int) -> int:
    """Return how much memory a process has of its own.

    Pages of files are left out: which of a program's and its libraries' the kernel has at hand is not the process's
    doing, and one call to code that did not run before brings in many (proc_pid_status(5), RssAnon).
    """
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) << 10


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
