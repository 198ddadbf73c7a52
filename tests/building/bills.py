"""The files of an artefact, and what is wrong with the bills of materials in a directory of a release."""

import hashlib
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

SUFFIX = ".cdx.json"
UNPACK: Mapping[str, str] = {
    ".whl": f"'{sys.executable}' -m zipfile -e \"$1\" .",
    ".gz": 'tar -xf "$1"',
    ".tgz": 'tar -xf "$1"',
    ".deb": 'dpkg-deb --extract "$1" .',
    ".rpm": 'rpm2archive - <"$1" | tar -xz',
    ".tar": 'tar -xf "$1"',
}
"""The commands that unpack an artefact into the current directory, by the end of its name."""


def files(artefact: Path) -> dict[str, str]:
    """Return the SHA-256 of each regular file by its name, as another program unpacks them."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["sh", "-ec", UNPACK[artefact.suffix], "sh", str(artefact.resolve())]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        if artefact.suffix == ".tar":
            return _of_image(Path(folder))
        found = [path for path in Path(folder).rglob("*") if path.is_file() and not path.is_symlink()]
        return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def _of_image(layout: Path) -> dict[str, str]:
    """Return the files of an OCI layout's one image (image-layout.md), none of whose layers removes a file."""

    def blob(descriptor: Mapping[str, str]) -> Path:
        return layout / "blobs" / descriptor["digest"].replace(":", "/")

    [manifest] = json.loads((layout / "index.json").read_text())["manifests"]
    described = json.loads(blob(manifest).read_text())["layers"]
    layers = [blob(layer).rename(layout / f"{at}.tgz") for at, layer in enumerate(described)]
    return {name: digest for layer in layers for name, digest in files(layer).items()}


def faults(dist: Path) -> list[str]:
    """Return a line for each bill that is missing, not as CycloneDX's schema says, or not of its artefact's files."""
    artefacts = [path for path in dist.iterdir() if not path.name.endswith((SUFFIX, ".txt", ".minisig"))]
    return [f"{path.name}: {fault}" for path in artefacts for fault in _faults(path)]


def _faults(artefact: Path) -> Iterator[str]:
    text = artefact.with_name(artefact.name + SUFFIX).read_text()
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        yield f"the schema does not allow it: {error}"
    document = json.loads(text)
    main = document["metadata"]["component"]
    if main["hashes"][0]["content"] != hashlib.sha256(artefact.read_bytes()).hexdigest():
        yield "another hash than the artefact's"
    parts = [main, *document.get("components", [])]
    listed = [file for part in parts for file in part.get("components", [])]
    named = {file["name"]: file["hashes"][0]["content"] for file in listed}
    if twice := [name for name, count in Counter(file["name"] for file in listed).items() if count > 1]:
        yield f"named twice: {twice}"
    if differing := named.items() ^ files(artefact).items():
        yield f"other files or hashes than the artefact's: {sorted(differing)}"
    yield from (
        f"{part['name']} has no licence, hash or package URL"
        for part in parts
        if not (part.get("licenses") and part.get("purl") and (part.get("hashes") or part.get("externalReferences")))
    )
