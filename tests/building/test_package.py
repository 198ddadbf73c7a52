"""What the Debian package puts where, and that its tree is the archive's."""

import json
import re
import subprocess
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
import yaml

from runtimeproxy.settings.version import VERSION
from tests.building.made import PROGRAMS

pytestmark = [pytest.mark.engine, pytest.mark.release]

PLACES = {
    r"usr/lib/runtimeproxy/.+": "the tree",
    r"lib/systemd/system/runtimeproxy(-admin|-metrics)?\.socket": "sockets",
    r"lib/systemd/system/runtimeproxy(-export|-hooks@)?\.service": "services",
    r"lib/systemd/system/runtimeproxy-hooks@[a-z]+\.service\.d/50-rights\.conf": "rights of hook servers",
    r"usr/lib/sysusers\.d/runtimeproxy\.conf": "the group",
    r"etc/runtimeproxy/config\.yaml": "the configuration",
    r"usr/share/man/man8/(runtimeproxy(-[a-z-]+)?|koord-runtime-proxy)\.8\.gz": "man pages",
    r"usr/share/bash-completion/completions/runtimeproxy": "completion",
    r"usr/share/zsh/vendor-completions/_runtimeproxy": "completion",
    r"usr/share/fish/vendor_completions\.d/runtimeproxy\.fish": "completion",
    r"usr/share/doc/runtimeproxy/(copyright|changelog(\.Debian)?\.gz)": "what policy wants",
    r"usr/share/lintian/overrides/runtimeproxy": "reasons",
}
"""Every file is at one of these places, and each has at least one."""


@pytest.fixture(scope="module")
def package(release: Path) -> Path:
    (file,) = release.glob("*.deb")
    return file


@pytest.fixture(scope="module")
def entries(package: Path) -> dict[str, tarfile.TarInfo]:
    """Return the head of each file, directory and link of the package."""
    data = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(data)) as tar:
        return {entry.name.removeprefix("./"): entry for entry in tar}


def file_of(package: Path, name: str) -> str:
    data = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(data)) as tar:
        content = tar.extractfile(f"./{name}")
        assert content is not None
        return content.read().decode()


def test_every_file_has_a_place(entries: dict[str, tarfile.TarInfo]) -> None:
    files = [name for name, entry in entries.items() if entry.isfile() or entry.islnk()]
    assert [name for name in files if not any(re.fullmatch(place, name) for place in PLACES)] == []
    assert [place for place in PLACES if not any(re.fullmatch(place, name) for name in files)] == []


def test_programs_are_links_into_the_tree(entries: dict[str, tarfile.TarInfo]) -> None:
    links = {name: entry.linkname for name, entry in entries.items() if entry.issym() and name.startswith("usr/bin/")}
    assert links == {f"usr/bin/{name}": f"../lib/runtimeproxy/bin/{name}" for name in PROGRAMS}


def test_all_is_roots_and_nobody_else_may_write(entries: dict[str, tarfile.TarInfo]) -> None:
    assert {(entry.uid, entry.gid) for entry in entries.values()} == {(0, 0)}
    assert [name for name, entry in entries.items() if entry.mode & 0o7022 and not entry.issym()] == []
    folder = entries["etc/runtime/hookserver.d"]
    assert (folder.isdir(), folder.mode) == (True, 0o755)


def test_tree_is_the_archives_but_for_the_units(package: Path, archive: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path], check=True)
    tree = tmp_path / "usr/lib/runtimeproxy"
    only = f"Only in {archive}/share: systemd\n"
    assert subprocess.run(["diff", "-r", archive, tree], capture_output=True, text=True, check=False).stdout == only
    for unit in (archive / "share/systemd").iterdir():
        place = (
            "usr/lib/sysusers.d/runtimeproxy.conf" if unit.suffix == ".sysusers" else f"lib/systemd/system/{unit.name}"
        )
        if unit.is_file():
            assert (tmp_path / place).read_bytes() == unit.read_bytes()


def test_configuration_holds_all_defaults_and_sets_none(package: Path, archive: Path) -> None:
    text = file_of(package, "etc/runtimeproxy/config.yaml")
    assert yaml.safe_load(text) is None
    default = subprocess.run(
        [archive / "bin/runtimeproxy", "config", "default"], capture_output=True, text=True, check=True
    ).stdout
    assert re.sub(r"^#(?=[a-z])", "", text, flags=re.MULTILINE).endswith(re.sub("^#(?=[a-z])", "", default, flags=re.M))


def test_control_requires_no_python_and_names_the_configuration(package: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--control", package, tmp_path / "control"], check=True)
    fields = dict(field(tmp_path / "control/control"))
    assert (fields["Version"], fields["Architecture"]) == (f"{VERSION}-1", "amd64")
    assert "python" not in fields["Depends"]
    assert (tmp_path / "control/conffiles").read_text() == "/etc/runtimeproxy/config.yaml\n"
    for name in ("preinst", "postinst", "prerm", "postrm"):
        script = tmp_path / "control" / name
        subprocess.run(["sh", "-n", script], check=True)
        assert re.findall("@[A-Z]+@|#DEBHELPER#", script.read_text()) == []
    # A socket that is restarted is closed for a moment.
    assert re.findall(r"restart.*socket", (tmp_path / "control/postinst").read_text()) == []


def field(control: Path) -> Iterator[tuple[str, str]]:
    for line in control.read_text().splitlines():
        name, colon, value = line.partition(": ")
        if colon and not line.startswith(" "):
            yield name, value


def test_copyright_names_every_part(package: Path, archive: Path) -> None:
    text = file_of(package, "usr/share/doc/runtimeproxy/copyright")
    parts = [part for part in json.loads((archive / "share/parts.json").read_text()) if part["name"] != "runtimeproxy"]
    assert parts
    assert [part["name"] for part in parts if f"{part['name']} {part['version']}" not in text] == []
