"""A build contains the last commit's files, or its version ends with -dirty. Equal sources give equal bytes.

The checksums of a release are signed by a key that is not in the checkout, and checked with the public key. The pins of
a release satisfy setup.cfg, so the archive has the packages that pip would install with the wheel.
"""

import os
import re
import subprocess
import sys
import tarfile
from configparser import ConfigParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from runtimeproxy.settings.version import VERSION
from tests.docs import ROOT

CHECKSUMS, CHECK = "checksums.txt", ("sha256sum", "--check", "--strict", "--quiet")


def build(dist: Path, *words: str, cwd: Path = ROOT, umask: int = -1, **environ: str) -> tuple[int, str]:
    """Build artefacts of a checkout; return the exit code and the errors."""
    command = [sys.executable, "-m", "scripts.building", f"--dist={dist}", *words]
    env = os.environ | {"PYTHONPATH": str(cwd)} | environ
    done = subprocess.run(command, cwd=cwd, umask=umask, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a clone of the checkout."""
    command = ["git", "-c", "safe.directory=*", "clone", "--quiet", "--depth=1", f"file://{ROOT}", tmp_path / "clone"]
    subprocess.run(command, check=True)
    return tmp_path / "clone"


@pytest.mark.slow
@pytest.mark.history
def test_commit_builds_same_bytes_in_any_environment(checkout: Path, tmp_path: Path) -> None:
    assert build(tmp_path / "one", "sdist", "chart", cwd=checkout) == (0, "")
    for file in checkout.rglob("*.py"):
        os.utime(file, (1, 1))
    other = checkout.rename(tmp_path / "other")
    assert build(tmp_path / "two", "sdist", "chart", cwd=other, umask=0o077, TZ="Asia/Tokyo") == (0, "")
    assert (tmp_path / "one/checksums.txt").read_text() == (tmp_path / "two/checksums.txt").read_text()


@pytest.mark.slow
@pytest.mark.history
def test_uncommitted_change_is_refused_or_built_as_dirty(checkout: Path, tmp_path: Path) -> None:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True)
    (checkout / "README.rst").write_text("changed")
    (checkout / "LICENSE").unlink()
    code, errors = build(tmp_path / "dist", "sdist", cwd=checkout)
    assert (code, "2 files differ from the last commit (LICENSE ...)" in errors) == (1, True), errors
    assert not (tmp_path / "dist").exists()
    assert build(tmp_path / "dist", "--dirty", "sdist", cwd=checkout)[0] == 0
    top = f"runtimeproxy-{VERSION}"
    with tarfile.open(tmp_path / "dist" / f"{top}.tar.gz") as tar:
        named = tar.extractfile(f"{top}/runtimeproxy/BUILD")
        assert named is not None
        assert named.read().decode().startswith(f"commit: {commit.stdout.strip()}-dirty\n")
        assert f"{top}/LICENSE" not in tar.getnames()


@pytest.mark.slow
@pytest.mark.history
def test_licence_not_on_allow_list_is_error(checkout: Path, tmp_path: Path) -> None:
    licences = checkout / "scripts/building/licences.py"
    licences.write_text(licences.read_text().replace('"BSD-3-Clause", "MIT", ', '"BSD-3-Clause", '))
    code, errors = build(tmp_path / "dist", "--dirty", "sdist", "chart", cwd=checkout)
    assert (code, ", and MIT is not allowed: read it" in errors) == (1, True), errors
    assert not (tmp_path / "dist").exists()


# ---- signatures


def run_in(folder: Path, *command: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, cwd=folder, capture_output=True, check=False)


@pytest.mark.slow
@pytest.mark.history
@pytest.mark.tool("minisign")
def test_other_signature_and_changed_file_are_refused(tmp_path: Path) -> None:
    for name in ("key", "other"):
        assert run_in(tmp_path, "minisign", "-G", "-W", "-p", f"{name}.pub", "-s", name).returncode == 0
    dist = tmp_path / "dist"
    assert build(dist, "--dirty", f"--sign={tmp_path / 'key'}", "chart") == (0, "")

    def is_verified(public: str) -> bool:
        """Return whether the commands of docs/release.rst accept the directory."""
        commands = (("minisign", "-Vm", CHECKSUMS, "-p", f"{tmp_path}/{public}"), (*CHECK, CHECKSUMS))
        return all(run_in(dist, *command).returncode == 0 for command in commands)

    assert is_verified("key.pub")
    assert not is_verified("other.pub")
    (chart,) = dist.glob("*.tgz")
    chart.write_text("another")
    assert not is_verified("key.pub")
    sums = run_in(dist, "sha256sum", *sorted(path.name for path in dist.glob("runtimeproxy*"))).stdout
    (dist / CHECKSUMS).write_bytes(sums)
    assert run_in(dist, *CHECK, CHECKSUMS).returncode == 0
    assert not is_verified("key.pub")


IN_CHECKOUT = (ROOT / "README.rst", "is in the checkout")
UNUSABLE = [("none", "there is no key"), IN_CHECKOUT, ("no-key", "minisign could not sign with")]


@pytest.mark.slow
@pytest.mark.history
@pytest.mark.tool("minisign")
@pytest.mark.parametrize(("key", "words"), UNUSABLE)
def test_unusable_key_is_error(tmp_path: Path, key: str | Path, words: str) -> None:
    (tmp_path / "no-key").write_text("words")
    code, errors = build(tmp_path / "dist", "--dirty", f"--sign={tmp_path / key}", "chart")
    assert (code, words in errors) == (1, True), errors
    assert not (tmp_path / "dist").exists()


def test_build_is_refused_when_python_is_too_old() -> None:
    old = "import runpy, sys, setuptools; sys.version_info, sys.version = (3, 10, 13), '3.10.13 (main)'"
    command = [sys.executable, "-c", f"{old}; runpy.run_path('setup.py')"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == "runtimeproxy needs Python 3.11 or later, and this is 3.10.13: take another Python\n"
    assert done.returncode == 1


def test_pins_satisfy_requirements() -> None:
    lock = (ROOT / "deploy/requirements.lock").read_text()
    pins = {canonicalize_name(name): pin for name, pin in re.findall(r"^([\w.-]+)==(\S+) \\$", lock, re.MULTILINE)}
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = [*setup["options"]["install_requires"].split(), *setup["options.extras_require"]["hooks"].split()]
    for requirement in (Requirement(line) for line in lines if line[0].isalpha()):
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier, requirement


@pytest.mark.parametrize("name", ["requirements.lock", "build-requirements.lock"])
def test_every_pin_has_hashes_and_no_url(name: str) -> None:
    pins = re.split(r"^(?=\w)", (ROOT / "deploy" / name).read_text(), flags=re.MULTILINE)[1:]
    assert pins
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+\n", pin)] == []
