"""A bill of materials names each part of its artefact, with version, licence and hash."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.building.made import ARTEFACTS
from tests.docs import DOCS

pytestmark = [pytest.mark.engine, pytest.mark.release]
SUFFIX = ".cdx.json"


def licence(component: dict[str, Any]) -> str:
    [choice] = component["licenses"]
    return str(choice.get("expression") or choice["license"].get("id") or choice["license"]["name"])


def test_each_artefact_has_a_valid_bill_with_licences_and_hashes(release: Path) -> None:
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


def test_each_file_of_the_tree_is_listed_under_its_part(archive: Path) -> None:
    parts = {part["name"]: set(part["files"]) for part in json.loads((archive / "share/parts.json").read_text())}
    assert {"lib/libc.so.6", "lib/ld-linux-x86-64.so.2"} <= parts["libc6"]
    assert "lib/python3.11/dist-packages/click/core.py" in parts["click"]
    files = {str(path.relative_to(archive)) for path in archive.rglob("*") if path.is_file() or path.is_symlink()}
    made = ("bin/", "libexec/", "share/sbom/", "share/systemd/", "share/parts.json", "BUILD")
    unlisted = files.difference(*parts.values())
    assert [name for name in unlisted if not name.startswith(made) and "__pycache__" not in name] == []


def test_parts_of_the_archive_are_the_trees_and_have_licences(release: Path, archive: Path) -> None:
    parts = [part for part in json.loads((archive / "share/parts.json").read_text()) if part["name"] != "runtimeproxy"]
    (file,) = release.glob(f"*_linux_x86_64.tar.gz{SUFFIX}")
    bill = json.loads(file.read_text())
    described = {(part["name"], part["version"], part["hashes"][0]["content"]) for part in bill["components"]}
    assert described == {(part["name"], part["version"], part["sha256"]) for part in parts}
    texts = archive / "share/licences"
    assert [part["name"] for part in parts if not any((texts / part["name"]).glob("*"))] == []
    origins = {part["name"]: "Debian" if part["kind"] == "deb" else "PyPI" for part in parts}
    rows = {
        f"   * - {part['name']}\n     - {origins[part['name']]}\n     - {licence(part)}\n"
        for part in bill["components"]
    }
    assert [row for row in rows if row not in DOCS["licences"]] == []
