"""``runtimeproxy in-use`` from a user's view: forms and exit codes."""

import json
from collections.abc import Iterator

import pytest

from runtimeproxy.cli.doctor import clients
from runtimeproxy.cli.doctor.machine import Machine
from tests.cli.conftest import Run

IN_USE = ("runtimeproxy", "in-use", "--koord-runtimeproxy-endpoint=/x.sock")


def set_users(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    def found(machine: Machine) -> Iterator[str]:
        assert machine.config.listen_endpoint == "/x.sock"
        yield from lines

    monkeypatch.setattr(clients, "users", found)


def test_nobody_is_exit_code_0(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    set_users(monkeypatch)
    assert run(*IN_USE) == (0, "nobody uses /x.sock\n", "")
    assert run(*IN_USE, "-o", "json") == (0, "[]\n", "")


def test_each_user_is_a_line_and_exit_code_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    set_users(monkeypatch, "kubelet (pid 4) has 1 connection to /x.sock", "b\x1b")
    assert run(*IN_USE, "--no-headers") == (1, "kubelet (pid 4) has 1 connection to /x.sock\nb?\n", "")
    code, out, _ = run(*IN_USE, "-o", "json")
    assert (code, len(json.loads(out))) == (1, 2)


def test_what_cannot_be_looked_at_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(machine: Machine) -> Iterator[str]:
        raise OSError(0, "systemctl show does not answer")

    monkeypatch.setattr(clients, "users", away)
    code, out, err = run(*IN_USE)
    assert (code, out, "systemctl show does not answer" in err) == (1, "", True)
