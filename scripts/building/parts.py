"""The parts that a tree is made of, their list in the tree, and the bill of materials of an artefact, as CycloneDX 1.6.

The list has the files of each part, the bill its version, licence and hash. The same artefact gives the same bill.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PathDistribution, metadata
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from packageurl import PackageURL

from scripts.building import licences, tools

LIST = "share/parts.json"
LICENCES = "share/licences"
"""The directory with a directory for each part, in which its licences are."""
SUFFIX = ".cdx.json"
OURS, OUR_LICENCE = "runtimeproxy", "Apache-2.0"
IN_TREE = "share/sbom/runtimeproxy.cdx.json"
BASE = "base-parts"
"""The directory below ``work`` with the list of parts of the image's lower layer."""
_PIN = re.compile(r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:\w+.*\n)+)", re.MULTILINE)
Component = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """A part: ``kind`` is deb or wheel, ``sha256`` that of its file, ``files`` are named from the tree's top."""

    name: str
    version: str
    kind: str
    sha256: str
    files: list[str] = field(default_factory=list)

    def add(self, root: Path, source: Path, place: str) -> None:
        """Copy a file, or what a link leads to, to its place in the tree; a link to another part's file stays one."""
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, root / place, follow_symlinks=source.exists())
        self.files.append(place)


def write_list(root: Path, parts: Sequence[Part]) -> None:
    """Write the list of parts into the tree."""
    ordered = sorted(parts, key=lambda part: (part.kind, part.name))
    tools.write(root / LIST, json.dumps([asdict(part) for part in ordered], indent=1) + "\n")


def read_list(root: Path) -> list[Part]:
    """Return a tree's list of parts."""
    return [Part(**part) for part in json.loads((root / LIST).read_text())]


# ---- bills of materials


def write_bills(work: Path, dist: Path, version: str) -> None:
    """Write the document of each artefact in a directory, next to it. Raises BuildError."""
    for artefact in sorted(dist.iterdir()):
        place = artefact.with_name(artefact.name + SUFFIX)
        place.write_text(_document(artefact.name, version, artefact, _parts_of(artefact, work, version)))


def write_bill(root: Path, version: str) -> None:
    """Write the document of the tree into it: its parts without their files, which are in its list of parts."""
    tools.write(root / IN_TREE, _document(root.name, version, root / LIST, _others(root)))


def _parts_of(artefact: Path, work: Path, version: str) -> Iterator[Component]:
    if artefact.name.endswith(".tgz"):  # a chart needs no library
        return
    if artefact.suffix == ".whl" or artefact.name == f"{OURS}-{version}.tar.gz":
        yield from _of_pins((work / "source/deploy/requirements.lock").read_text())
        return
    yield from _others(work / "tree")
    if artefact.name.endswith("_image.tar"):
        yield from _others(work / BASE)


def _others(root: Path) -> Iterator[Component]:
    return (_of_part(part, root) for part in read_list(root) if part.name != OURS)


def _of_part(part: Part, root: Path) -> Component:
    if part.kind == "deb":
        purl = PackageURL("deb", "debian", part.name, part.version, {"arch": "amd64", "distro": "debian-12"})
        licence = licences.of_package(part.name)
    else:
        [file] = (file for file in part.files if file.endswith(".dist-info/METADATA"))
        purl = PackageURL("pypi", None, part.name, part.version)
        licence = licences.of_wheel(PathDistribution((root / file).parent).metadata)
    return _component("library", part.name, part.version, licence, purl) | _hashes(part.sha256)


def _of_pins(lock: str) -> Iterator[Component]:
    """Yield what the wheel is tested with: the pins, of which each has the hashes of several files."""
    for name, version, hashes in _PIN.findall(lock):
        purl = PackageURL("pypi", None, name, version)
        listed = _hashes(*re.findall(r"sha256:(\w+)", hashes))
        references = [{"type": "distribution", "url": purl.to_string(), **listed}]
        component = _component("library", name, version, licences.of_wheel(metadata(name)), purl)
        yield component | {"externalReferences": references}


def _component(kind: str, name: str, version: str, licence: str, purl: PackageURL) -> Component:
    text = purl.to_string()
    licensed = [{"expression": licence}]
    return {"type": kind, "bom-ref": text, "name": name, "version": version, "purl": text, "licenses": licensed}


def _hashes(*digests: str) -> Component:
    return {"hashes": [{"alg": "SHA-256", "content": digest} for digest in digests]}


def _document(name: str, version: str, file: Path, components: Iterable[Component]) -> str:
    """Return the document of a file; its number is made of the file's hash, its time is that of the commit."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    purl = PackageURL("generic", None, OURS, version, {"file_name": name})
    main = _component("application", OURS, version, OUR_LICENCE, purl) | _hashes(digest)
    # The image has some Debian packages twice: in the tree, and in the lower layer.
    others = {component["bom-ref"]: component for component in sorted(components, key=lambda each: each["bom-ref"])}
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid5(NAMESPACE_URL, f"sha256:{digest}").urn,
        "metadata": {"timestamp": tools.iso_time(), "component": main},
        "components": list(others.values()),
        "dependencies": [{"ref": main["bom-ref"], "dependsOn": list(others)}],
    }
    return json.dumps(document, indent=1) + "\n"
