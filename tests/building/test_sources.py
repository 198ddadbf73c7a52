"""A build contains the last commit's files, or its version ends with -dirty. Equal sources give equal bytes.

The pins of a release satisfy setup.cfg, so the archive has the packages that pip would install with the wheel.
"""

import os
import re
import subprocess
import sys
import tarfile
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from runtimeproxy.settings.version import VERSION
from tests.docs import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a clone of the checkout."""
    command = ["git", "-c", "safe.directory=*", "clone", "--quiet", "--depth=1", f"file://{ROOT}", tmp_path / "clone"]
    subprocess.run(command, check=True)
    return tmp_path / "clone"


def build(checkout: Path, dist: Path, *flags: str, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.building", f"--dist={dist}", *flags, "sdist", "chart"]
    environ = os.environ | {"PYTHONPATH": str(checkout)} | more.pop("environ", {})
    return subprocess.run(command, cwd=checkout, env=environ, capture_output=True, text=True, check=False, **more)


@pytest.mark.slow
@pytest.mark.history
def test_commit_builds_same_bytes_in_any_environment(checkout: Path, tmp_path: Path) -> None:
    first = build(checkout, tmp_path / "one")
    assert first.returncode == 0, first.stderr
    for file in checkout.rglob("*.py"):
        os.utime(file, (1, 1))
    second = build(checkout.rename(tmp_path / "other"), tmp_path / "two", umask=0o077, environ={"TZ": "Asia/Tokyo"})
    assert second.returncode == 0, second.stderr
    assert (tmp_path / "one/checksums.txt").read_text() == (tmp_path / "two/checksums.txt").read_text()


@pytest.mark.slow
@pytest.mark.history
def test_uncommitted_change_is_refused_or_built_as_dirty(checkout: Path, tmp_path: Path) -> None:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True)
    (checkout / "README.rst").write_text("changed")
    (checkout / "LICENSE").unlink()
    refused = build(checkout, tmp_path / "dist")
    assert refused.returncode == 1
    assert "2 files differ from the last commit (LICENSE ...)" in refused.stderr
    assert not (tmp_path / "dist").exists()
    assert build(checkout, tmp_path / "dist", "--dirty").returncode == 0
    with tarfile.open(tmp_path / "dist" / f"runtimeproxy-{VERSION}.tar.gz") as tar:
        top = f"runtimeproxy-{VERSION}"
        named = tar.extractfile(f"{top}/runtimeproxy/BUILD")
        assert named is not None
        assert named.read().decode().startswith(f"commit: {commit.stdout.strip()}-dirty\n")
        assert f"{top}/LICENSE" not in tar.getnames()


@pytest.mark.slow
@pytest.mark.history
def test_licence_not_on_allow_list_is_error(checkout: Path, tmp_path: Path) -> None:
    licences = checkout / "scripts/building/licences.py"
    licences.write_text(licences.read_text().replace('"BSD-3-Clause", "MIT", ', '"BSD-3-Clause", '))
    done = build(checkout, tmp_path / "dist", "--dirty")
    assert (done.returncode, ", and MIT is not allowed: read it" in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "dist").exists()


def test_build_is_refused_when_python_is_too_old() -> None:
    old = "import runpy, sys, setuptools; sys.version_info, sys.version = (3, 10, 13), '3.10.13 (main)'"
    command = [sys.executable, "-c", f"{old}; runpy.run_path('setup.py')"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == "runtimeproxy needs Python 3.11 or later, and this is 3.10.13: take another Python\n"
    assert done.returncode == 1


LOCK = (ROOT / "deploy/requirements.lock").read_text()
PINS = {canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+) \\$", LOCK, re.MULTILINE)}


def required() -> list[str]:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = [*setup["options"]["install_requires"].split(), *setup["options.extras_require"]["hooks"].split()]
    return [line for line in lines if line[0].isalpha()]


@pytest.mark.parametrize("line", required())
def test_pin_satisfies_requirement(line: str) -> None:
    requirement = Requirement(line)
    assert PINS[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("name", ["requirements.lock", "build-requirements.lock"])
def test_every_pin_has_hashes_and_no_url(name: str) -> None:
    pins = re.split(r"^(?=\w)", (ROOT / "deploy" / name).read_text(), flags=re.MULTILINE)[1:]
    assert pins
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+\n", pin)] == []
