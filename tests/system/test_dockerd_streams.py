"""Streams of a real dockerd: every byte, however long there is silence (promise 12, fault matrix S6)."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.amounts import EXECS_OF_THE_CLI, IDLE_SECONDS, STREAM_BYTES
from tests.docker.client import request
from tests.engines import docker_cli
from tests.engines.dockerd import BUSYBOX, Dockerd
from tests.system.docker_streams import API, SECONDS, STDOUT, Exec, Hijacked, post, serving
from tests.system.proxy import ProxyProcess, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.slow]

CLIS_AT_A_TIME = 2
ATTACH = "/containers/cat/attach?stream=1&stdin=1&stdout=1&stderr=1"
LOGS = request("GET", f"{API}/containers/said/logs?stdout=1&follow=1")


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
