"""The script that starts a program of the tree finds the tree by its own name, however it is called."""

import os
import subprocess
from pathlib import Path

import pytest

from deploy.packages import precheck
from tests.docs import ROOT

PROGRAM = ROOT / "deploy/packages/program.sh"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree whose loader prints where it is."""
    root = tmp_path / "tree"
    for place, text in {"bin": PROGRAM.read_text().replace("@NAME@", "x"), "libexec": '#!/bin/sh\necho "$0"\n'}.items():
        (root / place).mkdir(parents=True)
        (root / place / "x").write_text(text.replace("@ARGUMENTS@", ""))
        (root / place / "x").chmod(0o755)
    (tmp_path / "elsewhere" / "bin").mkdir(parents=True)
    return root


@pytest.mark.parametrize(("command", "folder"), [("bin/x", "."), ("./x", "bin"), ("../bin/x", "libexec")])
def test_program_finds_its_tree_whatever_cdpath_says(tree: Path, command: str, folder: str) -> None:
    environ = os.environ | {"CDPATH": str(tree.parent / "elsewhere")}
    done = subprocess.run([command], cwd=tree / folder, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == f"{tree}/libexec/x\n"


def test_process_that_has_ended_has_no_flags() -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    assert precheck._of_process(ended.pid) == ({}, {})
