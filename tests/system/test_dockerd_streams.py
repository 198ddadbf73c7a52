"""Streams of a real dockerd: every byte, however long there is silence (promise 12, fault matrix S6)."""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any, Self

import pytest

from tests.amounts import EXECS_OF_THE_CLI, IDLE_SECONDS, STREAM_BYTES
from tests.docker.client import request
from tests.engines import docker_cli
from tests.engines.dockerd import BUSYBOX, Dockerd
from tests.fakes.dockerd_client import UnixHttpConnection
from tests.system.docker_front import UPGRADE
from tests.system.docker_front import VERSION as API
from tests.system.proxy import ProxyProcess, wait_until
from tests.system.test_streams import serving

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MIB = 1 << 20
SECONDS = 60.0
"""Seconds that a client waits for anything before its test fails."""
STDOUT = 1
FRAME_HEAD_BYTES = 8
CLIS_AT_A_TIME = 2
ATTACH = "/containers/cat/attach?stream=1&stdin=1&stdout=1&stderr=1"
LOGS = request("GET", f"{API}/containers/said/logs?stdout=1&follow=1")


Sum = tuple[int, str]
"""How many bytes, and their digest."""


class Hijacked:
    """A command's streams on a connection of their own. All calls block, so they need a thread."""

    def __init__(self, path: str, target: str, body: bytes = b"", *, upgrade: bool = True) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(SECONDS)
        self._socket.connect(path)
        self.send(request("POST", API + target, body, *(UPGRADE if upgrade else ())))
        self._file = self._socket.makefile("rb", MIB)
        head = b"".join(iter(self._file.readline, b"\r\n"))
        assert head.startswith(b"HTTP/1.1 101 " if upgrade else b"HTTP/1.1 200 "), head

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._file.close()
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def feed(self, count: int) -> Sum:
        """Send so many random bytes, and then the end."""
        digest, left = sha256(), count
        while left:
            piece = os.urandom(min(left, MIB))
            digest.update(piece)
            self.send(piece)
            left -= len(piece)
        self._socket.shutdown(socket.SHUT_WR)
        return count, digest.hexdigest()

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield the stream number and bytes of each frame, up to the end of the connection."""
        while head := self._file.read(FRAME_HEAD_BYTES):
            size = int.from_bytes(head[4:])
            data = self._file.read(size)
            assert len(data) == size, f"the stream ends inside a frame of {size} bytes"
            yield head[0], data

    def both(self, count: int) -> tuple[Sum, Sum]:
        """Feed and read at the same time; return what was sent and what was received on stdout."""
        with ThreadPoolExecutor(1) as pool:
            feeding = pool.submit(self.feed, count)
            digest, received = sha256(), 0
            for stream, data in self.frames():
                assert stream == STDOUT, data
                digest.update(data)
                received += len(data)
            return feeding.result(), (received, digest.hexdigest())


class Exec(Hijacked):
    """A command in a container."""

    def __init__(self, path: str, container: str, command: Sequence[str], *, stdin: bool, upgrade: bool = True) -> None:
        config = {"Cmd": list(command), "AttachStdin": stdin, "AttachStdout": True, "AttachStderr": True}
        self.id = str(post(path, f"/containers/{container}/exec", config)["Id"])
        super().__init__(path, f"/exec/{self.id}/start", b'{"Detach":false,"Tty":false}', upgrade=upgrade)


def post(path: str, target: str, body: Any = None) -> Any:
    """Send a POST with JSON on a connection of its own; return the answer, None if it is empty."""
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


@pytest.fixture(scope="module")
def proxy(dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    with serving(tmp_path_factory.mktemp("streams"), dockerd.socket) as running:
        yield running


@pytest.fixture
def path(proxy: ProxyProcess) -> str:
    return str(proxy.socket)


@pytest.fixture
def box(dockerd: Dockerd) -> Iterator[str]:
    with dockerd.restored():
        run(dockerd, "box", "exec sleep 1000")
        yield "box"


def run(dockerd: Dockerd, name: str, script: str) -> None:
    outcome = docker_cli.run(dockerd.socket, "run", "-d", "--name", name, BUSYBOX, "sh", "-c", script)
    assert outcome.exit_code == 0, outcome


# ---- every byte


@pytest.mark.parametrize("upgrade", [True, False])
def test_exec_carries_both_ways_at_once(path: str, box: str, upgrade: bool) -> None:
    with Exec(path, box, ["cat"], stdin=True, upgrade=upgrade) as command:
        sent, came = command.both(STREAM_BYTES.now)
    assert came == sent


@pytest.mark.parametrize("upgrade", [True, False])
def test_attach_carries_both_ways_at_once(path: str, dockerd: Dockerd, upgrade: bool) -> None:
    stdin = {"AttachStdin": True, "OpenStdin": True, "StdinOnce": True}
    unlogged = {"NetworkMode": "none", "LogConfig": {"Type": "none"}}
    with dockerd.restored():
        post(path, "/containers/create?name=cat", {"Image": BUSYBOX, "Cmd": ["cat"], **stdin, "HostConfig": unlogged})
        with Hijacked(path, ATTACH, upgrade=upgrade) as command:
            post(path, "/containers/cat/start")
            sent, came = command.both(STREAM_BYTES.now)
    assert came == sent


def clis(call: Callable[[int], docker_cli.Outcome]) -> list[docker_cli.Outcome]:
    """Run the docker CLI so many times, some at a time."""
    with ThreadPoolExecutor(CLIS_AT_A_TIME) as pool:
        return list(pool.map(call, range(EXECS_OF_THE_CLI.now)))


def test_execs_without_a_stdin_end(path: str, box: str) -> None:
    script = "sleep 0.02; echo out; echo err >&2; exit 3"
    outcomes = clis(lambda number: docker_cli.run(path, "exec", box, "sh", "-c", script))
    assert set(outcomes) == {docker_cli.Outcome(3, b"out\n", b"err\n")}


def test_execs_whose_stdin_ends_give_their_output(path: str, box: str) -> None:
    outcomes = clis(lambda number: docker_cli.run(path, "exec", "-i", box, "wc", "-c", stdin=bytes(number * 1000)))
    assert [int(outcome.stdout) for outcome in outcomes] == [number * 1000 for number in range(len(outcomes))]
    assert {(outcome.exit_code, outcome.stderr) for outcome in outcomes} == {(0, b"")}


# ---- clients that are silent, or leave


def ended(dockerd: Dockerd, command: Exec) -> bool:
    return not dockerd.get(f"/exec/{command.id}/json")["Running"]


def test_stream_that_was_silent_carries_the_next_byte(path: str, dockerd: Dockerd, box: str) -> None:
    """Each direction of an exec, and the log of a container that prints something for the first time."""
    # It goes on, because a client that follows a log that ends with its last line may miss that line.
    wake = "until [ -e /wake ]; do sleep 0.05; done; echo late; exec sleep 1000"
    run(dockerd, "said", wake)
    with Exec(path, box, ["cat"], stdin=True) as command, socket.socket(socket.AF_UNIX) as follower:
        follower.settimeout(SECONDS)
        follower.connect(path)
        follower.sendall(LOGS)
        command.send(b"one")
        frames = command.frames()
        assert next(frames) == (STDOUT, b"one")
        time.sleep(IDLE_SECONDS.now)
        command.send(b"two")
        assert next(frames) == (STDOUT, b"two")
        assert docker_cli.run(dockerd.socket, "exec", "said", "busybox", "touch", "/wake").exit_code == 0
        with follower.makefile("rb") as answer:
            assert any(b"late" in line for line in iter(answer.readline, b""))


def test_client_that_leaves_ends_the_stdin_of_its_command(path: str, dockerd: Dockerd, box: str) -> None:
    with Exec(path, box, ["cat"], stdin=True) as command:
        command.send(b"x")
        assert next(command.frames()) == (STDOUT, b"x"), "dockerd answers before the command runs"
        assert not ended(dockerd, command)
    wait_until(lambda: ended(dockerd, command), "cat ends with its stdin")
