"""The chart's manifests: valid for each Kubernetes, the rights of each pod on its node, and registrations."""

import itertools
import json
import os
import re
import shutil
import subprocess
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils

from runtimeproxy.plugins import directory, registration
from runtimeproxy.settings.options import OPTIONS
from runtimeproxy.settings.version import VERSION
from runtimeproxy_hooks.__main__ import HOOKS, load
from tests.deploy.charts import (
    CHART,
    KUBERNETES,
    SETS,
    SKIP_LABEL,
    containers,
    daemon_sets,
    documents,
    host_paths,
    of_kind,
)
from tests.engines.probe import tool

VERSIONS = sorted({utils.major_minor(version) for version in utils.all_versions()}, key=lambda v: int(v[2:]))
INSTALLERS = [f"{name}/runtimeproxy-installer" for name in SETS if name != "hook-servers"]
EXPORTER = "exporter/runtimeproxy-exporter"
RIGHTS: dict[str, tuple[set[str], bool, list[str]]] = {
    "hook-servers/runtimeproxy-hook-limits": ({"/sys/fs/cgroup"}, False, []),
    "hook-servers/runtimeproxy-hook-gpu": (set(), False, []),
    "hook-servers/runtimeproxy-hook-hello": (set(), False, []),
    "hook-servers/runtimeproxy-hook-node": (
        {"/sys/fs/cgroup", "/sys/fs/resctrl", "/run/runtimeproxy"},
        True,
        ["SYS_PTRACE"],
    ),
}
"""Per hook server: node directories except the proxy's two, use of the node's processes, and capabilities."""

pytestmark = pytest.mark.tool("helm")


@pytest.fixture(scope="module")
def schemas() -> Any:
    """Cache the schemas of a version: they are one file of some megabytes, which would be read for each object."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", cache(utils.schema_contents))
        yield


@pytest.mark.engine
@pytest.mark.release
def test_release_has_chart_and_its_manifests(release: Path, tmp_path: Path) -> None:
    files = [path for path in CHART.rglob("[!.]*") if path.is_file() and path.parent.name != "ci"]
    with tarfile.open(release / f"runtimeproxy-{VERSION}.tgz") as tar:
        names = {entry.name for entry in tar if entry.isfile()}
    assert names == {f"runtimeproxy/{path.relative_to(CHART)}" for path in files}
    with tarfile.open(release / f"runtimeproxy-{VERSION}-manifests.tgz") as tar:
        tar.extractall(tmp_path, filter="data")
    rendered = {path.stem: path.read_text() for path in tmp_path.glob("*/*.yaml")}
    assert rendered.keys() == {f"{name}{suffix}" for name in SETS for suffix in KUBERNETES}
    for name, suffix in itertools.product(SETS, KUBERNETES):
        text = rendered[f"{name}{suffix}"].replace("managed-by: kubectl", "managed-by: Helm")
        assert tuple(yaml.safe_load_all(text)) == documents(name, suffix)


def test_chart_has_version_of_proxy_and_passes_helm_lint() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
    for name in SETS:
        values = f"--values={CHART}/ci/{name}-values.yaml"
        done = subprocess.run([tool("helm"), "lint", "--strict", CHART, values], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow  # two seconds in all
@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_valid_in_each_version(version: str, schemas: None) -> None:
    """Without fields that are unknown to the version. The PodMonitor belongs to the Prometheus operator."""
    suffix = "-before-1.30" if int(version[2:]) < 30 else ""
    objects = [document for name in SETS for document in documents(name, suffix) if document["kind"] != "PodMonitor"]
    for document in {json.dumps(document): document for document in objects}.values():
        assert kubernetes_validate.validate(document, version, strict=True) == version


def test_pods_never_run_proxy_and_request_resources() -> None:
    assert daemon_sets().keys() == {*INSTALLERS, *RIGHTS, EXPORTER}
    for name, daemon_set in daemon_sets().items():
        pod = daemon_set["spec"]["template"]["spec"]
        assert pod["priorityClassName"] == "system-node-critical"
        assert pod["tolerations"]
        for container in containers(name):
            words = container["command"] + container.get("args", [])
            assert "koord-runtime-proxy" not in " ".join(words), name
            assert words[1:2] != ["run"], name
            assert {"cpu", "memory"} == container["resources"]["requests"].keys()
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert re.search(r"@sha256:[0-9a-f]{64}$", container["image"])


def test_skip_label_is_only_on_own_pods() -> None:
    """The schema refuses both of its keys in nodeInstaller.config."""
    labels = {name: found["spec"]["template"]["metadata"]["labels"] for name, found in daemon_sets().items()}
    assert {name for name, found in labels.items() if found.get(SKIP_LABEL) == "true"} == {*INSTALLERS, *RIGHTS}
    defaults = {option.name: option.default for option in OPTIONS}
    assert (defaults["runtime-hook-server-key"], defaults["runtime-hook-server-val"]) == (SKIP_LABEL, "true")
    files = [path for path in (CHART / "templates").iterdir() if SKIP_LABEL in path.read_text()]
    assert [path.name for path in files] == ["_helpers.tpl"]


@pytest.mark.parametrize("name", RIGHTS)
def test_hook_server_mounts_two_directories_and_its_rights(name: str) -> None:
    pod = daemon_sets()[name]["spec"]["template"]["spec"]
    more, pids, capabilities = RIGHTS[name]
    assert host_paths(name).keys() == {"/var/run/runtimeproxy-hooks", "/etc/runtime/hookserver.d"} | more
    assert (pod.get("hostPID", False), pod["automountServiceAccountToken"]) == (pids, False)
    assert not pod.keys() & {"hostNetwork", "hostIPC", "serviceAccountName"}
    *_, server = containers(name)
    for container in containers(name):
        rights = container["securityContext"]
        assert (rights["allowPrivilegeEscalation"], rights["capabilities"]["drop"]) == (False, ["ALL"])
        assert rights["capabilities"].get("add", []) == (capabilities if container is server else [])
        assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not rights.get("privileged", False)


def test_exporter_mounts_metrics_directory_and_serves_tls() -> None:
    template = daemon_sets()[EXPORTER]["spec"]["template"]
    pod = template["spec"]
    assert host_paths(EXPORTER) == {"/var/run/koord-runtimeproxy-metrics": True}
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["supplementalGroups"]) == (True, [970])
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert pod["automountServiceAccountToken"] is False
    [container] = containers(EXPORTER)
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "--listen=[::]:9654" in container["command"]
    monitor = of_kind("PodMonitor", "exporter")["runtimeproxy-exporter"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    [endpoint] = monitor["podMetricsEndpoints"]
    assert endpoint["port"] in [port["name"] for port in container["ports"]]
    assert (endpoint["scheme"], endpoint["path"], endpoint["interval"]) == ("https", "/metrics", "30s")


@pytest.mark.parametrize("name", ["installer", "kubelet", "exporter", "removal"])
def test_installer_may_annotate_nodes_and_hold_its_places(name: str) -> None:
    """Places are leases without a spec: pods write it, and no upgrade of the chart changes it."""
    [cluster] = of_kind("ClusterRole", name).values()
    [role] = of_kind("Role", name).values()
    [config] = of_kind("ConfigMap", name).values()
    desired, leases = json.loads(config["data"]["wanted.json"]), of_kind("Lease", name)
    assert cluster["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]
    [held] = role["rules"]
    assert (held["resources"], held["verbs"]) == (["leases"], ["get", "update"])
    assert held["resourceNames"] == [f"{desired['pool']}-{place}" for place in range(desired["parallel"])]
    assert list(leases) == held["resourceNames"]
    for lease in leases.values():
        assert lease.keys() == {"apiVersion", "kind", "metadata"}
        assert all(lease["metadata"][key] == role["metadata"][key] for key in ("namespace", "labels"))


@pytest.mark.parametrize("hook", sorted(HOOKS))
def test_registrations_of_chart_have_points_of_hooks(hook: str) -> None:
    text = (CHART / "templates/_helpers.tpl").read_text()
    [row] = re.findall(rf"^{hook}: (\{{.*\}})$", text, re.MULTILINE)
    assert yaml.safe_load(row)["points"] == [hook_point.name for hook_point in load(hook).points]
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert hook in schema["definitions"]["hookServer"]["properties"]["hooks"]["items"]["enum"]


def registrations() -> dict[str, bytes]:
    configs = of_kind("ConfigMap", "hook-servers")
    return {name: config["data"]["registration.json"].encode() for name, config in configs.items()}


def test_proxy_reads_registrations() -> None:
    read = {name: registration.parse("a.json", content) for name, content in registrations().items()}
    assert {name: (entry.policy.value, entry.timeout_seconds) for name, entry in read.items()} == {
        "runtimeproxy-hook-limits": ("Ignore", 0.5),
        "runtimeproxy-hook-gpu": ("Fail", None),
        "runtimeproxy-hook-node": ("Ignore", None),
        "runtimeproxy-hook-hello": ("Ignore", None),
    }
    assert not any(entry.warnings for entry in read.values())


@pytest.mark.slow  # it runs the pods' commands
@pytest.mark.parametrize(("name", "file", "stays"), [("limits", "10-limits.json", False), ("gpu", "20-gpu.json", True)])
def test_pod_registers_its_hook_server(name: str, file: str, stays: bool, tmp_path: Path) -> None:
    """Under Ignore a change of the ConfigMap is followed, and the pod removes the file at its end; under Fail it
    stays."""
    begin, server = containers(f"hook-servers/runtimeproxy-hook-{name}")
    kubelet, folder = tmp_path / "kubelet", tmp_path / "hookserver.d"
    laid = kubelet / "pods/12ab/volumes/kubernetes.io~configmap/registration"
    places = {"/var/lib/kubelet": kubelet, "/etc/runtime/hookserver.d": folder, "/etc/runtimeproxy-hooks": laid}
    folder.mkdir()

    def lay(content: bytes, version: str) -> None:
        """Write a ConfigMap as the kubelet does: a new directory, and a replaced link to it."""
        (laid / version).mkdir(parents=True)
        (laid / version / "registration.json").write_bytes(content)
        (laid / "..data_tmp").symlink_to(version)
        os.replace(laid / "..data_tmp", laid / "..data")

    def run(command: list[str]) -> None:
        words = [word.replace("$(POD_UID)", "12ab") for word in command]
        for path, here in places.items():
            words = [word.replace(path, str(here)) for word in words]
        subprocess.run(words, check=True)

    content = registrations()[f"runtimeproxy-hook-{name}"]
    lay(content, "..1")
    (laid / "registration.json").symlink_to("..data/registration.json")
    for _ in range(2):  # a restarted pod
        run(begin["command"] + begin.get("args", []))
    assert directory.read(str(folder)) == {file: content}
    lay(changed := content.replace(b"Create", b"Start"), "..2")
    assert directory.read(str(folder)) == {file: content if stays else changed}
    if stays:
        assert "lifecycle" not in server
        shutil.rmtree(laid)
        assert directory.read(str(folder)) == {file: content}
    else:
        run(server["lifecycle"]["preStop"]["exec"]["command"])
        assert directory.read(str(folder)) == {}
