"""The admission policies, by evaluating their expressions: which pod may skip, which node the installer may change."""

from typing import Any

import celpy
import pytest

from tests.deploy.charts import SKIP_LABEL, of_kind

pytestmark = pytest.mark.tool("helm")

SKIP, INSTALLER = "kube-system-runtimeproxy-skip-label", "kube-system-runtimeproxy-installer"
NODE_NAME = "authentication.kubernetes.io/node-name"
USER = "system:serviceaccount:kube-system:runtimeproxy-installer"


def value_of(expression: str, bound: dict[str, Any]) -> bool:
    environment = celpy.Environment()
    program = environment.program(environment.compile(expression))
    return bool(program.evaluate({name: celpy.json_to_cel(value) for name, value in bound.items()}))


def allowed(name: str, **bound: Any) -> bool:
    """Return whether an API server would let a request pass: its conditions do not match, or all validations hold."""
    policy = of_kind("ValidatingAdmissionPolicy", "kubelet")[name]["spec"]
    if not all(value_of(condition["expression"], bound) for condition in policy.get("matchConditions", ())):
        return True
    bound["variables"] = {v["name"]: value_of(v["expression"], bound) for v in policy.get("variables", ())}
    return all(value_of(validation["expression"], bound) for validation in policy["validations"])


def pod(labels: dict[str, str] | None) -> dict[str, Any]:
    return {"metadata": {"name": "web"} if labels is None else {"name": "web", "labels": labels}}


PLAIN, SKIPS = {"app": "web"}, {"app": "web", SKIP_LABEL: "true"}
PODS: dict[str, tuple[str, dict[str, str] | None, dict[str, str] | None, bool]] = {
    "no labels": ("default", None, None, True),
    "other labels": ("default", PLAIN, None, True),
    "the label": ("default", SKIPS, None, False),
    "the label alone": ("default", {SKIP_LABEL: "true"}, None, False),
    "the label with another value": ("default", {SKIP_LABEL: "false"}, None, True),
    "a namespace that is named like one": ("kube-system-2", SKIPS, None, False),
    "the release's namespace": ("kube-system", SKIPS, None, True),
    "a named namespace": ("koordinator-system", SKIPS, None, True),
    "a change that gives it": ("default", SKIPS, PLAIN, False),
    "a change that gives it to one without labels": ("default", SKIPS, {}, False),
    "a change of one that has it": ("default", SKIPS, SKIPS, True),
    "a change that turns another value on": ("default", SKIPS, {SKIP_LABEL: "false"}, False),
    "a change that takes it": ("default", PLAIN, SKIPS, True),
    "a change in a named namespace": ("koordinator-system", SKIPS, PLAIN, True),
}


@pytest.mark.parametrize("case", PODS)
def test_the_skip_label_is_for_named_namespaces(case: str) -> None:
    namespace, labels, before, passes = PODS[case]
    old = None if before is None else pod(before)
    request = {"namespace": namespace, "operation": "CREATE" if old is None else "UPDATE"}
    assert allowed(SKIP, object=pod(labels), oldObject=old, request=request) is passes


def node(name: str, **changed: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"pool": "a"}} | changed, "spec": {"podCIDR": "10.0.0.0/24"}}


def queries(user: str = USER, **extra: list[str]) -> dict[str, Any]:
    return {"userInfo": {"username": user, "extra": extra}}


NODES: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "its own": (queries(**{NODE_NAME: ["n1"]}), node("n1", annotations={"a": "b"}), True),
    "another": (queries(**{NODE_NAME: ["n2"]}), node("n1", annotations={"a": "b"}), False),
    "a token that says no node": (queries(), node("n1"), False),
    "a label": (queries(**{NODE_NAME: ["n1"]}), node("n1", labels={"pool": "b"}), False),
    "a taint": (queries(**{NODE_NAME: ["n1"]}), node("n1") | {"spec": {"taints": [{"key": "a"}]}}, False),
    "somebody else": (queries("system:node:n2"), node("n1", labels={}), True),
}


@pytest.mark.parametrize("case", NODES)
def test_the_installer_annotates_its_own_node(case: str) -> None:
    request, changed, passes = NODES[case]
    assert allowed(INSTALLER, request=request, object=changed, oldObject=node("n1")) is passes


def test_policies_are_in_force() -> None:
    policies = of_kind("ValidatingAdmissionPolicy", "kubelet")
    bindings = of_kind("ValidatingAdmissionPolicyBinding", "kubelet")
    assert policies.keys() == {SKIP, INSTALLER}
    for policy, found in policies.items():
        assert bindings[policy]["spec"] == {"policyName": policy, "validationActions": ["Deny"]}
        assert found["spec"]["failurePolicy"] == "Fail"


def test_an_older_cluster_gets_no_policy() -> None:
    assert of_kind("ValidatingAdmissionPolicy", "kubelet", suffix="-before-1.30") == {}
    assert of_kind("DaemonSet", "kubelet", suffix="-before-1.30").keys() == of_kind("DaemonSet", "kubelet").keys()
