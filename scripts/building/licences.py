"""The licence of each part as an SPDX expression, and whether it may be shipped.

Invariant: a part whose licence is not known, or not allowed, is an error with its name, never left out.
"""

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageMetadata

from scripts.building.tools import BuildError

ALLOWED = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT", "PSF-2.0", "Zlib", "bzip2-1.0.6"),
    *("LicenseRef-public-domain", "MPL-2.0"),
    # Libraries that a program of any licence may use, and programs of the image that it does not use.
    *("LGPL-2.1-or-later", "GPL-3.0-or-later WITH GCC-exception-3.1", "GPL-2.0-or-later", "GPL-3.0-or-later"),
}
_DEBIAN: Mapping[str, Sequence[str]] = {
    "Apache-2.0": ("libssl3",),
    "BSD-3-Clause": ("dash", "libpcre2-8-0", "libuuid1"),
    "GPL-2.0-or-later": ("base-files", "util-linux"),
    "GPL-3.0-or-later": ("coreutils", "gzip", "tar"),
    "GPL-3.0-or-later WITH GCC-exception-3.1": ("gcc-12-base", "libgcc-s1", "libstdc++6"),
    "LGPL-2.1-or-later": ("libacl1", "libattr1", "libc6"),
    "LicenseRef-public-domain": ("liblzma5", "libselinux1", "libsqlite3-0"),
    "MIT": ("libexpat1", "libffi8"),
    "PSF-2.0": ("libpython3.11-minimal", "libpython3.11-stdlib", "python3.11-minimal"),
    "Zlib": ("zlib1g",),
    "bzip2-1.0.6": ("libbz2-1.0",),
}
"""Of what is taken of each Debian package, read from its copyright file by us: most of these files have no form that a
program could read."""
_WORDS: Mapping[str, str] = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "mit license": "MIT",
    "mit license, apache software license": "MIT OR Apache-2.0",
    "python software foundation license": "PSF-2.0",
}
"""Words of older metadata, in small letters, for what newer ones express by SPDX expressions."""


def of_wheel(metadata: PackageMetadata) -> str:
    """Return the SPDX expression of a wheel's licence. Raises BuildError."""
    if "License-Expression" in metadata:
        return checked(metadata["Name"], metadata["License-Expression"])
    names = [line.split(" :: ")[-1] for line in metadata.get_all("Classifier", []) if line.startswith("License :: ")]
    words = ", ".join(sorted(names, reverse=True)) or ("License" in metadata and metadata["License"]) or "none"
    return checked(metadata["Name"], _WORDS.get(words.lower(), words))


def of_package(name: str) -> str:
    """Return the SPDX expression of a Debian package's licence. Raises BuildError."""
    return checked(name, next((licence for licence, packages in _DEBIAN.items() if name in packages), "none"))


def checked(name: str, expression: str) -> str:
    """Return a part's licence if all that is in it is allowed. Raises BuildError."""
    found = {each.strip() for each in re.split(r"\bAND\b|\bOR\b|[()]", expression)} - {""}
    if unknown := sorted(found - ALLOWED):
        raise BuildError(
            f"the licence of {name} is {expression!r}, and {', '.join(unknown)} is not allowed: "
            "read it, and add it to scripts/building/licences.py or do without the part"
        )
    return expression
