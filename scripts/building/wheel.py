"""The wheel and the source distribution, made by the setuptools that deploy/build-requirements.lock pins."""

import shutil
import sys
import tarfile
from pathlib import Path

from scripts.building import tools


def build(work: Path, dist: Path) -> None:
    """Build the wheel."""
    shutil.copy(made(work), dist)


def made(work: Path) -> Path:
    """Return the wheel, which the first call makes."""
    there = list(work.glob("runtimeproxy-*.whl"))
    return there[0] if there else _call(work, "build_wheel")


def build_sdist(work: Path, dist: Path) -> None:
    """Build the source distribution, packed again: setuptools keeps the machine's times and owner."""
    file = _call(work, "build_sdist")
    name = file.name.removesuffix(".tar.gz")
    with tarfile.open(file) as tar:
        tar.extractall(work / "sdist")
    tools.pack(work / "sdist" / name, dist / file.name, name)


def _call(work: Path, hook: str) -> Path:
    """Call a hook of the build backend (PEP 517) on a copy of the sources, in which it leaves files of its own."""
    backend, copy = work / "backend", work / hook
    if not backend.exists():
        pins = work / "source/deploy/build-requirements.lock"
        tools.run([sys.executable, "-m", "pip", "install", "-q", "--require-hashes", "--target", backend, "-r", pins])
    shutil.copytree(work / "source", copy)
    code = f"import sys; from setuptools import build_meta; print(build_meta.{hook}(sys.argv[1]))"
    command: list[str | Path] = ["env", f"PYTHONPATH={backend}", sys.executable, "-P", "-c", code, work]
    return work / tools.run(command, copy).splitlines()[-1]
