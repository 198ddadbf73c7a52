"""The tree: Debian's Python with its own loader and libraries, the pinned wheels, ours, and the programs.

docs/release.rst has its layout. Invariant: it works wherever it is put, and nothing in it is from the machine that
built it.
"""

import hashlib
import os
import re
import shutil
import sys
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

from scripts.building import debian, parts, sources, tools
from scripts.building.parts import LICENCES, Part
from scripts.building.tools import BuildError, run

DIST_PACKAGES = "lib/python3.11/dist-packages"
"""Where Debian's Python looks for installed packages."""
NEWEST_GLIBC = 36
"""The minor version of Debian 12's glibc 2."""
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(NEWEST_GLIBC, 4, -1)] + ["manylinux2014_x86_64"]
_LICENCE = re.compile(r"\.dist-info/(licenses/.|licen[cs]e|copying|notice)", re.IGNORECASE)


def build(work: Path, dist: Path) -> None:
    """Build the archive for a node without Python, runtimeproxy_<version>_linux_x86_64.tar.gz."""
    version = sources.version(work)
    tools.pack(made(work), dist / f"runtimeproxy_{version}_linux_x86_64.tar.gz", f"runtimeproxy-{version}")


def made(work: Path) -> Path:
    """Return the directory of the tree, which the first call makes. Raises BuildError."""
    root = work / "tree"
    if root.exists():
        return root
    found = debian.unpack(work, root)
    ours = sources.wheel(work)
    found += [_install(file, root) for file in (*_pinned(work), ours)]
    parts.write_list(root, found)
    _write_programs(root, (work / "source/deploy/packages/program.sh").read_text())
    shutil.copytree(work / "source/deploy/systemd", root / "share/systemd")
    _check_libraries(root)
    # Modules are compiled for the tree's Python, which then compares no times: they are the archive's.
    options = ("-q", "-f", "--invalidation-mode=unchecked-hash", "-s", root, "-p", "/usr/lib/runtimeproxy")
    run([root / "bin/python3", "-I", "-m", "compileall", *options, root / "lib/python3.11"])
    (root / "BUILD").write_text(run([root / "bin/runtimeproxy", "--version"]))
    parts.write_bill(root, sources.version(work))
    return root


def _pinned(work: Path) -> list[Path]:
    """Fetch the wheels that deploy/requirements.lock pins, for the tree's Python, whatever the one that builds is."""
    folder = work / "wheels"
    command = [sys.executable, "-m", "pip", "download", "-q", "--require-hashes", "--no-deps", "--only-binary=:all:"]
    command += ["--implementation=cp", "--python-version=3.11", *(f"--platform={name}" for name in PLATFORMS)]
    run([*command, "--dest", folder, "-r", work / "source/deploy/requirements.lock"])
    return sorted(folder.glob("*.whl"))


def _install(file: Path, root: Path) -> Part:
    """Unpack a wheel. Its programs are not wanted, and what pip would note of this machine is not written."""
    name, version = file.name.split("-")[:2]
    part = Part(name.replace("_", "-").lower(), version, "wheel", hashlib.sha256(file.read_bytes()).hexdigest())
    with zipfile.ZipFile(file) as archive:
        names = [entry for entry in archive.namelist() if not entry.endswith("/")]
        if other := [entry for entry in names if re.match(r"[^/]+\.data/(?!scripts/)", entry)]:
            raise BuildError(f"{file.name} has {other[0]}, and the build knows only packages: add it to tree.py")
        for entry in names:
            if ".data/" not in entry:
                archive.extract(entry, root / DIST_PACKAGES)
                part.files.append(f"{DIST_PACKAGES}/{entry}")
    for text in [file for file in part.files if _LICENCE.search(file)]:
        part.add(root, root / text, f"{LICENCES}/{part.name}/{text.replace('/licenses/', '/').split('.dist-info/')[1]}")
    return part


def _write_programs(root: Path, script: str) -> None:
    """Write a script for each program of our wheel, and for Python; the loader gets a name for each."""
    [ours] = (root / DIST_PACKAGES).glob("runtimeproxy-*.dist-info")
    programs = {"python3": ""}
    for entry in PathDistribution(ours).entry_points.select(group="console_scripts"):
        code = f"import sys; from {entry.module} import {entry.attr}; sys.exit({entry.attr}())"
        programs[entry.name] = f"-I -c '{code}' "
    for folder in ("bin", "libexec"):
        (root / folder).mkdir()
    for name, arguments in programs.items():
        text = script.replace("@NAME@", name).replace("@ARGUMENTS@", arguments)
        (root / "bin" / name).write_text(text)
        (root / "bin" / name).chmod(0o755)
        os.link(root / "lib" / debian.LOADER, root / "libexec" / name)


def _check_libraries(root: Path) -> None:
    """Raise BuildError if anything in the tree needs a shared library that the tree does not have."""
    lib = root / "lib"
    loader: list[str | Path] = ["env", "--unset=LD_PRELOAD", lib / debian.LOADER]
    loader += ["--inhibit-cache", "--library-path", lib, "--list"]
    for file in [lib / "python3", *sorted(lib.rglob("*.so*"))]:
        for line in run([*loader, file]).splitlines():
            found = line.split(" => ")[-1].split(" (")[0].strip()
            if not found.startswith((f"{root}/", "linux-vdso")) and found != "statically linked":
                raise BuildError(f"{file.relative_to(root)} needs {line.strip()}: add it to LIBRARIES in debian.py")
