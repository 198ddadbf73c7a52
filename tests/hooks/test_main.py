"""``python -m runtimeproxy_hooks``: which hooks it serves, in which order, and what it says of a wrong name."""

import os
import re
import runpy
import sys
from itertools import chain, combinations
from pathlib import Path

import pytest

from runtimeproxy.relay.listener import MAX_PATH_BYTES
from runtimeproxy_hooks import Hook
from runtimeproxy_hooks import __main__ as hosting
from runtimeproxy_hooks.sdk.flags import parser, server_name
from runtimeproxy_hooks.sdk.hook import hook_name
from tests.hooks.sdk.processes import running

NAMES = sorted(hosting.HOOKS)
KNOWN = ", ".join(NAMES)


POD, CREATE, UPDATE = "PreRunPodSandbox", "PreCreateContainer", "PreUpdateContainerResources"
STARTED, STOPPED = "PostStartContainer", "PostStopPodSandbox"
POINTS = {
    "batchresource": [POD, CREATE, UPDATE],
    "coresched": [STARTED, STOPPED],
    "cpunormalization": [CREATE, UPDATE],
    "cpuset": [POD, CREATE, UPDATE],
    "gpu": [CREATE],
    "groupidentity": [POD],
    "oomscoreadj": [CREATE],
    "rdt": [POD, CREATE, STARTED, STOPPED],
}


def test_each_hook_has_its_name_and_points() -> None:
    hooks = [hosting.load(name) for name in NAMES]
    assert {hook_name(hook): [point.name for point in hook.points] for hook in hooks} == POINTS


@pytest.mark.filterwarnings("ignore:.*found in sys.modules.*:RuntimeWarning")
@pytest.mark.parametrize("name", NAMES)
def test_each_hook_is_a_program(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as exited:
        runpy.run_module(f"runtimeproxy_hooks.{name}", run_name="__main__")
    assert not exited.value.code
    assert f"/{name}.sock" in capsys.readouterr().out


def test_every_hook_in_the_folder_stands_in_the_table() -> None:
    files = Path(str(hosting.__file__)).parent.glob("*.py")
    served = {file.stem for file in files if "    main(" in file.read_text()}
    assert served - {"__main__"} == set(NAMES)


@pytest.mark.parametrize(
    ("words", "hooks", "name", "flags"),
    [
        (["gpu"], ["gpu"], "", []),
        (["gpu", "cpuset", "--order", "5", "rdt"], ["gpu", "cpuset"], "", ["--order", "5", "rdt"]),
        (["cpuset", "gpu"], ["cpuset", "gpu"], "", []),
        (["all", "--help"], NAMES, "all", ["--help"]),
    ],
)
def test_named_hooks_are_served_in_this_order(
    monkeypatch: pytest.MonkeyPatch, words: list[str], hooks: list[str], name: str, flags: list[str]
) -> None:
    served: list[object] = []

    def record(*hooks: Hook, name: str, argv: list[str]) -> None:
        served.extend([[hook_name(hook) for hook in hooks], name, argv])

    monkeypatch.setattr(hosting, "main", record)
    monkeypatch.setattr(sys, "argv", ["runtimeproxy-hooks", *words])
    hosting.run()
    assert served == [hooks, name, flags]


def test_any_hooks_together_have_their_own_name_and_socket() -> None:
    together = list(chain.from_iterable(combinations(NAMES, count) for count in range(1, len(NAMES) + 1)))
    servers = {server_name(names) for names in together}
    assert len(servers) == len(together)
    for name in servers:
        assert len(os.fsencode(parser(name).parse_args([]).endpoint)) <= MAX_PATH_BYTES


def test_server_name_is_cut_only_where_it_must_be() -> None:
    assert server_name(NAMES[:6]) == "batchresource-coresched-cpunormalization-cpuset-gpu-groupidentity"
    assert server_name(NAMES) == "batchres-coresche-cpunorma-cpuset-gpu-groupide-oomscore-rdt"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        *(
            (words, f"name the hooks to serve first: {KNOWN}, or all")
            for words in ([], ["--order=5"], ["--help", "gpu"])
        ),
        *(
            (["gpu", name], f"there is no hook {name!r}; there are {KNOWN}; all stands alone")
            for name in ("gppu", "all")
        ),
        (["gpu", "cpuset", "gpu"], "gpu is named twice"),
    ],
)
def test_wrong_name_is_one_line(capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
    with pytest.raises(SystemExit) as exited:
        hosting.run(words)
    assert exited.value.code == 2
    assert capsys.readouterr().err == f"runtimeproxy-hooks: error: {line}\n"


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_the_hooks(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    with pytest.raises(SystemExit) as exited:
        hosting.run([flag])
    assert not exited.value.code
    assert f"hooks: {KNOWN}\n" in capsys.readouterr().out


def test_all_hooks_bear_each_others_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        hosting.run(["all", "--help"])
    assert not exited.value.code
    assert "/all.sock" in capsys.readouterr().out


async def test_hooks_words_at_its_start_are_logged_like_all_else(tmp_path: Path) -> None:
    program = ("-m", "runtimeproxy_hooks", "rdt", f"--resctrl-root={tmp_path}")
    with running(tmp_path, program=program, file="rdt.json") as server:
        said = next(line for line in server.log.splitlines() if "rdt:" in line)
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING runtimeproxy_hooks.rdt: no RDT on this node", said)
