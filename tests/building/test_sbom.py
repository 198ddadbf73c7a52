"""A bill of materials names each file of its artefact with its hash, under the part that it came from."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.building import bills
from tests.building.made import ARTEFACTS
from tests.docs import DOCS

pytestmark = [pytest.mark.engine, pytest.mark.release]


def document(release: Path, pattern: str) -> dict[str, Any]:
    """Return the bill of an artefact."""
    (file,) = release.glob(pattern + bills.SUFFIX)
    read: dict[str, Any] = json.loads(file.read_text())
    return read


def licence(component: dict[str, Any]) -> str:
    """Return the SPDX expression."""
    [choice] = component["licenses"]
    found = choice.get("expression") or choice["license"].get("id") or choice["license"]["name"]
    return str(found)


def names(component: dict[str, Any]) -> list[str]:
    return [file["name"].partition("/")[2] for file in component["components"]]


def test_each_file_of_a_release_is_named_with_its_hash(release: Path) -> None:
    assert len(list(release.glob(f"*{bills.SUFFIX}"))) == len(ARTEFACTS)
    assert bills.faults(release) == []


def test_each_file_of_the_tree_is_listed_under_its_part(release: Path) -> None:
    bill = document(release, "*_linux_x86_64.tar.gz")
    parts = {part["name"]: names(part) for part in bill["components"]}
    assert {"lib/libc.so.6", "lib/ld-linux-x86-64.so.2", "libexec/runtimeproxy"} <= set(parts["libc6"])
    modules = "lib/python3.11/dist-packages/click"
    assert {f"{modules}/core.py", f"{modules}/__pycache__/core.cpython-311.pyc"} <= set(parts["click"])
    foreign = r"lib/python3\.11/(?!dist-packages/runtimeproxy)|lib/(?!python3)|libexec/"
    assert [name for name in names(bill["metadata"]["component"]) if re.match(foreign, name)] == []


def test_parts_of_the_archive_are_the_trees_and_have_licences(release: Path, archive: Path) -> None:
    parts = [part for part in json.loads((archive / "share/parts.json").read_text()) if part["name"] != "runtimeproxy"]
    bill = document(release, "*_linux_x86_64.tar.gz")
    described = {(part["name"], part["version"], part["hashes"][0]["content"]) for part in bill["components"]}
    assert described == {(part["name"], part["version"], part["sha256"]) for part in parts}
    [depends] = [row["dependsOn"] for row in bill["dependencies"] if "dependsOn" in row]
    assert sorted(depends) == sorted(part["bom-ref"] for part in bill["components"])
    texts = archive / "share/licences"
    assert [part["name"] for part in parts if not any((texts / part["name"]).glob("*"))] == []
    assert (texts / "common-licenses/GPL-3").stat().st_size > 30_000
    origins = {part["name"]: "Debian" if part["kind"] == "deb" else "PyPI" for part in parts}
    rows = {
        f"   * - {part['name']}\n     - {origins[part['name']]}\n     - {licence(part)}\n"
        for part in bill["components"]
    }
    assert [row for row in rows if row not in DOCS["licences"]] == []


def test_parts_of_the_wheel_are_the_pins(release: Path) -> None:
    bill = document(release, "*.whl")
    [click] = [part for part in bill["components"] if part["name"] == "click"]
    assert click["purl"] == f"pkg:pypi/click@{click['version']}"
    [reference] = click["externalReferences"]
    assert len(reference["hashes"]) > 1
    assert "components" not in click
