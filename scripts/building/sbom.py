"""The bill of materials of an artefact, as CycloneDX 1.6: its parts, each with version, licence and hash.

The files of each part are in share/parts.json of the tree. The same artefact gives the same document.
"""

import hashlib
import re
from collections.abc import Iterable
from importlib.metadata import PathDistribution, metadata
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from scripts.building import licences, parts
from scripts.building.parts import Part
from scripts.building.tools import commit_time

SUFFIX = ".cdx.json"
OURS, OUR_LICENCE = "runtimeproxy", "Apache-2.0"
IN_TREE = "share/sbom/runtimeproxy.cdx.json"
BASE = "base-parts"
"""The directory below ``work`` with the list of parts of the image's lower layer."""
_PIN = re.compile(r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:\w+.*\n)+)", re.MULTILINE)


def write(work: Path, dist: Path, version: str) -> None:
    """Write the document of each artefact in a directory, next to it. Raises BuildError."""
    for artefact in sorted(dist.iterdir()):
        artefact.with_name(artefact.name + SUFFIX).write_text(_of_artefact(artefact, work, version))


def write_into(root: Path, version: str) -> None:
    """Write the document of the tree into it: its parts without their files, which are in its list of parts."""
    main = _main(root.name, version, root / parts.PLACE)
    (root / IN_TREE).parent.mkdir(parents=True)
    (root / IN_TREE).write_text(_text(main, [_of_part(part, root) for part in _others(root)]))


def _of_artefact(artefact: Path, work: Path, version: str) -> str:
    main, source = _main(artefact.name, version, artefact), work / "source"
    if artefact.name.endswith(".tgz"):  # a chart needs no library
        return _text(main, ())
    if artefact.suffix == ".whl" or artefact.name == f"{OURS}-{version}.tar.gz":
        return _text(main, _of_pins((source / "deploy/requirements.lock").read_text()))
    roots = [work / "tree", *([work / BASE] if artefact.name.endswith("_image.tar") else [])]
    components = [_of_part(part, root) for root in roots for part in _others(root)]
    # The image has some Debian packages twice: in the tree, and in the lower layer.
    return _text(main, {str(component.purl): component for component in components}.values())


def _others(root: Path) -> list[Part]:
    return [part for part in parts.read(root) if part.name != OURS]


def _main(name: str, version: str, file: Path) -> Component:
    purl = PackageURL("generic", None, OURS, version, {"file_name": name})
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return _component(ComponentType.APPLICATION, OURS, version, OUR_LICENCE, purl, digest)


def _of_part(part: Part, root: Path) -> Component:
    if part.kind == "deb":
        purl = PackageURL("deb", "debian", part.name, part.version, {"arch": "amd64", "distro": "debian-12"})
        licence = licences.of_package(part.name)
    else:
        [file] = (file for file in part.files if file.endswith(".dist-info/METADATA"))
        purl = PackageURL("pypi", None, part.name, part.version)
        licence = licences.of_wheel(PathDistribution((root / file).parent).metadata)
    return _component(ComponentType.LIBRARY, part.name, part.version, licence, purl, part.sha256)


def _of_pins(lock: str) -> list[Component]:
    """Return what the wheel is tested with: the pins, of which each has the hashes of several files."""
    components = []
    for name, version, hashes in _PIN.findall(lock):
        purl = PackageURL("pypi", None, name, version)
        component = _component(ComponentType.LIBRARY, name, version, licences.of_wheel(metadata(name)), purl)
        listed = [HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in re.findall(r"sha256:(\w+)", hashes)]
        reference = ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(str(purl)), hashes=listed)
        component.external_references.add(reference)
        components.append(component)
    return components


def _component(
    kind: ComponentType, name: str, version: str, licence: str, purl: PackageURL, digest: str = ""
) -> Component:
    return Component(
        type=kind,
        name=name,
        version=version,
        purl=purl,
        bom_ref=str(purl),
        licenses=[LicenseFactory().make_from_string(licence)],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)] if digest else [],
    )


def _text(main: Component, others: Iterable[Component]) -> str:
    """Return the document; its number is made of the artefact's hash, its time is that of the commit."""
    [digest] = main.hashes
    bom = Bom(
        components=others,
        serial_number=uuid5(NAMESPACE_URL, f"sha256:{digest.content}"),
        metadata=BomMetaData(component=main, timestamp=commit_time()),
    )
    bom.register_dependency(main, others)
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"
