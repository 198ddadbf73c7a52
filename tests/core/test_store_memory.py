"""10,000 records take at most 64 MiB more than an idle proxy (promise 13).

Run as a program, this file fills a Store and prints the growth of resident memory in bytes. With "cri" the variables of
containers are those of CRI requests and stay encoded, otherwise they are texts, as Docker's are.
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

PODS, CONTAINERS_PER_POD = 2_500, 3
LIMIT_BYTES = 64 << 20
KUBELETS = {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "restartCount": "0"}


@pytest.mark.parametrize("form", ["cri", "texts"])
def test_ten_thousand_records_take_at_most_64_mib(form: str) -> None:
    """Records share no texts when they are committed, and a hook has changed every second container."""
    command = [sys.executable, __file__, form]
    done = subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[1])
    counts, grown = json.loads(done.stdout)
    assert counts == [PODS, PODS * CONTAINERS_PER_POD]
    assert 1 << 20 < grown < LIMIT_BYTES


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def pod(number: int) -> dict[str, Any]:
    n = f"{number:05}"
    names = {"name": f"web-7d9c5c8f9b-{n}", "namespace": "production", "uid": f"{n}-7a66-4aef-8c4a-3f2f0c0e{n}"}
    labels = {"app": "web", "app.kubernetes.io/name": "web", "pod-template-hash": "7d9c5c8f9b"}
    labels |= {"koordinator.sh/qosClass": "BE"} | {f"io.kubernetes.pod.{key}": value for key, value in names.items()}
    notes = {"kubernetes.io/config.source": "api", "kubernetes.io/config.seen": f"2024-05-05T10:11:12.0000{n}Z"}
    notes |= {"scheduling.koordinator.sh/resource-status": f'{{"cpuset": "0-{n}"}}', "note": n * 40}
    parent = f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{names['uid']}.slice"
    return {**names, "id": n.rjust(64, "0"), "labels": labels, "annotations": notes, "cgroup_parent": parent}


def container(number: int, parent: str) -> dict[str, Any]:
    n, envs = f"{number:05}", {"POD_NUMBER": f"{number:05}"}
    notes = {f"io.kubernetes.container.{key}": value for key, value in (KUBELETS | {"hash": f"000{n}"}).items()}
    notes["io.kubernetes.pod.terminationGracePeriod"] = "30"
    for service in range(25):  # services of a namespace: each gives every container two variables
        address = f"10.96.{service}.{number % 9}"
        envs |= {f"SERVICE_{service}_SERVICE_HOST": address, f"SERVICE_{service}_PORT": f"tcp://{address}:8080"}
    return {"id": f"c{n.rjust(64, '0')}", "name": "main", "annotations": notes, "envs": envs, "cgroup_parent": parent}


def encoded(envs: dict[str, str]) -> Any:
    """Return the variables as they are read from a create's request."""
    from runtimeproxy.cri import api_pb2, messages

    config = api_pb2.ContainerConfig()
    for key, value in envs.items():
        config.envs.add(key=key.encode(), value=value.encode())
    request = api_pb2.CreateContainerRequest(pod_sandbox_id="p1", config=config)
    return messages.read_container(request.SerializeToString())[0].envs


def fill(form: str) -> None:
    """Fill a Store; print the number of its records and the memory they take."""
    import runtimeproxy.app  # noqa: F401 - what an idle proxy has loaded
    from runtimeproxy.core.store import Store
    from runtimeproxy.model import fields as model
    from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Resources, Subject

    gc.collect()
    before = resident_bytes()
    store = Store()
    for number in range(PODS):
        info = PodInfo(**json.loads(json.dumps(pod(number))))  # in texts of its own
        owner = PodRecord(info, info)
        store.commit(Subject(owner))
        for i in range(CONTAINERS_PER_POD * number, CONTAINERS_PER_POD * (number + 1)):
            resources = Resources(cpu_shares=1024 + i, cpu_quota=50_000 + i, memory_limit_in_bytes=2**28 + i)
            fields = json.loads(json.dumps(container(i, info.cgroup_parent or "")))
            if form == "cri":
                fields["envs"] = encoded(fields["envs"])
            queried = ContainerInfo(**fields, pod_id=info.id, resources=resources)
            changed = model.changed_envs(queried.envs, {"HOOK": f"{i}"})
            hooked = replace(queried, envs=changed, resources=replace(resources, cpu_shares=2))
            store.commit(Subject(owner, ContainerRecord(queried, hooked if i % 2 else queried)))
    gc.collect()
    print(json.dumps([store.counts(), resident_bytes() - before]))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    fill(sys.argv[1])
