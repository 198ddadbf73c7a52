"""The docker CLI as a program, with pipes or on a terminal, and rules for comparing the output of two equal runs."""

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
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

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


def command(socket: str, config: Path | str, *arguments: str, **variables: str) -> list[str]:
    """Return a docker command against a socket, with a directory for an empty configuration of its own."""
    usual = {"HOME": str(config), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "xterm", **variables}
    words = [f"{name}={value}" for name, value in usual.items()]
    return ["env", "-i", *words, DOCKER, "--config", str(config), "--host", f"unix://{socket}", *arguments]


def run(
    socket: str,
    *arguments: str,
    stdin: bytes | None = None,
    terminal: Sequence[Typed] | None = None,
    buildkit: bool = False,
) -> Outcome:
    """Run a docker command to its end, on a terminal if there is input for one.

    Raises TimeoutError or subprocess.TimeoutExpired if it does not end in 60 s.
    """
    with tempfile.TemporaryDirectory(prefix="rp-docker-cli-") as config:
        words = command(socket, config, *arguments, DOCKER_BUILDKIT=str(int(buildkit)))
        if terminal is not None:
            return _on_a_terminal(words, terminal)
        done = subprocess.run(words, input=stdin or b"", capture_output=True, check=False, timeout=TIMEOUT_SECONDS)
        return Outcome(done.returncode, done.stdout, done.stderr)


TOO_EARLY_TO_RESIZE = b"failed to resize tty, using default size\r\n"
"""The CLI waits a tenth of a second for a container's start: a busy machine may take longer."""


def _on_a_terminal(words: Sequence[str], typed: Sequence[Typed]) -> Outcome:
    ours, theirs = pty.openpty()
    try:
        termios.tcsetwinsize(ours, (ROWS, COLUMNS))
        process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
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
    """Return all that is shown until all processes have closed the terminal."""
    output, position, waiting = b"", 0, list(typed)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while data := _read(terminal, deadline, output):
        output += data
        while waiting and (at := output.find(waiting[0].shown, position)) >= 0:
            position = at + len(waiting[0].shown)
            os.write(terminal, waiting.pop(0).keys)
    return output


def _read(terminal: int, deadline: float, output: bytes) -> bytes:
    if not select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
        raise TimeoutError(f"the command does not end; its terminal shows {output[-2000:]!r}")
    try:
        return os.read(terminal, READ_BYTES)
    except OSError:
        return b""  # EIO: no process has the terminal open


class Mask(NamedTuple):
    """A rule: every match of a pattern is shown as ``name``."""

    name: str
    pattern: str


DRAWN = (
    Mask("<id>", r"\b[0-9a-f]{64}\b|\b[0-9a-f]{12}\b"),
    # run's own log, in another form on a terminal, if the command ends for another reason first
    Mask(
        "",
        r'(?m)^(time="[^"]+" level=error msg="|\x1b\[31mERRO\x1b\[0m\[\d+\] )'
        r'error waiting for container: context canceled"? *\r?\n',
    ),
    Mask("<time>", r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( ?(Z|[+-]\d\d:?\d\d))?( UTC)?"),
    Mask("<age>", r"(?i)(less than a second|about a minute|\d+ (seconds?|minutes?))( ago)?"),
    Mask("", r"execDuration=\d+, "),  # of dockerd 23 and later
)
"""Values that differ between two equal runs of any command."""

SENDING = (
    # how far the CLI is; its last line may follow the daemon's first
    Mask("", r"Sending build context to Docker daemon +\S+\r|\r\n"),
    *DRAWN,
)
"""Rules for a build without BuildKit into a pipe, where the daemon's own lines have no carriage return."""

BUILDKIT = (
    Mask("", r"(?m)^(#\d+ )?(\d+\.\d+ )?"),  # numbers follow the order in which concurrent steps began
    Mask("", r"(?m)^sha256:[0-9a-f]{64}\n"),  # a step's digest includes the random id of the session
    Mask("", r"(?m)^\.\.\.\n"),  # another step has printed something meanwhile
    Mask("transferring", r"(?m)^transferring .*$"),
    Mask("DONE", r"(?m)^(DONE( \d+\.\d+s)?|CACHED)$"),
    Mask("", r"(?m)( \d+\.\d+s)?( done)?$"),  # the part of a step that is done
    *DRAWN,
)
"""Rules for BuildKit's plain progress, whose lines must be compared without their order."""


def masked(output: bytes, rules: Sequence[Mask] = DRAWN) -> str:
    """Return output with all matches of the rules replaced, one rule after the other."""
    text = output.decode(errors="backslashreplace")
    for rule in rules:
        text = re.sub(rule.pattern, rule.name, text)
    return text


def archived(output: bytes) -> list[str]:
    """Return the contents of a tar archive, in order, without the times, which are those of its creation."""
    with tarfile.open(fileobj=io.BytesIO(output)) as archive:
        return [_entry(archive, member) for member in archive]


def _entry(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = archive.extractfile(member) if member.isfile() else None
    content = b"" if file is None else file.read()
    what = masked(content) if len(content) < READ_BYTES else sha256(content).hexdigest()
    head = f"{member.type!r} {member.mode:o} {member.uid}:{member.gid} {member.linkname!r}"
    return f"{masked(member.name.encode())} {head} {what!r}"


def tree(folder: Path) -> dict[str, str | None]:
    """Return the digest of each file below a folder, and None for its directories."""
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        for path in folder.rglob("*")
    }
