"""What the docker CLI does through a socket in between is what it does on dockerd's own, command by command.

Each row of SCENARIOS runs twice on the same daemon, in containers of its own: straight, and through ``between``. Exit
codes, output and files must be equal; what dockerd draws anew is masked by the rules listed in ``docker_cli``.

That is promise 20.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.engines import cgroups, docker_cli
from tests.engines.docker_cli import COLUMNS, ROWS, Typed
from tests.engines.dockerd import BUSYBOX, Dockerd
from tests.engines.registry import Registry
from tests.system.docker_steps import (
    LAST_ARCHIVE,
    Step,
    archive,
    figures,
    play,
    sh,
    tar,
    transfer,
    unordered,
)

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TEXT = b"first line\nsecond line\nno end of line"
MEGABYTE = bytes(range(256)) * 4096
LONG = MEGABYTE * 32
"""No archive, and more than what dockerd reads before it says so."""
DETACH_KEYS = b"\x10\x11"
LINE = [Typed(b"ready\r\n", b"a word\n")]

ANSWER = "echo ready; read line; echo got $line"
# The size comes by a call of its own, after the start.
SIZED = f'until busybox stty size 2>&1 | grep -q "{ROWS} {COLUMNS}"; do sleep 0.05; done; echo sized'
BOTH_OUTPUTS = "echo out; echo err >&2"
TO_THE_END = "wc -c; echo ended"
UNTIL_TERM = "trap 'exit 5' TERM; echo told > /told; while true; do sleep 0.05; done"
# dockerd copies each output by itself: lines of both are in order if time is between them. Its end comes late, for who
# follows a log that ends with its last line may not get that one.
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


def running(script: str = "exec sleep 1000", options: str = "") -> Step:
    """Start the container ``box``."""
    return Step(f"run -d --name box {options} {BUSYBOX} {sh(script)}", shows="<id>")


def made(script: str, exit_code: int = 0) -> Step:
    """Run the container ``box`` to its end."""
    return Step(f"run --name box {BUSYBOX} {sh(script)}", exit_code)


def stopping(reference: str) -> Sequence[Step]:
    """Stop a container that listens to SIGTERM."""
    return [
        running(UNTIL_TERM),
        Step(f"exec box {sh('until [ -f /told ]; do sleep 0.02; done')}"),
        Step(f"stop {reference}"),
        Step("inspect --format {{.State.ExitCode}} box", shows="5"),
    ]


def without_progress(output: bytes) -> str:
    """Compare what a build without BuildKit tells, in its order, but for how much of its context was sent."""
    return docker_cli.masked(output, docker_cli.SENDING)


def building(*, buildkit: bool) -> Sequence[Step]:
    """Build an image that runs, and one that fails, with or without BuildKit."""
    build = f"build --network none{' --progress plain' if buildkit else ''}"
    view = unordered if buildkit else without_progress
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
    "exec -d": [running(), Step("exec -d box true")],
    "exec -i": [running(), Step("exec -i box cat", shows="no end of line", stdin=TEXT)],
    "exec -i to the end of stdin": [
        running(),
        Step(f"exec -i box {sh(TO_THE_END)}", shows="1048576\nended", stdin=MEGABYTE),
        Step(f"exec -i box {sh(TO_THE_END)}", shows="0\nended", stdin=b""),
    ],
    "exec -t": [running(), Step(f"exec -t box {sh(f'{BOTH_OUTPUTS}; {SIZED}')}", shows="sized", terminal=[])],
    "exec -it": [running(), Step(f"exec -it box {sh(f'{ANSWER}; {SIZED}; exit 4')}", 4, "got a word", terminal=LINE)],
    "exec in no container": [Step("exec box true", 1, "No such container: box")],
    "attach": [
        # Made with -i and without -d, so that the end of stdin does not end the output too.
        Step(f"create -i --name box {BUSYBOX} {sh(f'{TO_THE_END}; exit 5')}"),
        Step("start box"),
        Step("attach box", 5, "1048576\nended", stdin=MEGABYTE),
    ],
    "attach on a terminal": [
        running(f"{SIZED}; {ANSWER}; exit 6", "-it"),
        Step("attach box", 6, "got a word", terminal=LINE),
    ],
    "cp a file": [
        running(),
        Step("cp {folder}/file box:/tmp/in"),
        Step("exec box cat /tmp/in", shows="no end of line"),
        Step("cp box:/tmp/in {folder}/back"),
        Step("cp box:/none {folder}/none", 1, "No such container:path"),
    ],
    "cp a directory": [
        running(),
        Step("cp {folder}/directory box:/tmp/in"),
        Step("exec box ls -R /tmp/in", shows="empty"),
        Step("cp box:/tmp/in {folder}/back"),
    ],
    "cp an archive": [
        running(),
        Step("cp - box:/tmp", stdin=tar({"one": TEXT, "two": MEGABYTE})),
        Step("exec box wc -c /tmp/one /tmp/two", shows="1048613 total"),
        Step("cp box:/tmp -", shows="tmp/two", view=archive),
    ],
    "logs -f": [running(CHATTER), Step("logs -f box", shows="err 3"), Step("logs -f -t --tail 2 box", shows="<time>")],
    "wait": [running("sleep 0.3; exit 4"), Step("wait box", shows="4")],
    "events": [
        made("exit 3", 3),
        Step("rm box"),
        Step("events --since {began} --until {now} --filter container=box", shows="container die <id> (exitCode=3"),
    ],
    "stats": [running(), Step("stats --no-stream box", shows="<size> / <size>", view=figures)],
    "build": building(buildkit=False),
    "build with BuildKit": building(buildkit=True),
    "save and load": [
        Step(f"tag {BUSYBOX} kept:1"),
        Step("save kept:1", shows="manifest.json", view=archive),
        Step("rmi kept:1", shows="Untagged: kept:1"),
        Step("load", shows="Loaded image: kept:1", stdin=LAST_ARCHIVE),
        Step("inspect --format {{.RepoTags}} kept:1", shows="kept:1"),
    ],
    "export and import": [
        made("echo new > /made"),
        Step("export box", shows="made ", view=archive),
        Step("import --change 'CMD cat /made' - imported:1", shows="sha256:<id>", stdin=LAST_ARCHIVE),
        Step("run --rm imported:1", shows="new"),
    ],
    "refused while stdin is sent": [
        Step("load", 1, "invalid tar header", stdin=LONG),
        Step("import --change BAD - imported:1", 1, "bad is not a valid change command", stdin=LONG),
    ],
    "commit": [
        made("echo new > /made"),
        Step("commit --change 'CMD cat /made' box committed:1", shows="sha256:<id>"),
        Step("run --rm committed:1", shows="new"),
    ],
    "push and pull": [
        Step("import - {registry}/pushed:1", stdin=tar({"one": TEXT, "two": MEGABYTE})),
        Step("push {registry}/pushed:1", shows="<id>: Pushed", view=transfer),
        Step("rmi {registry}/pushed:1"),
        Step("pull {registry}/pushed:1", shows="<id>: Pull complete", view=transfer),
        Step("create --name box {registry}/pushed:1 none"),
        Step("export box", shows="two ", view=archive),
    ],
    "pull a missing image": [
        Step("pull {registry}/missing:1", 1, "manifest unknown"),
        Step("run --name box {registry}/missing:1", 125, "Unable to find image"),
    ],
    "stop by name": stopping("box"),
    "stop by short id": stopping("{short}"),
    "update": [
        running(options="--memory 32m"),
        Step("update --cpu-shares 512 --memory 64m --memory-swap 64m box"),
        Step(
            f"exec box cat {cgroups.inside_file('cpu_shares')} {cgroups.inside_file('memory_limit_in_bytes')}",
            shows=f"{cgroups.expected('cpu_shares', 512)}\n{64 << 20}",
        ),
    ],
    "rename": [
        running(),
        Step("rename box other"),
        Step("inspect --format {{.Name}} other", shows="/other"),
        Step("inspect box", 1, "No such object: box"),
    ],
    "rm -f": [running(), Step("rm -f box"), Step("inspect box", 1, "No such object: box")],
    "system df": [running(), Step("system df", shows="Containers  1  1", view=figures)],
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_command_is_the_same_through_the_socket_in_between(
    dockerd: Dockerd, between: str, tmp_path: Path, name: str
) -> None:
    steps = SCENARIOS[name]
    seen = []
    for socket in (dockerd.socket, between):
        with dockerd.restored(), ExitStack() as stack:
            address = ""
            if any("{registry}" in step.command for step in steps):
                # An empty one each time: what is there already is not pushed.
                address = stack.enter_context(Registry()).address
            seen.append(play(socket, steps, tmp_path / "files", FILES, address))
    assert seen[0] == seen[1]
