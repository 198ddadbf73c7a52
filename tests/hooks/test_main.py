"""Command lines: of the project's hooks together (``python -m runtimeproxy_hooks``), and of any hook server."""

import argparse
import logging
import os
import runpy
import sys
from collections.abc import Callable
from functools import partial
from itertools import chain, combinations
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from runtimeproxy.relay.listener import MAX_PATH_BYTES
from runtimeproxy.settings.version import VERSION
from runtimeproxy_hooks import Hook, main
from runtimeproxy_hooks import __main__ as hosting
from runtimeproxy_hooks.sdk.flags import parser, server_name
from runtimeproxy_hooks.sdk.hook import hook_name
from runtimeproxy_hooks.servers.cpuset import Cpuset
from runtimeproxy_hooks.servers.groupidentity import GroupIdentity
from tests.hooks.nodes import tree
from tests.hooks.sdk.processes import Dreamy, Obedient

Patch, Out, Log = pytest.MonkeyPatch, pytest.CaptureFixture[str], pytest.LogCaptureFixture
NAMES = sorted(hosting.HOOKS)
HOOK_NAMES = ", ".join(NAMES)


@pytest.fixture(autouse=True)
def isolated(monkeypatch: Patch, caplog: Log) -> None:
    """Ensure that no server can be started, and undo the log setup of ``main`` at the end."""
    monkeypatch.delitem(sys.modules, "runtimeproxy_hooks.sdk.serving", raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    for name in ("runtimeproxy_hooks", "tests"):
        caplog.set_level(logging.INFO, name)


@pytest.mark.parametrize(
    ("words", "hooks", "name", "flags"),
    [("gpu cpuset --order 5 rdt", ["gpu", "cpuset"], "", "--order 5 rdt"), ("all --help", NAMES, "all", "--help")],
)
def test_named_hooks_are_served(words: str, hooks: list[str], name: str, flags: str) -> None:
    with mock.patch.object(hosting, "main") as served:
        hosting.run(words.split())
    assert [hook_name(hook) for hook in served.call_args.args] == hooks
    assert served.call_args.kwargs == {"name": name, "argv": flags.split()}


def test_hooks_served_together_have_own_name_and_socket() -> None:
    together = list(chain.from_iterable(combinations(NAMES, count) for count in range(1, len(NAMES) + 1)))
    servers = {server_name(names) for names in together}
    assert len(servers) == len(together)
    for name in servers:
        assert len(os.fsencode(parser(name).parse_args([]).endpoint)) <= MAX_PATH_BYTES
    assert server_name(NAMES[:2]) == "batchresource-coresched"
    assert server_name(NAMES) == "batchres-coresche-cpunorma-cpuset-gpu-groupide-oomscore-rdt"


class Fileless(Obedient):
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--mark")

    def configure(self, arguments: argparse.Namespace) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/nowhere")


UNNAMED, UNKNOWN = f"name the hooks to serve first: {HOOK_NAMES}, or all", f"there are {HOOK_NAMES}; all must be alone"
WRONG_NAMES = {
    **{"": UNNAMED, "--order=5": UNNAMED, "gpu all": f"there is no hook 'all'; {UNKNOWN}"},
    **{"gpu gppu": "there is no hook 'gppu'; did you mean 'gpu'?", "gpu cpuset gpu": "gpu is named twice"},
}
WRONG_FLAGS = {
    "--endpoint=a.sock": "--endpoint: 'a.sock' is not a unix socket: write /path, unix:/path or ",
    "--failure-policy=fail": "argument --failure-policy: invalid choice: 'fail' (choose from ",
    "--order=100": "argument --order: '100' is not a place: write a number from 0 to 99",
    "--timeout=0s": "--timeout: '0s' is not a time limit: write one above zero, like 500ms, 2s or 1m",
    "--log=debug": "unrecognized arguments: --log=debug; --help lists the flags",
}
NO_GRPC = (
    "obedient: error: the Python package grpc is missing, which serves gRPC; install runtimeproxy with its extra: "
)
NO_GRPC += "'runtimeproxy[hooks]'"
TWICE = "two hooks, or a hook and the SDK, have the same flag: argument --mark: conflicting option string: --mark"
WRONG_HOOKS: list[tuple[list[Any], str, str]] = [
    ([Fileless()], "", "fileless: error: [Errno 2] No such file or directory: '/nowhere'"),
    ([Dreamy(), Fileless()], "two", f"two: error: {TWICE}"),
    ([], "", ": error: there is no hook to serve; give main one: main(MyHook())"),
    ([Dreamy], "", "dreamy: error: <class 'tests.hooks.sdk.processes.Dreamy'> is not a hook; give main instances of "),
    ([Hook()], "", "hook: error: Hook has no method named like a hook point; there are pre_"),
    *(([Obedient()], name, f"{name}: error: {name!r} cannot be in a file's name; ") for name in ("a/b", ".a")),
]
WRONG: list[tuple[Callable[[], None], str]] = [
    *((partial(hosting.run, text.split()), f"runtimeproxy-hooks: error: {line}") for text, line in WRONG_NAMES.items()),
    *((partial(main, Obedient(), argv=[flag]), f"obedient: error: {line}") for flag, line in WRONG_FLAGS.items()),
    (partial(main, Dreamy(), argv=["--mark=xy"]), "dreamy: error: --mark: write one letter"),
    *((partial(main, *hooks, name=name, argv=[]), line) for hooks, name, line in WRONG_HOOKS),
    (partial(main, Obedient(), argv=["--register-dir="]), NO_GRPC),
]


@pytest.mark.parametrize(("run", "line"), WRONG, ids=[line for _, line in WRONG])
def test_wrong_command_line_is_reported_in_one_line(capsys: Out, run: Callable[[], None], line: str) -> None:
    with pytest.raises(SystemExit) as exited:
        run()
    assert exited.value.code == (1 if line == NO_GRPC else 2)
    error, empty = capsys.readouterr().err.split("\n")
    assert (error.startswith(line), empty) == (True, "")


HELPS = {"__main__ -h": f"hooks: {HOOK_NAMES}\n", "__main__ --version": f"runtimeproxy-hooks {VERSION}"}
HELPS |= {f"servers.{name} --help": f"/{name}.sock" for name in NAMES}


@pytest.mark.filterwarnings("ignore:.*found in sys.modules.*:RuntimeWarning")
@pytest.mark.parametrize(("command", "printed"), HELPS.items())
def test_module_is_program_with_help(monkeypatch: Patch, capsys: Out, command: str, printed: str) -> None:
    monkeypatch.setattr(sys, "argv", command.split())
    with pytest.raises(SystemExit) as exited:
        runpy.run_module(f"runtimeproxy_hooks.{sys.argv[0]}", run_name="__main__")
    assert not exited.value.code
    assert printed in capsys.readouterr().out


def test_hooks_of_server_share_settings(tmp_path: Path, caplog: Log) -> None:
    tree(tmp_path, {"node.yaml": "system-cpuset: 0-1"})
    hooks, parser = [Cpuset(), GroupIdentity()], argparse.ArgumentParser()
    for hook in hooks:
        hook.add_arguments(parser)
    arguments = parser.parse_args([f"--node-config={tmp_path}/node.yaml"])
    for hook in hooks:
        hook.configure(arguments)
    assert caplog.messages == [f"{tmp_path}/node.yaml: node settings applied"], "at the start, and once"
    assert hooks[0].node is hooks[1].node
    assert hooks[0].node.settings.system_cpuset == "0-1"
