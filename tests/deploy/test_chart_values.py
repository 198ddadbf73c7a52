"""values.schema.json accepts the five sets and refuses invalid values; the admission policies, by their expressions."""

import json
from typing import Any

import celpy
import celpy.adapter
import jsonschema
import pytest
import yaml

from runtimeproxy.settings.options import OPTIONS
from tests.deploy.charts import CHART, SETS, SKIP_LABEL, of_kind

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


def config(key: str, value: str) -> dict[str, Any]:
    return {"nodeInstaller": {"config": {key: value}}}


def server(**changed: Any) -> dict[str, Any]:
    return {"hookServers": [{"name": "a", "hooks": ["gpu"]} | changed]}


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
        config("hook-timeot", "1s"),
        config("remote-runtime-service-endpoint", "tcp://127.0.0.1:2375"),
        config("koord-runtimeproxy-endpoint", "/elsewhere.sock"),
        # The policy guards one label, which is on the chart's own pods.
        config("runtime-hook-server-key", "team/skip"),
        config("runtime-hook-server-val", "yes"),
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


def pod(labels: dict[str, str] | None) -> dict[str, Any]:
    return {"metadata": {"name": "web"} if labels is None else {"name": "web", "labels": labels}}


PLAIN, SKIPS, NOT_SKIPPED = {"app": "web"}, {"app": "web", SKIP_LABEL: "true"}, {SKIP_LABEL: "false"}


@pytest.mark.tool("helm")
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
    old = None if before is None else pod(before)
    request = {"namespace": namespace, "operation": "CREATE" if old is None else "UPDATE"}
    assert allowed(SKIP, object=pod(labels), oldObject=old, request=request) is passes


def node(**changed: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n1", "labels": {"pool": "a"}}, "spec": {"podCIDR": "10.0.0.0/24"}} | changed


ANNOTATED, LABELLED = ({"name": "n1", "labels": {"pool": pool}, "annotations": {"a": "b"}} for pool in "ab")


@pytest.mark.tool("helm")
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


@pytest.mark.tool("helm")
def test_policies_are_enforced_where_cluster_supports_them() -> None:
    policies = of_kind("ValidatingAdmissionPolicy", "kubelet")
    bindings = of_kind("ValidatingAdmissionPolicyBinding", "kubelet")
    assert policies.keys() == {SKIP, INSTALLER}
    for policy, objects in policies.items():
        assert bindings[policy]["spec"] == {"policyName": policy, "validationActions": ["Deny"]}
        assert objects["spec"]["failurePolicy"] == "Fail"
    assert of_kind("ValidatingAdmissionPolicy", "kubelet", "-before-1.30") == {}
    assert of_kind("DaemonSet", "kubelet", "-before-1.30").keys() == of_kind("DaemonSet", "kubelet").keys()
