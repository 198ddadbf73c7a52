"""Render the chart into deploy/manifests and write its README.md, or check that they are what would be written.

Run: ``python -m scripts.checks.manifests [--check]``; scripts/genmanifests calls it.

helm is in no Debian package and in no well-kept package of PyPI, so a test must do without it. What is rendered is kept
in the tree with the sums of the chart's files and of its own: a chart that changed, or a manifest that was edited, is
found everywhere, and whether helm makes the one of the other wherever helm is.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from scripts.checks.generated import parser, write_or_compare

CHART = Path("deploy/helm/runtimeproxy")
MANIFESTS = Path("deploy/manifests")
SUMS = MANIFESTS / "SHA256SUMS"
README = CHART / "README.md"
SETS = ("installer", "kubelet", "hook-servers", "exporter", "removal")
"""The sets of values, each a file ``ci/NAME-values.yaml`` of the chart."""
KUBERNETES = {"": "1.37.0", "-before-1.30": "1.29.0"}
"""The version of Kubernetes that is rendered for, by what it adds to a file's name: in 1.30 two kinds are new."""
NAMESPACE = "kube-system"
HEAD = """\
# scripts/genmanifests renders this from deploy/helm/runtimeproxy with ci/{name}-values.yaml, for Kubernetes {versions}.
# Put your image, its digest and the archive's SHA-256 in the place of registry.example.com and the zeros.
"""
BEGIN, END = "<!-- scripts/genmanifests writes what follows from values.yaml -->", "<!-- to here -->"


def main() -> int:
    """Write the files, or with ``--check`` compare them; return the exit code."""
    command = "scripts/genmanifests"
    check = parser(command, f"Render the chart into {MANIFESTS}.").parse_args().check
    helm = helm_found()
    if helm is None and not check:
        print("genmanifests: there is no helm: see the head of scripts/genmanifests", file=sys.stderr)
        return 1
    wanted = {README: readme(README.read_text())}
    if helm is not None:
        wanted |= rendered(helm)
    changed = write_or_compare(command, wanted, check=check)
    changed |= write_or_compare(command, {SUMS: sums()}, check=check)  # of the files as they are now
    if not check:
        return 0
    linted = [fault for name in SETS for fault in lint(helm, name)] if helm is not None else []
    print(*linted, sep="\n", end="\n" * bool(linted), file=sys.stderr)
    print("rendered and compared" if helm is not None else "no helm here: the sums are compared, nothing is rendered")
    return int(bool(changed or linted))


def helm_found() -> str | None:
    """Return the program helm; None if there is none."""
    return os.environ.get("HELM") or shutil.which("helm") or shutil.which(str(Path.home() / "go/bin/helm"))


def rendered(helm: str) -> dict[Path, str]:
    """Return the text of each manifest by its path. Raises CalledProcessError."""
    return {
        MANIFESTS / f"{name}{suffix}.yaml": HEAD.format(
            name=name, versions="before 1.30" if suffix else "1.30 and later"
        )
        + template(helm, values(name), version)
        for name in SETS
        for suffix, version in KUBERNETES.items()
    }


def values(name: str) -> Path:
    """Return the file of a set of values."""
    return CHART / "ci" / f"{name}-values.yaml"


def template(helm: str, file: Path, version: str) -> str:
    """Return what helm renders with a file of values. Raises CalledProcessError."""
    command = [helm, "template", "runtimeproxy", str(CHART), "--namespace", NAMESPACE]
    command += ["--values", str(file), "--kube-version", version]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # What is applied without helm is not managed by it.
    return text.replace("app.kubernetes.io/managed-by: Helm", "app.kubernetes.io/managed-by: kubectl")


def lint(helm: str, name: str) -> Iterator[str]:
    """Yield what helm lint says about the chart with a set of values, if that is no success."""
    done = subprocess.run(
        [helm, "lint", "--strict", str(CHART), "--values", str(values(name))],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        yield done.stdout + done.stderr


def sums() -> str:
    """Return the sums of the chart's files and the manifests, as sha256sum writes them."""
    files = sorted([*CHART.rglob("*"), *MANIFESTS.glob("*.yaml")])
    return "".join(f"{sha256(path.read_bytes()).hexdigest()}  {path}\n" for path in files if path.is_file())


def readme(text: str) -> str:
    """Return the text of README.md with its tables as values.yaml and the schema have them."""
    head, _, rest = text.partition(BEGIN)
    lines = [
        "| Value | Default | What it is |",
        "| --- | --- | --- |",
        *value_rows((CHART / "values.yaml").read_text()),
    ]
    return f"{head}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{rest.partition(END)[2]}"


def value_rows(text: str) -> Iterator[str]:
    """Yield a row for each key of values.yaml that has a comment right above it."""
    defaults: Any = yaml.safe_load(text)
    places: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        word = line.lstrip(" ")
        if word.startswith("# "):
            comment.append(word[2:])
            continue
        if word and not word.startswith("-") and ":" in word:
            places[(len(line) - len(word)) // 2 :] = [word.partition(":")[0]]
            default = _at(defaults, places)
            if comment:
                yield f"| `{'.'.join(places)}` | `{json.dumps(default)}` | {' '.join(comment)} |"
        comment = []


def _at(tree: Any, places: list[str]) -> Any:
    for place in places:
        tree = tree[place] if isinstance(tree, Mapping) and place in tree else None
    return tree


if __name__ == "__main__":
    sys.exit(main())
