"""Write docs/licences.rst: the licence of each part of a release. With --check nothing is written.

Exit code 1: a licence is not known or not allowed, or, with --check, the page would change.
"""

import re
import sys
from importlib.metadata import metadata
from pathlib import Path

from scripts.building import debian, image, licences
from scripts.building.errors import BuildError
from scripts.checks.generated import parser, write_or_compare

PAGE = Path("docs/licences.rst")
LOCK = Path("deploy/requirements.lock")
HEAD = """\
Licences
========

``runtimeproxy`` is under the Apache License 2.0 (``LICENSE``). Wheel and source distribution have nothing of others.
Archive, packages and image have the parts below, by their SPDX names; ``share/licences`` in them has each part's own
words, and ``scripts/build`` fails where a licence is not on the list of ``scripts/building/licences.py``. The sources
of a Debian package are those of its version, which is in the bill of materials: ``apt-get source NAME=VERSION``.

Written by ``python -m scripts.checks.licences``.

.. list-table::
   :header-rows: 1

   * - Part
     - From
     - Licence
"""


def main() -> int:
    """Write the page, or with ``--check`` compare it; return the exit code."""
    command = "python -m scripts.checks.licences"
    check = parser(command, f"Write {PAGE} from the pins.").parse_args().check
    try:
        return write_or_compare(command, {PAGE: page(LOCK.read_text())}, check=check)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1


def page(lock: str) -> str:
    """Return the page. Raises BuildError."""
    ours = {*debian.PYTHON, *debian.LIBRARIES, debian.COMMON_LICENCES[0]}
    pinned = re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)
    rows = [(name, "PyPI", licences.of_wheel(metadata(name))) for name in pinned]
    rows += [(name, "Debian", licences.of_package(name)) for name in sorted(ours)]
    rows += [(name, "Debian, image only", licences.of_package(name)) for name in sorted(set(image.TAKEN) - ours)]
    return HEAD + "".join(f"   * - {name}\n     - {origin}\n     - {licence}\n" for name, origin, licence in rows)


if __name__ == "__main__":
    sys.exit(main())
