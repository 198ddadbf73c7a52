"""What the Debian package puts where, and that its tree is the archive's."""

import re
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from runtimeproxy.settings.version import VERSION
from tests.building.made import PROGRAMS

pytestmark = [pytest.mark.engine, pytest.mark.release]


@pytest.fixture(scope="module")
def package(release: Path) -> Path:
    (file,) = release.glob("*.deb")
    return file


def test_all_is_roots_and_programs_are_links_into_the_tree(package: Path) -> None:
    data = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(data)) as tar:
        entries = {entry.name.removeprefix("./"): entry for entry in tar}
    assert {(entry.uid, entry.gid) for entry in entries.values()} == {(0, 0)}
    assert [name for name, entry in entries.items() if entry.mode & 0o7022 and not entry.issym()] == []
    folder = entries["etc/runtime/hookserver.d"]
    assert (folder.isdir(), folder.mode) == (True, 0o755)
    for name in PROGRAMS:
        assert entries[f"usr/bin/{name}"].linkname == f"../lib/runtimeproxy/bin/{name}"


def test_tree_is_the_archives_but_for_the_units(package: Path, archive: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path], check=True)
    tree = tmp_path / "usr/lib/runtimeproxy"
    only = f"Only in {archive}/share: systemd\n"
    assert subprocess.run(["diff", "-r", archive, tree], capture_output=True, text=True, check=False).stdout == only
    units = archive / "share/systemd"
    for unit in (*units.glob("*.service"), *units.glob("*.socket")):
        assert (tmp_path / "lib/systemd/system" / unit.name).read_bytes() == unit.read_bytes()


def test_control_requires_no_python_and_names_the_configuration(package: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--control", package, tmp_path / "control"], check=True)
    lines = (tmp_path / "control/control").read_text().splitlines()
    fields = dict(line.split(": ", 1) for line in lines if ": " in line and line[0] != " ")
    assert (fields["Version"], fields["Architecture"]) == (f"{VERSION}-1", "amd64")
    assert "python" not in fields["Depends"]
    assert (tmp_path / "control/conffiles").read_text() == "/etc/runtimeproxy/config.yaml\n"
    # A socket that is restarted is closed for a moment.
    assert re.findall(r"restart.*socket", (tmp_path / "control/postinst").read_text()) == []
