"""Foreign clients behave the same through a socket in between as on dockerd's own (promise 20).

Each scenario of the docker CLI and of curl runs directly and through ``between``, in containers of its own. Exit codes,
output and files must be equal; what dockerd generates each time is masked.
"""

import io
import shlex
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.engines import docker_cli
from tests.engines.docker_cli import COLUMNS, ROWS, Typed
from tests.engines.dockerd import BUSYBOX, Dockerd
from tests.engines.registry import Registry

pytestmark = [pytest.mark.engine, pytest.mark.slow]

# ---- steps of the docker CLI

View = Callable[[bytes], str]
"""The part of a command's output that is compared."""
plain: View = docker_cli.masked
transfer: View = partial(docker_cli.masked, rules=docker_cli.TRANSFERS)
sending: View = partial(docker_cli.masked, rules=docker_cli.SENDING)
LAST_ARCHIVE = b"<the last archive that a step wrote>"
"""Stands for it as the ``stdin`` of a step."""


def unordered(output: bytes) -> str:
    """Return the lines of BuildKit's progress, in any order."""
    return "\n".join(docker_cli.lines(output, docker_cli.BUILDKIT))


def archive(output: bytes) -> str:
    """Return the content of a tar archive."""
    return "\n".join(docker_cli.archived(output))


@dataclass(frozen=True, slots=True)
class Step:
    """A docker command, as a shell would split it, and its expected end.

    In the command {folder} is a folder of files, {registry} an address, {began} the time before the first step, {now}
    that before this one. ``shows`` must be in the command's masked output.
    """

    command: str
    exit_code: int = 0
    shows: str = ""
    stdin: bytes | None = None
    terminal: Sequence[Typed] | None = None
    buildkit: bool = False
    view: View = plain


def play(socket: str, steps: Sequence[Step], folder: Path, registry: str) -> list[Any]:
    """Run all steps; return what is compared of each.

    At the end comes the content of the folder, which began with FILES.
    """
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    words = {"folder": str(folder), "registry": registry, "began": f"{time.time():.9f}"}
    results, last_archive = [], b""
    for step in steps:
        words["now"] = f"{time.time():.9f}"
        command = step.command
        for name, value in words.items():
            command = command.replace(f"{{{name}}}", value)
        stdin = last_archive if step.stdin is LAST_ARCHIVE else step.stdin
        arguments = shlex.split(command)
        outcome = docker_cli.run(socket, *arguments, stdin=stdin, terminal=step.terminal, buildkit=step.buildkit)
        seen = step.view(outcome.stdout), (plain if step.view is archive else step.view)(outcome.stderr)
        assert outcome.exit_code == step.exit_code, (command, outcome)
        assert step.shows in "".join(seen), (command, outcome)
        results.append((step.command, *seen))
        if step.view is archive:
            last_archive = outcome.stdout
    left = docker_cli.tree(folder)
    shutil.rmtree(folder)
    return [*results, left]


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
"""No archive, and more than dockerd reads before it says so."""
DETACH_KEYS = b"\x10\x11"
LINE = [Typed(b"ready\r\n", b"a word\n")]

ANSWER = "echo ready; read line; echo got $line"
# The size is sent by a call of its own, after the start.
SIZED = f'until busybox stty size 2>&1 | grep -q "{ROWS} {COLUMNS}"; do sleep 0.05; done; echo sized'
BOTH_OUTPUTS = "echo out; echo err >&2"
TO_THE_END = "wc -c; echo ended"
UNTIL_TERM = "trap 'exit 5' TERM; touch /trapped; while true; do sleep 0.05; done"
# dockerd copies each output by itself: lines of both are in order only if time passes between them. Its end comes late,
# because a client that follows a log that ends with its last line may miss that line.
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
    "run a command that is not there": [Step(f"run --rm {BUSYBOX} no-such-command", 127, "executable file not found")],
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
    "cp an archive": [
        running(),
        Step("cp - box:/tmp", stdin=tar({"one": TEXT, "two": MEGABYTE})),
        Step("exec box wc -c /tmp/one /tmp/two", shows="1048613 total"),
        Step("cp box:/tmp -", shows="tmp/two", view=archive),
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
        Step(f"tag {BUSYBOX} kept:1"),
        Step("save kept:1", shows="manifest.json", view=archive),
        Step("rmi kept:1", shows="Untagged: kept:1"),
        Step("load", shows="Loaded image: kept:1", stdin=LAST_ARCHIVE),
        Step("inspect --format {{.RepoTags}} kept:1", shows="kept:1"),
    ],
    "refused while stdin is sent": [
        Step("load", 1, "invalid tar header", stdin=LONG),
        Step("import --change BAD - imported:1", 1, "not a valid change command", stdin=LONG),
    ],
    "push and pull": [
        Step("import - {registry}/pushed:1", stdin=tar({"one": TEXT, "two": MEGABYTE})),
        Step("push {registry}/pushed:1", shows="<id>: Pushed", view=transfer),
        Step("rmi {registry}/pushed:1"),
        Step("pull {registry}/pushed:1", shows="<id>: Pull complete", view=transfer),
    ],
    "export": [Step(f"create --name box {BUSYBOX} none"), Step("export box", shows="bin/busybox", view=archive)],
    "pull a missing image": [
        Step("pull {registry}/missing:1", 1, "manifest unknown"),
        Step("run --name box {registry}/missing:1", 125, "Unable to find image"),
    ],
    "stop": [
        running(UNTIL_TERM),
        Step(f"exec box {sh('until [ -f /trapped ]; do sleep 0.02; done')}"),
        Step("stop box"),
        Step("inspect --format {{.State.ExitCode}} box", shows="5"),
    ],
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_cli_command_does_the_same(dockerd: Dockerd, between: str, tmp_path: Path, name: str) -> None:
    steps, seen = SCENARIOS[name], []
    for socket in (dockerd.socket, between):
        with dockerd.restored(), ExitStack() as stack:
            # The registry is empty each time, because existing content is not pushed.
            needs_registry = any("{registry}" in step.command for step in steps)
            address = stack.enter_context(Registry()).address if needs_registry else ""
            seen.append(play(socket, steps, tmp_path / "files", address))
    assert seen[0] == seen[1]


# ---- curl

CURL = "/usr/bin/curl"
"""Debian's, whatever else is on the PATH."""
JSON, STDIN = ("-H", "Content-Type: application/json", "-d"), ("--data-binary", "@-")
OF_CURL: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    # Rows: the status, the path, the options.
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


def test_curl_gets_the_same(dockerd: Dockerd, between: str) -> None:
    """Also as HTTP/1.0, with a body in chunks, with one that waits for a 100, and without any."""
    image = tar({"file": bytes(2 << 20)})
    with dockerd.restored():
        for path in (dockerd.socket, between):
            base = (CURL, "-sS", "--unix-socket", path, "-o", "/dev/null", "-w", "%{http_code}")
            for status, target, options in OF_CURL:
                command = [*base, *options, f"http://localhost{target}"]
                done = subprocess.run(command, input=image, capture_output=True, check=True, timeout=60)
                assert done.stdout.decode() == status, (command, done)
