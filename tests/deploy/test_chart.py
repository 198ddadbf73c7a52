"""The chart: its values, its manifests for each Kubernetes, the rights of each pod on its node, and registrations.

values.schema.json accepts the five sets of values and refuses invalid ones. The admission policies are evaluated.
"""

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

import celpy
import celpy.adapter
import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils

from runtimeproxy.plugins import directory, registration
from runtimeproxy.settings.options import OPTIONS
from runtimeproxy.settings.version import VERSION
from runtimeproxy_hooks.__main__ import HOOKS, load
from runtimeproxy_installer import desired
from runtimeproxy_installer.errors import Refused
from tests.docs import ROOT
from tests.engines.probe import tool

pytestmark = [pytest.mark.tool("helm"), pytest.mark.slow]

CHART = ROOT / "deploy/helm/runtimeproxy"
SETS = ("installer", "kubelet", "hook-servers", "exporter", "removal")
"""The sets of values, each a file ``ci/NAME-values.yaml`` of the chart."""
KUBERNETES = {"": "1.37.0", "-before-1.30": "1.29.0"}
"""The rendered versions of Kubernetes by a manifest's suffix: 1.30 adds the kinds of admission policies."""
VERSIONS = sorted({utils.major_minor(version) for version in utils.all_versions()}, key=lambda v: int(v[2:]))
SKIP_LABEL = "runtimeproxy.koordinator.sh/skip-hookserver"
INSTALLERS = [f"{name}/runtimeproxy-installer" for name in SETS if name != "hook-servers"]
EXPORTER = "exporter/runtimeproxy-exporter"
HOST_RIGHTS = {"/sys/fs/cgroup", "/sys/fs/resctrl", "/run/runtimeproxy"}
RIGHTS: dict[str, tuple[set[str], bool, list[str]]] = {
    "hook-servers/runtimeproxy-hook-limits": ({"/sys/fs/cgroup"}, False, []),
    "hook-servers/runtimeproxy-hook-gpu": (set(), False, []),
    "hook-servers/runtimeproxy-hook-hello": (set(), False, []),
    "hook-servers/runtimeproxy-hook-node": (HOST_RIGHTS, True, ["SYS_PTRACE"]),
}
"""Per hook server: node directories except the proxy's two, use of the node's processes, and capabilities."""


@cache
def documents(name: str, suffix: str = "") -> tuple[dict[str, Any], ...]:
    """Return the objects of a rendered set."""
    command = [tool("helm"), "template", "runtimeproxy", str(CHART), "--namespace=kube-system"]
    command += [f"--values={CHART}/ci/{name}-values.yaml", f"--kube-version={KUBERNETES[suffix]}"]
    return tuple(yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True).stdout))


def of_kind(kind: str, name: str, suffix: str = "") -> dict[str, dict[str, Any]]:
    """Return the objects of a kind in a set by their names."""
    return {document["metadata"]["name"]: document for document in documents(name, suffix) if document["kind"] == kind}


@cache
def templates() -> dict[str, dict[str, Any]]:
    """Return the pod templates of the DaemonSets of all sets, each by SET/NAME."""
    found = {f"{name}/{daemon_set}": row for name in SETS for daemon_set, row in of_kind("DaemonSet", name).items()}
    return {name: daemon_set["spec"]["template"] for name, daemon_set in found.items()}


def containers(name: str) -> list[dict[str, Any]]:
    """Return the containers of a DaemonSet, including init containers."""
    pod = templates()[name]["spec"]
    return [*pod.get("initContainers", ()), *pod["containers"]]


def host_paths(name: str) -> dict[str, bool]:
    """Return the node's directories that a DaemonSet mounts, and whether all its containers mount each read-only."""
    volumes = templates()[name]["spec"]["volumes"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in volumes if "hostPath" in volume}
    mounts = [mount for container in containers(name) for mount in container["volumeMounts"]]
    writable = {mount["name"] for mount in mounts if not mount.get("readOnly", False)}
    return {path: volume not in writable for volume, path in paths.items()}


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


CACHED_SCHEMA = cache(utils.schema_contents)  # one file of some megabytes, which would be read for each object


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_valid_in_each_version(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without fields that are unknown to the version. The PodMonitor belongs to the Prometheus operator."""
    monkeypatch.setattr(utils, "schema_contents", CACHED_SCHEMA)
    suffix = "-before-1.30" if int(version[2:]) < 30 else ""
    objects = [document for name in SETS for document in documents(name, suffix) if document["kind"] != "PodMonitor"]
    for document in {json.dumps(document): document for document in objects}.values():
        assert kubernetes_validate.validate(document, version, strict=True) == version


def test_pods_never_run_proxy_and_request_resources() -> None:
    assert templates().keys() == {*INSTALLERS, *RIGHTS, EXPORTER}
    for name, template in templates().items():
        assert template["spec"]["priorityClassName"] == "system-node-critical"
        assert template["spec"]["tolerations"]
        for container in containers(name):
            words = container["command"] + container.get("args", [])
            assert "koord-runtime-proxy" not in " ".join(words), name
            assert words[1:2] != ["run"], name
            assert {"cpu", "memory"} == container["resources"]["requests"].keys()
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert re.search(r"@sha256:[0-9a-f]{64}$", container["image"])


def test_skip_label_is_only_on_own_pods() -> None:
    """The schema refuses both of its keys in nodeInstaller.config."""
    labels = {name: template["metadata"]["labels"].get(SKIP_LABEL) for name, template in templates().items()}
    assert labels == {**dict.fromkeys([*INSTALLERS, *RIGHTS], "true"), EXPORTER: None}
    defaults = {option.name: option.default for option in OPTIONS}
    assert (defaults["runtime-hook-server-key"], defaults["runtime-hook-server-val"]) == (SKIP_LABEL, "true")
    files = [path for path in (CHART / "templates").iterdir() if SKIP_LABEL in path.read_text()]
    assert [path.name for path in files] == ["_helpers.tpl"]


@pytest.mark.parametrize("name", RIGHTS)
def test_hook_server_mounts_two_directories_and_its_rights(name: str) -> None:
    pod = templates()[name]["spec"]
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
    template, [container] = templates()[EXPORTER], containers(EXPORTER)
    pod = template["spec"]
    assert host_paths(EXPORTER) == {"/var/run/koord-runtimeproxy-metrics": True}
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["supplementalGroups"]) == (True, [970])
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert pod["automountServiceAccountToken"] is False
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


def test_installer_reads_desired_state_of_chart(tmp_path: Path) -> None:
    [config] = of_kind("ConfigMap", "kubelet").values()
    (tmp_path / "wanted.json").write_text(config["data"]["wanted.json"])
    state = desired.read(tmp_path / "wanted.json")
    assert (state.action, state.pool, state.parallel) == ("install", "runtimeproxy-installer", 3)
    assert (state.configure_kubelet, state.allow_downgrade, state.healthz_port) == (True, False, 10248)
    assert (state.config["backend-runtime-mode"], state.metrics_group_id) == ("Docker", 965)
    (tmp_path / "wanted.json").write_text('{"action": "install"}')
    with pytest.raises(Refused, match="is not what the chart writes"):
        desired.read(tmp_path / "wanted.json")


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
    limits = {"runtimeproxy-hook-limits": ("Ignore", 0.5), "runtimeproxy-hook-gpu": ("Fail", None)}
    others = {f"runtimeproxy-hook-{name}": ("Ignore", None) for name in ("node", "hello")}
    assert {name: (entry.policy.value, entry.timeout_seconds) for name, entry in read.items()} == limits | others
    assert not any(entry.warnings for entry in read.values())


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
        script = json.dumps(command).replace("$(POD_UID)", "12ab")
        for path, here in places.items():
            script = script.replace(path, str(here))
        subprocess.run(json.loads(script), check=True)

    content = registrations()[f"runtimeproxy-hook-{name}"]
    lay(content, "..1")
    (laid / "registration.json").symlink_to("..data/registration.json")
    for _ in range(2):  # a restarted pod
        run(begin["command"] + begin.get("args", []))
    assert directory.read(str(folder)) == {file: content}
    lay(changed := content.replace(b"Create", b"Start"), "..2")
    assert directory.read(str(folder)) == {file: content if stays else changed}
    assert stays is ("lifecycle" not in server)
    if stays:
        shutil.rmtree(laid)
    else:
        run(server["lifecycle"]["preStop"]["exec"]["command"])
    assert directory.read(str(folder)) == ({file: content} if stays else {})


# ---- values

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())


def merged(default: Any, over: Any) -> Any:
    """Return values as helm merges them: maps key by key, everything else replaced."""
    if isinstance(default, dict) and isinstance(over, dict):
        return {key: merged(default.get(key), over[key]) if key in over else default[key] for key in default | over}
    return over


def given(name: str) -> Any:
    """Return a set of values merged with the chart's defaults."""
    return merged(DEFAULTS, yaml.safe_load((CHART / f"ci/{name}-values.yaml").read_text()))


def faults(values: Any) -> list[str]:
    return [".".join(map(str, error.path)) for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(values)]


def test_value_sets_are_valid_and_digests_are_required() -> None:
    assert [name for name in SETS if faults(given(name))] == []
    assert {*faults(DEFAULTS)} == {"image.repository", "image.digest", "nodeInstaller.sha256"}


def test_keys_of_configuration_are_those_of_proxy() -> None:
    pairs = (
        "backend-runtime-mode=Docker remote-runtime-service-endpoint=unix:///run/containerd/containerd.sock "
        "remote-image-service-endpoint=/run/containerd/containerd.sock hook-timeout=500ms hook-budget=5s "
        "hook-answer-limit=8MiB drain-timeout=1m originals-dir=none state-dir=/var/lib/other log-level=debug "
        "log-format=json"
    )
    values = dict(pair.split("=") for pair in pairs.split())
    assert values.keys() == SCHEMA["properties"]["nodeInstaller"]["properties"]["config"]["properties"].keys()
    options = {option.name: option for option in OPTIONS}
    for key, value in values.items():
        options[key].parse(value, key)
    assert faults(merged(given("installer"), {"nodeInstaller": {"config": values}})) == []


def server(**changed: Any) -> dict[str, Any]:
    return {"hookServers": [{"name": "a", "hooks": ["gpu"]} | changed]}


WRONG = {
    "hook-timeot": "1s",
    "remote-runtime-service-endpoint": "tcp://127.0.0.1:2375",
    "koord-runtimeproxy-endpoint": "/elsewhere.sock",
    "runtime-hook-server-key": "team/skip",
    "runtime-hook-server-val": "yes",
}


@pytest.mark.parametrize(
    "over",
    [
        {"nodeInstaler": {}},
        {"image": {"repository": "Registry.example.com/runtimeproxy:0.2.0"}},
        {"image": {"digest": "sha256:1234"}},
        {"image": {"tag": "1"}},
        {"nodeInstaller": {"action": "remove"}},
        {"nodeInstaller": {"sha256": "sha256:" + "0" * 64}},
        {"nodeInstaller": {"configureKubelet": "true"}},
        {"nodeInstaller": {"healthzPort": 70000}},
        # The policy guards one label, which is on the chart's own pods: the last two keys are those of another one.
        *({"nodeInstaller": {"config": {key: value}}} for key, value in WRONG.items()),
        server(hooks=["cpusets"]),
        server(failurePolicy="fail"),
        server(order=100),
        server(timeout="2 seconds"),
        server(privileged=True),
        server(image={"repository": "registry.example.com/a"}),
        {"hookServers": [{"name": "own", "command": ["a"], "hookPoints": ["PreCreateContainer"]}]},
        {"hookServers": [{"name": "own", "image": {"repository": "a", "digest": "sha256:" + "0" * 64}}]},
        {"hookServerPods": {"kubeletDir": "var/lib/kubelet"}},
        {"exporter": {"listen": "10.0.0.1"}},
        {"exporter": {"enabled": True}},
        {"exporter": {"podMonitor": {"enabled": True}}},
        {"policy": {"skipLabelNamespaces": ["Kube_System"]}},
    ],
    ids=json.dumps,
)
def test_wrong_or_incomplete_values_are_refused(over: dict[str, Any]) -> None:
    assert faults(merged(given("installer"), server())) == []
    assert faults(merged(given("installer"), over)) != []


# ---- the admission policies: which pod may skip hook servers, which node the installer may change

SKIP, INSTALLER = "kube-system-runtimeproxy-skip-label", "kube-system-runtimeproxy-installer"
USER = "system:serviceaccount:kube-system:runtimeproxy-installer"


def value_of(expression: str, bound: dict[str, Any]) -> bool:
    environment = celpy.Environment()
    program = environment.program(environment.compile(expression))
    return bool(program.evaluate({name: celpy.adapter.json_to_cel(value) for name, value in bound.items()}))


def allowed(name: str, **bound: Any) -> bool:
    """Return whether an API server would admit a request: its conditions do not match, or all validations hold."""
    policy = of_kind("ValidatingAdmissionPolicy", "kubelet")[name]["spec"]
    if not all(value_of(condition["expression"], bound) for condition in policy.get("matchConditions", ())):
        return True
    bound["variables"] = {v["name"]: value_of(v["expression"], bound) for v in policy.get("variables", ())}
    return all(value_of(validation["expression"], bound) for validation in policy["validations"])


PLAIN, SKIPS, NOT_SKIPPED = {"app": "web"}, {"app": "web", SKIP_LABEL: "true"}, {SKIP_LABEL: "false"}


@pytest.mark.parametrize(
    ("namespace", "labels", "before", "passes"),
    [
        ("default", None, None, True),
        ("default", PLAIN, None, True),
        ("default", SKIPS, None, False),
        ("default", NOT_SKIPPED, None, True),
        ("kube-system-2", SKIPS, None, False),
        ("kube-system", SKIPS, None, True),
        ("koordinator-system", SKIPS, None, True),
        ("default", SKIPS, PLAIN, False),
        ("default", SKIPS, {}, False),
        ("default", SKIPS, SKIPS, True),
        ("default", SKIPS, NOT_SKIPPED, False),
        ("default", PLAIN, SKIPS, True),
        ("koordinator-system", SKIPS, PLAIN, True),
    ],
)
def test_skip_label_is_for_named_namespaces(
    namespace: str, labels: dict[str, str] | None, before: dict[str, str] | None, passes: bool
) -> None:
    pod, old = ({"metadata": {"name": "web"} | ({} if each is None else {"labels": each})} for each in (labels, before))
    request = {"namespace": namespace, "operation": "CREATE" if before is None else "UPDATE"}
    assert allowed(SKIP, object=pod, oldObject=None if before is None else old, request=request) is passes


def node(**changed: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n1", "labels": {"pool": "a"}}, "spec": {"podCIDR": "10.0.0.0/24"}} | changed


ANNOTATED, LABELLED = ({"name": "n1", "labels": {"pool": pool}, "annotations": {"a": "b"}} for pool in "ab")


@pytest.mark.parametrize(
    ("user", "at", "changed", "passes"),
    [
        (USER, ["n1"], node(metadata=ANNOTATED), True),
        (USER, ["n2"], node(metadata=ANNOTATED), False),
        (USER, None, node(), False),
        (USER, ["n1"], node(metadata=LABELLED), False),
        (USER, ["n1"], node(spec={"taints": [{"key": "a"}]}), False),
        ("system:node:n2", None, node(metadata=LABELLED), True),
    ],
)
def test_installer_annotates_its_own_node(user: str, at: list[str] | None, changed: Any, passes: bool) -> None:
    extra = {"authentication.kubernetes.io/node-name": at} if at else {}
    request = {"userInfo": {"username": user, "extra": extra}}
    assert allowed(INSTALLER, request=request, object=changed, oldObject=node()) is passes


def test_policies_are_enforced_where_cluster_supports_them() -> None:
    policies = of_kind("ValidatingAdmissionPolicy", "kubelet")
    bindings = of_kind("ValidatingAdmissionPolicyBinding", "kubelet")
    assert policies.keys() == {SKIP, INSTALLER}
    for policy, objects in policies.items():
        assert bindings[policy]["spec"] == {"policyName": policy, "validationActions": ["Deny"]}
        assert objects["spec"]["failurePolicy"] == "Fail"
    assert of_kind("ValidatingAdmissionPolicy", "kubelet", "-before-1.30") == {}
    assert of_kind("DaemonSet", "kubelet", "-before-1.30").keys() == of_kind("DaemonSet", "kubelet").keys()
