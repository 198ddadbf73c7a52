"""The regular files in a finished artefact, each with its SHA-256, as the programs of its format unpack them."""

import hashlib
import json
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from scripts.building.errors import run

_TAR = 'tar -xf "$1"'
UNPACK: Mapping[str, str] = {
    ".whl": f"'{sys.executable}' -m zipfile -e \"$1\" .",
    ".gz": _TAR,
    ".tgz": _TAR,
    ".tar": _TAR,
    ".deb": 'dpkg-deb --extract "$1" .',
    ".rpm": 'rpm2archive - <"$1" | tar -xz',
}
"""The shell command that unpacks an artefact into the current directory, by the end of its name."""


def of(artefact: Path) -> dict[str, str]:
    """Return the hash of each file by its name; links are none, hard links are files like any other."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        run(["sh", "-ec", UNPACK[artefact.suffix], "sh", artefact.absolute()], place)
        if artefact.name.endswith("_image.tar"):
            return _of_image(place)
        files = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
        return {str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _of_image(layout: Path) -> dict[str, str]:
    """Return the files of all layers of an OCI layout's one image; none of them removes a file of an earlier one."""
    [manifest] = json.loads((layout / "index.json").read_text())["manifests"]
    blobs = [layer["digest"] for layer in json.loads(_blob(layout, manifest["digest"]).read_text())["layers"]]
    layers = [_blob(layout, digest).rename(layout / f"{at}.tgz") for at, digest in enumerate(blobs)]
    return {name: digest for layer in layers for name, digest in of(layer).items()}


def _blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / digest.replace(":", "/")


def image_digest(artefact: Path) -> str:
    """Return the digest by which a registry and charts know an OCI image (image-layout.md of its specification)."""
    with tarfile.open(artefact) as tar:
        index = tar.extractfile("index.json")
        assert index is not None
        [manifest] = json.load(index)["manifests"]
    return str(manifest["digest"])
