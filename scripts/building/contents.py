"""The regular files in a finished artefact, each with its SHA-256, read by tar, zip and rpm."""

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from scripts.building.errors import run, run_bytes

Files = dict[str, str]
"""Hash by name, which has no leading slash or dot."""


def of(artefact: Path) -> Files:
    """Return the files of an artefact. Raises KeyError for a file of another kind."""
    return _READERS[next(suffix for suffix in _READERS if artefact.name.endswith(suffix))](artefact)


def _of_tar(file: IO[bytes]) -> Files:
    """Hard links are files like any other."""
    found = {}
    with tarfile.open(fileobj=file) as tar:
        for entry in tar:
            if entry.isreg() or entry.islnk():
                content = tar.extractfile(entry)
                assert content is not None
                found[entry.name.removeprefix("./")] = hashlib.sha256(content.read()).hexdigest()
    return found


def _of_tar_file(artefact: Path) -> Files:
    with artefact.open("rb") as file:
        return _of_tar(file)


def _of_zip(artefact: Path) -> Files:
    with zipfile.ZipFile(artefact) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in names}


def _of_deb(artefact: Path) -> Files:
    return _of_tar(io.BytesIO(run_bytes(["dpkg-deb", "--fsys-tarfile", artefact])))


def _of_rpm(artefact: Path) -> Files:
    """Directories and links have no digest."""
    lines = run(["rpm", "-qp", "--qf", r"[%{FILEDIGESTS} %{FILENAMES}\n]", artefact]).splitlines()
    rows = [line.split(" ", 1) for line in lines]
    return {name.removeprefix("/"): digest for digest, name in rows if digest}


def _of_image(artefact: Path) -> Files:
    """The files of an OCI image's layers, of which none takes away what an earlier one brought."""
    found: Files = {}
    with tarfile.open(artefact) as tar:

        def blob(descriptor: Mapping[str, str]) -> bytes:
            content = tar.extractfile("blobs/" + descriptor["digest"].replace(":", "/"))
            assert content is not None
            return content.read()

        for layer in json.loads(blob(_manifest(tar)))["layers"]:
            found |= _of_tar(io.BytesIO(gzip.decompress(blob(layer))))
    return found


def image_digest(artefact: Path) -> str:
    """Return the digest by which a registry and charts know an OCI image."""
    with tarfile.open(artefact) as tar:
        return _manifest(tar)["digest"]


def _manifest(tar: tarfile.TarFile) -> Mapping[str, str]:
    """Return the descriptor of the one image in an OCI layout (image-layout.md of the OCI image specification)."""
    index = tar.extractfile("index.json")
    assert index is not None
    [manifest] = json.load(index)["manifests"]
    return dict(manifest)


_READERS: Mapping[str, Callable[[Path], Files]] = {
    ".whl": _of_zip,
    ".tar.gz": _of_tar_file,
    ".tgz": _of_tar_file,
    ".deb": _of_deb,
    ".rpm": _of_rpm,
    "_image.tar": _of_image,
}
"""What reads an artefact, by the end of its name."""
