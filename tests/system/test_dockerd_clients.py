"""The docker CLI and the docker SDK behave the same through the proxy as on dockerd's own socket (promise 20).

So do streams: every byte, also after silence (promise 12, fault matrix S6). ``between`` is the proxy's socket. Exit
codes and output must be equal; values that dockerd generates each time are masked.
"""

import gc
import itertools
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import docker  # type: ignore[import-untyped]  # it has no types
import pytest

from tests.amounts import EXECS_OF_THE_CLI, IDLE_SECONDS, STREAM_BYTES
from tests.engines import docker_cli
from tests.engines.docker_cli import Outcome, masked
from tests.engines.dockerd import BUSYBOX, Dockerd
from tests.system.proxy import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MEGABYTE = bytes(range(256)) * 4096
LONG = MEGABYTE * 32
"""Not an archive, and longer than dockerd reads before it refuses it."""
ANSWER = "echo ready; read line; echo got $line"
DOCKERFILE = f"FROM {BUSYBOX}\nCOPY file /copied\nRUN cat /copied > /built; echo from the build\nCMD wc -c /built\n"
# dockerd copies each output separately: lines of both are in order only if time passes between them. The script ends
# late, because a client that follows a log may miss a last line right before the end.
CHATTER = "for i in 1 2 3; do echo out $i; echo err $i >&2; sleep 0.3; done; sleep 1"
RUN, CREATED = ["run", "--name", "box"], [BUSYBOX, "sh", "-c"]
Step = tuple[Sequence[str], int, str, Mapping[str, Any]]
"""The words of a docker command, its exit code, a part of its masked output, and how it is run."""
SLEEPING: Step = ([*RUN, "-d", *CREATED, "exec sleep 1000"], 0, "", {})
SCENARIOS: dict[str, Sequence[Step]] = {
    "run -it": [([*RUN, "-it", *CREATED, f"{ANSWER}; exit 3"], 3, "got a word", {"typed": (b"ready", b"a word\n")})],
    "run -it, detached by keys": [
        ([*RUN, "-it", *CREATED, ANSWER], 0, "", {"typed": (b"ready", b"\x10\x11")}),
        (["inspect", "--format", "{{.State.Running}}", "box"], 0, "true", {}),
    ],
    "attach, to the end of stdin": [
        # Created with -i and without -d, so that the end of stdin does not end the output too.
        (["create", "-i", "--name", "box", *CREATED, "wc -c; echo ended; exit 5"], 0, "", {}),
        (["start", "box"], 0, "", {}),
        (["attach", "box"], 5, "1048576\nended", {"stdin": MEGABYTE}),
    ],
    "exec": [
        SLEEPING,
        (["exec", "box", "sh", "-c", "echo out; echo err >&2; exit 9"], 9, "err\n", {"stdin": b"unread"}),
        (["exec", "-i", "box", "sh", "-c", "wc -c; echo ended"], 0, "1048576\nended", {"stdin": MEGABYTE}),
        (["exec", "-i", "box", "sh", "-c", "wc -c; echo ended"], 0, "0\nended", {}),
        (["exec", "-it", "box", "sh", "-c", ANSWER], 0, "got a word", {"typed": (b"ready", b"a word\n")}),
    ],
    "cp and logs": [
        ([*RUN, "-d", *CREATED, CHATTER], 0, "", {}),
        (["cp", "{folder}/file", "box:/tmp/in"], 0, "", {}),
        (["cp", "box:/tmp/in", "-"], 0, "", {}),
        (["logs", "-f", "-t", "box"], 0, "<time> err 3", {}),
    ],
    "build with BuildKit": [
        (["build", "--network", "none", "-q", "-t", "built:1", "{folder}"], 0, "", {"buildkit": True}),
        (["run", "--rm", "built:1"], 0, "1048576 /built", {}),
    ],
    "refused while stdin is sent": [
        (["load"], 1, "invalid tar header", {"stdin": LONG}),
        (["import", "--change", "BAD", "-", "imported:1"], 1, "not a valid change command", {"stdin": LONG}),
    ],
}


@pytest.mark.parametrize("steps", SCENARIOS.values(), ids=SCENARIOS)
def test_cli_command_has_same_effect(dockerd: Dockerd, between: str, tmp_path: Path, steps: Sequence[Step]) -> None:
    (tmp_path / "file").write_bytes(MEGABYTE)
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    outcomes: dict[str, list[object]] = {dockerd.socket: [], between: []}
    for socket, results in outcomes.items():
        with dockerd.restored():
            for words, exit_code, shows, more in steps:
                command = [word.replace("{folder}", str(tmp_path)) for word in words]
                outcome = docker_cli.run(socket, *command, **more)
                shown = masked(outcome.stdout), masked(outcome.stderr)
                assert outcome.exit_code == exit_code, (command, outcome)
                assert shows in "".join(shown), (command, outcome)
                results.append(shown)
    assert outcomes[between] == outcomes[dockerd.socket]


@pytest.fixture
def box(dockerd: Dockerd) -> Iterator[str]:
    with dockerd.restored():
        assert docker_cli.run(dockerd.socket, *SLEEPING[0]).exit_code == 0
        yield "box"


@pytest.mark.usefixtures("box")
def test_stream_carries_every_byte_both_ways(between: str, tmp_path: Path) -> None:
    copy = 'head -c "$1" /dev/urandom | tee >(sha256sum >"$2"); wait'
    feed = ["bash", "-c", copy, "bash", str(STREAM_BYTES.now), str(tmp_path / "sent")]
    cat = docker_cli.command(between, tmp_path / "config", "exec", "-i", "box", "cat")
    with (
        subprocess.Popen(feed, stdout=subprocess.PIPE) as feeding,
        subprocess.Popen(cat, stdin=feeding.stdout, stdout=subprocess.PIPE) as copying,
    ):
        assert feeding.stdout is not None
        feeding.stdout.close()
        received = subprocess.run(["sha256sum"], stdin=copying.stdout, capture_output=True, check=True).stdout
    assert (feeding.returncode, copying.returncode) == (0, 0)
    assert received == (tmp_path / "sent").read_bytes()


def test_exec_output_is_complete(between: str, box: str) -> None:
    def call(number: int) -> Outcome:
        return docker_cli.run(between, "exec", box, "sh", "-c", "sleep 0.02; echo out; echo err >&2; exit 3")

    with ThreadPoolExecutor(2) as pool:
        assert {*pool.map(call, range(EXECS_OF_THE_CLI.now))} == {Outcome(3, b"out\n", b"err\n")}


def test_idle_stream_carries_next_byte_until_its_end(between: str, dockerd: Dockerd, box: str, tmp_path: Path) -> None:
    """Each direction of an exec. When its client is killed, its stdin ends."""
    cat: Any = docker_cli.command(between, tmp_path, "exec", "-i", box, "cat")
    with subprocess.Popen(cat, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as copying:
        assert copying.stdin is not None
        assert copying.stdout is not None
        for word in (b"one", b"two"):
            copying.stdin.write(word)
            assert copying.stdout.read(3) == word
            time.sleep(IDLE_SECONDS.now)
        assert dockerd.get(f"/containers/{box}/json")["ExecIDs"]
        copying.kill()
    wait_until(lambda: not dockerd.get(f"/containers/{box}/json")["ExecIDs"], "cat ends with its stdin")


# From Python 3.13 on a response is flushed that the SDK has closed below it.
@pytest.mark.filterwarnings("ignore:.* <http.client.HTTPResponse:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed .socket.socket .*family=1:ResourceWarning")
def test_docker_sdk_follows_events_of_container(dockerd: Dockerd, between: str) -> None:
    """From before its create until its removal."""
    followed: list[list[Any]] = []
    for path in (dockerd.socket, between):
        made = docker.DockerClient(base_url=f"unix://{path}", version="auto", timeout=60)
        with dockerd.restored(), closing(made) as client:
            stream = client.events(decode=True, filters={"type": "container"})
            client.containers.run(BUSYBOX, ["sleep", "1000"], name="box", detach=True).remove(force=True)
            events = itertools.islice(stream, 5)
            followed.append([(event["Action"], event["Actor"]["Attributes"]) for event in events])
            stream.close()
        gc.collect()  # the SDK leaves a stream's socket to the collector: free it in this test, not in a later one
    assert [action for action, _ in followed[0]] == ["create", "start", "kill", "die", "destroy"]
    assert followed[0] == followed[1]
