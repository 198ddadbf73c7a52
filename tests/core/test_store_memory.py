"""10,000 records take at most 64 MiB more than an idle proxy (promise 13).

Run as a program, this file fills a Store and prints the bytes that became resident. With "cri" the containers'
variables come from CRI requests and stay encoded, otherwise they are made of texts, as Docker's are.
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
UID, ID = "NUMBER-7a66-4aef-8c4a-3f2f0c0eNUMBER", "NUMBER".rjust(65, "0")
NAMES = {"name": "web-7d9c5c8f9b-NUMBER", "namespace": "production", "uid": UID}
LABELS = {"app": "web", "app.kubernetes.io/name": "web", "pod-template-hash": "7d9c5c8f9b"}
LABELS |= {"koordinator.sh/qosClass": "BE"} | {f"io.kubernetes.pod.{key}": value for key, value in NAMES.items()}
NOTES = {"kubernetes.io/config.source": "api", "kubernetes.io/config.seen": "2024-05-05T10:11:12.0000NUMBERZ"}
NOTES |= {"scheduling.koordinator.sh/resource-status": '{"cpuset": "0-NUMBER"}', "note": "NUMBER" * 40}
PARENT = f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID}.slice"
POD = {**NAMES, "id": ID, "labels": LABELS, "annotations": NOTES, "cgroup_parent": PARENT}

KUBELETS = {"hash": "000NUMBER", "restartCount": "0", "terminationMessagePath": "/dev/termination-log"}
KUBELETS_NOTES = {f"io.kubernetes.container.{key}": value for key, value in KUBELETS.items()}
KUBELETS_NOTES |= {"io.kubernetes.container.terminationMessagePolicy": "File"}
KUBELETS_NOTES |= {"io.kubernetes.pod.terminationGracePeriod": "30"}
ENVS = {"POD_NUMBER": "NUMBER"}
for service in range(25):  # services of a namespace: each gives every container two variables
    ENVS |= {f"SERVICE_{service}_SERVICE_HOST": f"10.96.{service}.SPACE"}
    ENVS |= {f"SERVICE_{service}_PORT": f"tcp://10.96.{service}.SPACE:8080"}
CONTAINER = {"id": f"c{ID}", "name": "main", "annotations": KUBELETS_NOTES, "envs": ENVS, "cgroup_parent": PARENT}


@pytest.mark.parametrize("form", ["cri", "texts"])
def test_ten_thousand_records_of_a_crowded_namespace_are_within_64_mib(form: str) -> None:
    """Each record is made of texts of its own, as from a message, and every second container was changed by a hook."""
    command = [sys.executable, __file__, form]
    done = subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[1])
    counts, grown = json.loads(done.stdout)
    assert counts == [PODS, PODS * CONTAINERS_OF_EACH]
    assert 1 << 20 < grown < LIMIT_BYTES


def numbered(template: str, number: int) -> Any:
    """Return the values of a template for a pod or a container, in texts of its own."""
    return json.loads(template.replace("NUMBER", f"{number:05}").replace("SPACE", f"{number % 9}"))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def read(fields: dict[str, Any]) -> Any:
    """Return the variables as they are read from a create's request."""
    from runtimeproxy.cri import api_pb2, messages

    config = api_pb2.ContainerConfig()
    for key, value in fields["envs"].items():
        config.envs.add(key=key.encode(), value=value.encode())
    request = api_pb2.CreateContainerRequest(pod_sandbox_id="p1", config=config)
    return messages.read_container(request.SerializeToString())[0].envs


def fill(form: str) -> None:
    """Fill a Store; print the number of its records and the memory they take."""
    import runtimeproxy.app  # noqa: F401 - what an idle proxy has loaded
    from runtimeproxy.core.store import Store
    from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Resources, Subject
    from runtimeproxy.model.fields import changed as changed_envs

    pod_template, container_template = json.dumps(POD), json.dumps(CONTAINER)
    gc.collect()
    before = resident_bytes()
    store = Store()
    for number in range(PODS):
        pod = PodInfo(**numbered(pod_template, number))
        owner = PodRecord(pod, pod)
        store.commit(Subject(owner))
        for each in range(CONTAINERS_OF_EACH * number, CONTAINERS_OF_EACH * (number + 1)):
            resources = Resources(cpu_shares=1024 + each, cpu_quota=50_000 + each, memory_limit_in_bytes=2**28 + each)
            fields = numbered(container_template, each)
            if form == "cri":
                fields["envs"] = read(fields)
            queried = ContainerInfo(**fields, pod_id=pod.id, resources=resources)
            changed = changed_envs(queried.envs, {"HOOK": f"{each}"})
            hooked = replace(queried, envs=changed, resources=replace(resources, cpu_shares=2))
            store.commit(Subject(owner, ContainerRecord(queried, hooked if each % 2 else queried)))
    gc.collect()
    print(json.dumps([store.counts(), resident_bytes() - before]))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    fill(sys.argv[1])
