"""Parsing inspect gives what the create requested, once dockerd's additions are removed.

``inspected`` adds to a create what dockerd does (moby's daemon/commit.go and daemon/daemon_unix.go).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.core.call import Life, Unreadable
from runtimeproxy.docker import status
from runtimeproxy.docker.messages import RequestedContainer, RequestedPod, read_create
from runtimeproxy.docker.status import ImageDefaults, read_image, read_state
from runtimeproxy.model.fields import ContainerInfo, PodInfo
from runtimeproxy.wire.json import Object
from tests.docker.bodies import (
    CONTAINER_BODY,
    CONTAINER_NAME,
    KUBELETS,
    NO_DOCUMENTS,
    POD_BODY,
    POD_NAME,
    SANDBOX,
    changed,
)

ID = "cd" * 32
IMAGE_ID = "sha256:" + "ef" * 32
PATH = "PATH=/usr/local/bin:/usr/bin:/bin"
NAMES = {"pod": (POD_BODY, POD_NAME), "container": (CONTAINER_BODY, CONTAINER_NAME)}


def image(env: Sequence[str] | None = (PATH,), labels: Mapping[str, str] | None = None) -> bytes:
    return json.dumps({"Id": IMAGE_ID, "Config": {"Env": env and list(env), "Labels": labels}}).encode()


def merged(own: Sequence[str], shipped: Sequence[str]) -> list[str]:
    """Return env entries with the image's added as dockerd does: all if there are none, else the first of new keys."""
    if not own:
        return list(shipped)
    known, result = {entry.partition("=")[0] for entry in own}, list(own)
    for entry in shipped:
        if (key := entry.partition("=")[0]) not in known:
            known.add(key)
            result.append(entry)
    return result


def inspected(
    create: Mapping[str, Any], name: str, shipped: bytes = image(), counts_swap: bool = True
) -> dict[str, Any]:
    """Return dockerd's inspect of a created container; ``counts_swap``: the kernel accounts for swap."""
    config = json.loads(shipped)["Config"]
    env = merged(create.get("Env") or [], config["Env"] or [])
    labels = {**(config["Labels"] or {}), **(create.get("Labels") or {})}
    host = {"CgroupParent": "", "Memory": 0, "MemorySwap": 0, **(create.get("HostConfig") or {}), "ShmSize": 67108864}
    host["Runtime"] = host.get("Runtime") or "runc"
    if host["Memory"] > 0 and not counts_swap:
        host["MemorySwap"] = -1
    if host["Memory"] > 0 and host["MemorySwap"] == 0:
        host["MemorySwap"] = 2 * host["Memory"]
    reply = {"Id": ID, "Name": f"/{name}", "Image": IMAGE_ID, "State": {"Pid": 5}, "HostConfig": host}
    return {**reply, "Config": {"Image": create["Image"], "Env": env, "Labels": labels}}


Requested = RequestedPod | RequestedContainer | None


def read_inspect(reply: bytes | dict[str, Any], image: bytes | None, *default_runtime: str) -> Requested:
    raw = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
    shipped = None if image is None else read_image(image)
    return status.read_inspect(status.parse_inspect(raw, ID), shipped, *default_runtime)


def queried(create: Mapping[str, Any], name: str) -> Requested:
    """Return what a create requests, with the id that it got."""
    value = read_create(json.dumps(create).encode(), name)
    if isinstance(value, RequestedPod):
        return replace(value, pod=replace(value.pod, id=ID))
    assert value is not None
    return replace(value, container=replace(value.container, id=ID))


def pod_of(reply: dict[str, Any], shipped: bytes | None = None, *default_runtime: str) -> PodInfo:
    value = read_inspect(reply, shipped, *default_runtime)
    assert isinstance(value, RequestedPod)
    return value.pod


def container_of(reply: dict[str, Any], shipped: bytes | None = None) -> ContainerInfo:
    value = read_inspect(reply, shipped)
    assert isinstance(value, RequestedContainer)
    return value.container


CREATES: dict[str, tuple[str, dict[str, object]]] = {
    "a pod": ("pod", {}),
    "a pod that requests nothing": ("pod", {"HostConfig": None}),
    "a runtime": ("pod", {"HostConfig/Runtime": "kata"}),
    "a limit of the sandbox": ("pod", {"HostConfig/Memory": 2**30}),
    "a quota of the sandbox": ("pod", {"HostConfig/CpuQuota": 50000}),
    "no parent": ("pod", {"HostConfig/CgroupParent": ""}),
    "a container": ("container", {}),
    "no host config": ("container", {"HostConfig": None}),
    "an empty host config": ("container", {"HostConfig": {}}),
    "swap without end": ("container", {"HostConfig": {"Memory": 0, "MemorySwap": -1}}),
    "no envs": ("container", {"Env": None}),
    "an empty list of envs": ("container", {"Env": []}),
}


@pytest.mark.parametrize(("kind", "changes"), CREATES.values(), ids=CREATES)
@pytest.mark.parametrize("counts_swap", [True, False])
def test_inspect_equals_the_create(kind: str, changes: dict[str, object], counts_swap: bool) -> None:
    create, name = NAMES[kind]
    body = changed(create, changes)
    assert read_inspect(inspected(body, name, counts_swap=counts_swap), image()) == queried(body, name)


ENTRIES = st.lists(st.builds("".join, st.tuples(st.sampled_from("ABCD"), st.sampled_from(["", "=", "=1"]))), max_size=6)


@given(ENTRIES, ENTRIES, st.booleans())
def test_fewest_envs_that_make_the_list_are_its_own(own: list[str], shipped: list[str], of_this_image: bool) -> None:
    """If this image cannot have led to the list, all entries but the image's are the container's own."""
    found = merged(own, shipped) if of_this_image else own
    possible = [found[:end] for end in range(len(found) + 1) if merged(found[:end], shipped) == found]
    expected = possible[0] if possible else [entry for entry in found if entry not in shipped]
    reply = changed(inspected(CONTAINER_BODY, CONTAINER_NAME), {"Config/Env": found})
    body = changed(CONTAINER_BODY, {"Env": expected})
    assert read_inspect(reply, image(shipped)) == queried(body, CONTAINER_NAME)


class Looked(str):
    """An entry that counts how often its key is read."""

    times = 0

    def partition(self, separator: str) -> tuple[str, str, str]:
        Looked.times += 1
        return super().partition(separator)


def test_each_of_many_envs_over_an_images_is_looked_at_a_few_times() -> None:
    own, shipped = ([Looked(f"A{number}={whose}") for number in range(1_000)] for whose in ("own", "shipped"))
    config = Object((("Env", own), ("Labels", Object(tuple(CONTAINER_BODY["Labels"].items())))))
    read = status.read_inspect(Object((("Id", ID), ("Config", config))), ImageDefaults(env=shipped))
    assert isinstance(read, RequestedContainer)
    assert read.container.envs == {f"A{number}": "own" for number in range(1_000)}
    assert len(own) <= Looked.times < 10 * (len(own) + len(shipped))


def test_without_the_image_all_is_kept() -> None:
    shipped = image([PATH], {"maintainer": "x"})
    bare = {**CONTAINER_BODY, "Env": None}
    assert container_of(inspected(bare, CONTAINER_NAME, shipped)).envs == {"PATH": PATH[5:]}
    assert pod_of(inspected(POD_BODY, POD_NAME, shipped)).labels["maintainer"] == "x"
    for empty in (b"{}", b'{"Config": null}', b'{"Config": {"Env": null, "Labels": null}}'):
        assert read_inspect(inspected(POD_BODY, POD_NAME), empty) == queried(POD_BODY, POD_NAME)


def test_labels_of_the_image_are_left_out_unless_they_are_overwritten() -> None:
    shipped = image(None, {"app": "web", "maintainer": "x", "annotation.note": "other"})
    pod = pod_of(inspected(POD_BODY, POD_NAME, shipped), shipped)
    assert (pod.labels, pod.annotations) == (KUBELETS, {"note": "pod"})


def test_container_of_an_image_that_was_committed_from_a_pods_container() -> None:
    """The image has the kubelet's labels, too: they count as the container's own if dockershim named it."""
    shipped = image(None, CONTAINER_BODY["Labels"])
    reply, plain = inspected(CONTAINER_BODY, CONTAINER_NAME, shipped), inspected({"Image": "x"}, "silly_name", shipped)
    read = container_of(reply, shipped)
    assert (read.pod_id, read.name, "note" in read.annotations) == (SANDBOX, "main", False)
    assert read_inspect(plain, shipped) is None


# memory and swap limit, and the swap limit that is read of a pod and of a container
SWAPS = [(2**28, 2**28, 2**28, 2**28), (2**28, 2**29, 0, 0), (2**28, -1, 0, 2**28)]
SWAPS += [(2**28, 2**28 + 1, 2**28 + 1, 2**28 + 1), (0, -1, -1, -1), (0, 0, 0, 0)]


@pytest.mark.parametrize(("memory", "swap", "of_pod", "of_container"), SWAPS)
def test_swap(memory: int, swap: int, of_pod: int, of_container: int) -> None:
    limits = {"HostConfig/Memory": memory, "HostConfig/MemorySwap": swap, "HostConfig/CpuQuota": 1000}
    pod = pod_of(changed(inspected(POD_BODY, POD_NAME), limits)).resources
    container = container_of(changed(inspected(CONTAINER_BODY, CONTAINER_NAME), limits)).resources
    for resources, expected in ((pod, of_pod), (container, of_container)):
        assert resources is not None
        assert (resources.memory_limit_in_bytes, resources.memory_swap_limit_in_bytes) == (memory, expected)


RUNTIMES = [("runc", "runc", ""), ("kata", "runc", "kata"), ("runc", "kata", "runc"), ("kata", "kata", "")]


@pytest.mark.parametrize(("runtime", "default", "handler"), [*RUNTIMES, ("", "runc", "")])
def test_runtime_is_no_handler_if_it_is_the_default(runtime: str, default: str, handler: str) -> None:
    reply = changed(inspected(POD_BODY, POD_NAME), {"HostConfig/Runtime": runtime})
    assert pod_of(reply, None, default).runtime_handler == handler


@pytest.mark.parametrize("labels", [None, {}, {"io.kubernetes.docker.type": "x"}])
def test_container_of_nobodys_pod_is_none(labels: object) -> None:
    reply = {"Id": ID, "Name": f"/{CONTAINER_NAME}", "Image": IMAGE_ID, "Config": {"Labels": labels, "Env": "not read"}}
    assert read_inspect(reply, None) is None


@pytest.mark.parametrize("host", [{}, {"CgroupParent": None}, {"CgroupParent": 5}, None, []])
@pytest.mark.parametrize(("create", "name"), NAMES.values(), ids=NAMES)
def test_cgroup_parent_that_is_not_reported_is_not_empty(create: dict[str, Any], name: str, host: object) -> None:
    value = read_inspect({**inspected(create, name), "HostConfig": host}, image())
    assert value is not None
    assert value.cgroup_parent is None


@pytest.mark.parametrize("path", ["Name", "Config/Env", "HostConfig", "HostConfig/Memory", "HostConfig/CpusetCpus"])
def test_part_of_a_wrong_type_is_unknown_by_itself(path: str) -> None:
    reply = inspected(CONTAINER_BODY, CONTAINER_NAME)
    reply["Config"]["Labels"]["annotation.other"] = {"canary": 1}
    absent, wrong = (read_inspect(changed(reply, {path: value}), image()) for value in (None, {"canary": 5}))
    assert wrong == absent
    assert isinstance(wrong, RequestedContainer)
    assert (wrong.container.id, wrong.container.pod_id) == (ID, SANDBOX)


@pytest.mark.parametrize("absent", ["", None, 5])
def test_missing_id_is_the_requested_one_and_of_a_pod_unreadable(absent: object) -> None:
    assert status.parse_inspect(json.dumps({"Id": absent}).encode(), ID).get("Id") == ID
    reply = changed(inspected(CONTAINER_BODY, CONTAINER_NAME), {"Config/Labels/io.kubernetes.sandbox.id": absent})
    with pytest.raises(Unreadable, match="sandbox"):
        read_inspect(reply, image())


@pytest.mark.parametrize("text", [*NO_DOCUMENTS, b'{"Config":{},"config":{}}'])
def test_unreadable_document(text: bytes) -> None:
    for reply, shipped in ((text, image()), (inspected(POD_BODY, POD_NAME), text)):
        with pytest.raises(Unreadable) as raised:
            read_inspect(reply, shipped)
        assert "canary" not in str(raised.value)


LIVES = {"created": Life(started=False, running=False)}
LIVES |= dict.fromkeys(("running", "paused", "restarting"), Life(started=True, running=True))
LIVES |= dict.fromkeys(("removing", "exited", "dead"), Life(started=True, running=False))
READ: list[tuple[Any, bytes, Any]] = [
    # the function, the reply, and the result: None if the reply is unreadable
    *((read_state, b'{"State":{"Status":"%b"}}' % word.encode(), life) for word, life in LIVES.items()),
    *((read_state, reply, None) for reply in (b"", b"{}", b'{"State":{}}', b'{"State":{"Status":"canary"}}')),
    (read_state, b'{"State":7}', None),
    (status.read_info, b'{"CgroupDriver": "systemd", "DefaultRuntime": "runc"}', ("systemd", "runc")),
    (status.read_info, b"{}", ("", "")),
    *((status.read_info, reply, None) for reply in (b"", b"[]", b'{"CgroupDriver": 1}', b'{"DefaultRuntime": []}')),
]


@pytest.mark.parametrize(("read", "reply", "expected"), READ)
def test_life_of_a_container_and_daemons_word_on_itself(read: Any, reply: bytes, expected: Any) -> None:
    if expected is None:
        with pytest.raises(Unreadable) as caught:
            read(reply)
        assert "canary" not in str(caught.value)
    else:
        assert read(reply) == expected
