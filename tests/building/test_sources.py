"""A build is made of the last commit's files, or says that it is not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.building.__main__ import CHECKSUMS, write_checksums
from scripts.building.errors import BuildError
from scripts.building.sources import BUILD_FILE, Source, extract
from tests.docs import ROOT

pytestmark = pytest.mark.tool("git")
DATE = "2026-01-02T03:04:05Z"
EPOCH = 1767323045
GIT = ("git", "-c", "user.name=a", "-c", "user.email=b", "-c", "core.hooksPath=none", "-c", "commit.gpgSign=false")


def git(checkout: Path, *words: str) -> str:
    environ = os.environ | {"GIT_AUTHOR_DATE": DATE, "GIT_COMMITTER_DATE": DATE}
    done = subprocess.run([*GIT, *words], cwd=checkout, env=environ, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Path]:
    """Yield a checkout with a commit, in a process with an unusual umask."""
    before = os.umask(0o077)
    made = tmp_path / "checkout"
    (made / "runtimeproxy/settings").mkdir(parents=True)
    (made / "runtimeproxy/settings/version.py").write_text("VERSION = '1'\n")
    (made / "run").write_text("#!/bin/sh\n")
    (made / "run").chmod(0o700)
    (made / ".gitignore").write_text("ignored\n")
    git(made, "init", "-q")
    git(made, "add", ".")
    git(made, "commit", "-qm", "first")
    os.umask(0o022)  # as the build sets it
    yield made
    os.umask(before)


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): f"{path.stat().st_mode:o}" for path in folder.rglob("*") if path.is_file()}


FILES = {".gitignore": "100644", "run": "100755", "runtimeproxy/settings/version.py": "100644", BUILD_FILE: "100644"}


def test_commit_is_extracted_and_named(checkout: Path, tmp_path: Path) -> None:
    (checkout / "ignored").write_text("")
    source, commit = extract(checkout, tmp_path / "source", dirty=False), git(checkout, "rev-parse", "HEAD")
    assert source == Source(commit, EPOCH)
    assert files(tmp_path / "source") == FILES
    assert (tmp_path / "source" / BUILD_FILE).read_text() == f"commit: {commit}\ndate: {DATE}\n"


@pytest.mark.parametrize("name", ["run", "new"])
def test_change_is_refused_by_its_name_or_built_as_dirty(checkout: Path, tmp_path: Path, name: str) -> None:
    (checkout / name).write_text("changed")
    with pytest.raises(BuildError, match=rf"1 files differ from the last commit \({name} .*commit or remove them"):
        extract(checkout, tmp_path / "refused", dirty=False)
    source = extract(checkout, tmp_path / "source", dirty=True)
    assert source.commit == f"{git(checkout, 'rev-parse', 'HEAD')}-dirty"
    assert files(tmp_path / "source") == FILES | {name: "100755" if name == "run" else "100644"}
    assert (tmp_path / "source" / name).read_text() == "changed"


def test_removed_file_is_not_in_a_dirty_build(checkout: Path, tmp_path: Path) -> None:
    (checkout / "run").unlink()
    extract(checkout, tmp_path / "source", dirty=True)
    assert "run" not in files(tmp_path / "source")


def test_checksums_are_read_by_sha256sum(tmp_path: Path) -> None:
    for name in ("a b", "c"):
        (tmp_path / name).write_text(name)
    write_checksums(tmp_path)
    check = ["sha256sum", "--check", "--strict", CHECKSUMS]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "a b: OK\nc: OK\n")
    (tmp_path / "c").write_text("other")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 1


def test_build_is_refused_when_python_is_too_old() -> None:
    old = "import runpy, sys, setuptools; sys.version_info, sys.version = (3, 10, 13), '3.10.13 (main)'"
    command = [sys.executable, "-c", f"{old}; runpy.run_path('setup.py')"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == "runtimeproxy needs Python 3.11 or later, and this is 3.10.13: take another Python\n"
    assert done.returncode == 1
