"""What is shown of records: names of fields and owners, never a value."""

import json
from collections.abc import Mapping

import pytest

from runtimeproxy.admin.records import LONGEST_ENVS, MANY, container_row, is_of_pod, pod_row
from runtimeproxy.model.fields import (
    NO_CHANGES,
    ContainerInfo,
    ContainerRecord,
    Envs,
    PodInfo,
    PodRecord,
    Resources,
    changed,
)

CANARY = "canary-4711"
KUBELETS = Resources(cpu_quota=4711, cpuset_cpus=CANARY, unified={"memory.high": CANARY})
HOOKS = Resources(
    cpu_quota=9999,
    memory_limit_in_bytes=8,
    memory_swap_limit_in_bytes=8,
    cpuset_cpus=CANARY,
    unified={"memory.high": CANARY, "cpu.idle": CANARY},
)
LIMITS = ["resources.memory_limit_in_bytes", "resources.memory_swap_limit_in_bytes"]

POD = PodInfo("p1", "web", "uid-1", "shop", labels={"app": CANARY}, annotations={"note": CANARY}, cgroup_parent="/kube")
CONTAINER = ContainerInfo(
    "c1", "p1", "main", 2, annotations={"note": CANARY}, resources=KUBELETS, envs={"TOKEN": CANARY, "HOME": CANARY}
)


def texts(raw: bytes) -> dict[str, str]:
    return dict(json.loads(raw))


def encoded(values: Mapping[str, str]) -> Envs:
    return Envs(json.dumps(dict(values)).encode(), texts, NO_CHANGES)


def test_pod_is_shown_by_the_names_of_its_fields() -> None:
    hooked = PodInfo("p1", "web", "uid-1", "shop", labels={"app": CANARY}, annotations={"note": CANARY, "gpu": CANARY})
    row = pod_row(PodRecord(POD, hooked), ["c1", "c2"])
    assert row == {
        "id": "p1",
        "namespace": "shop",
        "name": "web",
        "uid": "uid-1",
        "asked": ["annotations.note", "cgroup_parent", "labels.app"],
        "sent": ["annotations.gpu", "annotations.note", "labels.app"],
        "changed": ["annotations.gpu", "cgroup_parent"],
        "owners": {},
        "read": False,
        "containers": ["c1", "c2"],
    }


def test_container_is_shown_by_the_names_of_its_fields_and_their_owners() -> None:
    envs = encoded(CONTAINER.envs)
    asked = ContainerInfo("c1", "p1", "main", 2, CONTAINER.annotations, KUBELETS, envs)
    sent = ContainerInfo(
        "c1", "p1", "main", 2, CONTAINER.annotations, HOOKS, changed(envs, {"GPU": CANARY, "HOME": "x"})
    )
    row = container_row(ContainerRecord(asked, sent, (("cpu_quota", "batch"), ("memory_limit_in_bytes", "batch"))))
    kubelets = ["annotations.note", "envs.HOME", "envs.TOKEN", "resources.cpu_quota", "resources.cpuset_cpus"]
    kubelets.append("resources.unified.memory.high")
    assert row == {
        "id": "c1",
        "podId": "p1",
        "name": "main",
        "attempt": 2,
        "asked": kubelets,
        "sent": sorted([*kubelets, "envs.GPU", *LIMITS, "resources.unified.cpu.idle"]),
        "changed": ["envs.GPU", "envs.HOME", "resources.cpu_quota", *LIMITS, "resources.unified.cpu.idle"],
        "owners": dict.fromkeys(["resources.cpu_quota", *LIMITS], "batch"),
        "read": False,
    }


def test_record_that_was_read_from_the_runtime_is_marked() -> None:
    assert pod_row(PodRecord(POD, POD, read=True), [])["read"] is True
    assert container_row(ContainerRecord(CONTAINER, CONTAINER, read=True))["read"] is True


@pytest.mark.parametrize("envs", [CONTAINER.envs, encoded(CONTAINER.envs)], ids=["decoded", "encoded"])
def test_container_without_hooks_was_sent_as_requested(envs: Mapping[str, str]) -> None:
    info = ContainerInfo("c1", "p1", "main", envs=envs)
    row = container_row(ContainerRecord(info, info))
    assert row["asked"] == row["sent"] == ["envs.HOME", "envs.TOKEN"]
    assert (row["changed"], row["owners"]) == ([], {})


def test_long_environment_is_not_read() -> None:
    envs = encoded({"LONG": "x" * LONGEST_ENVS})
    asked = ContainerInfo("c1", "p1", "main", envs=envs)
    sent = ContainerInfo("c1", "p1", "main", envs=changed(envs, {"GPU": "0"}))
    row = container_row(ContainerRecord(asked, sent))
    assert (row["asked"], row["sent"], row["changed"]) == ([MANY], [MANY, "envs.GPU"], ["envs.GPU"])


def test_environment_that_is_shown_is_not_kept_decoded() -> None:
    envs = encoded(CONTAINER.envs)
    info = ContainerInfo("c1", "p1", "main", envs=envs)
    container_row(ContainerRecord(info, info))
    assert envs._texts is None


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("web", True),
        ("shop/web", True),
        ("", True),
        ("p", True),
        ("p1", True),
        ("we", False),
        ("shop/we", False),
        ("bank/web", False),
        ("/web", False),
        ("1", False),
    ],
)
def test_pod_is_meant_by_its_name_or_the_beginning_of_its_id(wanted: str, found: bool) -> None:
    assert is_of_pod(wanted, POD.namespace, POD.name, POD.id) is found
