"""The docker CLI as a program, with pipes or on a terminal, and the comparison of the output of two equal runs."""

import os
import pty
import re
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

DOCKER = "/usr/bin/docker"
"""Debian's, independent of the PATH."""
TIMEOUT_SECONDS = 60.0
READ_BYTES = 65536


class Outcome(NamedTuple):
    """The exit code and output of a command; on a terminal all output is ``stdout``."""

    exit_code: int
    stdout: bytes
    stderr: bytes = b""


def command(socket: str, config: Path | str, *arguments: str, buildkit: bool = False) -> list[str]:
    """Return a docker command against a socket, with a directory for an empty configuration of its own."""
    usual = ("PATH=/usr/bin:/bin", "LANG=C.UTF-8", "TERM=xterm", f"HOME={config}", f"DOCKER_BUILDKIT={int(buildkit)}")
    return ["env", "-i", *usual, DOCKER, "--config", str(config), "--host", f"unix://{socket}", *arguments]


def run(
    socket: str, *arguments: str, stdin: bytes = b"", typed: tuple[bytes, bytes] | None = None, buildkit: bool = False
) -> Outcome:
    """Run a docker command to its end, on a terminal if ``typed`` has bytes to send after a text is shown.

    Raises subprocess.TimeoutExpired if it does not end in 60 s.
    """
    with tempfile.TemporaryDirectory(prefix="rp-docker-cli-") as config:
        words = command(socket, config, *arguments, buildkit=buildkit)
        if typed is not None:
            return _on_a_terminal(words, *typed)
        done = subprocess.run(words, input=stdin, capture_output=True, check=False, timeout=TIMEOUT_SECONDS)
        return Outcome(done.returncode, done.stdout, done.stderr)


def _on_a_terminal(words: list[str], prompt: bytes, keys: bytes) -> Outcome:
    master, slave = pty.openpty()
    output, deadline = b"", time.monotonic() + TIMEOUT_SECONDS
    process = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    try:
        with suppress(OSError):  # EIO: the terminal is closed
            while select.select([master], [], [], max(0.0, deadline - time.monotonic()))[0]:
                data = os.read(master, READ_BYTES)
                if prompt not in output and prompt in output + data:
                    os.write(master, keys)
                output += data
            raise subprocess.TimeoutExpired(words, TIMEOUT_SECONDS, output)
        return Outcome(process.wait(TIMEOUT_SECONDS), output)
    finally:
        process.kill()
        process.wait()
        os.close(master)


DRAWN: Mapping[str, str] = {
    r"\b[0-9a-f]{64}\b|\b[0-9a-f]{12}\b": "<id>",
    # The CLI waits a tenth of a second for a container's start: a busy machine may take longer.
    r"failed to resize tty, using default size\r\n": "",
    # run's own log, in another form on a terminal, if the command ends for another reason first
    r'(?m)^(time="[^"]+" level=error msg="|\x1b\[31mERRO\x1b\[0m\[\d+\] )'
    r'error waiting for container: context canceled"? *\r?\n': "",
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( ?(Z|[+-]\d\d:?\d\d))?( UTC)?": "<time>",
    r"(?i)(less than a second|about a minute|\d+ (seconds?|minutes?))( ago)?": "<age>",
    r"execDuration=\d+, ": "",  # of dockerd 23 and later
    # how far the CLI is; its last line may follow the daemon's first
    r"Sending build context to Docker daemon +\S+\r": "",
}
"""Patterns of values that differ between two equal runs, and their replacements."""


def masked(output: bytes, rules: Mapping[str, str] = DRAWN) -> str:
    """Return output with all matches of the rules replaced, in order."""
    text = output.decode(errors="backslashreplace")
    for pattern, name in rules.items():
        text = re.sub(pattern, name, text)
    return text
