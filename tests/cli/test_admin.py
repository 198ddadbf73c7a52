"""The commands that call the running proxy, each against every way in which it answers, hangs or is not available."""

import errno
import gc
import shlex
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from runtimeproxy.admin.protocol import Refused
from runtimeproxy.cli.shared import admin_client
from tests.cli.admin_answers import CANNED
from tests.cli.conftest import Run
from tests.fakes import canned_admin
from tests.fakes.canned_admin import Fault, serving

COMMANDS = [
    "status",
    "hook ls",
    "hook trace",
    "hook trace -f",
    "hook disable rdt --reason=hangs --for=1h",
    "hook enable rdt",
    "events",
    "events -f",
    "store ls",
    "store get default/web-1",
    "explain default/web-1",
    "log-level debug",
]

UNREADABLE = "the answer cannot be read: is it a proxy of this version? ({})"
FAULTS: list[tuple[Fault, str]] = [
    (canned_admin.cut_before_the_answer, "the proxy broke off before its answer: {}"),
    (canned_admin.cut_in_a_line, "the proxy broke off within its answer: {}"),
    (canned_admin.cut_after_a_part, "the proxy broke off within its answer: {}"),
    (canned_admin.speak_http, UNREADABLE),
    (canned_admin.answer_no_json, UNREADABLE),
]
Listening = Callable[[Path], AbstractContextManager[object]]
NOT_THERE: list[tuple[Listening, str, float]] = [
    (nullcontext, "start the proxy, or correct --admin-endpoint: nothing listens at {}", 2.0),
    (canned_admin.not_listening, "start the proxy, or correct --admin-endpoint: nothing listens at {}", 2.0),
    (canned_admin.not_accepting, "the proxy takes no connection (waited 0.05 s): {}", 0.05),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a short path of an admin socket."""
    return tmp_path / "a"


def fetch(run: Run, command: str, path: Path | str) -> tuple[int, str, str]:
    return run("runtimeproxy", *shlex.split(command), f"--admin-endpoint={path}")


def error(run: Run, command: str, path: Path | str) -> tuple[int, str]:
    """Return the exit code and the only line of a command that fails; where it is status, it is on stdout."""
    code, out, err = fetch(run, command, path)
    assert (out + err).count("\n") == 1
    assert bool(out) == (command == "status")
    return code, (out + err).strip().removeprefix("runtimeproxy: error: ").removeprefix("no answer: ")


def is_reported(line: str, words: str) -> bool:
    """Return whether a line has the words; that of status may be cut."""
    return line == words or (line.endswith("...") and words.startswith(line[:-3]))


@pytest.mark.parametrize("command", [command for command in COMMANDS if "-f" not in command])
def test_command_is_answered(run: Run, path: Path, command: str) -> None:
    with serving(path, CANNED):
        code, out, err = fetch(run, command, path)
    assert (code, err) == (0, "")
    assert out.isascii()
    assert "None" not in out


@pytest.mark.parametrize(("fault", "words"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("command", COMMANDS)
def test_proxy_that_fails_is_one_line(run: Run, path: Path, command: str, fault: Fault, words: str) -> None:
    with serving(path, CANNED, fault):
        code, line = error(run, command, path)
    assert code == 3
    assert is_reported(line, words.format(path))
    assert not [left for left in gc.get_objects() if type(left) is admin_client._Lines and left.sock.fileno() >= 0]


@pytest.mark.parametrize(("listening", "words", "seconds"), NOT_THERE)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_proxy_is_one_line(
    run: Run,
    path: Path,
    command: str,
    listening: Listening,
    words: str,
    seconds: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin_client, "SECONDS", seconds)
    with listening(path):
        code, line = error(run, command, path)
    assert code == 3
    assert is_reported(line, words.format(path))


@pytest.mark.parametrize(
    ("command", "number"), [*((each, errno.EACCES) for each in COMMANDS), ("hook ls", errno.EPERM)]
)
def test_no_rights_is_one_line(
    run: Run, path: Path, command: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(self: socket.socket, address: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(socket.socket, "connect", connect)
    code, line = error(run, command, path)
    assert (code, is_reported(line, f"run as root: permission denied: {path}")) == (3, True)


REFUSED = [("hook ls", status, code) for status, code in ((400, 2), (403, 1), (409, 1), (500, 1), (503, 3))]
REFUSED += [(command, 404, 1) for command in COMMANDS if command != "status"]


@pytest.mark.parametrize(("command", "status", "code"), REFUSED)
def test_error_of_the_proxy_is_its_line(run: Run, path: Path, command: str, status: int, code: int) -> None:
    with serving(path, CANNED, lambda handler: handler.error(Refused(status, "so it is"))):
        assert error(run, command, path) == (code, "so it is")
