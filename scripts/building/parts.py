"""The parts that a tree is made of: package or wheel, version, hash, and the files that came from it."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from scripts.building import tools

PLACE = "share/parts.json"
LICENCES = "share/licences"
"""The directory with a directory for each part, in which its licences are."""


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


def write(root: Path, parts: Sequence[Part]) -> None:
    """Write the list of parts into the tree."""
    ordered = sorted(parts, key=lambda part: (part.kind, part.name))
    tools.write(root / PLACE, json.dumps([asdict(part) for part in ordered], indent=1) + "\n")


def read(root: Path) -> list[Part]:
    """Return a tree's list of parts."""
    return [Part(**part) for part in json.loads((root / PLACE).read_text())]
