"""``python -m runtimeproxy_hooks``: which hooks it serves, in which order, and what it says of a wrong name."""

import importlib.util
import os
import re
import signal
import sys
from itertools import chain, combinations
from pathlib import Path

import pytest

from runtimeproxy.relay.listener import MAX_PATH_BYTES
from runtimeproxy_hooks import Hook
from runtimeproxy_hooks import __main__ as hosting
from runtimeproxy_hooks.sdk.flags import parser, server_name
from runtimeproxy_hooks.sdk.hook import hook_name
from tests.hooks.sdk.callers import call, request
from tests.hooks.sdk.processes import running

NAMES = sorted(hosting.HOOKS)


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_its_hooks_own(name: str) -> None:
    hook = hosting.load(name)
    assert hook_name(hook) == name
    assert hook.points


def test_every_hook_in_the_folder_stands_in_the_table() -> None:
    package = importlib.util.find_spec("runtimeproxy_hooks")
    assert package is not None
    assert package.origin is not None
    files = Path(package.origin).parent.glob("*.py")
    served = {file.stem for file in files if "    main(" in file.read_text()}
    assert served - {"demo", "__main__"} == set(NAMES)


@pytest.mark.parametrize(
    ("words", "hooks", "name", "flags"),
    [
        (["gpu"], ["gpu"], "", []),
        (["gpu", "cpuset", "--order", "5", "rdt"], ["gpu", "cpuset"], "", ["--order", "5", "rdt"]),
        (["cpuset", "gpu"], ["cpuset", "gpu"], "", []),
        (["all", "--help"], NAMES, "all", ["--help"]),
    ],
)
def test_the_named_hooks_are_served_in_this_order(
    monkeypatch: pytest.MonkeyPatch, words: list[str], hooks: list[str], name: str, flags: list[str]
) -> None:
    served: list[object] = []

    def record(*hooks: Hook, name: str, argv: list[str]) -> None:
        served.extend([[hook_name(hook) for hook in hooks], name, argv])

    monkeypatch.setattr(hosting, "main", record)
    monkeypatch.setattr(sys, "argv", ["runtimeproxy-hooks", *words])
    hosting.run()
    assert served == [hooks, name, flags]


def test_any_of_them_together_have_a_name_of_their_own_and_a_socket() -> None:
    together = list(chain.from_iterable(combinations(NAMES, count) for count in range(1, len(NAMES) + 1)))
    servers = {server_name(names) for names in together}
    assert len(servers) == len(together)
    for name in servers:
        assert len(os.fsencode(parser(name).parse_args([]).endpoint)) <= MAX_PATH_BYTES


def test_a_name_is_cut_only_where_it_must_be() -> None:
    assert server_name(NAMES[:6]) == "batchresource-coresched-cpunormalization-cpuset-gpu-groupidentity"
    assert server_name(NAMES) == "batchres-coresche-cpunorma-cpuset-gpu-groupide-oomscore-rdt"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], f"name the hooks to serve first: {', '.join(NAMES)}, or all"),
        (["--order=5"], f"name the hooks to serve first: {', '.join(NAMES)}, or all"),
        (["--help", "gpu"], f"name the hooks to serve first: {', '.join(NAMES)}, or all"),
        (["gpu", "gppu"], f"there is no hook 'gppu'; there are {', '.join(NAMES)}; all stands alone"),
        (["gpu", "all"], f"there is no hook 'all'; there are {', '.join(NAMES)}; all stands alone"),
        (["gpu", "cpuset", "gpu"], "gpu is named twice"),
    ],
)
def test_a_wrong_name_is_one_line(capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
    with pytest.raises(SystemExit) as exited:
        hosting.run(words)
    assert exited.value.code == 2
    assert capsys.readouterr().err == f"runtimeproxy-hooks: error: {line}\n"


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_the_hooks(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    with pytest.raises(SystemExit) as exited:
        hosting.run([flag])
    assert not exited.value.code
    assert f"hooks: {', '.join(NAMES)}\n" in capsys.readouterr().out


def test_all_hooks_bear_each_others_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        hosting.run(["all", "--help"])
    assert not exited.value.code
    assert "/all.sock" in capsys.readouterr().out


DEVICES = "scheduling.koordinator.sh/device-allocated"
STATUS = "scheduling.koordinator.sh/resource-status"


async def test_it_serves_several_as_a_process(tmp_path: Path) -> None:
    program = ("-m", "runtimeproxy_hooks", "gpu", "cpuset")
    annotations = {DEVICES: '{"gpu": [{"minor": 1}]}', STATUS: '{"cpuset": "0-1"}'}
    with running(tmp_path, program=program, file="gpu-cpuset.json") as server:
        answer = await call(str(server.socket), request(**annotations))
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == "1"
        assert answer.resources is not None
        assert answer.resources.cpuset_cpus == "0-1"
        assert server.end(signal.SIGTERM) == 0


async def test_the_nodes_settings_are_read_at_the_start_and_once_for_all_hooks(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("rdt: 7")
    program = ("-m", "runtimeproxy_hooks", "cpuset", "batchresource", "cpunormalization", f"--node-config={file}")
    with running(tmp_path, program=program, file="cpuset-batchresource-cpunormalization.json") as server:
        said = [line for line in server.log.splitlines() if str(file) in line]
    assert len(said) == 1
    assert said[0].endswith("; the default settings hold")
    assert " ERROR " in said[0]


async def test_what_a_hook_says_at_its_start_is_logged_like_all_else(tmp_path: Path) -> None:
    program = ("-m", "runtimeproxy_hooks", "rdt", f"--resctrl-root={tmp_path}")
    with running(tmp_path, program=program, file="rdt.json") as server:
        said = next(line for line in server.log.splitlines() if "rdt:" in line)
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING runtimeproxy_hooks.rdt: no RDT on this node", said)
