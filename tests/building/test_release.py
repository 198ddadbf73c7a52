"""The files of a release.

The archive needs only a kernel, a shell and tar, and runs as one process with its own name. The tree of the
Debian package is the archive's. A bill of materials names each part of its artefact, with version, licence and hash.
"""

import ast
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from runtimeproxy.settings.version import VERSION
from tests.building.made import ARTEFACTS, PROGRAMS, inside
from tests.docs import DOCS, ROOT
from tests.system.proxy import answers, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.release]  # a chroot needs root

SUFFIX = ".cdx.json"
PINS = dict(re.findall(r"^([\w.-]+)==(\S+) ", (ROOT / "deploy/requirements.lock").read_text(), re.MULTILINE))


def output_of(*command: str | Path, **more: Any) -> str:
    pipes: Any = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run(command, check=False, timeout=60, **pipes, **more)
    assert (done.returncode, done.stderr) == (0, "")
    return str(done.stdout)


def test_archive_runs_with_only_sh_and_tar(release: Path, tmp_path: Path) -> None:
    (file,) = release.glob("*_linux_x86_64.tar.gz")
    tree, place = tmp_path / "tree", tmp_path / "of its own"
    place.mkdir()
    (tree / "bin").mkdir(parents=True)
    for name in ("sh", "tar"):
        shutil.copy(shutil.which("busybox") or "run scripts/install", tree / "bin" / name)  # a static one
    script = f"cd '{place}' && tar -xzf {file} && runtimeproxy-{VERSION}/bin/runtimeproxy version -o json"
    shared = Path(os.path.commonpath([release, tmp_path]))
    rows = json.loads(output_of(*inside(tree, tmp_path / "work", shared), "sh", "-c", script))
    reported = {row["name"]: row["version"] for row in rows}
    commit = output_of("git", "-c", "safe.directory=*", "rev-parse", "HEAD", cwd=ROOT).strip()
    own = {name: reported.pop(name) for name in ("commit", "date", "runtimeproxy", "python", "linux")}
    assert (own["commit"], own["runtimeproxy"]) == (f"{commit}-dirty", VERSION)
    assert reported == {name: PINS[name] for name in reported}


def test_tree_contains_every_imported_module(archive: Path) -> None:
    """Every module that the proxy and its hook servers import, also late; the pytest plugin is for developers."""
    files = [path for folder in ("runtimeproxy", "hooks") for path in (ROOT / folder).rglob("*.py")]
    parsed = [ast.parse(path.read_text()) for path in files if path.name != "pytest_plugin.py"]
    named = [node for tree in parsed for node in ast.walk(tree)]
    imported = {alias.name for node in named if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in named if isinstance(node, ast.ImportFrom) and not node.level}
    code = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
    assert output_of(archive / "bin/python3", "-I", "-c", code, *sorted(imported)) == ""


PROXY = "--koord-runtimeproxy-endpoint={0}/served --remote-runtime-service-endpoint={0}/none --admin-endpoint=none"
PROXY += " --hookserver-config-dir={0} --state-dir={0}"
RUNNING = {
    "koord-runtime-proxy": ("koord-runtime-p", PROXY),
    "runtimeproxy": ("runtimeproxy", f"run {PROXY}"),
    "runtimeproxy-hooks": ("runtimeproxy-ho", "gpu --endpoint={0}/served --register-dir={0}"),
}
"""The program names as the kernel truncates them (15 bytes), and arguments to serve at ``served``."""


@pytest.mark.parametrize("name", sorted(RUNNING))
def test_program_is_single_process_with_own_name(archive: Path, tmp_path: Path, name: str) -> None:
    comm, arguments = RUNNING[name]
    words = arguments.format(tmp_path).split()
    with (tmp_path / "log").open("w") as log, subprocess.Popen([archive / "bin" / name, *words], stderr=log) as process:
        try:
            wait_until(lambda: answers(tmp_path / "served"), "it serves", (tmp_path / "log").read_text)
            proc = Path(f"/proc/{process.pid}")
            assert (proc / "comm").read_text() == f"{comm}\n"
            assert (proc / "exe").readlink() == archive / "libexec" / name
            assert (proc / f"task/{process.pid}/children").read_text() == ""
            mapped = {line.split(maxsplit=5)[5] for line in (proc / "maps").read_text().splitlines() if " /" in line}
            assert {file for file in mapped if not file.startswith(f"{archive}/")} == set()
        finally:
            process.terminate()


WAYS = {
    "relative, whatever CDPATH is": "export CDPATH=/usr; cd {top}; exec bin/runtimeproxy",
    "sh in its directory": "cd {top}/bin; exec /bin/sh runtimeproxy",
    "PATH is relative": "cd {top}; PATH=bin; exec runtimeproxy",
    "a link to a link": "ln -s {top}/bin/runtimeproxy a; ln -s a b; exec ./b",
    "no tools": "PATH=/nowhere; exec {top}/bin/runtimeproxy",
    "other variables": "export PYTHONHOME=/no PYTHONPATH=/no LD_LIBRARY_PATH=/no LC_ALL=de_DE; {top}/bin/runtimeproxy",
    "a way through a link": "ln -s {top} top; exec top/bin/runtimeproxy",
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_program_finds_its_tree(archive: Path, tmp_path: Path, way: str) -> None:
    script = way.format(top=shlex.quote(str(archive)))
    assert f"runtimeproxy {VERSION} (commit " in output_of("sh", "-c", f"{script} --version", cwd=tmp_path)


def test_package_has_tree_of_archive_and_needs_no_python(release: Path, archive: Path, tmp_path: Path) -> None:
    (package,) = release.glob("*.deb")
    data = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(data)) as tar:
        entries = {entry.name.removeprefix("./"): entry for entry in tar}
    assert {(entry.uid, entry.gid) for entry in entries.values()} == {(0, 0)}
    assert [name for name, entry in entries.items() if entry.mode & 0o7022 and not entry.issym()] == []
    folder = entries["etc/runtime/hookserver.d"]
    assert (folder.isdir(), folder.mode) == (True, 0o755)
    for name in PROGRAMS:
        assert entries[f"usr/bin/{name}"].linkname == f"../lib/runtimeproxy/bin/{name}"

    subprocess.run(["dpkg-deb", "--raw-extract", package, tmp_path], check=True)
    compared: list[str | Path] = ["diff", "-r", archive, tmp_path / "usr/lib/runtimeproxy"]
    only = f"Only in {archive}/share: systemd\n"
    assert subprocess.run(compared, capture_output=True, text=True, check=False).stdout == only
    units = archive / "share/systemd"
    for unit in (*units.glob("*.service"), *units.glob("*.socket")):
        assert (tmp_path / "lib/systemd/system" / unit.name).read_bytes() == unit.read_bytes()

    lines = (tmp_path / "DEBIAN/control").read_text().splitlines()
    fields = dict(line.split(": ", 1) for line in lines if ": " in line and line[0] != " ")
    assert (fields["Version"], fields["Architecture"]) == (f"{VERSION}-1", "amd64")
    assert "python" not in fields["Depends"]
    assert (tmp_path / "DEBIAN/conffiles").read_text() == "/etc/runtimeproxy/config.yaml\n"
    # A restart closes the socket for a moment.
    assert re.findall(r"restart.*socket", (tmp_path / "DEBIAN/postinst").read_text()) == []


def licence(component: dict[str, Any]) -> str:
    [choice] = component["licenses"]
    return str(choice.get("expression") or choice["license"].get("id") or choice["license"]["name"])


def test_artefact_has_valid_sbom_with_licences_and_hashes(release: Path) -> None:
    bills = list(release.glob(f"*{SUFFIX}"))
    assert len(bills) == len(ARTEFACTS)
    for file in bills:
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(file.read_text()) is None
        bill = json.loads(file.read_text())
        main, parts = bill["metadata"]["component"], bill.get("components", [])
        artefact = release / file.name.removesuffix(SUFFIX)
        assert main["hashes"][0]["content"] == hashlib.sha256(artefact.read_bytes()).hexdigest()
        for part in (main, *parts):
            assert licence(part)
            assert part["purl"]
            assert part.get("hashes") or part["externalReferences"]


def test_sbom_lists_each_file_under_its_component(release: Path, archive: Path) -> None:
    """The archive's components are those of the tree, and those of docs/licences.rst."""
    parts = {part["name"]: part for part in json.loads((archive / "share/parts.json").read_text())}
    assert {"lib/libc.so.6", "lib/ld-linux-x86-64.so.2"} <= {*parts["libc6"]["files"]}
    assert "lib/python3.11/dist-packages/click/core.py" in parts["click"]["files"]
    files = {str(path.relative_to(archive)) for path in archive.rglob("*") if path.is_file() or path.is_symlink()}
    generated = ("bin/", "libexec/", "share/sbom/", "share/systemd/", "share/parts.json", "BUILD")
    unlisted = files.difference(*(part["files"] for part in parts.values()))
    assert [name for name in unlisted if not name.startswith(generated) and "__pycache__" not in name] == []

    del parts["runtimeproxy"]
    (file,) = release.glob(f"*_linux_x86_64.tar.gz{SUFFIX}")
    bill = json.loads(file.read_text())["components"]
    described = {(part["name"], part["version"], part["hashes"][0]["content"]) for part in bill}
    assert described == {(name, part["version"], part["sha256"]) for name, part in parts.items()}
    assert [name for name in parts if not any((archive / "share/licences" / name).glob("*"))] == []
    origins = {name: "Debian" if part["kind"] == "deb" else "PyPI" for name, part in parts.items()}
    rows = [f"   * - {p['name']}\n     - {origins[p['name']]}\n     - {licence(p)}\n" for p in bill]
    assert [row for row in rows if row not in DOCS["licences"]] == []
