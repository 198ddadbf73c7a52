"""The chart's manifests: valid for each Kubernetes, what each pod may do on its node, and how hook servers register."""

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
    SCHEMA,
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
INSTALLERS = tuple(f"{name}/runtimeproxy-installer" for name in ("installer", "kubelet", "exporter", "removal"))
HOOK_SERVERS = tuple(f"hook-servers/runtimeproxy-hook-{name}" for name in ("limits", "gpu", "node", "hello"))
EXPORTER = "exporter/runtimeproxy-exporter"
PROXYS = {"/var/run/runtimeproxy-hooks", "/etc/runtime/hookserver.d"}


pytestmark = pytest.mark.tool("helm")


@pytest.fixture(scope="module")
def schemas() -> Any:
    """The schemas of a version are one file of some megabytes, which is read for each object otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", cache(utils.schema_contents))
        yield


def suffix_for(version: str) -> str:
    return "-before-1.30" if int(version[2:]) < 30 else ""


def test_the_charts_version_is_the_proxys() -> None:
    found = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (found["version"], found["appVersion"]) == (VERSION, VERSION)


@pytest.mark.engine
@pytest.mark.release
def test_release_has_the_chart_and_its_manifests(release: Path, tmp_path: Path) -> None:
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


def test_helm_finds_no_fault_in_the_chart() -> None:
    for name in SETS:
        values = f"--values={CHART}/ci/{name}-values.yaml"
        done = subprocess.run([tool("helm"), "lint", "--strict", CHART, values], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow  # two seconds in all
@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_valid_in_each_version(version: str, schemas: None) -> None:
    """With no field that the version does not know. The Prometheus operator's PodMonitor is not Kubernetes' own."""
    objects = [found for name in SETS for found in documents(name, suffix_for(version))]
    for found in {json.dumps(found): found for found in objects if found["kind"] != "PodMonitor"}.values():
        assert kubernetes_validate.validate(found, version, strict=True) == version


def test_the_proxy_is_never_a_pod() -> None:
    for name, found in daemon_sets().items():
        for container in containers(found):
            words = container["command"] + container.get("args", [])
            assert "koord-runtime-proxy" not in " ".join(words), name
            assert words[1:2] != ["run"], name


@pytest.mark.parametrize("name", [*INSTALLERS, *HOOK_SERVERS, EXPORTER])
def test_pods_stay_and_request_what_they_use(name: str) -> None:
    pod = daemon_sets()[name]["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["tolerations"]
    for container in containers(daemon_sets()[name]):
        assert {"cpu", "memory"} == container["resources"]["requests"].keys()
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert re.search(r"@sha256:[0-9a-f]{64}$", container["image"])


def skips(found: dict[str, Any]) -> bool:
    return found["spec"]["template"]["metadata"]["labels"].get(SKIP_LABEL) == "true"


def test_hook_servers_and_the_installer_have_the_skip_label() -> None:
    assert daemon_sets().keys() == {*INSTALLERS, *HOOK_SERVERS, EXPORTER}
    assert {name for name, found in daemon_sets().items() if skips(found)} == {*INSTALLERS, *HOOK_SERVERS}


def test_the_skip_label_is_the_proxys_and_in_one_place() -> None:
    """nodeInstaller.config has no other one: the schema refuses both of its keys."""
    defaults = {option.name: option.default for option in OPTIONS}
    assert (defaults["runtime-hook-server-key"], defaults["runtime-hook-server-val"]) == (SKIP_LABEL, "true")
    files = [path for path in (CHART / "templates").iterdir() if SKIP_LABEL in path.read_text()]
    assert [path.name for path in files] == ["_helpers.tpl"]


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
"""The node's directories next to the proxy's two, the node's processes, and the capabilities of each hook server."""


@pytest.mark.parametrize("name", HOOK_SERVERS)
def test_a_hook_server_has_the_two_directories_and_what_it_needs(name: str) -> None:
    pod = daemon_sets()[name]["spec"]["template"]["spec"]
    more, pids, capabilities = RIGHTS[name]
    assert host_paths(daemon_sets()[name]).keys() == PROXYS | more
    assert (pod.get("hostPID", False), pod["automountServiceAccountToken"]) == (pids, False)
    assert not pod.keys() & {"hostNetwork", "hostIPC", "serviceAccountName"}
    *_, server = containers(daemon_sets()[name])
    for container in containers(daemon_sets()[name]):
        rights = container["securityContext"]
        assert (rights["allowPrivilegeEscalation"], rights["capabilities"]["drop"]) == (False, ["ALL"])
        assert rights["capabilities"].get("add", []) == (capabilities if container is server else [])
        assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not rights.get("privileged", False)


def test_the_exporter_sees_the_metrics_directory_alone() -> None:
    exporter = daemon_sets()[EXPORTER]
    pod = exporter["spec"]["template"]["spec"]
    assert host_paths(exporter) == {"/var/run/koord-runtimeproxy-metrics": True}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["supplementalGroups"] == [970]
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert pod["automountServiceAccountToken"] is False
    [container] = containers(exporter)
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "--listen=[::]:9654" in container["command"]


def test_pod_monitor_scrapes_the_exporters_port_with_tls() -> None:
    monitor = of_kind("PodMonitor", "exporter")["runtimeproxy-exporter"]["spec"]
    template = daemon_sets()[EXPORTER]["spec"]["template"]
    assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    [endpoint] = monitor["podMetricsEndpoints"]
    [container] = template["spec"]["containers"]
    assert endpoint["port"] in [port["name"] for port in container["ports"]]
    assert (endpoint["scheme"], endpoint["path"], endpoint["interval"]) == ("https", "/metrics", "30s")


@pytest.mark.parametrize("name", ["installer", "kubelet", "exporter", "removal"])
def test_the_installer_may_annotate_nodes_and_hold_its_places(name: str) -> None:
    [cluster] = of_kind("ClusterRole", name).values()
    [role] = of_kind("Role", name).values()
    [config] = of_kind("ConfigMap", name).values()
    wanted = json.loads(config["data"]["wanted.json"])
    assert cluster["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]
    [held] = role["rules"]
    assert (held["resources"], held["verbs"]) == (["leases"], ["get", "update"])
    assert held["resourceNames"] == [f"{wanted['pool']}-{place}" for place in range(wanted["parallel"])]


@pytest.mark.parametrize("name", ["installer", "kubelet", "exporter", "removal"])
def test_the_places_are_leases_that_no_upgrade_touches(name: str) -> None:
    """They have no spec, which is the pods' own."""
    [role] = of_kind("Role", name).values()
    leases = of_kind("Lease", name)
    assert list(leases) == role["rules"][0]["resourceNames"]
    for lease in leases.values():
        assert lease.keys() == {"apiVersion", "kind", "metadata"}
        assert {key: lease["metadata"][key] for key in ("namespace", "labels")} == {
            key: role["metadata"][key] for key in ("namespace", "labels")
        }


def needed(hook: str) -> dict[str, Any]:
    """Return what the chart gives a hook."""
    text = (CHART / "templates/_helpers.tpl").read_text()
    [row] = re.findall(rf"^{hook}: (\{{.*\}})$", text, re.MULTILINE)
    needs: dict[str, Any] = yaml.safe_load(row)
    return needs


@pytest.mark.parametrize("hook", sorted(HOOKS))
def test_the_charts_table_of_hooks_is_theirs(hook: str) -> None:
    assert needed(hook)["points"] == [point.name for point in load(hook).points]
    assert hook in SCHEMA["definitions"]["hookServer"]["properties"]["hooks"]["items"]["enum"]


def registrations() -> dict[str, bytes]:
    return {
        name: config["data"]["registration.json"].encode()
        for name, config in of_kind("ConfigMap", "hook-servers").items()
    }


def test_registrations_are_what_the_proxy_reads() -> None:
    read = {name: registration.parse("a.json", content) for name, content in registrations().items()}
    assert {name: (entry.policy.value, entry.timeout_seconds) for name, entry in read.items()} == {
        "runtimeproxy-hook-limits": ("Ignore", 0.5),
        "runtimeproxy-hook-gpu": ("Fail", None),
        "runtimeproxy-hook-node": ("Ignore", None),
        "runtimeproxy-hook-hello": ("Ignore", None),
    }
    assert not any(entry.warnings for entry in read.values())


def volume(folder: Path, content: bytes, version: str) -> None:
    """Lay a ConfigMap as the kubelet does: a new directory, and a link to it that is replaced at once."""
    (folder / version).mkdir(parents=True)
    (folder / version / "registration.json").write_bytes(content)
    (folder / "..data_tmp").symlink_to(version)
    os.replace(folder / "..data_tmp", folder / "..data")
    if not (folder / "registration.json").is_symlink():
        (folder / "registration.json").symlink_to("..data/registration.json")


def ran(container: dict[str, Any], command: list[str], places: dict[str, Path]) -> None:
    """Run a command of a container with the directories that it has there."""
    words = [word.replace("$(POD_UID)", "12ab") for word in command + container.get("args", [])]
    for path, here in places.items():
        words = [word.replace(path, str(here)) for word in words]
    subprocess.run(words, check=True)


@pytest.mark.slow  # it runs the pods' commands
@pytest.mark.parametrize(("name", "file", "stays"), [("limits", "10-limits.json", False), ("gpu", "20-gpu.json", True)])
def test_a_pod_registers_its_hook_server(name: str, file: str, stays: bool, tmp_path: Path) -> None:
    """Under Ignore a change of the ConfigMap is followed, and the pod takes the file along; under Fail it stays."""
    begin, server = containers(daemon_sets()[f"hook-servers/runtimeproxy-hook-{name}"])
    kubelet, folder = tmp_path / "kubelet", tmp_path / "hookserver.d"
    laid = kubelet / "pods/12ab/volumes/kubernetes.io~configmap/registration"
    places = {"/var/lib/kubelet": kubelet, "/etc/runtime/hookserver.d": folder, "/etc/runtimeproxy-hooks": laid}
    folder.mkdir()
    content = registrations()[f"runtimeproxy-hook-{name}"]
    volume(laid, content, "..1")
    for _ in range(2):  # a pod that begins again
        ran(begin, begin["command"], places)
    assert directory.read(str(folder)) == {file: content}
    volume(laid, changed := content.replace(b"Create", b"Start"), "..2")
    assert directory.read(str(folder)) == {file: content if stays else changed}
    if stays:
        assert "lifecycle" not in server
        shutil.rmtree(laid)
        assert directory.read(str(folder)) == {file: content}
    else:
        ran({}, server["lifecycle"]["preStop"]["exec"]["command"], places)
        assert directory.read(str(folder)) == {}
