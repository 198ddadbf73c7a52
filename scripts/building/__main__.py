"""Build the release's files: ``python -m scripts.building [--dirty] [--dist DIR] [ARTEFACT...]``.

scripts/build installs what it needs. Exit code 0: all are there, with checksums.txt; 1: the build failed and dist/ is
as before; 2: a wrong argument.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from scripts.building import chart, image, packages, parts, sources, tree
from scripts.building.tools import BuildError

ROOT = Path(__file__).parents[2]
CHECKSUMS = "checksums.txt"

ARTEFACTS: Mapping[str, Callable[[Path, Path], None]] = {
    "wheel": sources.build_wheel,
    "sdist": sources.build_sdist,
    "archive": tree.build,
    "deb": packages.build_deb,
    "rpm": packages.build_rpm,
    "image": image.build,
    "chart": chart.build,
    "manifests": chart.build_manifests,
}
"""What makes each artefact, in the order in which they are built; it gets the directories ``work`` and ``dist``."""


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/build", description="Build the files of a release.")
    # argparse compares the default of a list of choices with the choices, too
    parser.add_argument("artefacts", nargs="*", metavar="ARTEFACT", help=f"default: all of {', '.join(ARTEFACTS)}")
    parser.add_argument("--dirty", action="store_true", help="build the working tree, not the last commit")
    parser.add_argument("--sign", type=Path, metavar="KEYFILE", help="sign checksums.txt with this key of minisign(1)")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where to put the files (default: dist)")
    arguments = parser.parse_args()
    if unknown := set(arguments.artefacts) - set(ARTEFACTS):
        parser.error(f"no such artefact: {', '.join(sorted(unknown))}; there are {', '.join(ARTEFACTS)}")
    artefacts = arguments.artefacts or list(ARTEFACTS)
    if not arguments.artefacts and chart.helm() is None:
        artefacts.remove("manifests")
        print("build: no manifests: helm is not installed; install Go 1.24 or later for it", file=sys.stderr)
    try:
        made = build(artefacts, arguments.dist, dirty=arguments.dirty, key=arguments.sign)
    except BuildError as error:
        print(f"build: error: {error}", file=sys.stderr)
        return 1
    print(*made, sep="\n")
    return 0


def build(artefacts: Sequence[str], dist: Path, *, dirty: bool, key: Path | None) -> list[Path]:
    """Build the named artefacts, their bills of materials and the file of checksums, which is signed with a key; return
    the files. Raises BuildError."""
    if key is not None and not key.is_file():
        raise BuildError(f"there is no key {key}: name the secret key's file that `minisign -G` wrote")
    if key is not None and key.resolve().is_relative_to(ROOT.resolve()):
        raise BuildError(f"{key} is in the checkout, where it could be committed: keep the secret key elsewhere")
    # The same for every program that the build starts, whatever the surroundings.
    os.umask(0o022)
    os.environ.update(LC_ALL="C.UTF-8", TZ="UTC", PYTHONHASHSEED="0", PYTHONPATH="")
    with tempfile.TemporaryDirectory(prefix="runtimeproxy-build-") as folder:
        work, fresh = Path(folder, "work"), Path(folder, "dist")
        work.mkdir()
        fresh.mkdir()
        sources.extract(ROOT, work / "source", dirty=dirty)
        for name in artefacts:
            ARTEFACTS[name](work, fresh)
        version = sources.version(work)
        parts.write_bills(work, fresh, version)
        sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(fresh.iterdir())]
        (fresh / CHECKSUMS).write_text("".join(sums))  # as sha256sum(1) reads them
        if key is not None:
            _sign(fresh / CHECKSUMS, key, f"runtimeproxy {version}, commit {sources.commit(work)}")
        dist.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(path, dist)) for path in sorted(fresh.iterdir())]


def _sign(file: Path, key: Path, comment: str) -> None:
    """Write a file's signature next to it. Only minisign(1) reads the secret key, and its password on the terminal: it
    is in no argument, variable, log line or file of the build. Raises BuildError."""
    command: list[str | Path] = ["minisign", "-S", "-s", key, "-m", file, "-t", comment]
    try:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    except FileNotFoundError:
        raise BuildError("minisign is not installed: run scripts/install release") from None
    if done.returncode:
        raise BuildError(f"minisign could not sign with {key}: {done.stderr.strip() or 'wrong password?'}")


if __name__ == "__main__":
    sys.exit(main())
