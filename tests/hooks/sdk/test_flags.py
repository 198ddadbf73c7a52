"""The command line of a hook server: the effect of flags, and the one-line errors; no server is started."""

import argparse
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from runtimeproxy_hooks.sdk import Hook, main
from runtimeproxy_hooks.sdk.flags import parser
from tests.hooks.sdk.child import Dreamy, Obedient

Out = pytest.CaptureFixture[str]
DEFAULTS = {
    **{"endpoint": "/var/run/runtimeproxy-hooks/gpu.sock", "register_dir": "/etc/runtime/hookserver.d"},
    **{"failure_policy": "Ignore", "unregister": False, "order": None, "timeout": None, "log_level": "info"},
}
GIVEN = [
    *((f"--endpoint={scheme}/run/a.sock", {"endpoint": "/run/a.sock"}) for scheme in ("", "unix:", "unix://")),
    *((f"--register-dir={folder}", {"register_dir": folder}) for folder in ("", "/a")),
    *((f"--order={text}", {"order": number}) for text, number in (("0", 0), ("07", 7), ("99", 99))),
    *((f"--timeout={text}", {"timeout": text}) for text in ("500ms", "1.5s", "2")),
    *(("--failure-policy=Fail", {"failure_policy": "Fail"}), ("--unregister", {"unregister": True})),
    ("--log-level=debug", {"log_level": "debug"}),
]


@pytest.mark.parametrize(("flag", "value"), GIVEN)
def test_flag_gives_its_value_over_the_defaults(flag: str, value: dict[str, object]) -> None:
    assert vars(parser("gpu").parse_args([])) == DEFAULTS
    assert vars(parser("gpu").parse_args([flag])) == DEFAULTS | value


@pytest.fixture(autouse=True)
def without_grpcio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make sure that no server can be started."""
    monkeypatch.delitem(sys.modules, "runtimeproxy_hooks.sdk.serving", raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Undo the log setup of ``main``."""
    loggers = [logging.getLogger(name) for name in ("", "runtimeproxy_hooks", "tests")]
    levels, handlers = [logger.level for logger in loggers], list(loggers[0].handlers)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    for handler in set(loggers[0].handlers).difference(handlers):
        loggers[0].removeHandler(handler)


class Pointless(Hook):
    """Has no method named like a hook point."""


class Clashing(Obedient):
    """Has a flag that the SDK has already."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--timeout")


class Fileless(Obedient):
    """Needs a file that does not exist."""

    def configure(self, arguments: argparse.Namespace) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/nowhere")


TWICE = "two hooks, or a hook and the SDK, have the same flag: argument --{0}: conflicting option string: --{0}; rename"
NO_FILE_NAME = "cannot be in a file's name; use letters, digits, '.', '_' and '-'"
WRONG_FLAGS = [
    ("--endpoint=a.sock", "--endpoint: 'a.sock' is not a unix socket: write /path, unix:/path or "),
    ("--failure-policy=fail", "argument --failure-policy: invalid choice: 'fail' (choose from "),
    ("--order=100", "argument --order: '100' is not a place: write a number from 0 to 99"),
    ("--order=\u00b2", "argument --order: '\u00b2' is not a place: write a number from 0 to 99"),
    ("--timeout=0s", "--timeout: '0s' is not a time limit: write one above zero, like 500ms, 2s or 1m"),
    ("--timeout=1h", "--timeout: '1h' is not a duration: write one like 500ms, 2s, 1m, or a number of seconds"),
    ("--log=debug", "unrecognized arguments: --log=debug; --help lists the flags"),
]
WRONG_LINES: list[tuple[list[Any], str, list[str], str]] = [
    *(([Obedient()], "", [flag], f"obedient: error: {line}") for flag, line in WRONG_FLAGS),
    ([Dreamy()], "", ["--mark=xy"], "dreamy: error: --mark: write one letter"),
    ([Fileless()], "", [], "fileless: error: [Errno 2] No such file or directory: '/nowhere'"),
    ([Dreamy(), Dreamy()], "two", [], f"two: error: {TWICE.format('mark')}"),
    ([Clashing()], "", [], f"clashing: error: {TWICE.format('timeout')}"),
    ([], "", [], ": error: there is no hook to serve; give main one: main(MyHook())"),
    ([Dreamy], "", [], "dreamy: error: <class 'tests.hooks.sdk.child.Dreamy'> is not a hook; give main instances of "),
    ([Pointless()], "", [], "pointless: error: Pointless has no method named like a hook point; there are pre_"),
    *(([Obedient()], name, [], f"{name}: error: {name!r} {NO_FILE_NAME}") for name in ("a/b", ".a")),
]


@pytest.mark.parametrize(("hooks", "name", "argv", "line"), WRONG_LINES)
def test_wrong_command_line_is_one_line(capsys: Out, hooks: list[Any], name: str, argv: list[str], line: str) -> None:
    with pytest.raises(SystemExit) as exited:
        main(*hooks, name=name, argv=argv)
    assert exited.value.code == 2
    said, empty = capsys.readouterr().err.split("\n")
    assert not empty
    assert said.startswith(line)


def test_missing_grpcio_is_one_line_that_says_what_to_install(capsys: Out) -> None:
    with pytest.raises(SystemExit) as exited:
        main(Obedient(), argv=["--register-dir="])
    assert exited.value.code == 1
    words = "the Python package grpc is missing, which serves gRPC; install runtimeproxy with its extra: "
    assert capsys.readouterr().err == f"obedient: error: {words}'runtimeproxy[hooks]'\n"
