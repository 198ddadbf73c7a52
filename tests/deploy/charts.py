"""The chart and its manifests, which helm renders, as values."""

import json
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
"""The rendered versions of Kubernetes by the suffix of a manifest: 1.30 adds the kinds of admission policies."""
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SKIP_LABEL = "runtimeproxy.koordinator.sh/skip-hookserver"


def given(name: str) -> dict[str, Any]:
    """Return a set of values."""
    loaded: dict[str, Any] = yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text())
    return loaded


def merged(default: Any, over: Any) -> Any:
    """Return values as helm merges them: maps key by key, everything else replaced."""
    if isinstance(default, Mapping) and isinstance(over, Mapping):
        return {key: merged(default.get(key), over[key]) if key in over else default[key] for key in default | over}
    return over


@cache
def documents(name: str, suffix: str = "") -> tuple[dict[str, Any], ...]:
    """Return the objects of a rendered set."""
    command = [tool("helm"), "template", "runtimeproxy", str(CHART), "--namespace=kube-system"]
    command += [f"--values={CHART}/ci/{name}-values.yaml", f"--kube-version={KUBERNETES[suffix]}"]
    rendered = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return tuple(yaml.safe_load_all(rendered))


def of_kind(kind: str, *names: str, suffix: str = "") -> dict[str, dict[str, Any]]:
    """Return the objects of a kind in these sets by their names."""
    return {
        found["metadata"]["name"]: found for name in names for found in documents(name, suffix) if found["kind"] == kind
    }


def containers(daemon_set: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the containers of a DaemonSet, those that begin it too."""
    pod = daemon_set["spec"]["template"]["spec"]
    yield from pod.get("initContainers", ())
    yield from pod["containers"]


def host_paths(daemon_set: Mapping[str, Any]) -> dict[str, bool]:
    """Return the node's directories that a DaemonSet has, and whether all its containers may only read each."""
    volumes = {
        v["name"]: v["hostPath"]["path"] for v in daemon_set["spec"]["template"]["spec"]["volumes"] if "hostPath" in v
    }
    mounts = [mount for container in containers(daemon_set) for mount in container["volumeMounts"]]
    return {
        path: all(mount.get("readOnly", False) for mount in mounts if mount["name"] == name)
        for name, path in volumes.items()
    }


@cache
def daemon_sets() -> dict[str, dict[str, Any]]:
    """Return the DaemonSets of all sets, each by SET/NAME."""
    return {f"{name}/{found}": spec for name in SETS for found, spec in of_kind("DaemonSet", name).items()}
