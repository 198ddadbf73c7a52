"""The chart as helm installs it, and its manifests for clusters without helm."""

import shutil
import sys
from pathlib import Path

from scripts.building import sources, tools

NAME = "runtimeproxy"
KUBERNETES = {"": "1.37.0", "-before-1.30": "1.29.0"}
"""The rendered versions of Kubernetes by the suffix of a manifest: 1.30 adds the kinds of admission policies."""
HEAD = """\
# The chart rendered with its ci/{name}.yaml, for Kubernetes {versions}.
# Put your image, its digest and the archive's SHA-256 in the place of registry.example.com and the zeros.
"""


def build(work: Path, dist: Path) -> None:
    """Build runtimeproxy-<version>.tgz: the directory's files below its name, without the sets of values in ci."""
    folder = work / "chart"
    shutil.copytree(work / "source/deploy/helm" / NAME, folder, ignore=shutil.ignore_patterns("ci", ".helmignore"))
    tools.pack(folder, dist / f"{NAME}-{sources.version(work)}.tgz", NAME)


def helm() -> str | None:
    """Return the path of helm: in .venv, where scripts/install puts it, or in PATH; None if it is missing."""
    return shutil.which(str(Path(sys.executable).with_name("helm"))) or shutil.which("helm")


def build_manifests(work: Path, dist: Path) -> None:
    """Build runtimeproxy-<version>-manifests.tgz: the chart rendered with each set of values in ci. Raises
    BuildError."""
    chart, folder = work / "source/deploy/helm" / NAME, work / "manifests"
    folder.mkdir()
    for values in sorted((chart / "ci").iterdir()):
        for suffix, version in KUBERNETES.items():
            flags = ("--namespace=kube-system", f"--values={values}", f"--kube-version={version}")
            text = tools.run([helm() or "helm", "template", NAME, chart, *flags])
            head = HEAD.format(name=values.stem, versions="before 1.30" if suffix else "1.30 and later")
            # What is applied without helm is not managed by it.
            text = text.replace("app.kubernetes.io/managed-by: Helm", "app.kubernetes.io/managed-by: kubectl")
            (folder / f"{values.stem.removesuffix('-values')}{suffix}.yaml").write_text(head + text)
    tools.pack(folder, dist / f"{NAME}-{sources.version(work)}-manifests.tgz", f"{NAME}-manifests")
