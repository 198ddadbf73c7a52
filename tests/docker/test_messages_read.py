"""Parsing Docker's bodies as dockershim sends them: with all members of Go's structs."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy.core.call import Unreadable
from runtimeproxy.docker import messages
from runtimeproxy.docker.messages import (
    RESOURCE_TABLE,
    DockerName,
    RequestedContainer,
    RequestedPod,
    is_pods,
    parse_name,
    read_update,
)
from runtimeproxy.model.fields import ContainerInfo, PodInfo, Resources, named
from tests.docker.bodies import (
    CONTAINER_BODY,
    CONTAINER_NAME,
    KUBELETS,
    NO_DOCUMENTS,
    PARENT,
    POD_BODY,
    POD_NAME,
    REPORTED,
    REPORTED_POD,
    changed,
)
from tests.fakes.dockerd_shapes import RESOURCES, filled

NO_LIMITS = filled(RESOURCES, {})
"""Docker's Resources as Go writes them: all members of the struct."""


def read_create(body: dict[str, Any], name: str = CONTAINER_NAME) -> RequestedPod | RequestedContainer | None:
    return messages.read_create(json.dumps(body).encode(), name)


def read_container(body: dict[str, Any]) -> ContainerInfo:
    read = read_create(body)
    assert isinstance(read, RequestedContainer)
    return read.container


def without(body: dict[str, Any], *left_out: str) -> dict[str, dict[str, str]]:
    """Return a change of a body that removes the labels with these prefixes."""
    return {"Labels": {key: value for key, value in body["Labels"].items() if not key.startswith(left_out)}}


Case = tuple[dict[str, Any], str, dict[str, Any]]
"""The changes of the body, the name in the request, and the values that are read differently then."""


def of_host(key: str, value: object, resources: Resources | None) -> Case:
    return {f"HostConfig/{key}": value}, POD_NAME, {"resources": resources}


PODS: dict[str, Case] = {
    "as dockershim requests": ({}, POD_NAME, {}),
    "a name of seven parts": ({}, POD_NAME + "_0a1b2c3d", {}),
    "no name": ({}, "", {"attempt": 0}),
    "labels are the better source": ({}, "k8s_POD_a_b_c_7", {"attempt": 7}),
    "without the kubelet's labels the name reports": (
        without(POD_BODY, "io.kubernetes.pod."),
        POD_NAME,
        {"labels": {key: value for key, value in REPORTED_POD.labels.items() if key not in KUBELETS}},
    ),
    "a runtime": ({"HostConfig/Runtime": "kata"}, POD_NAME, {"runtime_handler": "kata"}),
    # resources of a pod are those that not every pause container has
    "shares": of_host("CpuShares", 1024, Resources(cpu_shares=1024)),
    "an OOM score": of_host("OomScoreAdj", 5, Resources(oom_score_adj=5)),
    "an OOM score of 0": of_host("OomScoreAdj", 0, None),
}


@pytest.mark.parametrize(("changes", "name", "expected"), PODS.values(), ids=PODS)
def test_pod(changes: dict[str, Any], name: str, expected: dict[str, Any]) -> None:
    pod = replace(REPORTED_POD, cgroup_parent="", **expected)
    assert read_create(changed(POD_BODY, changes), name) == RequestedPod(pod, PARENT)
    assert read_create({"Labels": {TYPE: "podsandbox"}}, "") == RequestedPod(PodInfo(), "")


RESTARTS = "io.kubernetes.container.restartCount"
NAMELESS = without(CONTAINER_BODY, "io.kubernetes.container.name")


def restarted(count: str, attempt: int, name: str = "web") -> Case:
    notified = {"attempt": attempt, "annotations": {**REPORTED.annotations, RESTARTS: count}}
    return {f"Labels/annotation.{RESTARTS}": count}, name, notified


def with_env(env: object, envs: dict[str, str]) -> Case:
    return {"Env": env}, CONTAINER_NAME, {"envs": envs}


CONTAINERS: dict[str, Case] = {
    "as dockershim requests": ({}, CONTAINER_NAME, {}),
    "what is not read may be anything": ({"Cmd": 5, "cMD": {}, "Unknown": [1e300, None, "\ud800"]}, CONTAINER_NAME, {}),
    "keys of labels are exact": ({"Labels/IO.kubernetes.docker.type": "podsandbox"}, CONTAINER_NAME, {}),
    "the name reports the attempt": restarted("5", 2, CONTAINER_NAME),
    "else the restarts do": restarted("7", 7),
    **{f"no attempt: {count[:10]!r}": restarted(count, 0) for count in ("4294967296", "-1", "x", "", "9" * 5000)},
    "nothing says the attempt": (without(CONTAINER_BODY, "annotation."), "", {"attempt": 0, "annotations": {}}),
    "the name has the name": (NAMELESS, CONTAINER_NAME, {}),
    "nothing has the name": (NAMELESS, "", {"name": ""}),
    "the last entry of a variable": with_env(["A=1", "B=1", "A=2"], {"A": "2", "B": "1"}),
    "no envs": with_env(None, {}),
    "envs without a key or a value": with_env(["BARE", None, "", "=", "=no key", "E=", "F=1=2"], {"E": "", "F": "1=2"}),
    "half a surrogate pair is what Go makes of it": with_env(
        ["A=\ud800", "B=\ud83d\ude00", "\udfff=c"], {"A": "\ufffd", "B": "\U0001f600", "\ufffd": "c"}
    ),
    "a long text": with_env(["A=" + "[,{" * 200_000], {"A": "[,{" * 200_000}),
}


@pytest.mark.parametrize(("changes", "name", "expected"), CONTAINERS.values(), ids=CONTAINERS)
def test_container(changes: dict[str, Any], name: str, expected: dict[str, Any]) -> None:
    read = read_create(changed(CONTAINER_BODY, changes), name)
    assert read == RequestedContainer(replace(REPORTED, **expected), PARENT)
    for host in (None, {}, NO_LIMITS):
        read = read_create(changed(CONTAINER_BODY, {**changes, "HostConfig": host}), name)
        assert read == RequestedContainer(replace(REPORTED, **expected, resources=Resources()), "")


@pytest.mark.parametrize(("field", "key"), RESOURCE_TABLE.items())
def test_each_resource_has_its_key(field: str, key: str) -> None:
    value = "0-3" if key.startswith("Cpuset") else -1
    host = {**NO_LIMITS, key: value}
    assert named(read_container(changed(CONTAINER_BODY, {"HostConfig": host})).resources) == {field: value}
    of_update = {} if field == "oom_score_adj" else {field: value}
    assert read_update(json.dumps(host).encode()) == Resources(**of_update), "an update has no OOM score"


def test_keys_are_found_as_go_finds_them() -> None:
    text = json.dumps(CONTAINER_BODY)
    for key in ("Env", "Labels", "HostConfig", "CgroupParent", *RESOURCE_TABLE.values()):
        text = text.replace(f'"{key}"', f'"{key.swapcase()}"')
    assert messages.read_create(text.encode(), CONTAINER_NAME) == RequestedContainer(REPORTED, PARENT)


TYPE = "io.kubernetes.docker.type"


@pytest.mark.parametrize("labels", [None, {}, {"app": "web"}, {TYPE: "other"}, {TYPE: ""}])
def test_create_of_something_else_is_none(labels: object) -> None:
    assert read_create({**CONTAINER_BODY, "Env": "not read", "HostConfig": 5, "Labels": labels}) is None
    assert read_create({"Image": "busybox"}) is None


MAY_BE_PODS = [(json.dumps(POD_BODY).encode(), True), (b'{"Cmd": ["echo", "io.kubernetes.docker.type"]}', True)]
MAY_BE_PODS += [(rb'{"Labels": {"io.kubernetes.docker.typ\u0065": "container"}}', True)]
MAY_BE_PODS += [(rb'{"Labels": {"note": "\u00e9"}}', True)]
MAY_BE_PODS += [(rb'{"Labels": {"io.kubernetes.pod.name": "a\nb\\c"}}', False)]
MAY_BE_PODS += [(b'{"Labels": {"IO.kubernetes.docker.type": "container"}}', False), (b"", False), (b"\xff", False)]


@pytest.mark.parametrize(("body", "expected"), MAY_BE_PODS)
def test_body_is_read_only_if_it_may_be_a_pods(body: bytes, expected: bool) -> None:
    assert is_pods(body) is expected


def test_created_id() -> None:
    for reply in (b'{"Id":"c1","Warnings":[]}\n', b'{"id":"c1"}'):
        assert messages.read_created_id(reply) == "c1"
    for wrong in (b"{}", b'{"Id":""}', b'{"Id":null}', b'{"Id":5}', b'{"message":"x"}'):
        with pytest.raises(Unreadable):
            messages.read_created_id(wrong)


WRONG: dict[str, tuple[str, list[object]]] = {
    # the places of values with a wrong type, and the name in the error
    "Labels": ("Labels", [[], "canary"]),
    "Labels/canary": ("Labels", [5, ["canary"]]),
    "Labels/io.kubernetes.sandbox.id": ("sandbox", [""]),
    "Env": ("Env", [{}, "canary=1", ["A=1", 5], [["canary"]]]),
    "HostConfig": ("HostConfig", [[], "canary"]),
    "HostConfig/CgroupParent": ("CgroupParent", [5]),
    "HostConfig/CpuQuota": ("CpuQuota", ["canary", 1.5, 1.0, True, {}]),
    "HostConfig/Memory": ("out of range in Memory", [2**63]),
    "HostConfig/MemorySwap": ("out of range in MemorySwap", [-(2**63) - 1]),
    "HostConfig/CpusetCpus": ("CpusetCpus", [1]),
    "HostConfig/Runtime": ("Runtime", [5]),  # which only a pod's is read for
}


@pytest.mark.parametrize("path", WRONG)
def test_unreadable_value(path: str) -> None:
    problem, values = WRONG[path]
    for value in values:
        with pytest.raises(Unreadable, match=problem) as raised:
            read_create(changed(POD_BODY if problem in ("Runtime", "CpuQuota") else CONTAINER_BODY, {path: value}))
        assert "canary" not in str(raised.value)


@pytest.mark.parametrize("key", ["Labels", "Env", "HostConfig", "CgroupParent", "Memory", "CpusetMems", "app"])
def test_key_that_is_read_occurs_once(key: str) -> None:
    """For some repeated keys Go merges the values, for others the last wins; keys of labels are case-sensitive."""
    text = json.dumps(changed(CONTAINER_BODY, {"Labels/app": "web"}))
    for twin in (key, key.upper(), key.replace("s", "\u017f")) if key != "app" else (key,):
        twice = text.replace(f'"{key}": ', f'"{twin}": null, "{key}": ')
        with pytest.raises(Unreadable):
            messages.read_create(twice.encode(), CONTAINER_NAME)


KINDS = [
    ({TYPE: "podsandbox"}, CONTAINER_NAME, "podsandbox"),
    ({TYPE: "container"}, "odd", "container"),
    ({}, POD_NAME, "podsandbox"),
    (5, CONTAINER_NAME, "container"),
    (5, "odd", None),
]


@pytest.mark.parametrize(("labels", "name", "kind"), KINDS)
def test_kind_of_unreadable_is_that_of_label_or_name(labels: object, name: str, kind: str | None) -> None:
    assert messages.kind_of_unreadable(json.dumps({"Labels": labels}).encode(), name) == kind


Reader = Callable[[bytes], object]
READERS = [lambda body: messages.read_create(body, CONTAINER_NAME), read_update, messages.read_created_id]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("text", [*NO_DOCUMENTS, b"\xef\xbb\xbf{}"])
def test_unreadable_document(read: Reader, text: bytes) -> None:
    with pytest.raises(Unreadable) as raised:
        read(text)
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize("value", [[[]] * 70_000, dict.fromkeys(map(str, range(70_000)))])
def test_body_of_too_many_values_is_not_read(value: object) -> None:
    body = json.dumps({**CONTAINER_BODY, "Mounts": value}).encode()
    for read in READERS[:2]:
        with pytest.raises(Unreadable, match="request with more than 131072 fields"):
            read(body)


NAME_UID = "6f1c2b60-8a55-4c0a-9d2e-3b1f0a6c7d10"
NAMES = {
    f"k8s_POD_web-0_default_{NAME_UID}_0": DockerName("POD", "web-0", "default", NAME_UID, 0),
    "k8s_a_b.c_d_e_4294967295": DockerName("a", "b.c", "d", "e", 2**32 - 1),
}
OTHER_NAMES = ["", "/", "web", "K8S_a_b_c_d_0", "x_a_b_c_d_0", "//k8s_a_b_c_d_0", "/parent/k8s_a_b_c_d_0"]
OTHER_NAMES += ["k8s_a_b_c_0", "k8s_a_b_c_d_0_e_f", "k8s_a_b_c_d_0_", "k8s__b_c_d_0", "k8s_a_b_c_d_", "k8s_a_b_c_d_-1"]
OTHER_NAMES += ["k8s_a_b_c_d_+1", "k8s_a_b_c_d_1.0", "k8s_a_b_c_d_٣", "k8s_a_b_c_d_4294967296"]
OTHER_NAMES += ["k8s_a_b_c_d_" + "9" * 5000, "k8s_a_b_c_d_0\n"]


def test_name_is_read_with_and_without_slash_and_suffix() -> None:
    for name, parts in NAMES.items():
        for spelt in (name, f"/{name}", f"{name}_0a1b2c3d", f"/{name}_0a1b2c3d"):
            assert parse_name(spelt) == parts
    assert [parse_name(name) for name in OTHER_NAMES] == [None] * len(OTHER_NAMES)
