"""Tests of reading what inspect says: it equals what the create asked for, once dockerd's own is taken off.

``inspected`` does to a create what dockerd does (moby's daemon/commit.go and daemon/daemon_unix.go).
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.call import Unreadable
from runtimeproxy.docker import status
from runtimeproxy.docker.status import Inspected, Life, read_image, read_life
from runtimeproxy.docker.translate import AskedContainer, AskedPod, read_create
from runtimeproxy.hookpoints import SubjectKind
from runtimeproxy.model import ContainerInfo, PodInfo, Resources

ID = "cd" * 32
IMAGE_ID = "sha256:" + "ef" * 32
PATH = "PATH=/usr/local/bin:/usr/bin:/bin"
UID = "0c5c2f5e-1111-4222-8333-944455556666"
POD_NAME = f"k8s_POD_web-0_shop_{UID}_1"
CONTAINER_NAME = f"k8s_main_web-0_shop_{UID}_2"
META = {"io.kubernetes.pod.name": "web-0", "io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.uid": UID}

POD_CREATE: dict[str, Any] = {
    "Hostname": "web-0",
    "Image": "pause:3.10",
    "Env": None,
    "Labels": {
        **META,
        "annotation.note": "x",
        "app": "web",
        "io.kubernetes.container.name": "POD",
        "io.kubernetes.docker.type": "podsandbox",
    },
    "HostConfig": {
        "CpuShares": 2,
        "OomScoreAdj": -998,
        "Memory": 0,
        "MemorySwap": 0,
        "CgroupParent": "kubepods-pod1.slice",
    },
}
CONTAINER_CREATE: dict[str, Any] = {
    "Image": "busybox:1",
    "Env": ["A=1", "HOST=10.96.0.1", "A=2"],
    "Labels": {
        **META,
        "annotation.io.kubernetes.container.hash": "d464c1e4",
        "io.kubernetes.container.logpath": "/var/log/pods/main/2.log",
        "io.kubernetes.container.name": "main",
        "io.kubernetes.docker.type": "container",
        "io.kubernetes.sandbox.id": "ab" * 32,
    },
    "HostConfig": {
        "CpuShares": 512,
        "OomScoreAdj": 968,
        "Memory": 2**28,
        "MemorySwap": 2**28,
        "CpusetCpus": "0-1",
        "CgroupParent": "kubepods-pod1.slice",
        "Runtime": "",
    },
}


def image(env: Sequence[str] | None = (PATH,), labels: Mapping[str, str] | None = None) -> bytes:
    """Inspect an image."""
    return json.dumps({"Id": IMAGE_ID, "Config": {"Env": env and list(env), "Labels": labels}}).encode()


def inspected(create: Mapping[str, Any], name: str, shipped: bytes = image(), counts_swap: bool = True) -> bytes:
    """Inspect a container as dockerd made it of a create; ``counts_swap`` tells whether the kernel accounts for it."""
    config = json.loads(shipped)["Config"]
    env = list(create.get("Env") or [])
    if env:
        for entry in config["Env"] or ():
            if entry.partition("=")[0] not in {own.partition("=")[0] for own in env}:
                env.append(entry)
    else:
        env = config["Env"]
    labels = {**(config["Labels"] or {}), **(create.get("Labels") or {})}
    host = {"CgroupParent": "", "Memory": 0, "MemorySwap": 0, **(create.get("HostConfig") or {}), "ShmSize": 67108864}
    host["Runtime"] = host.get("Runtime") or "runc"
    if host["Memory"] > 0 and not counts_swap:
        host["MemorySwap"] = -1
    if host["Memory"] > 0 and host["MemorySwap"] == 0:
        host["MemorySwap"] = 2 * host["Memory"]
    reply = {"Id": ID, "Name": f"/{name}", "Image": IMAGE_ID, "State": {"Pid": 5}, "HostConfig": host}
    return json.dumps({**reply, "Config": {"Image": create["Image"], "Env": env, "Labels": labels}}).encode()


def read_inspect(reply: bytes, image: bytes | None, *default_runtime: str) -> Inspected:
    """Read an inspected container and its image."""
    shipped = None if image is None else read_image(image)
    return status.read_inspect(status.told(reply, ID), shipped, *default_runtime)


def asked(create: Mapping[str, Any], name: str) -> Inspected:
    """Return what a create asks for, with the ids that it got."""
    value = read_create(json.dumps(create).encode(), name)
    if isinstance(value, AskedPod):
        return Inspected(ID, SubjectKind.POD, IMAGE_ID, replace(value, pod=replace(value.pod, id=ID)))
    assert value is not None
    container = replace(value.container, id=ID)
    return Inspected(ID, SubjectKind.CONTAINER, IMAGE_ID, replace(value, container=container))


def with_value(body: Mapping[str, Any], path: str, value: object) -> dict[str, Any]:
    """Copy a body with a value at a path of keys with slashes between them."""
    copy: dict[str, Any] = json.loads(json.dumps(body))
    *parents, last = path.split("/")
    inner = copy
    for key in parents:
        inner = inner[key]
    inner[last] = value
    return copy


def pod_of(reply: bytes, shipped: bytes | None = None) -> PodInfo:
    value = read_inspect(reply, shipped).value
    assert isinstance(value, AskedPod)
    return value.pod


def container_of(reply: bytes, shipped: bytes | None = None) -> ContainerInfo:
    value = read_inspect(reply, shipped).value
    assert isinstance(value, AskedContainer)
    return value.container


# ---- what the create gave


def test_pod() -> None:
    read = read_inspect(inspected(POD_CREATE, POD_NAME), image())
    assert read == asked(POD_CREATE, POD_NAME)
    pod = PodInfo(ID, "web-0", UID, "shop", attempt=1, labels={**META, "app": "web"}, annotations={"note": "x"})
    assert read == Inspected(ID, SubjectKind.POD, IMAGE_ID, AskedPod(pod, "kubepods-pod1.slice"))


def test_container() -> None:
    read = read_inspect(inspected(CONTAINER_CREATE, CONTAINER_NAME), image())
    assert read == asked(CONTAINER_CREATE, CONTAINER_NAME)
    container = container_of(inspected(CONTAINER_CREATE, CONTAINER_NAME), image())
    assert (container.id, container.pod_id, container.name, container.attempt) == (ID, "ab" * 32, "main", 2)
    assert container.envs == {"A": "2", "HOST": "10.96.0.1"}
    assert container.resources == Resources(
        cpu_shares=512,
        oom_score_adj=968,
        memory_limit_in_bytes=2**28,
        memory_swap_limit_in_bytes=2**28,
        cpuset_cpus="0-1",
    )


CREATES = [
    pytest.param(POD_CREATE, "HostConfig", None, id="nothing asked for"),
    pytest.param(POD_CREATE, "HostConfig/Runtime", "kata", id="a runtime"),
    pytest.param(POD_CREATE, "HostConfig/Memory", 2**30, id="a limit of the sandbox"),
    pytest.param(POD_CREATE, "HostConfig/CpuQuota", 50000, id="a quota of the sandbox"),
    pytest.param(POD_CREATE, "HostConfig/CgroupParent", "", id="no parent"),
    pytest.param(CONTAINER_CREATE, "HostConfig", None, id="no host config"),
    pytest.param(CONTAINER_CREATE, "HostConfig", {}, id="an empty host config"),
    pytest.param(CONTAINER_CREATE, "HostConfig", {"Memory": 0, "MemorySwap": -1}, id="swap without end"),
    pytest.param(CONTAINER_CREATE, "Env", None, id="no envs"),
    pytest.param(CONTAINER_CREATE, "Env", [], id="an empty list of envs"),
    pytest.param(CONTAINER_CREATE, "Env", ["PATH=/own"], id="an env instead of the image's"),
    pytest.param(CONTAINER_CREATE, "Env", [PATH, "B=1"], id="an env equal to the image's, and others"),
    pytest.param(CONTAINER_CREATE, "Env", ["PATH", "B=1"], id="an env unset"),
    pytest.param(CONTAINER_CREATE, "Env", ["B=1", "B=1"], id="an env twice"),
]


@pytest.mark.parametrize(("create", "path", "value"), CREATES)
@pytest.mark.parametrize("counts_swap", [True, False])
def test_inspect_equals_the_create(create: dict[str, Any], path: str, value: object, counts_swap: bool) -> None:
    body = with_value(create, path, value)
    name = POD_NAME if create is POD_CREATE else CONTAINER_NAME
    assert read_inspect(inspected(body, name, counts_swap=counts_swap), image()) == asked(body, name)


@given(
    st.lists(st.tuples(st.sampled_from("ABCD"), st.sampled_from("=12"))),
    st.dictionaries(st.sampled_from("CDEF"), st.sampled_from("12")),
    st.dictionaries(st.sampled_from(["app", "maintainer"]), st.sampled_from("12")),
)
def test_the_images_part_is_taken_off(
    own: list[tuple[str, str]], shipped: dict[str, str], labels: dict[str, str]
) -> None:
    """The one thing that cannot be told: whether the last entries, equal to the image's, were asked for."""
    shipped_env = [f"{key}={value}" for key, value in shipped.items()]
    env = [f"{key}={value}" for key, value in own]
    body = {**CONTAINER_CREATE, "Env": env}
    shipped_image = image(shipped_env, labels)
    reply = inspected(body, CONTAINER_NAME, shipped_image)
    read = read_inspect(reply, shipped_image)
    while env and env[-1] in shipped_env and read != asked({**body, "Env": env}, CONTAINER_NAME):
        env.pop()
    assert read == asked({**body, "Env": env}, CONTAINER_NAME)


# ---- the image


@pytest.mark.parametrize(
    ("env", "shipped", "expected"),
    [
        ([PATH], [PATH], {}),
        (["A=1", PATH], [PATH], {"A": "1"}),
        ([PATH, "A=1"], [PATH], {"PATH": PATH[5:], "A": "1"}),
        (["PATH=/own", "A=1"], [PATH, "A=1"], {"PATH": "/own"}),
        (["A=1", "B=1", PATH], [PATH, "A=3"], {"A": "1", "B": "1"}),
        (["B=1", "A=1"], ["A=1", "A=2"], {"B": "1"}),
        (["A=1", "A=2"], ["A=1", "A=2"], {}),
        (["A=1", "B=1", PATH], [PATH, "C=1", "A=1"], {"B": "1"}),  # no image of its own
        (["A=1"], None, {"A": "1"}),
        (None, [PATH], {}),
    ],
)
def test_env_of_the_image(env: list[str] | None, shipped: list[str] | None, expected: dict[str, str]) -> None:
    reply = with_value(json.loads(inspected(CONTAINER_CREATE, CONTAINER_NAME)), "Config/Env", env)
    assert container_of(json.dumps(reply).encode(), image(shipped)).envs == expected


def test_without_the_image_all_is_kept() -> None:
    shipped = image([PATH], {"maintainer": "x"})
    assert container_of(inspected(CONTAINER_CREATE, CONTAINER_NAME, shipped)).envs["PATH"] == PATH[5:]
    assert pod_of(inspected(POD_CREATE, POD_NAME, shipped)).labels["maintainer"] == "x"


@pytest.mark.parametrize("shipped", [b"{}", b'{"Config": null}', b'{"Config": {"Env": null, "Labels": null}}'])
def test_image_that_says_nothing(shipped: bytes) -> None:
    assert read_inspect(inspected(POD_CREATE, POD_NAME), shipped) == asked(POD_CREATE, POD_NAME)


def test_labels_of_the_image() -> None:
    shipped = image(None, {"app": "web", "maintainer": "x", "annotation.note": "other"})
    pod = pod_of(inspected(POD_CREATE, POD_NAME, shipped), shipped)
    assert (pod.labels, pod.annotations) == (META, {"note": "x"})


def test_container_of_an_image_that_was_committed_from_a_pods_container() -> None:
    """The image has the kubelet's labels too: they are the container's if dockershim named it."""
    shipped = image(None, CONTAINER_CREATE["Labels"])
    reply = inspected(CONTAINER_CREATE, CONTAINER_NAME, shipped)
    assert read_inspect(reply, shipped) == asked(CONTAINER_CREATE, CONTAINER_NAME)
    plain = inspected({"Image": "committed"}, "silly_name", shipped)
    assert read_inspect(plain, shipped) == Inspected(ID, None, IMAGE_ID, None)


# ---- what dockerd adds


@pytest.mark.parametrize(
    ("create", "name"), [(POD_CREATE, POD_NAME), (CONTAINER_CREATE, CONTAINER_NAME)], ids=["pod", "container"]
)
@pytest.mark.parametrize(
    ("memory", "swap", "of_pod", "of_container"),
    [
        (2**28, 2**28, 2**28, 2**28),
        (2**28, 2**29, 0, 0),
        (2**28, -1, 0, 2**28),
        (2**28, 2**28 + 1, 2**28 + 1, 2**28 + 1),
        (0, -1, -1, -1),
        (0, 0, 0, 0),
    ],
)
def test_swap(create: dict[str, Any], name: str, memory: int, swap: int, of_pod: int, of_container: int) -> None:
    reply = json.loads(inspected(create, name))
    reply["HostConfig"] |= {"Memory": memory, "MemorySwap": swap, "CpuQuota": 1000}
    body = json.dumps(reply).encode()
    is_pod = create is POD_CREATE
    resources = pod_of(body).resources if is_pod else container_of(body).resources
    assert resources is not None
    assert resources.memory_limit_in_bytes == memory
    assert resources.memory_swap_limit_in_bytes == (of_pod if is_pod else of_container)


@pytest.mark.parametrize(
    ("runtime", "default", "handler"),
    [("runc", "runc", ""), ("kata", "runc", "kata"), ("runc", "kata", "runc"), ("kata", "kata", ""), ("", "runc", "")],
)
def test_runtime(runtime: str, default: str, handler: str) -> None:
    reply = with_value(json.loads(inspected(POD_CREATE, POD_NAME)), "HostConfig/Runtime", runtime)
    value = read_inspect(json.dumps(reply).encode(), None, default).value
    assert isinstance(value, AskedPod)
    assert value.pod.runtime_handler == handler


# ---- other containers, other bytes


@pytest.mark.parametrize("labels", [None, {}, {"io.kubernetes.docker.type": "x"}])
def test_container_of_nobodys_pod(labels: object) -> None:
    reply = {"Id": ID, "Name": f"/{CONTAINER_NAME}", "Image": IMAGE_ID, "Config": {"Labels": labels, "Env": "not read"}}
    assert read_inspect(json.dumps(reply).encode(), None) == Inspected(ID, None, IMAGE_ID, None)


UNKNOWN = ("Id", "Name", "Image", "Config/Env", "HostConfig", "HostConfig/Memory", "HostConfig/CpusetCpus")
WRONG = [None, [5], {"canary": 5}, 7.5, 2**70, True, "\ud800"]
"""None of these is right where a text, a number, a list or an object stands."""


@pytest.mark.parametrize("value", WRONG, ids=repr)
@pytest.mark.parametrize("path", UNKNOWN)
def test_what_is_null_or_of_a_wrong_type_is_unknown_by_itself(path: str, value: object) -> None:
    whole = json.loads(inspected(CONTAINER_CREATE, CONTAINER_NAME))
    absent, wrong = (with_value(whole, path, each) for each in (None, value))
    if not isinstance(value, str) or path in ("Config/Env", "HostConfig", "HostConfig/Memory"):
        assert read_inspect(json.dumps(wrong).encode(), image()) == read_inspect(json.dumps(absent).encode(), image())
    known = container_of(json.dumps(absent).encode(), image())
    assert (known.id, known.pod_id) == (ID, "ab" * 32)
    assert known.annotations == {"io.kubernetes.container.hash": "d464c1e4"}


@pytest.mark.parametrize("host", [{}, {"CgroupParent": None}, {"CgroupParent": 5}, None, []])
@pytest.mark.parametrize(
    ("create", "name"), [(POD_CREATE, POD_NAME), (CONTAINER_CREATE, CONTAINER_NAME)], ids=["pod", "container"]
)
def test_a_cgroup_parent_that_is_not_told_is_not_empty(create: dict[str, Any], name: str, host: object) -> None:
    reply = {**json.loads(inspected(create, name)), "HostConfig": host}
    value = read_inspect(json.dumps(reply).encode(), image()).value
    assert value is not None
    assert value.cgroup_parent is None


def test_a_label_or_an_env_that_is_no_text_is_unknown_by_itself() -> None:
    reply = json.loads(inspected(CONTAINER_CREATE, CONTAINER_NAME))
    reply["Config"]["Env"].insert(1, 5)
    reply["Config"]["Labels"]["annotation.other"] = {"canary": 1}
    assert read_inspect(json.dumps(reply).encode(), image()) == asked(CONTAINER_CREATE, CONTAINER_NAME)


@pytest.mark.parametrize("told", ["", None, 5])
def test_an_id_that_is_not_told_is_the_one_asked_for(told: object) -> None:
    assert status.told(json.dumps({"Id": told}).encode(), ID).get("Id") == ID


@pytest.mark.parametrize("sandbox", ["", None, 5])
def test_a_container_whose_pod_nobody_names_is_unreadable(sandbox: object) -> None:
    reply = json.loads(inspected(CONTAINER_CREATE, CONTAINER_NAME))
    reply["Config"]["Labels"]["io.kubernetes.sandbox.id"] = sandbox
    with pytest.raises(Unreadable, match="sandbox"):
        read_inspect(json.dumps(reply).encode(), image())


@pytest.mark.parametrize(
    "text", [b"", b"canary", b"[]", b"null", b"{} {}", b"[" * 100_000, b'{"Config":{},"config":{}}']
)
def test_unreadable_document(text: bytes) -> None:
    for reply, shipped in ((text, image()), (inspected(POD_CREATE, POD_NAME), text)):
        with pytest.raises(Unreadable) as raised:
            read_inspect(reply, shipped)
        assert "canary" not in str(raised.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
PATHS = ["Name", "Image", "Config", "Config/Env", "Config/Labels", "HostConfig", "HostConfig/Memory"]


@settings(deadline=None)
@given(st.sampled_from([POD_CREATE, CONTAINER_CREATE]), st.sampled_from(PATHS), JSON)
def test_any_value_anywhere_is_read(create: dict[str, Any], path: str, value: object) -> None:
    reply = with_value(json.loads(inspected(create, CONTAINER_NAME)), path, value)
    with suppress(Unreadable):
        assert read_inspect(json.dumps(reply).encode(), image()).id == ID


@pytest.mark.parametrize(
    ("word", "started", "running"),
    [
        ("created", False, False),
        ("running", True, True),
        ("paused", True, True),
        ("restarting", True, True),
        ("removing", True, False),
        ("exited", True, False),
        ("dead", True, False),
    ],
)
def test_how_far_a_container_is(word: str, started: bool, running: bool) -> None:
    assert read_life(b'{"State":{"Status":"%b"}}' % word.encode()) == Life(started, running)


@pytest.mark.parametrize("reply", [b"", b"{}", b'{"State":{}}', b'{"State":{"Status":"canary"}}', b'{"State":7}'])
def test_how_far_a_container_is_cannot_be_read(reply: bytes) -> None:
    with pytest.raises(Unreadable) as caught:
        read_life(reply)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "known"),
    [
        pytest.param(b'{"CgroupDriver": "systemd", "DefaultRuntime": "runc"}', ("systemd", "runc"), id="both"),
        pytest.param(b"{}", ("", ""), id="neither"),
    ],
)
def test_what_the_daemon_says_of_itself(reply: bytes, known: tuple[str, str]) -> None:
    assert status.read_info(reply) == known


@pytest.mark.parametrize("reply", [b"", b"[]", b'{"CgroupDriver": 1}', b'{"DefaultRuntime": []}'])
def test_what_the_daemon_says_of_itself_cannot_be_read(reply: bytes) -> None:
    with pytest.raises(Unreadable):
        status.read_info(reply)
