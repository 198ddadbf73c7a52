"""Streams of a real dockerd through the proxy: every byte, at once, however long nothing was said.

scripts/soak runs the full amounts. When bytes were sent is seen by a tap between the proxy and dockerd, so that
dockerd's own ways to gather them do not count; figures in milliseconds are taken by ``timely``.
"""

import asyncio
import json
import math
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from tests.amounts import EXECS_OF_THE_CLI, IDLE_SECONDS, KEPT_STREAM_BYTES, STALL_SECONDS, STREAM_BYTES
from tests.docker.client import request
from tests.engines import docker_cli
from tests.engines.containerd import EngineError
from tests.engines.dockerd import BUSYBOX, Dockerd
from tests.fakes.dockerd_client import Raw, ask
from tests.system.docker_lines import serving
from tests.system.docker_steps import tar
from tests.system.docker_streams import (
    API,
    LAST_CHUNK,
    MIB,
    SECONDS,
    STDOUT,
    Attach,
    Exec,
    post,
    resident_bytes,
    resized,
    timely,
)
from tests.system.docker_tap import Tap, arrivals, latest
from tests.system.proxy import ProxyProcess, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.slow]

LINE_SECONDS = 0.05
STALLED_BYTES = MIB
LINES = 6
CLIS_AT_A_TIME = 2
NUMBERS = 1_000_000
"""To be counted to for a client that does not read: some MiB."""
LAYER_BYTES = 32 * MIB
EVENTS_SECONDS = 4.0
"""How long events are followed: time enough to let the daemon speak, also on a busy machine."""
SPOKEN = f"for i in $(busybox seq {LINES}); do echo said $i; sleep 0.1; done"


@pytest.fixture(scope="module")
def proxy(dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    with serving(tmp_path_factory.mktemp("streams"), dockerd.socket) as running:
        yield running


@pytest.fixture
def path(proxy: ProxyProcess) -> str:
    return str(proxy.socket)


@pytest.fixture
def box(dockerd: Dockerd) -> Iterator[str]:
    """Run a container for execs; return its name."""
    with dockerd.restored():
        run(dockerd, "box", "exec sleep 1000")
        yield "box"


def run(dockerd: Dockerd, name: str, script: str) -> None:
    """Run a container in the background."""
    outcome = docker_cli.run(dockerd.socket, "run", "-d", "--name", name, BUSYBOX, "sh", "-c", script)
    assert outcome.exit_code == 0, outcome


# ---- every byte


def test_an_exec_carries_both_ways_at_once(path: str, box: str) -> None:
    with Exec(path, box, ["cat"], stdin=True) as command:
        sent, came = command.both(STREAM_BYTES.now)
    assert came == sent


def test_an_attach_carries_both_ways_at_once(path: str, dockerd: Dockerd) -> None:
    stdin = {"AttachStdin": True, "OpenStdin": True, "StdinOnce": True}
    unlogged = {"NetworkMode": "none", "LogConfig": {"Type": "none"}}
    with dockerd.restored():
        post(path, "/containers/create?name=cat", {"Image": BUSYBOX, "Cmd": ["cat"], **stdin, "HostConfig": unlogged})
        with Attach(path, "cat") as command:
            post(path, "/containers/cat/start")
            sent, came = command.both(STREAM_BYTES.now)
    assert came == sent


def test_an_exec_carries_what_its_client_sends(path: str, box: str) -> None:
    with Exec(path, box, ["busybox", "sha256sum"], stdin=True) as command:
        sent = command.feed(STREAM_BYTES.now)
        assert command.output() == (f"{sent.digest}  -\n".encode(), b"")


def test_an_exec_carries_what_its_command_writes(path: str, box: str) -> None:
    size = STREAM_BYTES.now
    sums = f"busybox mkfifo /f; busybox sha256sum < /f >&2 & head -c {size} /dev/urandom | busybox tee /f; wait"
    with Exec(path, box, ["sh", "-c", sums], stdin=False) as command:
        came, errors = command.collect()
    assert came.count == size
    assert came.digest.encode() in errors


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


def test_an_exec_is_resized_while_it_runs(path: str, box: str) -> None:
    script = "echo ready; while read line; do busybox stty size; done"
    with Exec(path, box, ["sh", "-c", script], stdin=True, tty=True) as command:
        command.shown(b"ready\r\n")
        for width in range(80, 90):
            post(path, f"/exec/{command.id}/resize?h=33&w={width}")
            command.send(b"\n")
            command.shown(b"33 %d\r\n" % width)


def test_an_exec_is_resized_while_it_streams(path: str, box: str) -> None:
    """By somebody else; its terminal is raw, so that every byte comes back as it was sent."""
    size = KEPT_STREAM_BYTES.now
    script = "busybox stty raw -echo; echo ready; exec cat"
    with Exec(path, box, ["sh", "-c", script], stdin=True, tty=True) as command, ThreadPoolExecutor(1) as pool:
        command.shown(b"ready\n")
        with resized(path, f"/exec/{command.id}") as widths:
            typing = pool.submit(command.type, size)
            came = command.exactly(size)
        assert came == typing.result()
        assert len(widths) > 2


# ---- at once


class Following:
    """A way to let dockerd say something over a while, asked for through a tap."""

    pieces = LINES
    """At least so many times it must send something, or the stream shows nothing and is tried again."""
    request = b""

    def __init__(self, dockerd: Dockerd) -> None:
        self.dockerd = dockerd

    async def speak(self) -> None:
        """Let the daemon speak, if it does not by itself."""


class Logs(Following):
    request = request("GET", f"{API}/containers/said/logs?stdout=1&follow=1")

    def __init__(self, dockerd: Dockerd) -> None:
        super().__init__(dockerd)
        docker_cli.run(dockerd.socket, "rm", "-f", "said")
        run(dockerd, "said", SPOKEN)


class Events(Following):
    def __init__(self, dockerd: Dockerd) -> None:
        super().__init__(dockerd)
        docker_cli.run(dockerd.socket, "rm", "-f", "said-1", "said-2")
        docker_cli.run(dockerd.socket, "create", "--name", "said-1", BUSYBOX)
        self.request = request("GET", f"{API}/events?until={time.time() + EVENTS_SECONDS:.9f}")

    async def speak(self) -> None:
        for number in range(LINES):
            names = ("said-1", "said-2")[:: 1 if number % 2 == 0 else -1]
            await ask(self.dockerd.socket, "POST", f"/containers/{names[0]}/rename?name={names[1]}")
            await asyncio.sleep(0.1)


class Build(Following):
    dockerfile = f"FROM {BUSYBOX}\nRUN {SPOKEN}\n".encode()
    request = request(
        "POST",
        f"{API}/build?networkmode=none&nocache=1&forcerm=1",
        tar({"Dockerfile": dockerfile}),
    ).replace(b"application/json", b"application/x-tar")


class Load(Following):
    """A layer's progress comes every 100 ms or so."""

    pieces = 2

    def __init__(self, dockerd: Dockerd) -> None:
        super().__init__(dockerd)
        layer = tar({"big": os.urandom(LAYER_BYTES)})
        rootfs = {"type": "layers", "diff_ids": [f"sha256:{sha256(layer).hexdigest()}"]}
        config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}).encode()
        manifest = json.dumps([{"Config": "c.json", "RepoTags": ["said:1"], "Layers": ["layer.tar"]}]).encode()
        archive = tar({"layer.tar": layer, "c.json": config, "manifest.json": manifest})
        asks = request("POST", f"{API}/images/load?quiet=0", archive)
        self.request = asks.replace(b"application/json", b"application/x-tar", 1)


@asynccontextmanager
async def tapped(dockerd: Dockerd, folder: Path) -> AsyncIterator[tuple[str, Tap]]:
    """Serve through a proxy and a tap behind it."""
    async with (
        Tap(folder / "tap.sock", dockerd.socket) as tap,
        ProxyProcess(folder, backend_runtime_mode="Docker", remote_runtime_service_endpoint=tap.path) as proxy,
    ):
        yield str(proxy.socket), tap


@pytest.mark.parametrize("kind", [Logs, Events, Build, Load])
async def test_what_dockerd_says_comes_when_it_says_it(dockerd: Dockerd, tmp_path: Path, kind: type[Following]) -> None:
    with dockerd.restored():
        async with tapped(dockerd, tmp_path) as (path, tap):

            async def follow() -> float:
                stream = await asyncio.to_thread(kind, dockerd)
                async with await Raw.connect(path) as raw:
                    raw.send(stream.request)
                    came, _ = await asyncio.gather(arrivals(raw), stream.speak())
                sent = tap.newest(stream.request[:40].decode()).marks
                if len(sent) < stream.pieces:
                    return math.inf  # too much came at once: the stream has shown nothing
                return latest(sent, came)

            await timely(LINE_SECONDS, follow)


# ---- clients that do not read, say nothing, or leave


def ended(dockerd: Dockerd, command: Exec) -> bool:
    """Tell whether a command runs no more."""
    return not dockerd.get(f"/exec/{command.id}/json")["Running"]


def test_a_client_that_does_not_read_costs_little_memory(dockerd: Dockerd, box: str, tmp_path: Path) -> None:
    with serving(tmp_path, dockerd.socket) as fresh:
        path = str(fresh.socket)
        with Exec(path, box, ["echo", "warm"], stdin=False) as command:
            command.collect()
        before = resident_bytes(fresh.pid)
        with Exec(path, box, ["busybox", "seq", str(NUMBERS)], stdin=False) as command:
            until = time.monotonic() + STALL_SECONDS.now
            while time.monotonic() < until:
                assert dockerd.request("GET", "/_ping", socket=path) == b"OK"
                time.sleep(0.01)
            assert resident_bytes(fresh.pid) - before <= STALLED_BYTES
            assert not ended(dockerd, command), "it waits for its reader"
            assert command.output() == (b"".join(b"%d\n" % number for number in range(1, NUMBERS + 1)), b"")


def test_a_stream_that_was_silent_carries_the_next_byte(path: str, dockerd: Dockerd, box: str) -> None:
    """Each way of an exec, and of the log of a container that says something for the first time."""
    # It goes on, for who follows a log that ends with its last line may not get that one.
    wake = "until [ -e /wake ]; do sleep 0.05; done; echo late; exec sleep 1000"
    run(dockerd, "said", wake)
    with Exec(path, box, ["cat"], stdin=True) as command, socket.socket(socket.AF_UNIX) as follower:
        follower.settimeout(SECONDS)
        follower.connect(path)
        follower.sendall(Logs.request)
        command.send(b"one")
        frames = command.frames()
        assert next(frames) == (STDOUT, b"one")
        time.sleep(IDLE_SECONDS.now)
        command.send(b"two")
        assert next(frames) == (STDOUT, b"two")
        assert docker_cli.run(dockerd.socket, "exec", "said", "busybox", "touch", "/wake").exit_code == 0
        with follower.makefile("rb") as answer:
            assert any(b"late" in line for line in iter(answer.readline, b""))


def test_a_client_that_leaves_ends_the_stdin_of_its_command(path: str, dockerd: Dockerd, box: str) -> None:
    with Exec(path, box, ["cat"], stdin=True) as command:
        assert not ended(dockerd, command)
    wait_until(lambda: ended(dockerd, command), "cat ends with its stdin")


def test_a_daemon_that_is_killed_in_mid_stream_looks_dead(tmp_path: Path) -> None:
    with Dockerd() as own, serving(tmp_path, own.socket) as proxy:
        run(own, "said", "echo said; exec sleep 1000")
        path = str(proxy.socket)
        with Exec(path, "said", ["cat"], stdin=True) as command, socket.socket(socket.AF_UNIX) as follower:
            follower.settimeout(SECONDS)
            follower.connect(path)
            follower.sendall(Logs.request)
            with follower.makefile("rb") as answer:
                assert any(b"said" in line for line in iter(answer.readline, b""))
                own.kill()
                rest = answer.read()
            assert not rest.endswith(LAST_CHUNK)
            assert command.output() == (b"", b"")
        with pytest.raises(EngineError, match=r"with 502: .*the Docker daemon is not reachable"):
            own.request("GET", "/_ping", socket=path)
