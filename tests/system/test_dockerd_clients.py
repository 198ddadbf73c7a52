"""The docker CLI and curl behave the same through the proxy as on dockerd's own socket (promise 20).

Each scenario runs directly and through ``between``. Exit codes, output and files must be equal; values that dockerd
generates each time are masked.
"""

import io
import shlex
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.engines import docker_cli
from tests.engines.docker_cli import COLUMNS, ROWS, Typed
from tests.engines.dockerd import BUSYBOX, Dockerd

pytestmark = [pytest.mark.engine, pytest.mark.slow]

View = Callable[[bytes], str]
"""The part of a command's output that is compared."""
plain: View = docker_cli.masked
sending: View = partial(docker_cli.masked, rules=docker_cli.SENDING)
LAST_ARCHIVE = b"<the last archive that a step wrote>"
"""A placeholder for it as the ``stdin`` of a step."""


def unordered(output: bytes) -> str:
    """Return the distinct lines of BuildKit's progress, sorted."""
    return "\n".join(sorted(set(docker_cli.masked(output, docker_cli.BUILDKIT).splitlines())))


def archive(output: bytes) -> str:
    return "\n".join(docker_cli.archived(output))


@dataclass(frozen=True, slots=True)
class Step:
    """A docker command, as a shell would split it, and its expected end.

    In the command {folder} is a folder with FILES, {began} the time before the first step, {now} that before this one.
    ``shows`` must be in the command's masked output.
    """

    command: str
    exit_code: int = 0
    shows: str = ""
    stdin: bytes | None = None
    terminal: Sequence[Typed] | None = None
    buildkit: bool = False
    view: View = plain


def play(socket: str, steps: Sequence[Step], folder: Path) -> list[Any]:
    """Run all steps; return the outputs, and the content of the folder at the end."""
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    results: list[Any] = []
    began, last_archive = time.time(), b""
    for step in steps:
        command = step.command.replace("{folder}", str(folder))
        command = command.replace("{began}", f"{began:.9f}").replace("{now}", f"{time.time():.9f}")
        stdin = last_archive if step.stdin is LAST_ARCHIVE else step.stdin
        arguments = shlex.split(command)
        outcome = docker_cli.run(socket, *arguments, stdin=stdin, terminal=step.terminal, buildkit=step.buildkit)
        seen = step.view(outcome.stdout), (plain if step.view is archive else step.view)(outcome.stderr)
        assert outcome.exit_code == step.exit_code, (command, outcome)
        assert step.shows in "".join(seen), (command, outcome)
        results.append((step.command, *seen))
        if step.view is archive:
            last_archive = outcome.stdout
    results.append(docker_cli.tree(folder))
    shutil.rmtree(folder)
    return results


def tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def sh(script: str) -> str:
    """Return the words of a command that runs a script."""
    return f"sh -c {shlex.quote(script)}"


# ---- scenarios of the docker CLI

TEXT = b"first line\nsecond line\nno end of line"
MEGABYTE = bytes(range(256)) * 4096
LONG = MEGABYTE * 32
"""No archive, and more than dockerd reads before it refuses it."""
DETACH_KEYS = b"\x10\x11"
LINE = [Typed(b"ready\r\n", b"a word\n")]

ANSWER = "echo ready; read line; echo got $line"
# The size is sent by a separate call after the start.
SIZED = f'until busybox stty size 2>&1 | grep -q "{ROWS} {COLUMNS}"; do sleep 0.05; done; echo sized'
BOTH_OUTPUTS = "echo out; echo err >&2"
TO_THE_END = "wc -c; echo ended"
UNTIL_TERM = "trap 'exit 5' TERM; touch /trapped; while true; do sleep 0.05; done"
# dockerd copies each output separately: lines of both are in order only if time passes between them. The script ends
# late, because a client that follows a log that ends with its last line may miss that line.
CHATTER = "for i in 1 2 3; do echo out $i; echo err $i >&2; sleep 0.3; done; sleep 1"

DOCKERFILE = f"""
FROM {BUSYBOX}
ENV LEVEL=debug
COPY file directory /copied/
RUN cat /copied/file > /built; echo from the build
CMD cat /built; wc -c /copied/inner; echo $LEVEL
"""
FAILING = f"FROM {BUSYBOX}\nRUN echo before; exit 5\n"
FILES = {
    "file": TEXT,
    "directory/inner": MEGABYTE,
    "directory/below/empty": b"",
    "Dockerfile": DOCKERFILE.encode(),
    "Failing": FAILING.encode(),
}


def running(script: str = "exec sleep 1000") -> Step:
    """Start the container ``box``."""
    return Step(f"run -d --name box {BUSYBOX} {sh(script)}", shows="<id>")


def building(*, buildkit: bool) -> Sequence[Step]:
    """Build an image that runs, and one that fails, with or without BuildKit."""
    build = f"build --network none{' --progress plain' if buildkit else ''}"
    view = unordered if buildkit else sending
    code, failure = (1, "exit code: 5") if buildkit else (5, "returned a non-zero code: 5")
    return [
        Step(f"{build} -t built:1 {{folder}}", shows="from the build", buildkit=buildkit, view=view),
        Step("run --rm built:1", shows="1048576 /copied/inner\ndebug\n"),
        Step(f"{build} -f {{folder}}/Failing {{folder}}", code, failure, buildkit=buildkit, view=view),
    ]


SCENARIOS: dict[str, Sequence[Step]] = {
    "run": [Step(f"run --name box {BUSYBOX} {sh(f'{BOTH_OUTPUTS}; exit 7')}", 7, "err\n")],
    "run -it": [Step(f"run -it --name box {BUSYBOX} {sh(f'{ANSWER}; {SIZED}; exit 3')}", 3, "sized", terminal=LINE)],
    "run -it, detached by keys": [
        Step(f"run -it --name box {BUSYBOX} {sh(ANSWER)}", terminal=[Typed(b"ready\r\n", DETACH_KEYS)]),
        Step("inspect --format {{.State.Running}} box", shows="true"),
    ],
    "run -i": [Step(f"run -i --rm {BUSYBOX} {sh(TO_THE_END)}", shows="1048576\nended", stdin=MEGABYTE)],
    "run a missing command": [Step(f"run --rm {BUSYBOX} no-such-command", 127, "executable file not found")],
    "exec": [running(), Step(f"exec box {sh(f'{BOTH_OUTPUTS}; exit 9')}", 9, "err\n", stdin=TEXT)],
    "exec -i to the end of stdin": [
        running(),
        Step(f"exec -i box {sh(TO_THE_END)}", shows="1048576\nended", stdin=MEGABYTE),
        Step(f"exec -i box {sh(TO_THE_END)}", shows="0\nended", stdin=b""),
    ],
    "exec -it": [running(), Step(f"exec -it box {sh(f'{ANSWER}; {SIZED}; exit 4')}", 4, "got a word", terminal=LINE)],
    "attach": [
        # Created with -i and without -d, so that the end of stdin does not end the output too.
        Step(f"create -i --name box {BUSYBOX} {sh(f'{TO_THE_END}; exit 5')}"),
        Step("start box"),
        Step("attach box", 5, "1048576\nended", stdin=MEGABYTE),
    ],
    "cp a file": [
        running(),
        Step("cp {folder}/file box:/tmp/in"),
        Step("exec box cat /tmp/in", shows="no end of line"),
        Step("cp box:/tmp/in {folder}/back"),
        Step("cp box:/none {folder}/none", 1, "/none"),
    ],
    "logs -f": [running(CHATTER), Step("logs -f box", shows="err 3"), Step("logs -f -t --tail 2 box", shows="<time>")],
    "events": [
        Step(f"run --name box {BUSYBOX} {sh('exit 3')}", 3),
        Step("rm box"),
        Step("events --since {began} --until {now} --filter container=box", shows=f"exitCode=3, image={BUSYBOX}"),
    ],
    "build": building(buildkit=False),
    "build with BuildKit": building(buildkit=True),
    "save and load": [
        Step(f"tag {BUSYBOX} saved:1"),
        Step("save saved:1", shows="manifest.json", view=archive),
        Step("rmi saved:1", shows="Untagged: saved:1"),
        Step("load", shows="Loaded image: saved:1", stdin=LAST_ARCHIVE),
        Step("inspect --format {{.RepoTags}} saved:1", shows="saved:1"),
    ],
    "refused while stdin is sent": [
        Step("load", 1, "invalid tar header", stdin=LONG),
        Step("import --change BAD - imported:1", 1, "not a valid change command", stdin=LONG),
    ],
    "stop": [
        running(UNTIL_TERM),
        Step(f"exec box {sh('until [ -f /trapped ]; do sleep 0.02; done')}"),
        Step("stop box"),
        Step("inspect --format {{.State.ExitCode}} box", shows="5"),
    ],
}


@pytest.mark.parametrize("steps", SCENARIOS.values(), ids=SCENARIOS)
def test_cli_command_has_same_effect(dockerd: Dockerd, between: str, tmp_path: Path, steps: Sequence[Step]) -> None:
    seen = []
    for socket in (dockerd.socket, between):
        with dockerd.restored():
            seen.append(play(socket, steps, tmp_path / "files"))
    assert seen[0] == seen[1]


# ---- curl

CURL = "/usr/bin/curl"
"""Debian's, which may not be the first on the PATH."""
JSON, STDIN = ("-H", "Content-Type: application/json", "-d"), ("--data-binary", "@-")
OF_CURL: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("200", "/_ping", ("-I",)),
    ("200", "/v1.41/containers/json?all=1&filters={%22label%22:[%22a%22]}", ("-g",)),
    ("200", "/info", ("--http1.0",)),
    ("200", "/info", ("-H", "Connection: close")),
    ("200", "/info", ("-H", "Host: docker")),
    ("201", "/v1.41/containers/create?name=box", (*JSON, f'{{"Image":"{BUSYBOX}","Cmd":["sleep","9"]}}')),
    ("204", "/v1.41/containers/box/start", ("-X", "POST")),
    ("200", "/v1.41/containers/box/update", (*JSON, '{"CpuShares":512}')),
    ("200", "/v1.41/containers/box/archive?path=/tmp", ("-T", "-")),
    ("204", "/v1.41/containers/box/stop?t=0", ("-d", "")),
    ("200", "/images/load", ("-H", "Content-Type: application/x-tar", "-H", "Expect: 100-continue", *STDIN)),
    ("204", "/v1.41/containers/box?force=1", ("-X", "DELETE")),
    ("404", "/v1.41/containers/box/start", ("-X", "POST")),
)


def test_curl_has_same_status(dockerd: Dockerd, between: str) -> None:
    """Also over HTTP/1.0, with a chunked body, and with one that waits for a 100."""
    image = tar({"file": bytes(2 << 20)})
    with dockerd.restored():
        for path in (dockerd.socket, between):
            base = (CURL, "-sS", "--unix-socket", path, "-o", "/dev/null", "-w", "%{http_code}")
            for status, target, options in OF_CURL:
                command = [*base, *options, f"http://localhost{target}"]
                done = subprocess.run(command, input=image, capture_output=True, check=True, timeout=60)
                assert done.stdout.decode() == status, (command, done)
