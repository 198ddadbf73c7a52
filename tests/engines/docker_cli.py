"""The docker CLI as a program, with pipes or on a terminal, and rules for comparing the output of two equal runs.

The machine's own docker settings are not used; output that no rule matches is compared unchanged.
"""

import io
import os
import pty
import re
import select
import subprocess
import tarfile
import tempfile
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

DOCKER = "/usr/bin/docker"
"""Debian's, whatever else is on the PATH."""
TIMEOUT_SECONDS = 60.0
ROWS, COLUMNS = 33, 101
"""The size of the terminal."""
READ_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended and what it wrote; on a terminal all of it is ``stdout``."""

    exit_code: int
    stdout: bytes
    stderr: bytes = b""


@dataclass(frozen=True, slots=True)
class Typed:
    """Input that is typed once a text was shown; both are counted from the end of the last one."""

    shown: bytes
    keys: bytes


def run(
    socket: str,
    *arguments: str,
    stdin: bytes | None = None,
    terminal: Sequence[Typed] | None = None,
    buildkit: bool = False,
) -> Outcome:
    """Run a docker command against a socket, with an empty configuration of its own.

    ``stdin`` None is an empty one; with ``terminal`` the command has a terminal instead, and that is typed. Raises
    TimeoutError or subprocess.TimeoutExpired if it does not end in 60 s.
    """
    with tempfile.TemporaryDirectory(prefix="rp-docker-cli-") as config:
        command = [DOCKER, "--config", config, "--host", f"unix://{socket}", *arguments]
        variables = {"HOME": config, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "xterm"}
        variables["DOCKER_BUILDKIT"] = str(int(buildkit))
        if terminal is not None:
            return _on_a_terminal(command, variables, terminal)
        done = subprocess.run(
            command, input=stdin or b"", capture_output=True, env=variables, check=False, timeout=TIMEOUT_SECONDS
        )
        return Outcome(done.returncode, done.stdout, done.stderr)


TOO_EARLY_TO_RESIZE = b"failed to resize tty, using default size\r\n"
"""The CLI waits a tenth of a second for a container's start: a busy machine may take longer."""


def _on_a_terminal(command: Sequence[str], variables: Mapping[str, str], typed: Sequence[Typed]) -> Outcome:
    ours, theirs = pty.openpty()
    try:
        termios.tcsetwinsize(ours, (ROWS, COLUMNS))
        process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=dict(variables), start_new_session=True
        )
        os.close(theirs)
        try:
            output = _type(ours, typed)
            return Outcome(process.wait(TIMEOUT_SECONDS), output.replace(TOO_EARLY_TO_RESIZE, b""))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    finally:
        os.close(ours)


def _type(terminal: int, typed: Sequence[Typed]) -> bytes:
    """Return all that is shown until the terminal is closed by all processes."""
    output, position, left = b"", 0, list(typed)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while data := _read(terminal, deadline, output):
        output += data
        while left and (at := output.find(left[0].shown, position)) >= 0:
            position = at + len(left[0].shown)
            os.write(terminal, left.pop(0).keys)
    return output


def _read(terminal: int, deadline: float, output: bytes) -> bytes:
    if not select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
        raise TimeoutError(f"the command does not end; its terminal shows {output[-2000:]!r}")
    try:
        return os.read(terminal, READ_BYTES)
    except OSError:
        return b""  # EIO: no process has the terminal open any more


@dataclass(frozen=True, slots=True)
class Mask:
    """A rule: every match of a pattern is shown as ``name``, because of ``reason``."""

    name: str
    pattern: str
    reason: str


DRAWN = (
    Mask("<id>", r"\b[0-9a-f]{64}\b|\b[0-9a-f]{12}\b", "ids of containers, images made just now, and execs are random"),
    Mask(
        "",
        r'(?m)^(time="[^"]+" level=error msg="|\x1b\[31mERRO\x1b\[0m\[\d+\] )'
        r'error waiting for container: context canceled"? *\r?\n',
        "run's own log, on a terminal in another form, if it comes to it before it ends for another reason",
    ),
    Mask("<time>", r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( ?(Z|[+-]\d\d:?\d\d))?( UTC)?", "time goes on"),
    Mask("<age>", r"(?i)(less than a second|about a minute|\d+ (seconds?|minutes?))( ago)?", "time goes on"),
    Mask("", r"execDuration=\d+, ", "how long a container ran, which dockerd 23 and later say"),
    Mask("127.0.0.1:<port>", r"127\.0\.0\.1:\d+", "the kernel chooses the registry's port"),
)
"""Values that dockerd generates anew, in the output of any command."""

TRANSFERS = (
    *DRAWN,
    Mask(
        "",
        r"(?m)^\S+: (Preparing|Waiting|Pushing|Pulling fs layer|Downloading|Verifying Checksum|Download complete)\n",
        "a layer tells its newest state only: which ones are seen is a matter of time",
    ),
)
"""Rules for push and pull."""

SENDING = (
    Mask(
        "",
        r"Sending build context to Docker daemon +\S+\r|\r\n",
        "how far the CLI is goes by the clock, and its last words may come behind the daemon's first",
    ),
    *DRAWN,
)
"""Rules for a build without BuildKit into a pipe, where the daemon's own lines have no carriage return."""

BUILDKIT = (
    Mask("", r"(?m)^(#\d+ )?(\d+\.\d+ )?", "numbers follow the order in which steps that run at once began"),
    Mask("", r"(?m)^sha256:[0-9a-f]{64}\n", "a step's digest takes in the random id of the session"),
    Mask("", r"(?m)^\.\.\.\n", "another step told something, or ended, while the one that was shown went on"),
    Mask("transferring", r"(?m)^transferring .*$", "how far a transfer came is a matter of time"),
    Mask("DONE", r"(?m)^(DONE( \d+\.\d+s)?|CACHED)$", "how long it took; what a build used is let go of late"),
    Mask("", r"(?m)( \d+\.\d+s)?( done)?$", "a part of a step is told while it goes on, too, if that is seen in time"),
    *DRAWN,
)
"""Rules for BuildKit's plain progress, whose lines must be compared without their order."""


def masked(output: bytes, rules: Sequence[Mask] = DRAWN) -> str:
    """Return output with all matches of the rules replaced, one rule after the other."""
    text = output.decode(errors="backslashreplace")
    for rule in rules:
        text = re.sub(rule.pattern, rule.name, text)
    return text


def lines(output: bytes, rules: Sequence[Mask] = DRAWN) -> list[str]:
    """Return the distinct lines of masked output, sorted."""
    return sorted(set(masked(output, rules).splitlines()))


def archived(output: bytes, rules: Sequence[Mask] = DRAWN) -> list[str]:
    """Return the contents of a tar archive, in order, without the times, which are those of its creation.

    Raises tarfile.TarError.
    """
    with tarfile.open(fileobj=io.BytesIO(output)) as archive:
        return [_entry(archive, member, rules) for member in archive]


def _entry(archive: tarfile.TarFile, member: tarfile.TarInfo, rules: Sequence[Mask]) -> str:
    file = archive.extractfile(member) if member.isfile() else None
    content = b"" if file is None else file.read()
    what = masked(content, rules) if len(content) < READ_BYTES else sha256(content).hexdigest()
    head = f"{member.type!r} {member.mode:o} {member.uid}:{member.gid} {member.linkname!r}"
    return f"{masked(member.name.encode(), rules)} {head} {what!r}"


def tree(folder: Path) -> dict[str, bytes | str | None]:
    """Return the files below a folder with their content, a long one as its digest, and its directories as None."""
    return {
        str(path.relative_to(folder)): _content(path.read_bytes()) if path.is_file() else None
        for path in folder.rglob("*")
    }


def _content(content: bytes) -> bytes | str:
    return content if len(content) < READ_BYTES else sha256(content).hexdigest()
