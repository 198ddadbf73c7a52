"""``runtimeproxy completion``: the script of each shell, and what the shells are answered."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from runtimeproxy.admin.protocol import Refused
from runtimeproxy.cli.commands.program import INSTALL
from runtimeproxy.cli.commands.table import COMMANDS, PROGRAM, command_group
from runtimeproxy.cli.shared import admin_client, subjects
from tests.cli.admin_answers import CANNED, CONTAINER, POD
from tests.cli.conftest import Run
from tests.docs import ROOT
from tests.fakes.canned_admin import Canned, hang_before_the_answer, hang_in_a_line, serving, speak_http

READERS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}
"""What reads a script without running it."""
PATIENCE = 60.0
PRESSES = 50
"""How often Tab is pressed: on a busy machine an answer may take longer than a shell waits."""
INSTALLED = [shell for shell in READERS if shutil.which(shell)]


def environ(**given: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **given}


@pytest.mark.parametrize("shell", INSTALL)
def test_script_ends_with_how_to_install_it(run: Run, shell: str) -> None:
    code, out, err = run("runtimeproxy", "completion", shell)
    assert (code, err) == (0, "")
    assert f"_RUNTIMEPROXY_COMPLETE={shell}_complete" in out
    assert out.splitlines()[-1] == f"# For all new shells: {INSTALL[shell]}"


@pytest.mark.parametrize("shell", INSTALLED)
def test_shell_reads_the_script(run: Run, tmp_path: Path, shell: str) -> None:
    script = tmp_path / "script"
    script.write_text(run("runtimeproxy", "completion", shell)[1])
    subprocess.run([*READERS[shell], str(script)], check=True, timeout=60)


ANSWERS = [
    ("bash", "runtimeproxy ", "1", {f"plain,{name}" for name in COMMANDS}),
    ("bash", "runtimeproxy config ", "2", {"plain,check", "plain,show", "plain,default"}),
    ("bash", "runtimeproxy run --hook-b", "2", {"plain,--hook-budget"}),
    ("bash", "runtimeproxy version -o j", "3", {"plain,json"}),
    ("bash", "runtimeproxy run --log-level d", "3", {"plain,debug"}),
    ("bash", "runtimeproxy config show --backend-runtime-mode D", "4", {"plain,Docker"}),
    ("bash", "runtimeproxy run --config /etc", "3", {"file,/etc"}),
    ("bash", "runtimeproxy config check ", "3", {"file,"}),
    ("zsh", "runtimeproxy comp", "1", {"plain", "completion", "Print the script by which a shell completes commands."}),
    ("fish", "runtimeproxy comp", "comp", {"plain,completion\tPrint the script by which a shell completes commands."}),
]


Told = Callable[..., tuple[str, str]]


@pytest.fixture
def told(run: Run, capfd: pytest.CaptureFixture[str]) -> Told:
    """Return a function that answers a shell; it returns output and errors."""

    def told(shell: str, line: str, word: str, **more: str) -> tuple[str, str]:
        asked = {"_RUNTIMEPROXY_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": word}
        with pytest.raises(SystemExit):
            run("runtimeproxy", **asked, **more)
        out, err = capfd.readouterr()
        return out, err

    return told


@pytest.mark.parametrize(("shell", "line", "word", "answers"), ANSWERS)
def test_shell_is_answered(told: Told, shell: str, line: str, word: str, answers: set[str]) -> None:
    out, err = told(shell, line, word)
    assert (set(out.splitlines()), err) == (answers, "")


NAMED = [
    ("hook disable ", {"cpuset", "gpu", "gpu-copy", "koordlet"}),
    ("hook disable c", {"cpuset"}),
    ("hook enable ", {"rdt", "gone"}),
    ("hook trace --hook-server ", {"cpuset", "gpu", "gpu-copy", "koordlet", "rdt", "gone"}),
    ("events --pod ", {"default/web-1"}),
    ("store ls --pod d", {"default/web-1"}),
    ("store get ", {"default/web-1"}),
    ("store get default/web-1/", {"default/web-1/main"}),
    (f"explain {POD[:4]}", {POD}),
    (f"explain {CONTAINER[:4]}", {CONTAINER}),
    ("explain nothing-like-it", set()),
]
"""A line up to the cursor, and the names that are offered."""


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], set[str]]:
    """Return a function that tells what is offered for a line, with a shell that waits as long as it takes."""
    monkeypatch.setattr(subjects, "SECONDS", PATIENCE)

    def offered(line: str) -> set[str]:
        *before, begun = line.split(" ")
        completion = ShellComplete(command_group(), {}, PROGRAM, "")
        return {item.value for item in completion.get_completions(before, begun)}

    return offered


@pytest.mark.parametrize(("line", "names"), NAMED)
def test_names_and_ids_are_asked_of_the_proxy(
    offered: Callable[[str], set[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, names: set[str]
) -> None:
    monkeypatch.setenv("RUNTIMEPROXY_ADMIN_ENDPOINT", f"{tmp_path}/admin.sock")
    with serving(tmp_path / "admin.sock", CANNED):
        assert offered(line) == names


WITHOUT: dict[str, Canned] = {
    "it hangs": {"hooks": hang_before_the_answer},
    "it hangs in a line": {"hooks": hang_in_a_line},
    "it fails": {"hooks": Refused(500, "no")},
    "it is no proxy": {"hooks": speak_http},
    "its form is another": {"hooks": {}},
}


@pytest.mark.parametrize("canned", WITHOUT.values(), ids=WITHOUT)
def test_proxy_that_cannot_be_asked_offers_nothing(told: Told, tmp_path: Path, canned: Canned) -> None:
    with serving(tmp_path / "admin.sock", canned):
        endpoint = {"RUNTIMEPROXY_ADMIN_ENDPOINT": f"{tmp_path}/admin.sock"}
        assert told("bash", "runtimeproxy hook disable ", "3", **endpoint) == ("\n", "")


def test_shell_waits_no_longer_than_it_should(tmp_path: Path) -> None:
    """Time is the claim; an idle import takes longer than the wait, so it is measured within the process."""
    with serving(tmp_path / "admin.sock", {"hooks": hang_before_the_answer}):
        context = click.Context(click.Command("x"))
        context.params = {"admin_endpoint": f"{tmp_path}/admin.sock"}
        began = time.monotonic()
        assert subjects.hook_servers(context, click.Argument(["name"]), "") == []
        assert subjects.SECONDS <= time.monotonic() - began < admin_client.SECONDS


@pytest.mark.slow
@pytest.mark.parametrize(("line", "completed"), [("config ch", "check"), ("hook disable c", "cpuset")])
def test_bash_completes_with_the_script(run: Run, tmp_path: Path, line: str, completed: str) -> None:
    program = tmp_path / "runtimeproxy"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m runtimeproxy "$@"\n')
    program.chmod(0o755)
    words = f"COMP_WORDS=(runtimeproxy {line}) COMP_CWORD={len(line.split())}"
    ask = f'{words}; _runtimeproxy_completion runtimeproxy; echo "${{COMPREPLY[@]}}"'
    script = run("runtimeproxy", "completion", "bash")[1]
    asked = environ(PATH=f"{tmp_path}:{os.environ['PATH']}", RUNTIMEPROXY_ADMIN_ENDPOINT=f"{tmp_path}/admin.sock")
    command = ["bash", "--norc", "-c", f"{script}\n{ask}"]
    with serving(tmp_path / "admin.sock", CANNED):
        for _ in range(PRESSES):
            done = subprocess.run(command, env=asked, capture_output=True, text=True, check=True, timeout=60)
            if done.stdout.strip():
                break
    assert (done.stdout, done.stderr) == (f"{completed}\n", "")
