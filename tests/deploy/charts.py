"""The chart and its manifests, which helm renders, as values."""

import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import yaml

from tests.docs import ROOT
from tests.engines.probe import tool

CHART = ROOT / "deploy/helm/runtimeproxy"
SETS = ("installer", "kubelet", "hook-servers", "exporter", "removal")
"""The sets of values, each a file ``ci/NAME-values.yaml`` of the chart."""
KUBERNETES = {"": "1.37.0", "-before-1.30": "1.29.0"}
"""The rendered versions of Kubernetes by a manifest's suffix: 1.30 adds the kinds of admission policies."""
SKIP_LABEL = "runtimeproxy.koordinator.sh/skip-hookserver"


@cache
def documents(name: str, suffix: str = "") -> tuple[dict[str, Any], ...]:
    """Return the objects of a rendered set."""
    command = [tool("helm"), "template", "runtimeproxy", str(CHART), "--namespace=kube-system"]
    command += [f"--values={CHART}/ci/{name}-values.yaml", f"--kube-version={KUBERNETES[suffix]}"]
    rendered = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return tuple(yaml.safe_load_all(rendered))


def of_kind(kind: str, name: str, suffix: str = "") -> dict[str, dict[str, Any]]:
    """Return the objects of a kind in a set by their names."""
    return {document["metadata"]["name"]: document for document in documents(name, suffix) if document["kind"] == kind}


@cache
def daemon_sets() -> dict[str, dict[str, Any]]:
    """Return the DaemonSets of all sets, each by SET/NAME."""
    return {f"{name}/{daemon_set}": spec for name in SETS for daemon_set, spec in of_kind("DaemonSet", name).items()}


def containers(name: str) -> Iterator[dict[str, Any]]:
    """Yield the containers of a DaemonSet, including init containers."""
    pod = daemon_sets()[name]["spec"]["template"]["spec"]
    yield from (*pod.get("initContainers", ()), *pod["containers"])


def host_paths(name: str) -> Mapping[str, bool]:
    """Return the node's directories that a DaemonSet mounts, and whether all its containers mount each read-only."""
    volumes = daemon_sets()[name]["spec"]["template"]["spec"]["volumes"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in volumes if "hostPath" in volume}
    mounts = [mount for container in containers(name) for mount in container["volumeMounts"]]
    return {
        path: all(mount.get("readOnly", False) for mount in mounts if mount["name"] == volume)
        for volume, path in paths.items()
    }
