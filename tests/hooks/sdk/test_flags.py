"""The command line of a hook server: the default values, and the one-line errors; no server is started."""

import argparse
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from runtimeproxy_hooks.sdk import Hook, main
from tests.hooks.sdk.child import Dreamy, Obedient

Out = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def without_grpcio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ensure that no server can be started."""
    monkeypatch.delitem(sys.modules, "runtimeproxy_hooks.sdk.serving", raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Undo the log setup of ``main``."""
    loggers = [logging.getLogger(name) for name in ("", "runtimeproxy_hooks", "tests")]
    levels, handlers = [logger.level for logger in loggers], list(loggers[0].handlers)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    for handler in set(loggers[0].handlers).difference(handlers):
        loggers[0].removeHandler(handler)


class Fileless(Obedient):
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--mark")

    def configure(self, arguments: argparse.Namespace) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/nowhere")


TWICE = "two hooks, or a hook and the SDK, have the same flag: argument --mark: conflicting option string: --mark"
WRONG_FLAGS = [
    ("--endpoint=a.sock", "--endpoint: 'a.sock' is not a unix socket: write /path, unix:/path or "),
    ("--failure-policy=fail", "argument --failure-policy: invalid choice: 'fail' (choose from "),
    ("--order=100", "argument --order: '100' is not a place: write a number from 0 to 99"),
    ("--timeout=0s", "--timeout: '0s' is not a time limit: write one above zero, like 500ms, 2s or 1m"),
    ("--log=debug", "unrecognized arguments: --log=debug; --help lists the flags"),
]
ERRORS: list[tuple[list[Any], str, list[str], str]] = [
    *(([Obedient()], "", [flag], f"obedient: error: {line}") for flag, line in WRONG_FLAGS),
    ([Dreamy()], "", ["--mark=xy"], "dreamy: error: --mark: write one letter"),
    ([Fileless()], "", [], "fileless: error: [Errno 2] No such file or directory: '/nowhere'"),
    ([Dreamy(), Fileless()], "two", [], f"two: error: {TWICE}"),
    ([], "", [], ": error: there is no hook to serve; give main one: main(MyHook())"),
    ([Dreamy], "", [], "dreamy: error: <class 'tests.hooks.sdk.child.Dreamy'> is not a hook; give main instances of "),
    ([Hook()], "", [], "hook: error: Hook has no method named like a hook point; there are pre_"),
    *(([Obedient()], name, [], f"{name}: error: {name!r} cannot be in a file's name; ") for name in ("a/b", ".a")),
]


@pytest.mark.parametrize(("hooks", "name", "argv", "line"), ERRORS)
def test_wrong_command_line_is_one_line(capsys: Out, hooks: list[Any], name: str, argv: list[str], line: str) -> None:
    with pytest.raises(SystemExit) as exited:
        main(*hooks, name=name, argv=argv)
    assert exited.value.code == 2
    error, empty = capsys.readouterr().err.split("\n")
    assert not empty
    assert error.startswith(line)


def test_missing_grpcio_is_one_line_with_what_to_install(capsys: Out) -> None:
    with pytest.raises(SystemExit) as exited:
        main(Obedient(), argv=["--register-dir="])
    assert exited.value.code == 1
    words = "the Python package grpc is missing, which serves gRPC; install runtimeproxy with its extra: "
    assert capsys.readouterr().err == f"obedient: error: {words}'runtimeproxy[hooks]'\n"
