"""The chart as helm takes it: the directory's files below its name, without the sets of values of the tests."""

import shutil
from pathlib import Path

from scripts.building import packing, sources

NAME = "runtimeproxy"


def build(work: Path, dist: Path) -> list[Path]:
    """Build runtimeproxy-<version>.tgz; a test holds the version in Chart.yaml to the release's."""
    folder = work / "chart"
    shutil.copytree(work / "source/deploy/helm" / NAME, folder, ignore=shutil.ignore_patterns("ci", ".helmignore"))
    packed = dist / f"{NAME}-{sources.version(work)}.tgz"
    packing.pack(folder, packed, NAME)
    return [packed]
