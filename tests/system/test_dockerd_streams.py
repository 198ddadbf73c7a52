"""Streams of a real dockerd through the docker CLI: every byte, also after silence (promise 12, fault matrix S6)."""

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.amounts import EXECS_OF_THE_CLI, IDLE_SECONDS, STREAM_BYTES
from tests.engines import docker_cli
from tests.engines.dockerd import BUSYBOX, Dockerd
from tests.system.proxy import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.slow]

CLIS_AT_A_TIME = 2
COPY = 'head -c "$1" /dev/urandom | tee >(sha256sum >"$2"); wait'


@pytest.fixture
def box(dockerd: Dockerd) -> Iterator[str]:
    with dockerd.restored():
        run(dockerd, "box", "exec sleep 1000")
        yield "box"


def run(dockerd: Dockerd, name: str, script: str) -> None:
    outcome = docker_cli.run(dockerd.socket, "run", "-d", "--name", name, BUSYBOX, "sh", "-c", script)
    assert outcome.exit_code == 0, outcome


@contextmanager
def started(path: str, folder: Path, *arguments: str, stdin: int) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a docker command with pipes; kill it at the end of the block."""
    with subprocess.Popen(
        docker_cli.command(path, folder, *arguments), stdin=stdin, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["exec", "-i", "box", "cat"], id="exec"),
        pytest.param(["run", "-i", "--rm", "--network=none", "--log-driver=none", BUSYBOX, "cat"], id="attach"),
    ],
)
@pytest.mark.usefixtures("box")
def test_stream_carries_every_byte_both_ways(between: str, tmp_path: Path, arguments: list[str]) -> None:
    docker = docker_cli.command(between, tmp_path / "config", *arguments)
    feed = ["bash", "-c", COPY, "bash", str(STREAM_BYTES.now), str(tmp_path / "sent")]
    with (
        subprocess.Popen(feed, stdout=subprocess.PIPE) as feeding,
        subprocess.Popen(docker, stdin=feeding.stdout, stdout=subprocess.PIPE) as copying,
    ):
        assert feeding.stdout is not None
        feeding.stdout.close()
        received = subprocess.run(["sha256sum"], stdin=copying.stdout, capture_output=True, check=True).stdout
    assert (feeding.returncode, copying.returncode) == (0, 0)
    assert received == (tmp_path / "sent").read_bytes()


@pytest.mark.parametrize("with_stdin", [False, True])
def test_execs_give_all_of_their_output(between: str, box: str, with_stdin: bool) -> None:
    def call(number: int) -> docker_cli.Outcome:
        if with_stdin:
            return docker_cli.run(between, "exec", "-i", box, "wc", "-c", stdin=bytes(number * 1000))
        return docker_cli.run(between, "exec", box, "sh", "-c", "sleep 0.02; echo out; echo err >&2; exit 3")

    with ThreadPoolExecutor(CLIS_AT_A_TIME) as pool:
        outcomes = list(pool.map(call, range(EXECS_OF_THE_CLI.now)))
    if with_stdin:
        assert [int(outcome.stdout) for outcome in outcomes] == [number * 1000 for number in range(len(outcomes))]
    else:
        assert set(outcomes) == {docker_cli.Outcome(3, b"out\n", b"err\n")}


def test_silent_stream_carries_the_next_byte(between: str, dockerd: Dockerd, box: str, tmp_path: Path) -> None:
    """Each direction of an exec, and the log of a container that has printed nothing yet."""
    # It does not end, because a client that follows a log that ends with its last line may miss that line.
    run(dockerd, "late", "until [ -e /wake ]; do sleep 0.05; done; echo late; exec sleep 1000")
    with (
        started(between, tmp_path, "exec", "-i", box, "cat", stdin=subprocess.PIPE) as copying,
        started(between, tmp_path, "logs", "-f", "late", stdin=subprocess.DEVNULL) as following,
    ):
        assert copying.stdin is not None
        assert copying.stdout is not None
        assert following.stdout is not None
        copying.stdin.write(b"one")
        assert copying.stdout.read(3) == b"one"
        time.sleep(IDLE_SECONDS.now)
        copying.stdin.write(b"two")
        assert copying.stdout.read(3) == b"two"
        assert docker_cli.run(dockerd.socket, "exec", "late", "busybox", "touch", "/wake").exit_code == 0
        assert following.stdout.read(5) == b"late\n"


def test_killed_client_ends_stdin_of_its_exec(between: str, dockerd: Dockerd, box: str, tmp_path: Path) -> None:
    with started(between, tmp_path, "exec", "-i", box, "cat", stdin=subprocess.PIPE) as copying:
        assert copying.stdin is not None
        assert copying.stdout is not None
        copying.stdin.write(b"x")
        assert copying.stdout.read(1) == b"x"
        assert dockerd.get(f"/containers/{box}/json")["ExecIDs"]
    wait_until(lambda: not dockerd.get(f"/containers/{box}/json")["ExecIDs"], "cat ends with its stdin")
