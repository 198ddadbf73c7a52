"""The checksums of a release are signed by a key that nobody can commit, and whoever has the public key can check."""

import subprocess
from pathlib import Path

import pytest

from scripts.building import sign
from scripts.building.__main__ import CHECKSUMS, build, write_checksums
from scripts.building.errors import BuildError
from tests.docs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.tool("minisign")]


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """Return a throw-away key, whose public half is in key.pub beside it."""
    folder = tmp_path / "keys"
    folder.mkdir()
    command = ["minisign", "-G", "-W", "-p", folder / "key.pub", "-s", folder / "key"]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "key"


def verified(dist: Path, public: Path) -> bool:
    """Return whether the commands of docs/release.rst find a directory to be as signed."""
    signature = ["minisign", "-Vm", CHECKSUMS, "-p", str(public)]
    files = ["sha256sum", "--check", "--strict", "--quiet", CHECKSUMS]
    done = [subprocess.run(command, cwd=dist, capture_output=True, check=False) for command in (signature, files)]
    return all(each.returncode == 0 for each in done)


@pytest.fixture
def dist(tmp_path: Path, key: Path) -> Path:
    """Return a directory with two files and their signed checksums."""
    folder = tmp_path / "dist"
    folder.mkdir()
    for name in ("a.whl", "b.deb"):
        (folder / name).write_text(name)
    write_checksums(folder)
    sign.sign(folder / CHECKSUMS, key, "runtimeproxy 1.2.3")
    return folder


def test_signed_release_is_verified_by_the_public_key(dist: Path, key: Path) -> None:
    assert verified(dist, key.with_name("key.pub"))
    command = ["minisign", "-Vm", dist / CHECKSUMS, "-p", key.with_name("key.pub")]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.endswith("Trusted comment: runtimeproxy 1.2.3\n")


def test_file_or_checksum_that_was_changed_is_found(dist: Path, key: Path) -> None:
    public = key.with_name("key.pub")
    (dist / "b.deb").write_text("another")
    assert not verified(dist, public)
    write_checksums_of_another(dist)
    assert not verified(dist, public)


def write_checksums_of_another(dist: Path) -> None:
    """Make the checksums right for the changed file, as somebody would who has no key."""
    signature = dist / f"{CHECKSUMS}.minisig"
    kept = signature.read_bytes()
    signature.unlink()
    (dist / CHECKSUMS).unlink()
    write_checksums(dist)
    signature.write_bytes(kept)


def test_signature_of_another_key_is_refused(dist: Path, tmp_path: Path) -> None:
    command = ["minisign", "-G", "-W", "-p", tmp_path / "other.pub", "-s", tmp_path / "other"]
    subprocess.run(command, check=True, capture_output=True)
    assert not verified(dist, tmp_path / "other.pub")


def test_key_that_cannot_be_used_is_told_before_anything_is_built(tmp_path: Path) -> None:
    inside = ROOT / "README.rst"
    for path, words in ((tmp_path / "none", "there is no key"), (inside, "is in the checkout")):
        with pytest.raises(BuildError, match=words):
            build(["wheel"], tmp_path / "dist", dirty=True, key=path)
    assert not (tmp_path / "dist").exists()


def test_what_is_no_key_is_told(dist: Path) -> None:
    with pytest.raises(BuildError, match=r"minisign could not sign with .*b.deb: "):
        sign.sign(dist / CHECKSUMS, dist / "b.deb", "")
