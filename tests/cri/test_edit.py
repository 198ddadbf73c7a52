"""Tests of editing CRI requests: the parser says what changed, the bytes say that nothing else did."""

from collections.abc import Mapping
from typing import TypeVar

import pytest

from runtimeproxy.cri import edit, translate
from runtimeproxy.model import NO_ADJUSTMENT, Adjustment, Resources, ResourceValue, overlay
from tests.fakes import cri_pb2

T = TypeVar("T")

ALL_RESOURCES: dict[str, ResourceValue] = {
    "cpu_period": 50000,
    "cpu_quota": -1,
    "cpu_shares": 512,
    "memory_limit_in_bytes": 2**33,
    "oom_score_adj": -998,
    "cpuset_cpus": "2-3",
    "cpuset_mems": "1",
    "hugepage_limits": {"2MB": 2**63, "1GB": 0},
    "unified": {"cpu.idle": "1", "": ""},
    "memory_swap_limit_in_bytes": -1,
}
UNKNOWN = b"\xa2\x06\x02\xff\xfe\xab\x06\xac\x06" + b"\x92\x3f\x81\x80\x00\x7f"
"""Bytes that are not UTF-8, a group, and a field with a long length: no message has them."""


def wire_resources(values: Mapping[str, ResourceValue]) -> cri_pb2.LinuxContainerResources:
    limits = values.get("hugepage_limits", {})
    assert isinstance(limits, Mapping)
    plain = {name: value for name, value in values.items() if name != "hugepage_limits"}
    entries = [cri_pb2.HugepageLimit(page_size=size, limit=int(limit)) for size, limit in limits.items()]
    return cri_pb2.LinuxContainerResources(hugepage_limits=entries, **plain)  # type: ignore[arg-type]


# ---- nothing to change

ECHO = Adjustment(
    labels={"l": "1"},
    annotations={"a": "1"},
    envs={"E": "1"},
    cgroup_parent="/p",
    resources={"cpu_quota": -1, "cpuset_cpus": "0", "unified": {"u": "1"}, "hugepage_limits": {"2MB": 1}},
)


@pytest.mark.parametrize(
    ("changes", "said", "left_out"),
    [
        ({}, {}, ()),
        ({"cpu_shares": 2, "oom_score_adj": 3}, {"cpu_shares": 2}, ("oom_score_adj",)),
        ({"cpuset_cpus": ""}, {"cpuset_cpus": ""}, ("cpuset_cpus",)),
        ({"cpuset_mems": "", "oom_score_adj": 0}, {"cpuset_mems": ""}, ("oom_score_adj",)),
        ({"cpuset_cpus": "0", "unified": {"cpu.idle": "1"}}, {"cpuset_cpus": "0", "unified": {"cpu.idle": "1"}}, ()),
    ],
)
def test_what_an_update_can_say(
    changes: dict[str, ResourceValue], said: dict[str, ResourceValue], left_out: tuple[str, ...]
) -> None:
    assert edit.said_in_update(changes, Resources(cpuset_cpus="0-3", cpu_shares=7)) == (said, left_out)


@pytest.mark.parametrize(
    ("asked", "changes", "memory", "swap"),
    [
        pytest.param((0, 0), {"memory_limit_in_bytes": -1}, 0, 0, id="no limit is 0"),
        pytest.param((5, 5), {"memory_limit_in_bytes": -1}, 0, 0, id="an equal swap limit goes with it"),
        pytest.param((5, 9), {"memory_limit_in_bytes": -1}, 0, 0, id="a swap limit needs a memory limit"),
        pytest.param((5, -1), {"memory_limit_in_bytes": -1}, 0, -1, id="unlimited swap stays"),
        pytest.param((5, 5), {"memory_limit_in_bytes": 7}, 7, 7, id="an equal swap limit moves up"),
        pytest.param((5, 5), {"memory_limit_in_bytes": 3}, 3, 3, id="an equal swap limit moves down"),
        pytest.param((5, 9), {"memory_limit_in_bytes": 7}, 7, 9, id="another swap limit stays"),
        pytest.param((5, 9), {"memory_limit_in_bytes": 10}, 10, 10, id="none is below the memory limit"),
        pytest.param((5, 0), {"memory_limit_in_bytes": 7}, 7, 0, id="what is not set stays so"),
        pytest.param((0, 0), {"memory_limit_in_bytes": 7}, 7, 0, id="what is not set stays so, without a limit"),
        pytest.param((5, 5), {"memory_limit_in_bytes": 7, "memory_swap_limit_in_bytes": 8}, 7, 8, id="a hook's own"),
        pytest.param((5, 5), {"memory_swap_limit_in_bytes": -1}, 5, -1, id="a hook's swap limit alone"),
    ],
)
def test_memory_and_swap_of_a_create(
    asked: tuple[int, int], changes: dict[str, ResourceValue], memory: int, swap: int
) -> None:
    resources = Resources(memory_limit_in_bytes=asked[0], memory_swap_limit_in_bytes=asked[1])
    made = overlay(resources, edit.said_in_create(Adjustment(resources=changes), resources).resources)
    assert made is not None
    assert (made.memory_limit_in_bytes, made.memory_swap_limit_in_bytes) == (memory, swap)
    unlimited = Adjustment(resources={"memory_limit_in_bytes": -1})
    assert edit.said_in_create(unlimited, None) == Adjustment(resources={"memory_limit_in_bytes": 0})


@pytest.mark.parametrize("lifts", [True, False])
@pytest.mark.parametrize(
    ("asked", "present", "change", "lifted", "not_lifted"),
    [
        pytest.param((0, 0), (0, 0), -1, {"memory": 0}, {"memory": 0}, id="there is no limit"),
        pytest.param((9, 9), (0, 0), -1, {"memory": 0}, {"memory": 0}, id="there is none but the update's own"),
        pytest.param((0, 0), (9, 0), -1, {"memory": -1}, {}, id="there is one"),
        pytest.param((0, 0), (9, 9), -1, {"memory": -1, "swap": -1}, {}, id="and an equal swap limit"),
        pytest.param((0, 0), (9, -1), -1, {"memory": -1}, {}, id="and unlimited swap"),
        pytest.param((0, 0), (5, 5), 7, {"memory": 7, "swap": 7}, {"memory": 7, "swap": 7}, id="held, equal"),
        pytest.param((6, 6), (5, 5), 7, {"memory": 7, "swap": 7}, {"memory": 7, "swap": 7}, id="asked, equal"),
        pytest.param((6, 0), (5, 5), 7, {"memory": 7, "swap": 7}, {"memory": 7, "swap": 7}, id="held beside asked"),
        pytest.param((0, 5), (5, 9), 7, {"memory": 7, "swap": 7}, {"memory": 7, "swap": 7}, id="asked, memory held"),
        pytest.param((0, 0), (5, 9), 7, {"memory": 7}, {"memory": 7}, id="another swap limit"),
        pytest.param((0, 0), (5, 0), 7, {"memory": 7}, {"memory": 7}, id="none set"),
        pytest.param((0, 0), (5, 5), 0, {"memory": 0}, {"memory": 0}, id="0 leaves what is"),
    ],
)
def test_memory_and_swap_of_an_update(
    asked: tuple[int, int], present: tuple[int, int], change: int, lifted: object, not_lifted: object, lifts: bool
) -> None:
    request, held = (Resources(memory_limit_in_bytes=m, memory_swap_limit_in_bytes=s) for m, s in (asked, present))
    said = edit.said_in_update({"memory_limit_in_bytes": change}, held, request, lifts_memory=lifts)
    short = {
        name.removesuffix("_limit_in_bytes").removeprefix("memory_"): value for name, value in said.resources.items()
    }
    assert short == (lifted if lifts else not_lifted)
    left_out = (change == -1 and not short) or (change == 0 and bool(held.memory_limit_in_bytes))
    assert said.left_out == (("memory_limit_in_bytes",) if left_out else ())


def test_what_a_container_does_not_have_is_not_left_out_where_it_is_cleared() -> None:
    assert edit.said_in_update({"cpuset_cpus": ""}, None) == ({"cpuset_cpus": ""}, ())


@pytest.mark.parametrize(
    "adjustment", [NO_ADJUSTMENT, Adjustment(resources={"cpu_shares": 0, "cpuset_mems": ""}), ECHO]
)
def test_no_change_is_the_same_object(adjustment: Adjustment) -> None:
    resources = wire_resources(ECHO.resources)
    pod_config = cri_pb2.PodSandboxConfig(
        labels={"l": "1"},
        annotations={"a": "1"},
        linux=cri_pb2.LinuxPodSandboxConfig(cgroup_parent="/p", resources=resources),
    )
    config = cri_pb2.ContainerConfig(
        envs=[cri_pb2.KeyValue(key="E", value=b"0"), cri_pb2.KeyValue(key="E", value=b"1")],
        annotations={"a": "1"},
        linux=cri_pb2.LinuxContainerConfig(resources=resources),
    )
    pod = cri_pb2.RunPodSandboxRequest(config=pod_config).SerializeToString() + UNKNOWN
    assert edit.edit_pod(pod, adjustment) is pod
    create = cri_pb2.CreateContainerRequest(pod_sandbox_id="p", config=config, sandbox_config=pod_config)
    message = create.SerializeToString() + UNKNOWN
    for parent in (None, "/p"):
        assert edit.edit_container(message, adjustment, parent) is message
    update = cri_pb2.UpdateContainerResourcesRequest(container_id="c", linux=resources, annotations={"a": "1"})
    message = update.SerializeToString() + UNKNOWN
    assert edit.edit_update(message, adjustment.resources, adjustment.annotations) is message


def test_without_edits_the_message_is_not_even_walked_through() -> None:
    broken = b"\xff"
    assert edit.edit_pod(broken, NO_ADJUSTMENT) is broken
    assert edit.edit_container(broken, NO_ADJUSTMENT, None) is broken
    assert edit.edit_update(broken, {}, {}) is broken


# ---- behind the request, or within it

KNOWN = cri_pb2.CreateContainerRequest(
    pod_sandbox_id="p1",
    config=cri_pb2.ContainerConfig(
        envs=[cri_pb2.KeyValue(key="GPU", value=b"0"), cri_pb2.KeyValue(key="RAW", value=b"\xff")],
        annotations={"note": "1"},
        linux=cri_pb2.LinuxContainerConfig(
            resources=wire_resources({"cpu_shares": 512, "cpuset_cpus": "0-3", "hugepage_limits": {"2MB": 1}})
        ),
    ),
    sandbox_config=cri_pb2.PodSandboxConfig(linux=cri_pb2.LinuxPodSandboxConfig(cgroup_parent="/kube/pod1")),
)


@pytest.mark.parametrize(
    ("adjustment", "parent"),
    [
        pytest.param(Adjustment(envs={"NEW": "1", "ANOTHER": ""}), None, id="envs"),
        pytest.param(Adjustment(annotations={"new": ""}), None, id="annotation"),
        pytest.param(Adjustment(resources={"cpuset_cpus": "0"}), None, id="text in the place of another"),
        pytest.param(Adjustment(resources={"cpu_shares": 2, "cpu_quota": -1}), None, id="numbers"),
        pytest.param(
            Adjustment(resources={"hugepage_limits": {"1GB": 0}, "unified": {"cpu.idle": "1"}}), None, id="maps"
        ),
        pytest.param(NO_ADJUSTMENT, "/kube/other", id="cgroup parent"),
        pytest.param(Adjustment(envs={"HOOKED": "1"}, resources={"cpuset_cpus": "0"}), "/x", id="all together"),
    ],
)
def test_what_is_new_stands_behind_the_request_as_it_came(adjustment: Adjustment, parent: str | None) -> None:
    message = KNOWN.SerializeToString() + UNKNOWN
    result = edit.edit_container(message, adjustment, parent)
    assert result.startswith(message)
    more = cri_pb2.CreateContainerRequest.FromString(result[len(message) :])
    assert more.HasField("sandbox_config") is (parent is not None)
    assert more.HasField("config") is bool(adjustment)
    assert edit.edit_container(result, adjustment, parent) is result


@pytest.mark.parametrize(
    ("adjustment", "more"),
    [
        (Adjustment(labels={"new": ""}), cri_pb2.PodSandboxConfig(labels={"new": ""})),
        (
            Adjustment(cgroup_parent="/x"),
            cri_pb2.PodSandboxConfig(linux=cri_pb2.LinuxPodSandboxConfig(cgroup_parent="/x")),
        ),
        (
            Adjustment(annotations={"new": "1"}, resources={"cpu_quota": -1}),
            cri_pb2.PodSandboxConfig(
                annotations={"new": "1"},
                linux=cri_pb2.LinuxPodSandboxConfig(resources=wire_resources({"cpu_quota": -1})),
            ),
        ),
    ],
)
def test_what_is_new_of_a_pod_stands_behind_its_request(adjustment: Adjustment, more: cri_pb2.PodSandboxConfig) -> None:
    message = cri_pb2.RunPodSandboxRequest(config=KNOWN.sandbox_config).SerializeToString() + UNKNOWN
    result = edit.edit_pod(message, adjustment)
    assert result == message + cri_pb2.RunPodSandboxRequest(config=more).SerializeToString()
    assert edit.edit_pod(result, adjustment) is result


@pytest.mark.parametrize(
    ("adjustment", "parent"),
    [
        pytest.param(Adjustment(envs={"GPU": "1"}), None, id="env that is there"),
        pytest.param(Adjustment(envs={"G": "1"}), None, id="env whose key is a part of what is there"),
        pytest.param(Adjustment(annotations={"note": "2"}), None, id="annotation that is there"),
        pytest.param(Adjustment(envs={"NEW": "1"}, resources={"cpuset_cpus": ""}), None, id="text that is cleared"),
        pytest.param(Adjustment(resources={"cpu_shares": 0}), None, id="number that is cleared"),
        pytest.param(Adjustment(resources={"hugepage_limits": {"2MB": 2}}), None, id="huge page size that is there"),
        pytest.param(NO_ADJUSTMENT, "", id="cgroup parent that is cleared"),
        pytest.param(Adjustment(envs={"NEW": "1"}), "/kube/pod1", id="cgroup parent that is there"),
        pytest.param(Adjustment(envs={"NEW": "1"}, resources={"cpu_shares": 512}), None, id="number that is there"),
    ],
)
def test_what_is_there_already_or_cleared_is_changed_within(adjustment: Adjustment, parent: str | None) -> None:
    message = KNOWN.SerializeToString() + UNKNOWN
    result = edit.edit_container(message, adjustment, parent)
    assert not result.startswith(message)
    assert result.endswith(UNKNOWN)
    assert len(cri_pb2.CreateContainerRequest.FromString(result).config.envs) == 2 + len(
        adjustment.envs.keys() - {"GPU"}
    )


# ---- each change, by hand


def test_pod() -> None:
    request = cri_pb2.RunPodSandboxRequest(
        config=cri_pb2.PodSandboxConfig(hostname="h", labels={"l": "1"}), runtime_handler="kata"
    )
    adjustment = Adjustment(
        labels={"l": "2"}, annotations={"a": "3"}, envs={"E": "no"}, cgroup_parent="/x", resources=ALL_RESOURCES
    )
    after = cri_pb2.RunPodSandboxRequest.FromString(edit.edit_pod(request.SerializeToString(), adjustment))
    request.config.labels["l"] = "2"
    request.config.annotations["a"] = "3"
    request.config.linux.cgroup_parent = "/x"
    request.config.linux.resources.CopyFrom(wire_resources({**ALL_RESOURCES, "hugepage_limits": {}}))
    for size, limit in (("1GB", 0), ("2MB", 2**63)):
        request.config.linux.resources.hugepage_limits.add(page_size=size, limit=limit)
    assert after == request


def test_envs_keep_their_order_their_duplicates_and_their_bytes() -> None:
    envs = [("A", b"1"), ("B", b"\xff"), ("A", b"2"), ("C", b"3")]
    config = cri_pb2.ContainerConfig(envs=[cri_pb2.KeyValue(key=key, value=value) for key, value in envs])
    request = cri_pb2.CreateContainerRequest(pod_sandbox_id="p", config=config)
    adjustment = Adjustment(envs={"Z": "9", "A": "new", "Y": ""}, labels={"no": "no"}, cgroup_parent="/not/this")
    after = cri_pb2.CreateContainerRequest.FromString(
        edit.edit_container(request.SerializeToString(), adjustment, None)
    )
    assert [(env.key, env.value) for env in after.config.envs] == [
        ("A", b"1"),
        ("B", b"\xff"),
        ("A", b"new"),
        ("C", b"3"),
        ("Y", b""),
        ("Z", b"9"),
    ]
    assert not after.HasField("sandbox_config")
    assert not after.config.HasField("linux")


def test_an_entry_keeps_what_nobody_knows_in_it() -> None:
    """As containerd's parser does; protobuf's own for Python takes no such entry for one of the map."""
    unknown = b"\xa2\x06\x02\xff\xfe"
    before, after = (b"\x22\x0b\x0a\x01a" + unknown + b"\x12\x01" + value for value in (b"1", b"2"))
    request = b"\x0a\x01c" + before
    assert edit.edit_update(request, {}, {"a": "1"}) is request
    assert edit.edit_update(request, {}, {"a": "2"}) == b"\x0a\x01c" + after


@pytest.mark.parametrize(("before", "wanted"), [("", "/x"), ("/y", "/x"), ("/y", "")])
def test_cgroup_parent_of_a_container_goes_to_its_pods_config(before: str, wanted: str) -> None:
    request = cri_pb2.CreateContainerRequest(pod_sandbox_id="p", config=cri_pb2.ContainerConfig(working_dir="/"))
    if before:
        request.sandbox_config.linux.cgroup_parent = before
    after = edit.edit_container(request.SerializeToString(), NO_ADJUSTMENT, wanted)
    request.sandbox_config.linux.cgroup_parent = wanted
    assert cri_pb2.CreateContainerRequest.FromString(after) == request


def test_update() -> None:
    request = cri_pb2.UpdateContainerResourcesRequest(container_id="c1")
    request.linux.cpu_shares = 2
    request.linux.cpuset_cpus = "0-3"
    after = edit.edit_update(request.SerializeToString(), {"cpuset_cpus": "", "cpu_quota": -1}, {"a": "b"})
    request.linux.cpuset_cpus = ""
    request.linux.cpu_quota = -1
    request.annotations["a"] = "b"
    assert cri_pb2.UpdateContainerResourcesRequest.FromString(after) == request


@pytest.mark.parametrize(
    ("changes", "base", "expected"),
    [
        ({}, None, None),
        ({}, Resources(cpu_shares=2), None),
        ({"cpu_quota": -1}, None, Resources(cpu_quota=-1)),
        ({"cpuset_cpus": "1"}, Resources(cpu_shares=2, cpuset_cpus="0"), Resources(cpuset_cpus="1")),
        (
            {"unified": {"a": "2"}, "hugepage_limits": {"2MB": 5}},
            Resources(cpu_shares=2, unified={"a": "1", "b": "1"}, hugepage_limits={"1GB": 1}),
            Resources(unified={"a": "2", "b": "1"}, hugepage_limits={"1GB": 1, "2MB": 5}),
        ),
        (ALL_RESOURCES, None, overlay(None, ALL_RESOURCES)),
    ],
)
def test_update_request(changes: dict[str, ResourceValue], base: Resources | None, expected: Resources | None) -> None:
    assert translate.read_update(edit.update_request("c1", changes, base)) == ("c1", expected, {})


def test_what_is_new_of_an_update_stands_behind_it() -> None:
    message = cri_pb2.UpdateContainerResourcesRequest(container_id="c1").SerializeToString() + UNKNOWN
    result = edit.edit_update(message, {"cpu_quota": -1}, {"new": "1"})
    more = cri_pb2.UpdateContainerResourcesRequest(annotations={"new": "1"}, linux=wire_resources({"cpu_quota": -1}))
    assert cri_pb2.UpdateContainerResourcesRequest.FromString(result.removeprefix(message)) == more
    assert result.startswith(message)


def test_what_no_runtime_changes_is_not_taken_from_an_update() -> None:
    assert edit.taken_in_update(None) is None
    assert edit.taken_in_update(Resources(cpu_shares=2, oom_score_adj=900)) == Resources(cpu_shares=2)
