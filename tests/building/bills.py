"""What is wrong with the bills of materials in a directory of a release."""

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from scripts.building import contents, sbom

LISTED = {".deb": ("dpkg-deb", "--contents"), ".gz": ("tar", "--list", "-vf"), ".tgz": ("tar", "--list", "-vf")}
"""What lists the files of an artefact beside our own reader, by the end of its name."""


def faults(dist: Path) -> list[str]:
    """Return a line for each bill that is missing, not as CycloneDX's schema says, or not of its artefact's files."""
    artefacts = [path for path in dist.iterdir() if not path.name.endswith((sbom.SUFFIX, ".txt", ".minisig"))]
    return [f"{path.name}: {fault}" for path in artefacts for fault in _faults(path)]


def _faults(artefact: Path) -> Iterator[str]:
    text = artefact.with_name(artefact.name + sbom.SUFFIX).read_text()
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        yield f"the schema does not allow it: {error}"
    document = json.loads(text)
    parts = [document["metadata"]["component"], *document.get("components", [])]
    files = [file for part in parts for file in part.get("components", [])]
    named = {file["name"]: file["hashes"][0]["content"] for file in files}
    if twice := [name for name, count in Counter(file["name"] for file in files).items() if count > 1]:
        yield f"named twice: {twice}"
    if named != contents.of(artefact):
        yield f"other files or hashes than the artefact's: {sorted(named.items() ^ contents.of(artefact).items())}"
    if artefact.suffix in LISTED and named.keys() != _listed(artefact):
        yield f"not as listed: {sorted(named.keys() ^ _listed(artefact))}"
    yield from (
        f"{part['name']} has no licence, hash or package URL"
        for part in parts
        if not (part.get("licenses") and part.get("purl") and (part.get("hashes") or part.get("externalReferences")))
    )


def _listed(artefact: Path) -> set[str]:
    """Return the files that another program lists, hard links among them."""
    command = [*LISTED[artefact.suffix], str(artefact)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    names = {line.split(maxsplit=5)[5].partition(" link to ")[0] for line in lines if line[0] in "-h"}
    return {name.removeprefix("./") for name in names}
