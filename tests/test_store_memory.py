"""10,000 records take at most 64 MiB beyond an idle proxy (promise 13).

Run as a program, this file fills a Store and prints the bytes that became resident; with "cri" containers are read from
CRI's requests, whose variables stay as they came, else they are made of texts, as Docker's are.
"""

import gc
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PODS, CONTAINERS_OF_EACH = 2_500, 3
LIMIT_BYTES = 64 << 20
SERVICES = 25
"""Of a namespace: each gives every container two variables."""


@pytest.mark.parametrize("form", ["cri", "texts"])
def test_ten_thousand_records_of_a_crowded_namespace_are_within_64_mib(form: str) -> None:
    """Each record is made of texts of its own, as from a message, and every second container was changed by a hook."""
    command = [sys.executable, __file__, form]
    done = subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[1])
    counts, grown = json.loads(done.stdout)
    assert counts == [PODS, PODS * CONTAINERS_OF_EACH]
    assert 1 << 20 < grown < LIMIT_BYTES


def anew(values: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(values)))


NOTES = {
    "io.kubernetes.container.restartCount": "0",
    "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
    "io.kubernetes.container.terminationMessagePolicy": "File",
    "io.kubernetes.pod.terminationGracePeriod": "30",
}
"""What the kubelet adds to every container."""


def pod_fields(number: int) -> dict[str, Any]:
    uid, name = f"{number:08x}-7a66-4aef-8c4a-3f2f0c0e{number:04x}", f"web-7d9c5c8f9b-{number:05x}"
    parent = f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid}.slice"
    names = {"name": name, "namespace": "production", "uid": uid}
    labels = {"app": "web", "app.kubernetes.io/name": "web", "pod-template-hash": "7d9c5c8f9b"}
    labels |= {"koordinator.sh/qosClass": "BE"} | {f"io.kubernetes.pod.{key}": value for key, value in names.items()}
    annotations = {"kubernetes.io/config.seen": f"2024-05-05T10:11:12.{number:09d}Z", "note": f"{number}" * 50}
    annotations |= {
        "kubernetes.io/config.source": "api",
        "scheduling.koordinator.sh/resource-status": f"0-{number}" * 4,
    }
    maps = {"labels": labels, "annotations": annotations}
    return anew({**names, **maps, "id": f"{number:064x}", "cgroup_parent": parent})


def container_fields(number: int, pod_id: str) -> dict[str, Any]:
    envs = {f"SERVICE_{service}_SERVICE_HOST": f"10.96.{service}.{number % 9}" for service in range(SERVICES)}
    envs |= {f"SERVICE_{service}_PORT": f"tcp://10.96.{service}.{number % 9}:8080" for service in range(SERVICES)}
    envs["POD_NUMBER"] = f"{number}"
    names = {"id": f"c{number:063x}", "pod_id": pod_id, "name": f"main-{number % CONTAINERS_OF_EACH}"}
    names["cgroup_parent"] = f"/kubepods/besteffort/{number // CONTAINERS_OF_EACH}"
    return anew({**names, "annotations": {"io.kubernetes.container.hash": f"{number:08x}", **NOTES}, "envs": envs})


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def read(fields: dict[str, Any]) -> Any:
    """Return the variables as a create's request has them."""
    from runtimeproxy.cri import api_pb2, translate

    config = api_pb2.ContainerConfig()
    for key, value in fields["envs"].items():
        config.envs.add(key=key.encode(), value=value.encode())
    request = api_pb2.CreateContainerRequest(pod_sandbox_id=fields["pod_id"], config=config)
    return translate.read_container(request.SerializeToString())[0].envs


def fill(form: str) -> None:
    """Fill a Store and print what it holds and what that takes."""
    import runtimeproxy.app  # noqa: F401 - what an idle proxy has loaded
    from runtimeproxy import envs
    from runtimeproxy.model import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Resources, Subject
    from runtimeproxy.store import Store

    gc.collect()
    before = resident_bytes()
    store = Store()
    for number in range(PODS):
        pod = PodInfo(**pod_fields(number))
        owner = PodRecord(pod, pod)
        store.commit(Subject(owner))
        for each in range(CONTAINERS_OF_EACH * number, CONTAINERS_OF_EACH * (number + 1)):
            resources = Resources(cpu_shares=1024 + each, cpu_quota=50_000 + each, memory_limit_in_bytes=2**28 + each)
            fields = container_fields(each, pod.id)
            if form == "cri":
                fields["envs"] = read(fields)
            asked = ContainerInfo(**fields, resources=resources)
            changed = envs.changed(asked.envs, {"HOOK": f"{each}"})
            hooked = replace(asked, envs=changed, resources=replace(resources, cpu_shares=2))
            store.commit(Subject(owner, ContainerRecord(asked, hooked if each % 2 else asked)))
    gc.collect()
    print(json.dumps([store.counts(), resident_bytes() - before]))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    fill(sys.argv[1])
