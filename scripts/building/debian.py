"""What the tree has of Debian: Python 3.11 and the shared libraries that it and the wheels need.

Invariant: a package is as apt checked it against Debian's signature; nothing of the machine's own files is taken.
"""

import hashlib
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.building.parts import LICENCES, Part
from scripts.building.tools import BuildError, run

LIBRARIES: Mapping[str, Sequence[str]] = {
    "gcc-12-base": (),  # the copyright of gcc's libraries
    "libc6": (
        *("ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"),
        *("libresolv.so.2", "libutil.so.1"),
    ),
    "libbz2-1.0": ("libbz2.so.1.0",),
    "libexpat1": ("libexpat.so.1",),
    "libffi8": ("libffi.so.8",),
    "libgcc-s1": ("libgcc_s.so.1",),
    "liblzma5": ("liblzma.so.5",),
    "libsqlite3-0": ("libsqlite3.so.0",),  # for the kubelet's own values
    "libssl3": ("libcrypto.so.3", "libssl.so.3"),
    "libstdc++6": ("libstdc++.so.6",),
    "libuuid1": ("libuuid.so.1",),
    "zlib1g": ("libz.so.1",),
}
"""The shared libraries of each package, by the names that programs request."""
CONTROL = "control"
"""The file next to an unpacked package's own that describes it."""
LOADER = "ld-linux-x86-64.so.2"
PYTHON = ("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib")
COMMON_LICENCES = "base-files", "usr/share/common-licenses"
"""The package and directory of the licences that the copyright files of others only name."""
LEFT_OUT = (
    "sitecustomize.py",  # a link to a file of the machine's
    "*.pyc",
    *("ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tkinter", "turtledemo", "turtle.py"),
    # What the standard library does without where their libraries are not: terminals, dbm, passwords, NIS, sound.
    *("_crypt.*", "_curses*.so", "_dbm.*", "nis.*", "ossaudiodev.*", "readline.*"),
    *("_ctypes_test.*", "_test*.so", "_xx*.so", "xx*.so"),
)
"""Files and directories of the standard library that the tree is without; patterns of names."""


def unpack(work: Path, root: Path) -> list[Part]:
    """Put Python (lib/python3, lib/python3.11) and the libraries (lib) into the tree; return the packages as parts.

    Raises BuildError if the machine is not a Debian 12 or its packages cannot be had.
    """
    system = platform.freedesktop_os_release()
    if (system.get("ID"), system.get("VERSION_ID"), platform.machine()) != ("debian", "12", "x86_64"):
        raise BuildError("the archive has Debian 12's Python for x86_64, and this is another system: build it there")
    found = fetch(work / "debs", [*PYTHON, *LIBRARIES, COMMON_LICENCES[0]])
    for part, folder in found:
        for path in _taken(part.name, folder):
            part.add(root, *path)
        documents = folder / "usr/share/doc" / part.name
        owner = documents.readlink().name if documents.is_symlink() else part.name
        texts = folder.with_name(owner) / "usr/share/doc" / owner
        part.add(root, texts / "copyright", f"{LICENCES}/{part.name}/copyright")
    return [part for part, _ in found]


def fetch(folder: Path, packages: Sequence[str]) -> list[tuple[Part, Path]]:
    """Fetch and unpack packages; return each as a part without files, with the directory of its files, all next to each
    other. Raises BuildError."""
    found = []
    for package in _download(folder, packages):
        name, version = run(["dpkg-deb", "--show", "--showformat=${Package} ${Version}", package]).split()
        run(["dpkg-deb", "--extract", package, folder / "unpacked" / name])
        (folder / "unpacked" / name / CONTROL).write_text(run(["dpkg-deb", "--field", package]))
        part = Part(name, version, "deb", hashlib.sha256(package.read_bytes()).hexdigest())
        found.append((part, folder / "unpacked" / name))
    return found


def _taken(name: str, folder: Path) -> list[tuple[Path, str]]:
    """Return what is taken of an unpacked package, with the place in the tree."""
    if name in LIBRARIES:
        found = {path.name: path for path in folder.rglob("*.so*") if "x86_64-linux-gnu" in path.parent.name}
        return [(found[library], f"lib/{library}") for library in LIBRARIES[name]]
    if name == COMMON_LICENCES[0]:
        texts = [path for path in sorted((folder / COMMON_LICENCES[1]).iterdir()) if not path.is_symlink()]
        return [(path, f"{LICENCES}/common-licenses/{path.name}") for path in texts]
    library = folder / "usr/lib/python3.11"
    left_out = shutil.ignore_patterns(*LEFT_OUT)
    taken = [(folder / "usr/bin/python3.11", "lib/python3")] if name == "python3.11-minimal" else []
    for directory, names, files in os.walk(library):
        unwanted = left_out(directory, [*names, *files])
        names[:] = sorted(set(names) - unwanted)
        place = Path("lib/python3.11", Path(directory).relative_to(library))
        taken += [(Path(directory, file), str(place / file)) for file in sorted(set(files) - unwanted)]
    return taken


def _download(folder: Path, packages: Sequence[str]) -> list[Path]:
    """Fetch the packages that apt would install. Lists that are missing or old are fetched, for this build alone."""
    (folder / "unpacked").mkdir(parents=True)
    command = ["apt-get", "-q", "-o", "APT::Sandbox::User=", "-o", "Debug::NoLocking=1"]
    desired = [f"{package}:amd64" for package in packages]
    try:
        run([*command, "download", *desired], folder)
    except BuildError:
        for directory in ("lists/partial", "cache/archives/partial"):
            (folder / directory).mkdir(parents=True)
        command += ["-o", f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache"]
        run([*command, "update"], folder)
        run([*command, "download", *desired], folder)
    return sorted(folder.glob("*.deb"))
