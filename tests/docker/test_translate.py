"""Tests of reading Docker's bodies. They are made in the shape in which dockershim sends them: whole structs."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.call import Unreadable
from runtimeproxy.docker import translate
from runtimeproxy.docker.resources import RESOURCE_TABLE
from runtimeproxy.docker.translate import AskedContainer, AskedPod, is_pods, read_created_id, read_update
from runtimeproxy.model import ContainerInfo, PodInfo, Resources, named
from tests.docker.bodies import (
    CONTAINER,
    CONTAINER_BODY,
    CONTAINER_LABELS,
    CONTAINER_NAME,
    NO_LIMITS,
    PARENT,
    POD,
    POD_BODY,
    POD_LABELS,
    POD_NAME,
    SANDBOX,
    UID,
)


def changed(body: dict[str, Any], path: str, value: object) -> bytes:
    """Write a body with a value at a path of keys with slashes between them."""
    copy: dict[str, Any] = json.loads(json.dumps(body))
    *parents, last = path.split("/")
    inner = copy
    for key in parents:
        inner = inner[key]
    inner[last] = value
    return json.dumps(copy).encode()


def read_pod(body: bytes, name: str = POD_NAME) -> PodInfo:
    read = translate.read_create(body, name)
    assert isinstance(read, AskedPod)
    return read.pod


def read_container(body: bytes, name: str = CONTAINER_NAME) -> ContainerInfo:
    read = translate.read_create(body, name)
    assert isinstance(read, AskedContainer)
    return read.container


def labels_without(labels: dict[str, str], *left_out: str) -> dict[str, str]:
    return {key: value for key, value in labels.items() if not key.startswith(left_out)}


# ---- pods


def test_pod() -> None:
    assert translate.read_create(json.dumps(POD_BODY).encode(), POD_NAME) == AskedPod(POD, PARENT)


def test_pod_whose_name_has_seven_parts() -> None:
    assert read_pod(json.dumps(POD_BODY).encode(), POD_NAME + "_0a1b2c3d").attempt == 3


@pytest.mark.parametrize("name", ["", "web", "k8s_POD_web-0_shop_uid_x"])
def test_pod_with_another_name_is_known_by_its_labels(name: str) -> None:
    pod = read_pod(json.dumps(POD_BODY).encode(), name)
    assert (pod.name, pod.namespace, pod.uid, pod.attempt) == ("web-0", "shop", UID, 0)


def test_pod_without_the_kubelets_labels_is_known_by_its_name() -> None:
    pod = read_pod(changed(POD_BODY, "Labels", labels_without(POD_LABELS, "io.kubernetes.pod.")))
    assert (pod.name, pod.namespace, pod.uid, pod.attempt) == ("web-0", "shop", UID, 3)


def test_labels_are_the_better_source() -> None:
    pod = read_pod(json.dumps(POD_BODY).encode(), "k8s_POD_a_b_c_7")
    assert (pod.name, pod.namespace, pod.uid, pod.attempt) == ("web-0", "shop", UID, 7)


def test_pod_without_name_and_labels() -> None:
    body = b'{"Labels": {"io.kubernetes.docker.type": "podsandbox"}}'
    assert translate.read_create(body, "") == AskedPod(PodInfo(), "")


def test_runtime_of_the_pod() -> None:
    assert read_pod(changed(POD_BODY, "HostConfig/Runtime", "kata")).runtime_handler == "kata"


@pytest.mark.parametrize(
    ("key", "value", "resources"),
    [
        ("CpuShares", 1024, Resources(cpu_shares=1024)),
        ("OomScoreAdj", 5, Resources(oom_score_adj=5)),
        ("Memory", 2**30, Resources(memory_limit_in_bytes=2**30)),
        ("CpuQuota", -1, Resources(cpu_quota=-1)),
        ("CpuQuota", 2, Resources(cpu_quota=2)),
        ("CpusetCpus", "0", Resources(cpuset_cpus="0")),
        ("OomScoreAdj", 0, None),
        ("CpuShares", 0, None),
        ("CpuShares", None, None),
    ],
)
def test_resources_of_a_pod_are_what_is_not_every_pause_containers(
    key: str, value: object, resources: Resources | None
) -> None:
    assert read_pod(changed(POD_BODY, f"HostConfig/{key}", value)).resources == resources


# ---- containers


def test_container() -> None:
    assert translate.read_create(json.dumps(CONTAINER_BODY).encode(), CONTAINER_NAME) == AskedContainer(
        CONTAINER, PARENT
    )


@pytest.mark.parametrize(
    ("restarts", "attempt"),
    [("2", 2), ("4294967295", 2**32 - 1), ("4294967296", 0), ("-1", 0), ("x", 0), ("", 0), ("9" * 5000, 0)],
)
def test_attempt_of_a_container_with_another_name(restarts: str, attempt: int) -> None:
    body = changed(CONTAINER_BODY, "Labels/annotation.io.kubernetes.container.restartCount", restarts)
    assert read_container(body, "web").attempt == attempt
    assert read_container(body).attempt == 2


def test_attempt_of_a_container_that_says_nothing_of_it() -> None:
    body = changed(CONTAINER_BODY, "Labels", labels_without(CONTAINER_LABELS, "annotation."))
    assert (read_container(body, "").attempt, read_container(body, "").annotations) == (0, {})


def test_container_without_a_label_of_its_name() -> None:
    body = changed(CONTAINER_BODY, "Labels", labels_without(CONTAINER_LABELS, "io.kubernetes.container.name"))
    assert (read_container(body).name, read_container(body, "").name) == ("main", "")


@pytest.mark.parametrize("env", [None, [], ["BARE", None, "", "="]])
def test_container_without_envs(env: object) -> None:
    assert read_container(changed(CONTAINER_BODY, "Env", env)).envs == {}


def test_half_a_surrogate_pair_is_what_go_makes_of_it() -> None:
    body = json.dumps({**CONTAINER_BODY, "Env": ["A=\ud800", "B=\ud83d\ude00", "\udfff=c"]}).encode()
    assert b"\\ud800" in body
    assert read_container(body).envs == {"A": "\ufffd", "B": "\U0001f600", "\ufffd": "c"}


@pytest.mark.parametrize("host", [None, {}, NO_LIMITS])
def test_container_without_limits(host: object) -> None:
    body = changed(CONTAINER_BODY, "HostConfig", host)
    assert translate.read_create(body, CONTAINER_NAME) == AskedContainer(read_container(body), "")
    assert read_container(body).resources == Resources()


@pytest.mark.parametrize(("field", "key"), RESOURCE_TABLE.items())
def test_each_resource_has_its_key(field: str, key: str) -> None:
    value = "0-3" if key.startswith("Cpuset") else 7
    host = {**NO_LIMITS, key: value}
    assert named(read_container(changed(CONTAINER_BODY, "HostConfig", host)).resources) == {field: value}


def test_keys_are_found_as_go_finds_them() -> None:
    text = json.dumps(CONTAINER_BODY)
    for key in ("Env", "Labels", "HostConfig", "CgroupParent", *RESOURCE_TABLE.values()):
        text = text.replace(f'"{key}"', f'"{key.swapcase()}"')
    assert translate.read_create(text.encode(), CONTAINER_NAME) == AskedContainer(CONTAINER, PARENT)
    assert read_container(text.replace('"eNV"', '"env"').encode()).envs == CONTAINER.envs


def test_keys_of_labels_are_exact() -> None:
    labels = {**CONTAINER_LABELS, "IO.kubernetes.docker.type": "podsandbox"}
    assert read_container(changed(CONTAINER_BODY, "Labels", labels)).pod_id == SANDBOX


def test_what_is_not_read_may_be_anything() -> None:
    text = json.dumps({**CONTAINER_BODY, "Cmd": 5, "cMD": {}, "Unknown": [1e300, None, "\ud800"]})
    assert read_container(text.encode()) == CONTAINER


# ---- what is not a pod's


@pytest.mark.parametrize(
    "labels",
    [None, {}, {"app": "web"}, {"io.kubernetes.docker.type": "other"}, {"io.kubernetes.docker.type": ""}],
)
def test_create_of_something_else(labels: object) -> None:
    body = changed({**CONTAINER_BODY, "Env": "not read", "HostConfig": 5}, "Labels", labels)
    assert translate.read_create(body, CONTAINER_NAME) is None


def test_create_without_labels() -> None:
    assert translate.read_create(b'{"Image": "busybox"}', "web") is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (json.dumps(POD_BODY).encode(), True),
        (json.dumps(CONTAINER_BODY, ensure_ascii=False).encode(), True),
        (rb'{"Labels": {"\u0069o.kubernetes.docker.type": "podsandbox"}}', True),
        (rb'{"Labels": {"io.kubernetes.docker.typ\u0065": "container"}}', True),
        (rb'{"Labels": {"note": "\u00e9"}}', True),
        (b'{"Cmd": ["echo", "io.kubernetes.docker.type"]}', True),
        (rb'{"Labels": {"io.kubernetes.pod.name": "a\nb\\c"}}', False),
        (b'{"Labels": {"IO.kubernetes.docker.type": "container"}}', False),
        (b"", False),
        (b"\xff", False),
    ],
)
def test_a_body_is_read_only_if_it_may_be_a_pods(body: bytes, expected: bool) -> None:
    assert is_pods(body) is expected


def test_escapes_hide_nothing() -> None:
    text = "".join(f"\\u{ord(character):04x}" for character in "io.kubernetes.docker.type")
    body = f'{{"Labels": {{"{text}": "podsandbox"}}}}'.encode()
    assert is_pods(body)
    assert read_pod(body, "") == PodInfo()


@given(st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3), st.booleans())
def test_what_is_surely_not_a_pods_is_read_as_none(labels: dict[str, str], ascii_only: bool) -> None:
    body = json.dumps({"Labels": labels}, ensure_ascii=ascii_only).encode(errors="replace")
    if not is_pods(body):
        assert translate.read_create(body, CONTAINER_NAME) is None


# ---- updates, replies


def test_update() -> None:
    body = {**NO_LIMITS, "CpusetCpus": "0-3", "RestartPolicy": {"Name": "", "MaximumRetryCount": 0}}
    assert read_update(json.dumps(body).encode()) == Resources(cpuset_cpus="0-3")


def test_update_of_nothing() -> None:
    assert read_update(b"{}") == read_update(json.dumps(NO_LIMITS).encode()) == Resources()


@pytest.mark.parametrize(("field", "key"), [pair for pair in RESOURCE_TABLE.items() if pair[0] != "oom_score_adj"])
def test_each_resource_of_an_update_has_its_key(field: str, key: str) -> None:
    value = "0" if key.startswith("Cpuset") else -1
    assert named(read_update(json.dumps({**NO_LIMITS, key: value}).encode())) == {field: value}


def test_an_update_has_no_oom_score() -> None:
    assert read_update(b'{"OomScoreAdj": 5}') == Resources()


@pytest.mark.parametrize("reply", [b'{"Id":"c1","Warnings":[]}\n', b'{"id":"c1"}'])
def test_created_id(reply: bytes) -> None:
    assert read_created_id(reply) == "c1"


@pytest.mark.parametrize("reply", [b"", b"{}", b'{"Id":""}', b'{"Id":null}', b'{"Id":5}', b'"c1"', b'{"message":"x"}'])
def test_reply_without_an_id(reply: bytes) -> None:
    with pytest.raises(Unreadable):
        read_created_id(reply)


# ---- what cannot be read


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("Labels", [], "Labels"),
        ("Labels", "canary", "Labels"),
        ("Labels/canary", 5, "Labels"),
        ("Labels/canary", ["canary"], "Labels"),
        ("Env", {}, "Env"),
        ("Env", "canary=1", "Env"),
        ("Env", ["A=1", 5], "Env"),
        ("Env", [["canary"]], "Env"),
        ("HostConfig", [], "HostConfig"),
        ("HostConfig", "canary", "HostConfig"),
        ("HostConfig/CgroupParent", 5, "CgroupParent"),
        ("HostConfig/CpuQuota", "canary", "CpuQuota"),
        ("HostConfig/CpuQuota", 1.5, "CpuQuota"),
        ("HostConfig/CpuQuota", 1.0, "CpuQuota"),
        ("HostConfig/CpuQuota", True, "CpuQuota"),
        ("HostConfig/CpuQuota", {}, "CpuQuota"),
        ("HostConfig/Memory", 2**63, "out of range in Memory"),
        ("HostConfig/MemorySwap", -(2**63) - 1, "out of range in MemorySwap"),
        ("HostConfig/CpusetCpus", 1, "CpusetCpus"),
        ("Labels/io.kubernetes.sandbox.id", "", "sandbox"),
    ],
)
def test_unreadable_value(path: str, value: object, problem: str) -> None:
    with pytest.raises(Unreadable, match=problem) as raised:
        translate.read_create(changed(CONTAINER_BODY, path, value), CONTAINER_NAME)
    assert "canary" not in str(raised.value)


def test_unreadable_runtime_of_a_pod() -> None:
    with pytest.raises(Unreadable, match="Runtime"):
        translate.read_create(changed(POD_BODY, "HostConfig/Runtime", 5), POD_NAME)


@pytest.mark.parametrize("key", ["Labels", "Env", "HostConfig", "CgroupParent", "Memory", "CpusetMems"])
def test_a_key_that_is_read_stands_once(key: str) -> None:
    """Go merges some of such values and replaces others."""
    text = json.dumps(CONTAINER_BODY)
    for twin in (key, key.upper(), key.replace("s", "\u017f")):
        twice = text.replace(f'"{key}": ', f'"{twin}": null, "{key}": ')
        with pytest.raises(Unreadable):
            translate.read_create(twice.encode(), CONTAINER_NAME)


def test_a_label_stands_once() -> None:
    with pytest.raises(Unreadable):
        translate.read_create(b'{"Labels": {"canary": "", "canary": ""}}', CONTAINER_NAME)


READERS: list[Callable[[bytes], object]] = [
    lambda body: translate.read_create(body, CONTAINER_NAME),
    read_update,
    read_created_id,
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "text",
    [b"", b"canary", b"[]", b"null", b"5", b'"canary"', b"{} {}", b'{"a":"\xff"}', b"[" * 100_000, b"\xef\xbb\xbf{}"],
)
def test_unreadable_document(read: Callable[[bytes], object], text: bytes) -> None:
    with pytest.raises(Unreadable) as raised:
        read(text)
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize("read", READERS)
@given(body=st.binary(max_size=40))
def test_arbitrary_bytes_are_read_or_unreadable(read: Callable[[bytes], object], body: bytes) -> None:
    with suppress(Unreadable):
        assert not isinstance(read(body), AskedPod | AskedContainer)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
PATHS = ["Labels", "Env", "HostConfig", "Labels/io.kubernetes.docker.type", "Labels/io.kubernetes.sandbox.id"]
PATHS += [f"HostConfig/{key}" for key in ("CgroupParent", "Runtime", *RESOURCE_TABLE.values())]


@settings(deadline=None)
@given(st.sampled_from([POD_BODY, CONTAINER_BODY]), st.sampled_from(PATHS), JSON)
def test_any_value_anywhere_is_read_or_unreadable(body: dict[str, Any], path: str, value: object) -> None:
    with suppress(Unreadable):
        read = translate.read_create(changed(body, path, value), CONTAINER_NAME)
        assert read is None or isinstance(read, AskedPod | AskedContainer)


@given(st.lists(st.tuples(st.text(min_size=1, max_size=3), st.text(max_size=3)), max_size=5))
def test_the_last_entry_of_a_variable_counts(entries: list[tuple[str, str]]) -> None:
    pairs = [(key.replace("=", "-"), value) for key, value in entries]
    env = [f"{key}={value}" for key, value in pairs]
    assert read_container(changed(CONTAINER_BODY, "Env", env)).envs == dict(pairs)


@pytest.mark.parametrize("value", [[[]] * 70_000, [""] * 70_000, dict.fromkeys(map(str, range(70_000)))])
def test_a_body_of_too_many_values_is_not_read(value: object) -> None:
    for read in (read_update, read_container):
        with pytest.raises(Unreadable, match="request with more than 131072 fields"):
            read(changed(CONTAINER_BODY, "Mounts", value))


def test_a_long_body_of_few_values_is_read() -> None:
    assert read_container(changed(CONTAINER_BODY, "Env", ["A=" + "[,{" * 200_000])).envs["A"].startswith("[,{")
