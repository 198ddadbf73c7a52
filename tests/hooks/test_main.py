"""The project's hooks together: ``python -m runtimeproxy_hooks``, their shared flags, what they log only once."""

import argparse
import logging
import os
import re
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, combinations
from pathlib import Path

import pytest

from runtimeproxy.relay.listener import MAX_PATH_BYTES
from runtimeproxy.settings.version import VERSION
from runtimeproxy_hooks import Hook
from runtimeproxy_hooks import __main__ as hosting
from runtimeproxy_hooks.lib.cgroups import ROOT
from runtimeproxy_hooks.lib.node import DEFAULT_FILE
from runtimeproxy_hooks.sdk.flags import parser, server_name
from runtimeproxy_hooks.sdk.hook import hook_name
from runtimeproxy_hooks.servers.cpuset import Cpuset
from runtimeproxy_hooks.servers.groupidentity import GroupIdentity
from tests.hooks.nodes import tree
from tests.hooks.sdk.processes import running

Patch, Out = pytest.MonkeyPatch, pytest.CaptureFixture[str]
NAMES = sorted(hosting.HOOKS)
KNOWN = ", ".join(NAMES)


SERVED = [
    ("gpu cpuset --order 5 rdt", ["gpu", "cpuset"], "", "--order 5 rdt"),
    ("all --help", NAMES, "all", "--help"),
]


@pytest.mark.parametrize(("words", "hooks", "name", "flags"), SERVED)
def test_hooks_are_served_as_named(monkeypatch: Patch, words: str, hooks: list[str], name: str, flags: str) -> None:
    served: list[object] = []

    def record(*hooks: Hook, name: str, argv: list[str]) -> None:
        served.extend([[hook_name(hook) for hook in hooks], name, argv])

    monkeypatch.setattr(hosting, "main", record)
    hosting.run(words.split())
    assert served == [hooks, name, flags.split()]


def test_any_hooks_together_have_their_own_name_and_socket() -> None:
    together = list(chain.from_iterable(combinations(NAMES, count) for count in range(1, len(NAMES) + 1)))
    servers = {server_name(names) for names in together}
    assert len(servers) == len(together)
    for name in servers:
        assert len(os.fsencode(parser(name).parse_args([]).endpoint)) <= MAX_PATH_BYTES
    assert server_name(NAMES[:2]) == "batchresource-coresched"
    assert server_name(NAMES) == "batchres-coresche-cpunorma-cpuset-gpu-groupide-oomscore-rdt"


UNNAMED, UNKNOWN = f"name the hooks to serve first: {KNOWN}, or all", f"there are {KNOWN}; all must be alone"
WRONG = [
    *((words, UNNAMED) for words in ([], ["--order=5"])),
    (["gpu", "all"], f"there is no hook 'all'; {UNKNOWN}"),
    (["gpu", "gppu"], "there is no hook 'gppu'; did you mean 'gpu'?"),
    (["gpu", "cpuset", "gpu"], "gpu is named twice"),
]


@pytest.mark.parametrize(("words", "line"), WRONG)
def test_wrong_name_is_one_line(capsys: Out, words: list[str], line: str) -> None:
    with pytest.raises(SystemExit) as exited:
        hosting.run(words)
    assert exited.value.code == 2
    assert capsys.readouterr().err == f"runtimeproxy-hooks: error: {line}\n"


HELPS = [
    ("__main__", "-h", f"hooks: {KNOWN}\n"),
    ("__main__", "--version", f"runtimeproxy-hooks {VERSION}"),
    ("__main__", "all --help", "/all.sock"),
    *((f"servers.{name}", "--help", f"/{name}.sock") for name in NAMES),
]


@pytest.mark.filterwarnings("ignore:.*found in sys.modules.*:RuntimeWarning")
@pytest.mark.parametrize(("module", "words", "printed"), HELPS)
def test_module_is_a_program_with_help(monkeypatch: Patch, capsys: Out, module: str, words: str, printed: str) -> None:
    monkeypatch.setattr(sys, "argv", [module, *words.split()])
    with pytest.raises(SystemExit) as exited:
        runpy.run_module(f"runtimeproxy_hooks.{module}", run_name="__main__")
    assert not exited.value.code
    assert printed in capsys.readouterr().out


CGROUPS = {"batchresource", "coresched", "cpuset", "groupidentity", "rdt"}
SETTINGS = CGROUPS - {"coresched"} | {"cpunormalization"}


@pytest.mark.parametrize("name", NAMES)
def test_hook_has_flags_for_what_it_looks_at(tmp_path: Path, name: str) -> None:
    parser = argparse.ArgumentParser()
    hosting.load(name).add_arguments(parser)
    flags = vars(parser.parse_args([]))
    settings, root = flags.get("node_config"), flags.get("cgroup_root")
    assert (settings and settings.path, root) == (
        DEFAULT_FILE if name in SETTINGS else None,
        ROOT if name in CGROUPS else None,
    )


def test_hooks_of_a_server_share_the_settings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tree(tmp_path, {"node.yaml": "system-cpuset: 0-1"})
    hooks, parser = [Cpuset(), GroupIdentity()], argparse.ArgumentParser()
    for hook in hooks:
        hook.add_arguments(parser)
    arguments = parser.parse_args([f"--node-config={tmp_path}/node.yaml"])
    for hook in hooks:
        hook.configure(arguments)
    assert caplog.messages == [f"{tmp_path}/node.yaml: the node's settings are taken"], "at the start, and once"
    assert hooks[0].node is hooks[1].node
    assert hooks[0].node.settings.system_cpuset == "0-1"


def test_warning_is_logged_the_first_time_only(caplog: pytest.LogCaptureFixture) -> None:
    one, two = GroupIdentity(), Cpuset()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: one.warn_once("file", "%s is not there", "x"), range(200)))
    one.warn_once(("file", None), "100 % of it is gone")
    two.warn_once("file", "not there either")
    texts = ["x is not there", "100 % of it is gone", "not there either"]
    assert caplog.messages == [f"{text}; said once only" for text in texts]
    assert [record.name.rpartition(".")[2] for record in caplog.records] == ["groupidentity", "groupidentity", "cpuset"]


async def test_hooks_lines_at_its_start_have_the_log_format(tmp_path: Path) -> None:
    program = ("-m", "runtimeproxy_hooks", "rdt", f"--resctrl-root={tmp_path}")
    with running(tmp_path, program=program, file="rdt.json") as server:
        line = next(line for line in server.log.splitlines() if "rdt:" in line)
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]{12}Z WARNING runtimeproxy_hooks.servers.rdt: no RDT on this node", line)
