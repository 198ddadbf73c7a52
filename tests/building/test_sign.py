"""The checksums of a release are signed by a key that is not in the checkout, and checked with the public key."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.tool("minisign"), pytest.mark.history]

CHECKSUMS = "checksums.txt"


def new_key(folder: Path, name: str) -> Path:
    """Return a throw-away key, whose public half is NAME.pub next to it."""
    command = ["minisign", "-G", "-W", "-p", folder / f"{name}.pub", "-s", folder / name]
    subprocess.run(command, check=True, capture_output=True)
    return folder / name


def build(dist: Path, key: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.building", "--dirty", f"--dist={dist}", f"--sign={key}", "chart"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def verified(dist: Path, public: Path) -> bool:
    """Return whether the commands of docs/release.rst accept a directory."""
    signature = ["minisign", "-Vm", CHECKSUMS, "-p", str(public)]
    files = ["sha256sum", "--check", "--strict", "--quiet", CHECKSUMS]
    done = [subprocess.run(command, cwd=dist, capture_output=True, check=False) for command in (signature, files)]
    return all(process.returncode == 0 for process in done)


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the directory of a signed release, and the public key."""
    folder = tmp_path_factory.mktemp("signed")
    done = build(folder / "dist", new_key(folder, "key"))
    assert done.returncode == 0, done.stderr
    return folder / "dist", folder / "key.pub"


def test_signature_of_another_key_is_refused(signed: tuple[Path, Path], tmp_path: Path) -> None:
    assert verified(*signed)
    assert not verified(signed[0], new_key(tmp_path, "other").with_name("other.pub"))


def test_changed_file_or_checksum_is_refused(signed: tuple[Path, Path], tmp_path: Path) -> None:
    dist, public = shutil.copytree(signed[0], tmp_path / "dist"), signed[1]
    (chart,) = dist.glob("*.tgz")
    chart.write_text("another")
    assert not verified(dist, public)
    command = ["sha256sum", *sorted(path.name for path in dist.glob("runtimeproxy*"))]
    (dist / CHECKSUMS).write_bytes(subprocess.run(command, cwd=dist, capture_output=True, check=True).stdout)
    assert not verified(dist, public)


UNUSABLE = [("none", "there is no key"), (ROOT / "README.rst", "is in the checkout")]
UNUSABLE += [("no-key", "minisign could not sign with")]


@pytest.mark.parametrize(("key", "words"), UNUSABLE)
def test_unusable_key_is_error(tmp_path: Path, key: str | Path, words: str) -> None:
    (tmp_path / "no-key").write_text("words")
    done = build(tmp_path / "dist", tmp_path / key)
    assert (done.returncode, words in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "dist").exists()
