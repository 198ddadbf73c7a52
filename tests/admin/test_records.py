"""The rows of records have names of fields and owners, never a value."""

import json
from collections.abc import Mapping
from dataclasses import replace

from runtimeproxy.admin.records import LONGEST_ENVS, MANY, container_row, pod_row
from runtimeproxy.model import fields
from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, Envs, PodInfo, PodRecord, Resources, changed

CANARY = "canary-4711"
KUBELETS = Resources(cpu_quota=4711, cpuset_cpus=CANARY, unified={"memory.high": CANARY})
HOOKS = Resources(cpu_quota=9999, cpuset_cpus=CANARY, unified={"memory.high": CANARY, "cpu.idle": CANARY})
HOOKS = replace(HOOKS, memory_limit_in_bytes=8, memory_swap_limit_in_bytes=8)
LIMITS = ["resources.memory_limit_in_bytes", "resources.memory_swap_limit_in_bytes"]

POD = PodInfo("p1", "web", "uid-1", "shop", labels={"app": CANARY}, annotations={"note": CANARY}, cgroup_parent="/kube")
TEXTS = {"TOKEN": CANARY, "HOME": CANARY}


def encoded(values: Mapping[str, str]) -> Envs:
    return Envs(json.dumps(values).encode(), lambda raw: dict(json.loads(raw)), fields.NO_CHANGES)


def test_pod_is_shown_by_the_names_of_its_fields() -> None:
    hooked = replace(POD, annotations={"note": CANARY, "gpu": CANARY}, cgroup_parent="")
    assert pod_row(PodRecord(POD, hooked, read=True), ["c1", "c2"]) == {
        "id": "p1",
        "namespace": "shop",
        "name": "web",
        "uid": "uid-1",
        "asked": ["annotations.note", "cgroup_parent", "labels.app"],
        "sent": ["annotations.gpu", "annotations.note", "labels.app"],
        "changed": ["annotations.gpu", "cgroup_parent"],
        "owners": {},
        "read": True,
        "containers": ["c1", "c2"],
    }


def test_container_is_shown_by_its_fields_and_their_owners() -> None:
    envs = encoded(TEXTS)
    requested = ContainerInfo("c1", "p1", "main", 2, {"note": CANARY}, KUBELETS, envs)
    sent = replace(requested, resources=HOOKS, envs=changed(envs, {"GPU": CANARY, "HOME": "x"}))
    owners = (("cpu_quota", "batch"), ("memory_limit_in_bytes", "batch"))
    kubelets = ["annotations.note", "envs.HOME", "envs.TOKEN", "resources.cpu_quota", "resources.cpuset_cpus"]
    kubelets.append("resources.unified.memory.high")
    assert container_row(ContainerRecord(requested, sent, owners, read=True)) == {
        "id": "c1",
        "podId": "p1",
        "name": "main",
        "attempt": 2,
        "asked": kubelets,
        "sent": sorted([*kubelets, "envs.GPU", *LIMITS, "resources.unified.cpu.idle"]),
        "changed": ["envs.GPU", "envs.HOME", "resources.cpu_quota", *LIMITS, "resources.unified.cpu.idle"],
        "owners": dict.fromkeys(["resources.cpu_quota", *LIMITS], "batch"),
        "read": True,
    }


def test_decoded_environment_is_not_stored_and_a_long_one_not_read() -> None:
    envs = encoded(TEXTS)
    info = ContainerInfo("c1", "p1", "main", envs=envs)
    row = container_row(ContainerRecord(info, info))
    assert row["asked"] == row["sent"] == ["envs.HOME", "envs.TOKEN"]
    assert (row["changed"], row["owners"], row["read"], envs._texts) == ([], {}, False, None)
    envs = encoded({"LONG": "x" * LONGEST_ENVS})
    info = replace(info, envs=envs)
    row = container_row(ContainerRecord(info, replace(info, envs=changed(envs, {"GPU": "0"}))))
    assert (row["asked"], row["sent"], row["changed"]) == ([MANY], [MANY, "envs.GPU"], ["envs.GPU"])
