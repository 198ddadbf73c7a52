"""The entry points, run in this process: both outputs, and the exit code."""

import io
import logging
import os
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from runtimeproxy import app, cli
from runtimeproxy.observe.logs import OWN_LOGGER

Run = Callable[..., tuple[int, str, str]]
"""Runs a command line; returns exit code, output and errors."""
ENTRIES = {"runtimeproxy": cli.main, "koord-runtime-proxy": cli.koord_runtime_proxy}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Return a function that runs a command line, with an application of the test and no variable of the project."""
    for name in [name for name in os.environ if name.startswith("RUNTIMEPROXY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "80")

    def run(
        program: str, *arguments: object, does: Any = None, stdin: str = "", **environ: str
    ) -> tuple[int, str, str]:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(app, "run", does or (lambda config: pytest.fail("it must not run")))
        monkeypatch.setattr(sys, "argv", [program, *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin.encode())))
        code = ENTRIES[program]()
        return code, *capfd.readouterr()

    level = logging.getLogger(OWN_LOGGER).level
    yield run
    logging.getLogger(OWN_LOGGER).setLevel(level)
