"""``runtimeproxy completion``: the script of each shell, and what the shells are answered."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runtimeproxy.cli import Commands
from runtimeproxy.cli.completion import INSTALL
from tests.cli.conftest import Run
from tests.docs import ROOT

READERS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}
"""What reads a script without running it."""
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


def test_other_shell_is_wrong_use(run: Run) -> None:
    code, out, err = run("runtimeproxy", "completion", "tcsh")
    assert (code, out, err.count("\n")) == (2, "", 1)


ANSWERS = [
    ("bash", "runtimeproxy ", "1", {f"plain,{name}" for name in Commands.LOADERS}),
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


@pytest.mark.parametrize(("shell", "line", "word", "answers"), ANSWERS)
def test_shell_is_answered(shell: str, line: str, word: str, answers: set[str]) -> None:
    asked = environ(_RUNTIMEPROXY_COMPLETE=f"{shell}_complete", COMP_WORDS=line, COMP_CWORD=word)
    command = [sys.executable, "-m", "runtimeproxy"]
    done = subprocess.run(command, env=asked, capture_output=True, text=True, check=True, timeout=60)
    assert answers == set(done.stdout.splitlines())
    assert done.stderr == ""


def test_bash_completes_with_the_script(run: Run, tmp_path: Path) -> None:
    program = tmp_path / "runtimeproxy"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m runtimeproxy "$@"\n')
    program.chmod(0o755)
    words = "COMP_WORDS=(runtimeproxy config ch) COMP_CWORD=2"
    ask = f'{words}; _runtimeproxy_completion runtimeproxy; echo "${{COMPREPLY[@]}}"'
    script = run("runtimeproxy", "completion", "bash")[1]
    path = f"{tmp_path}:{os.environ['PATH']}"
    command = ["bash", "--norc", "-c", f"{script}\n{ask}"]
    done = subprocess.run(command, env=environ(PATH=path), capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("check\n", "")
