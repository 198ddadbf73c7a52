"""The sources of a build: the files of the last commit, what names the build, and the distributions for Python.

Invariant: what is not committed is only in a build whose version ends with ``-dirty``.
"""

import os
import shutil
import sys
import tarfile
from pathlib import Path

from scripts.building.tools import BuildError, iso_time, pack, run

BUILD_FILE = "runtimeproxy/BUILD"


def extract(root: Path, folder: Path, *, dirty: bool) -> None:
    """Put the sources of a checkout into a new directory, with a file BUILD in the package, which names the commit
    (with ``-dirty`` if the sources are those of the working tree). Sets SOURCE_DATE_EPOCH to the commit's time.

    Raises BuildError if files differ from the commit's and ``dirty`` is not given.
    """
    # A build runs the checkout's code anyway, so its owner needs no proof; root may build a user's checkout.
    git = ("git", "-c", "safe.directory=*", "-C", str(root))
    commit, os.environ["SOURCE_DATE_EPOCH"] = run([*git, "log", "-1", "--format=%H %ct"]).split()
    changed = run([*git, "status", "--porcelain"]).splitlines()
    folder.mkdir(parents=True)
    if dirty:
        names = run([*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]).split("\0")
        for name in filter(None, names):
            if (root / name).is_file():  # else removed from the working tree
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(root / name, folder / name)
                (folder / name).chmod(0o755 if (root / name).stat().st_mode & 0o100 else 0o644)
        commit += "-dirty"
    elif changed:
        raise BuildError(
            f"{len(changed)} files differ from the last commit ({changed[0][3:]} ...), and a release is built from a "
            "commit: commit or remove them, or build with --dirty"
        )
    else:
        archive = folder.with_suffix(".tar")
        run([*git, "archive", f"--output={archive}", "HEAD"])
        run(["tar", "-xf", archive, "-C", folder, "--no-same-owner", "--no-same-permissions"])
        archive.unlink()
    (folder / BUILD_FILE).write_text(f"commit: {commit}\ndate: {iso_time()}\n")


def commit(work: Path) -> str:
    """Return the commit of the sources in ``work``, with ``-dirty`` if they are those of a working tree."""
    return (work / "source" / BUILD_FILE).read_text().split()[1]


def version(work: Path) -> str:
    """Return the version that the sources in ``work`` have."""
    values: dict[str, str] = {}
    exec((work / "source/runtimeproxy/settings/version.py").read_text(), values)
    return values["VERSION"]


def build_wheel(work: Path, dist: Path) -> None:
    """Build the wheel, by the setuptools that deploy/build-requirements.lock pins."""
    shutil.copy(wheel(work), dist)


def wheel(work: Path) -> Path:
    """Return the wheel, which the first call makes."""
    there = list(work.glob("runtimeproxy-*.whl"))
    return there[0] if there else _call(work, "build_wheel")


def build_sdist(work: Path, dist: Path) -> None:
    """Build the source distribution, packed again: setuptools keeps the machine's times and owner."""
    file = _call(work, "build_sdist")
    name = file.name.removesuffix(".tar.gz")
    with tarfile.open(file) as tar:
        tar.extractall(work / "sdist")
    pack(work / "sdist" / name, dist / file.name, name)


def _call(work: Path, hook: str) -> Path:
    """Call a hook of the build backend (PEP 517) on a copy of the sources, in which it leaves files of its own."""
    backend, copy = work / "backend", work / hook
    if not backend.exists():
        pins = work / "source/deploy/build-requirements.lock"
        run([sys.executable, "-m", "pip", "install", "-q", "--require-hashes", "--target", backend, "-r", pins])
    shutil.copytree(work / "source", copy)
    code = f"import sys; from setuptools import build_meta; print(build_meta.{hook}(sys.argv[1]))"
    command: list[str | Path] = ["env", f"PYTHONPATH={backend}", sys.executable, "-P", "-c", code, work]
    return work / run(command, copy).splitlines()[-1]
