"""A bill of materials names each file of its artefact with its hash, under the part that it came from."""

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from scripts.building import contents, packing, parts, sbom
from scripts.building.parts import Part
from tests.building import bills
from tests.building.made import ARTEFACTS
from tests.docs import ROOT

EPOCH, VERSION = "1700000000", "1.2.3"
METADATA = "lib/some-2.dist-info/METADATA"
TREE = {
    "BUILD": "ours",
    "bin/runtimeproxy": "ours",
    "lib/libc.so.6": "libc6",
    "lib/ld-linux-x86-64.so.2": "libc6",
    "libexec/runtimeproxy": "libc6",
    "lib/some/__init__.py": "some",
    "lib/some/__pycache__/__init__.cpython-311.pyc": "some",
    "lib/ours/__init__.py": "ours",
    "lib/ours/__pycache__/__init__.cpython-311.pyc": "ours",
    METADATA: "some",
    parts.PLACE: "ours",
}
"""The files of a small tree, and whose they are."""
PARTS = [
    Part("libc6", "2.36-9", "deb", "a" * 64, ["lib/libc.so.6", "lib/ld-linux-x86-64.so.2"]),
    Part("some", "2", "wheel", "b" * 64, ["lib/some/__init__.py", METADATA]),
    Part("runtimeproxy", VERSION, "wheel", "c" * 64, ["lib/ours/__init__.py"]),
]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of a build with the small tree and the sources' pins."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", EPOCH)
    root = tmp_path / "work/tree"
    for name in TREE:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"content of {name}")
    (root / METADATA).write_text("Name: some\nVersion: 2\nLicense-Expression: MIT\n")
    parts.write(root, PARTS)
    (tmp_path / "work/source/deploy").mkdir(parents=True)
    (tmp_path / "work/source/deploy/requirements.lock").write_text(
        f"click==8.5.1 \\\n    --hash=sha256:{'d' * 64} \\\n    --hash=sha256:{'e' * 64}\n"
    )
    return tmp_path / "work"


def document(artefact: Path, work: Path) -> dict[str, Any]:
    """Return an artefact's document, which CycloneDX's schema allows."""
    text = sbom.of_artefact(artefact, work, VERSION)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    made: dict[str, Any] = json.loads(text)
    return made


def files(component: dict[str, Any]) -> dict[str, str]:
    """Return the files below a component, each with its hash."""
    below = component.get("components", [])
    assert all(file["type"] == "file" for file in below)
    return {file["name"]: file["hashes"][0]["content"] for file in below}


def test_each_file_of_the_tree_stands_under_the_part_that_it_came_from(work: Path, tmp_path: Path) -> None:
    packing.pack(work / "tree", tmp_path / "some.tar.gz", "top")
    made = document(tmp_path / "some.tar.gz", work)
    found = {component["name"]: files(component) for component in made["components"]}
    found["ours"] = files(made["metadata"]["component"])
    contained = {f"top/{name}": digest((work / "tree" / name).read_bytes()) for name in TREE}
    for owner, below in found.items():
        assert below == {f"top/{name}": contained[f"top/{name}"] for name, whose in TREE.items() if whose == owner}


def test_part_has_version_licence_hash_and_package_url(work: Path, tmp_path: Path) -> None:
    packing.pack(work / "tree", tmp_path / "some.tar.gz", "top")
    made = document(tmp_path / "some.tar.gz", work)
    told = [
        (part["purl"], part["version"], part["hashes"][0]["content"], part["licenses"]) for part in made["components"]
    ]
    assert told == [
        (
            "pkg:deb/debian/libc6@2.36-9?arch=amd64&distro=debian-12",
            "2.36-9",
            "a" * 64,
            [{"license": {"id": "LGPL-2.1-or-later"}}],
        ),
        ("pkg:pypi/some@2", "2", "b" * 64, [{"license": {"id": "MIT"}}]),
    ]
    ours = made["metadata"]["component"]
    assert ours["hashes"] == [{"alg": "SHA-256", "content": digest((tmp_path / "some.tar.gz").read_bytes())}]
    assert (ours["version"], made["metadata"]["timestamp"]) == (VERSION, "2023-11-14T22:13:20+00:00")
    [depends] = [row["dependsOn"] for row in made["dependencies"] if row["ref"] == ours["bom-ref"]]
    assert depends == [part["bom-ref"] for part in made["components"]]


def test_wheels_parts_are_the_pins_with_all_their_hashes(work: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "some.whl", "w") as wheel:
        wheel.writestr("runtimeproxy/app.py", b"code")
    made = document(tmp_path / "some.whl", work)
    [pin] = made["components"]
    [reference] = pin["externalReferences"]
    assert (pin["purl"], pin["licenses"]) == ("pkg:pypi/click@8.5.1", [{"license": {"id": "BSD-3-Clause"}}])
    assert [row["content"] for row in reference["hashes"]] == ["d" * 64, "e" * 64]
    assert files(made["metadata"]["component"]) == {"runtimeproxy/app.py": digest(b"code")}


def image(layers: list[dict[str, bytes]], path: Path) -> Path:
    """Write an OCI image with these files in its layers."""

    def tar(content: dict[str, bytes]) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as made:
            for name, data in content.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                made.addfile(entry, io.BytesIO(data))
        return buffer.getvalue()

    blobs = [gzip.compress(tar(layer), mtime=0) for layer in layers]
    manifest = json.dumps({"layers": [{"digest": f"sha256:{digest(blob)}"} for blob in blobs]}).encode()
    index = json.dumps({"manifests": [{"digest": f"sha256:{digest(manifest)}"}]}).encode()
    held = {f"blobs/sha256/{digest(blob)}": blob for blob in (*blobs, manifest)}
    path.write_bytes(tar({"index.json": index, **held}))
    return path


def test_image_has_the_parts_of_both_layers(work: Path, tmp_path: Path) -> None:
    parts.write(work / sbom.BASE, [Part("dash", "0.5.12-2", "deb", "f" * 64, ["usr/bin/dash"])])
    place = "usr/lib/runtimeproxy/"
    upper = {place + name: (work / "tree" / name).read_bytes() for name in TREE}
    packed = image([{"usr/bin/dash": b"sh", "etc/passwd": b"root"}, upper], tmp_path / "some_image.tar")
    made = document(packed, work)
    found = {component["name"]: files(component) for component in made["components"]}
    assert list(found) == ["dash", "libc6", "some"]
    assert found["dash"] == {"usr/bin/dash": digest(b"sh")}
    assert f"{place}libexec/runtimeproxy" in found["libc6"]
    assert "etc/passwd" in files(made["metadata"]["component"])


def deb(folder: Path) -> Path:
    root = folder / "root"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        "Package: some\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b>\nDescription: a\n"
    )
    (root / "usr").mkdir()
    (root / "usr/file").write_text("x")
    subprocess.run(["dpkg-deb", "--build", root, folder / "some.deb"], check=True, capture_output=True)
    return folder / "some.deb"


@pytest.mark.engine
@pytest.mark.release
def test_files_of_a_debian_package_are_read(tmp_path: Path) -> None:
    assert contents.of(deb(tmp_path)) == {"usr/file": digest(b"x")}


def test_hard_links_are_files_and_directories_and_links_are_none(tmp_path: Path, work: Path) -> None:
    (tmp_path / "top/sub").mkdir(parents=True)
    (tmp_path / "top/a").write_text("a")
    os.link(tmp_path / "top/a", tmp_path / "top/sub/hard")
    (tmp_path / "top/soft").symlink_to("a")
    packing.pack(tmp_path / "top", tmp_path / "some.tgz", "top")
    assert contents.of(tmp_path / "some.tgz") == {"top/a": digest(b"a"), "top/sub/hard": digest(b"a")}


@pytest.mark.slow  # it starts programs
def test_same_artefact_has_the_same_document_in_every_process(work: Path, tmp_path: Path) -> None:
    """Also where sets have another order."""
    packing.pack(work / "tree", tmp_path / "some.tar.gz", "top")
    code = "import sys; from pathlib import Path; from scripts.building import sbom; "
    code += f"print(sbom.of_artefact(Path(sys.argv[1]), Path(sys.argv[2]), {VERSION!r}))"
    command = [sys.executable, "-c", code, tmp_path / "some.tar.gz", work]
    environments = ({**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2"))
    runs = [subprocess.run(command, cwd=ROOT, env=each, capture_output=True, check=True) for each in environments]
    assert runs[0].stdout == runs[1].stdout


@pytest.mark.engine
@pytest.mark.release
def test_each_file_of_a_release_is_named_with_its_hash(release: Path) -> None:
    assert len(list(release.glob(f"*{sbom.SUFFIX}"))) == len(ARTEFACTS)
    assert bills.faults(release) == []
    archive = json.loads(next(release.glob(f"*_linux_x86_64.tar.gz{sbom.SUFFIX}")).read_text())
    ours = files(archive["metadata"]["component"])
    foreign = r"^[^/]+/(lib/python3\.11/(?!dist-packages/runtimeproxy)|lib/(?!python3)|libexec/)"
    assert [name for name in ours if re.search(foreign, name)] == []


@pytest.mark.engine
@pytest.mark.release
def test_each_part_of_a_release_has_its_licence_beside_it(archive: Path) -> None:
    texts = archive / parts.LICENCES
    names = [part.name for part in parts.read(archive) if not any((texts / part.name).glob("*"))]
    assert names == []
    assert (texts / "common-licenses/GPL-3").stat().st_size > 30_000
