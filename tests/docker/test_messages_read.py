"""Parsing Docker's bodies as dockershim sends them, with all members of Go's structs, and dockerd's answers."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.core.call import Life, Unreadable
from runtimeproxy.docker import messages, status
from runtimeproxy.docker.messages import RESOURCE_TABLE, DockerName, RequestedContainer, RequestedPod, parse_name
from runtimeproxy.docker.status import ImageDefaults, read_image, read_state
from runtimeproxy.model.fields import PodInfo, Resources, named
from runtimeproxy.wire.json import Object
from tests.docker import bodies
from tests.docker.bodies import CONTAINER_BODY, CONTAINER_NAME, PARENT, POD_BODY, POD_NAME, REPORTED, SANDBOX, changed
from tests.fakes.dockerd_shapes import RESOURCES, filled

TYPE = "io.kubernetes.docker.type"
NO_LIMITS = filled(RESOURCES, {})
"""Docker's Resources as Go writes them: all members of the struct."""
ID, IMAGE_ID = "cd" * 32, "sha256:" + "ef" * 32
PATH = "PATH=/usr/local/bin:/usr/bin:/bin"
KINDS_OF_CREATES = {"pod": (POD_BODY, POD_NAME), "container": (CONTAINER_BODY, CONTAINER_NAME)}
ENTRIES = st.lists(st.builds("".join, st.tuples(st.sampled_from("ABCD"), st.sampled_from(["", "=", "=1"]))), max_size=6)


def read_create(body: dict[str, Any], name: str = CONTAINER_NAME) -> RequestedPod | RequestedContainer | None:
    return messages.read_create(json.dumps(body).encode(), name)


def without(body: dict[str, Any], *prefixes: str) -> dict[str, dict[str, str]]:
    """Return a change of a body that removes the labels with these prefixes."""
    return {"Labels": {key: value for key, value in body["Labels"].items() if not key.startswith(prefixes)}}


def test_pod_create_is_read() -> None:
    """Resources are those that differ from every pause container's."""
    # The changes of the body, the name in the request, and the values that are read differently then.
    rows: list[tuple[dict[str, Any], str, dict[str, Any]]] = [({}, POD_NAME, {}), ({}, POD_NAME + "_0a1b2c3d", {})]
    rows += [({}, "", {"attempt": 0}), ({}, "k8s_POD_a_b_c_7", {"attempt": 7})]
    rows += [(without(POD_BODY, "io.kubernetes.pod."), POD_NAME, {"labels": {"app": "web"}})]
    rows += [({"HostConfig/Runtime": "kata"}, POD_NAME, {"runtime_handler": "kata"})]
    rows += [({"HostConfig/CpuShares": 1024}, POD_NAME, {"resources": Resources(cpu_shares=1024)})]
    rows += [({"HostConfig/OomScoreAdj": 5}, POD_NAME, {"resources": Resources(oom_score_adj=5)})]
    rows += [({"HostConfig/OomScoreAdj": 0}, POD_NAME, {"resources": None})]
    for changes, name, expected in rows:
        pod = replace(bodies.REPORTED_POD, cgroup_parent="", **expected)
        assert read_create(changed(POD_BODY, changes), name) == RequestedPod(pod, PARENT)
    assert read_create({"Labels": {TYPE: "podsandbox"}}, "") == RequestedPod(PodInfo(), "")


def test_container_create_is_read() -> None:
    restarts, nameless = "io.kubernetes.container.restartCount", without(CONTAINER_BODY, "io.kubernetes.container.name")
    rows: list[tuple[dict[str, Any], str, dict[str, Any]]] = [({}, CONTAINER_NAME, {})]
    # What is not read may be anything. Keys of labels are exact.
    rows += [({"Cmd": 5, "cMD": {}, "Unknown": [1e300, None, "\ud800"]}, CONTAINER_NAME, {})]
    rows += [({"Labels/IO.kubernetes.docker.type": "podsandbox"}, CONTAINER_NAME, {})]
    # The name has the attempt, else the annotation of the restarts. The name has a container's name without a label.
    counts = [("5", 2, CONTAINER_NAME), ("7", 7, "web")]
    for count, attempt, name in counts + [(text, 0, "web") for text in ("4294967296", "-1", "x", "", "9" * 5000)]:
        notified = {"attempt": attempt, "annotations": {**REPORTED.annotations, restarts: count}}
        rows += [({f"Labels/annotation.{restarts}": count}, name, notified)]
    rows += [(without(CONTAINER_BODY, "annotation."), "", {"attempt": 0, "annotations": {}})]
    rows += [(nameless, CONTAINER_NAME, {}), (nameless, "", {"name": ""})]
    # The last entry of a variable counts; half a surrogate pair is what Go makes of it.
    envs: list[tuple[Any, dict[str, str]]] = [(["A=1", "B=1", "A=2"], {"A": "2", "B": "1"}), (None, {})]
    envs += [(["BARE", None, "", "=", "=no key", "E=", "F=1=2"], {"E": "", "F": "1=2"})]
    envs += [(["A=\ud800", "B=\ud83d\ude00", "\udfff=c"], {"A": "\ufffd", "B": "\U0001f600", "\ufffd": "c"})]
    envs += [(["A=" + "[,{" * 200_000], {"A": "[,{" * 200_000})]
    rows += [({"Env": env}, CONTAINER_NAME, {"envs": expected}) for env, expected in envs]
    for changes, name, expected in rows:
        read = read_create(changed(CONTAINER_BODY, changes), name)
        assert read == RequestedContainer(replace(REPORTED, **expected), PARENT)
        for host in (None, {}, NO_LIMITS):
            read = read_create(changed(CONTAINER_BODY, {**changes, "HostConfig": host}), name)
            assert read == RequestedContainer(replace(REPORTED, **expected, resources=Resources()), "")


def test_each_resource_has_its_key() -> None:
    for field, key in RESOURCE_TABLE.items():
        value = "0-3" if key.startswith("Cpuset") else -1
        host = {**NO_LIMITS, key: value}
        read = read_create({**CONTAINER_BODY, "HostConfig": host})
        assert isinstance(read, RequestedContainer)
        assert named(read.container.resources) == {field: value}
        of_update = {} if field == "oom_score_adj" else {field: value}
        assert messages.read_update(json.dumps(host).encode()) == Resources(**of_update), "an update has no OOM score"


def test_keys_are_matched_case_insensitively_as_in_go() -> None:
    text = json.dumps(CONTAINER_BODY)
    for key in ("Env", "Labels", "HostConfig", "CgroupParent", *RESOURCE_TABLE.values()):
        text = text.replace(f'"{key}"', f'"{key.swapcase()}"')
    assert messages.read_create(text.encode(), CONTAINER_NAME) == RequestedContainer(REPORTED, PARENT)


def test_container_without_pod_is_none() -> None:
    for labels in [None, {}, {"app": "web"}, {TYPE: "other"}, {TYPE: ""}]:
        assert read_create({**CONTAINER_BODY, "Env": "not read", "HostConfig": 5, "Labels": labels}) is None
        assert read_create({"Image": "busybox"}) is None
        reply = {"Name": f"/{CONTAINER_NAME}", "Image": IMAGE_ID, "Config": {"Labels": labels, "Env": "not read"}}
        assert read_inspect(reply, None) is None


def test_body_is_read_only_if_it_may_belong_to_pod() -> None:
    may_be_pods = [json.dumps(POD_BODY).encode(), b'{"Cmd": ["echo", "io.kubernetes.docker.type"]}']
    may_be_pods += [rb'{"Labels": {"io.kubernetes.docker.typ\u0065": "container"}}', rb'{"Labels": {"note": "\u00e9"}}']
    no_pods = [rb'{"Labels": {"io.kubernetes.pod.name": "a\nb\\c"}}']
    no_pods += [b'{"Labels": {"IO.kubernetes.docker.type": "container"}}']
    assert all(map(messages.may_belong_to_pod, may_be_pods))
    assert not any(map(messages.may_belong_to_pod, [*no_pods, b"", b"\xff"]))


def test_value_of_wrong_type_raises() -> None:
    # The paths of values with a wrong type, the name in the error, and the values.
    wrong: list[tuple[str, str, list[object]]] = [("Labels", "Labels", [[], "canary"])]
    wrong += [("HostConfig/Runtime", "Runtime", [5])]
    wrong += [("Labels/canary", "Labels", [5, ["canary"]]), ("Labels/io.kubernetes.sandbox.id", "sandbox", [""])]
    wrong += [("Env", "Env", [{}, "canary=1", ["A=1", 5], [["canary"]]]), ("HostConfig", "HostConfig", [[], "canary"])]
    wrong += [("HostConfig/CgroupParent", "CgroupParent", [5]), ("HostConfig/CpusetCpus", "CpusetCpus", [1])]
    wrong += [("HostConfig/CpuQuota", "CpuQuota", ["canary", 1.5, 1.0, True, {}])]
    wrong += [("HostConfig/Memory", "out of range in Memory", [2**63])]
    wrong += [("HostConfig/MemorySwap", "out of range in MemorySwap", [-(2**63) - 1])]
    for path, problem, values in wrong:
        for value in values:  # only a pod's runtime is read
            with pytest.raises(Unreadable, match=problem) as raised:
                read_create(changed(POD_BODY if problem in ("Runtime", "CpuQuota") else CONTAINER_BODY, {path: value}))
            assert "canary" not in str(raised.value)


def test_repeated_key_raises() -> None:
    """For some repeated keys Go merges the values, for others the last wins; keys of labels are case-sensitive."""
    for key in ["Labels", "Env", "HostConfig", "CgroupParent", "Memory", "CpusetMems", "app"]:
        text = json.dumps(changed(CONTAINER_BODY, {"Labels/app": "web"}))
        for twin in (key, key.upper(), key.replace("s", "\u017f")) if key != "app" else (key,):
            twice = text.replace(f'"{key}": ', f'"{twin}": null, "{key}": ')
            with pytest.raises(Unreadable):
                messages.read_create(twice.encode(), CONTAINER_NAME)


def test_kind_of_unreadable_create_is_from_label_or_name() -> None:
    kinds = [({TYPE: "podsandbox"}, CONTAINER_NAME, "podsandbox"), ({TYPE: "container"}, "odd", "container")]
    kinds += [({}, POD_NAME, "podsandbox"), (5, CONTAINER_NAME, "container"), (5, "odd", "")]
    for labels, name, kind in kinds:
        assert messages.kind_of_unreadable(json.dumps({"Labels": labels}).encode(), name) == (kind or None), name


NO_DOCUMENTS = [b"", b"canary", b"[]", b"null", b"5", b'"canary"', b"{} {}", b'{"a":"\xff"}', b"[" * 100_000]
Reader = Callable[[bytes], object]
READERS: list[Reader] = [lambda body: messages.read_create(body, CONTAINER_NAME), messages.read_update]
OTHERS: list[Reader] = [messages.read_created_id, lambda body: read_inspect(body, image())]
OTHERS += [lambda body: read_inspect(inspected(POD_BODY, POD_NAME), body)]


@pytest.mark.parametrize("text", [*NO_DOCUMENTS, b"\xef\xbb\xbf{}", b'{"Config":{},"config":{}}'])
def test_invalid_document_raises(text: bytes) -> None:
    for read in OTHERS if b"Config" in text else READERS + OTHERS:
        with pytest.raises(Unreadable) as raised:
            read(text)
        assert "canary" not in str(raised.value)


def test_body_of_too_many_values_raises() -> None:
    for value in [[[]] * 70_000, dict.fromkeys(map(str, range(70_000)))]:
        body = json.dumps({**CONTAINER_BODY, "Mounts": value}).encode()
        for read in READERS[:2]:
            with pytest.raises(Unreadable, match="request with more than 131072 fields"):
                read(body)


def test_name_is_read_with_and_without_slash_and_suffix() -> None:
    names = {"k8s_POD_web-0_default_6f1c-8a55_0": DockerName("POD", "web-0", "default", "6f1c-8a55", 0)}
    names["k8s_a_b.c_d_e_4294967295"] = DockerName("a", "b.c", "d", "e", 2**32 - 1)
    other_names = ["", "/", "web", "K8S_a_b_c_d_0", "x_a_b_c_d_0", "//k8s_a_b_c_d_0", "/parent/k8s_a_b_c_d_0"]
    other_names += ["k8s_a_b_c_0", "k8s_a_b_c_d_0_e_f", "k8s_a_b_c_d_0_", "k8s__b_c_d_0", "k8s_a_b_c_d_"]
    other_names += ["k8s_a_b_c_d_-1", "k8s_a_b_c_d_+1", "k8s_a_b_c_d_1.0", "k8s_a_b_c_d_٣", "k8s_a_b_c_d_4294967296"]
    other_names += ["k8s_a_b_c_d_" + "9" * 5000, "k8s_a_b_c_d_0\n"]
    for name, parts in names.items():
        for spelt in (name, f"/{name}", f"{name}_0a1b2c3d", f"/{name}_0a1b2c3d"):
            assert parse_name(spelt) == parts
    assert [parse_name(name) for name in other_names] == [None] * len(other_names)


def image(env: Sequence[str] | None = (PATH,), labels: Mapping[str, str] | None = None) -> bytes:
    return json.dumps({"Id": IMAGE_ID, "Config": {"Env": env and list(env), "Labels": labels}}).encode()


def merge_env(own: Sequence[str], shipped: Sequence[str]) -> list[str]:
    """Return env entries with the image's added as dockerd does: all if there are none, else the first of new keys."""
    result = list(own)
    for entry in shipped:
        key = entry.partition("=")[0]
        if not own or all(key != set_entry.partition("=")[0] for set_entry in result):
            result.append(entry)
    return result


def inspected(create: Mapping[str, Any], name: str, shipped: bytes = image(), swap: bool = True) -> dict[str, Any]:
    """Add to a create what dockerd's commit.go and daemon_unix.go add; ``swap``: the kernel accounts for it."""
    config = json.loads(shipped)["Config"]
    env = merge_env(create.get("Env") or [], config["Env"] or [])
    labels = {**(config["Labels"] or {}), **(create.get("Labels") or {})}
    host = {"CgroupParent": "", "Memory": 0, "MemorySwap": 0, **(create.get("HostConfig") or {}), "ShmSize": 67108864}
    host["Runtime"] = host.get("Runtime") or "runc"
    if host["Memory"] > 0 and not swap:
        host["MemorySwap"] = -1
    if host["Memory"] > 0 and host["MemorySwap"] == 0:
        host["MemorySwap"] = 2 * host["Memory"]
    reply = {"Id": ID, "Name": f"/{name}", "Image": IMAGE_ID, "State": {"Pid": 5}, "HostConfig": host}
    return {**reply, "Config": {"Image": create["Image"], "Env": env, "Labels": labels}}


def read_inspect(reply: bytes | dict[str, Any], image: bytes | None, *default_runtime: str) -> Any:
    found = status.parse_inspect(reply if isinstance(reply, bytes) else json.dumps(reply).encode(), ID)
    return status.read_inspect(found, None if image is None else read_image(image), *default_runtime)


def created(create: Mapping[str, Any], name: str) -> Any:
    value: Any = read_create(dict(create), name)
    kind = "pod" if isinstance(value, RequestedPod) else "container"
    return replace(value, **{kind: replace(getattr(value, kind), id=ID)})


def test_inspect_equals_create() -> None:
    creates: list[tuple[str, dict[str, object]]] = [("pod", {}), ("pod", {"HostConfig": None})]
    creates += [("pod", {f"HostConfig/{key}": value}) for key, value in (("Runtime", "kata"), ("Memory", 2**30))]
    creates += [("pod", {f"HostConfig/{key}": value}) for key, value in (("CpuQuota", 50000), ("CgroupParent", ""))]
    creates += [("container", {"HostConfig": host}) for host in (None, {}, {"Memory": 0, "MemorySwap": -1})]
    creates += [("container", {}), ("container", {"Env": None}), ("container", {"Env": []})]
    for kind, changes in creates:
        create, name = KINDS_OF_CREATES[kind]
        body = changed(create, changes)
        for swap in (True, False):
            assert read_inspect(inspected(body, name, swap=swap), image()) == created(body, name)


@given(ENTRIES, ENTRIES, st.booleans())
def test_requested_envs_are_fewest_possible(own: list[str], shipped: list[str], of_this_image: bool) -> None:
    """If this image cannot have led to the list, all entries but the image's are the container's own."""
    found = merge_env(own, shipped) if of_this_image else own
    possible = [found[:end] for end in range(len(found) + 1) if merge_env(found[:end], shipped) == found]
    expected = possible[0] if possible else [entry for entry in found if entry not in shipped]
    reply = changed(inspected(CONTAINER_BODY, CONTAINER_NAME), {"Config/Env": found})
    body = changed(CONTAINER_BODY, {"Env": expected})
    assert read_inspect(reply, image(shipped)) == created(body, CONTAINER_NAME)


class CountedKey(str):
    """An entry that counts how often its key is read."""

    times = 0

    def partition(self, separator: str) -> tuple[str, str, str]:
        CountedKey.times += 1
        return super().partition(separator)


def test_many_envs_are_read_in_linear_time() -> None:
    own, shipped = ([CountedKey(f"A{number}={whose}") for number in range(1_000)] for whose in ("own", "shipped"))
    config = Object((("Env", own), ("Labels", Object(tuple(CONTAINER_BODY["Labels"].items())))))
    read = status.read_inspect(Object((("Id", ID), ("Config", config))), ImageDefaults(env=shipped))
    assert isinstance(read, RequestedContainer)
    assert read.container.envs == {f"A{number}": "own" for number in range(1_000)}
    assert len(own) <= CountedKey.times < 10 * (len(own) + len(shipped))


def test_all_values_are_returned_without_image() -> None:
    shipped = image([PATH], {"maintainer": "x"})
    bare = {**CONTAINER_BODY, "Env": None}
    assert read_inspect(inspected(bare, CONTAINER_NAME, shipped), None).container.envs == {"PATH": PATH[5:]}
    assert read_inspect(inspected(POD_BODY, POD_NAME, shipped), None).pod.labels["maintainer"] == "x"
    for empty in (b"{}", b'{"Config": null}', b'{"Config": {"Env": null, "Labels": null}}'):
        assert read_inspect(inspected(POD_BODY, POD_NAME), empty) == created(POD_BODY, POD_NAME)


def test_image_labels_are_removed_unless_container_has_them() -> None:
    """The kubelet's labels count as the container's own if dockershim named it."""
    shipped = image(None, {"app": "web", "maintainer": "x", "annotation.note": "other"})
    pod = read_inspect(inspected(POD_BODY, POD_NAME, shipped), shipped).pod
    assert (pod.labels, pod.annotations) == (bodies.KUBELET_LABELS, {"note": "pod"})
    shipped = image(None, CONTAINER_BODY["Labels"])
    reply, plain = inspected(CONTAINER_BODY, CONTAINER_NAME, shipped), inspected({"Image": "x"}, "silly_name", shipped)
    read = read_inspect(reply, shipped).container
    assert (read.pod_id, read.name, "note" in read.annotations) == (SANDBOX, "main", False)
    assert read_inspect(plain, shipped) is None


def test_requested_swap_is_restored() -> None:
    # memory and swap limit, and the swap limit that is read of a pod and of a container
    swaps = [(2**28, 2**28, 2**28, 2**28), (2**28, 2**29, 0, 0), (2**28, -1, 0, 2**28)]
    swaps += [(2**28, 2**28 + 1, 2**28 + 1, 2**28 + 1), (0, -1, -1, -1), (0, 0, 0, 0)]
    for memory, swap, of_pod, of_container in swaps:
        limits = {"HostConfig/Memory": memory, "HostConfig/MemorySwap": swap, "HostConfig/CpuQuota": 1000}
        pod = read_inspect(changed(inspected(POD_BODY, POD_NAME), limits), None).pod.resources
        container = read_inspect(changed(inspected(CONTAINER_BODY, CONTAINER_NAME), limits), None).container.resources
        for resources, expected in ((pod, of_pod), (container, of_container)):
            assert (resources.memory_limit_in_bytes, resources.memory_swap_limit_in_bytes) == (memory, expected)


def test_default_runtime_is_no_handler() -> None:
    runtimes = [("runc", "runc", ""), ("kata", "runc", "kata"), ("runc", "kata", "runc"), ("kata", "kata", "")]
    for runtime, default, handler in (*runtimes, ("", "runc", "")):
        reply = changed(inspected(POD_BODY, POD_NAME), {"HostConfig/Runtime": runtime})
        assert read_inspect(reply, None, default).pod.runtime_handler == handler


def test_inspect_part_of_wrong_type_is_unknown() -> None:
    for host in [{}, {"CgroupParent": None}, {"CgroupParent": 5}, None, []]:
        for create, name in KINDS_OF_CREATES.values():
            assert read_inspect({**inspected(create, name), "HostConfig": host}, image()).cgroup_parent is None
    for path in ["Name", "Config/Env", "HostConfig", "HostConfig/Memory", "HostConfig/CpusetCpus"]:
        reply = inspected(CONTAINER_BODY, CONTAINER_NAME)
        reply["Config"]["Labels"]["annotation.other"] = {"canary": 1}
        absent, wrong = (read_inspect(changed(reply, {path: value}), image()) for value in (None, {"canary": 5}))
        assert wrong == absent
        assert (wrong.container.id, wrong.container.pod_id) == (ID, SANDBOX)


def test_missing_id_is_requested_id_except_of_pod() -> None:
    for absent in ["", None, 5]:
        assert status.parse_inspect(json.dumps({"Id": absent}).encode(), ID).get("Id") == ID
        reply = changed(inspected(CONTAINER_BODY, CONTAINER_NAME), {"Config/Labels/io.kubernetes.sandbox.id": absent})
        with pytest.raises(Unreadable, match="sandbox"):
            read_inspect(reply, image())


def test_id_state_and_info_are_read() -> None:
    lives = {"created": Life(started=False, running=False)}
    lives |= dict.fromkeys(("running", "paused", "restarting"), Life(started=True, running=True))
    lives |= dict.fromkeys(("removing", "exited", "dead"), Life(started=True, running=False))
    # For each function the results by the reply, and unreadable replies.
    rows: dict[Any, tuple[dict[bytes, Any], list[bytes]]] = {
        messages.read_created_id: (
            {b'{"Id":"c1","Warnings":[]}\n': "c1", b'{"id":"c1"}': "c1"},
            [b"{}", b'{"Id":""}', b'{"Id":null}', b'{"Id":5}', b'{"message":"canary"}'],
        ),
        read_state: (
            {b'{"State":{"Status":"%b"}}' % word.encode(): life for word, life in lives.items()},
            [b"", b"{}", b'{"State":{}}', b'{"State":{"Status":"canary"}}', b'{"State":7}'],
        ),
        status.read_info: (
            {b'{"CgroupDriver": "systemd", "DefaultRuntime": "runc"}': ("systemd", "runc"), b"{}": ("", "")},
            [b"", b"[]", b'{"CgroupDriver": 1}', b'{"DefaultRuntime": []}'],
        ),
    }
    for read, (results, unreadable) in rows.items():
        assert {reply: read(reply) for reply in results} == results
        for reply in unreadable:
            with pytest.raises(Unreadable) as caught:
                read(reply)
            assert "canary" not in str(caught.value)
