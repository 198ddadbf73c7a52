"""Docker mode's requests, as dockershim and the docker CLI send them.

Owns their targets, bodies and headers.
Must not know: how they are sent, how many, what is measured.
Invariant: a held call is about a pod that was made through the same socket, so the proxy knows it; every create has a
name of its own.
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

from scripts.benchmark.cases import DOCKER_CREATE, DOCKER_LIST, EXPORT, IMPORT, PING, START, Case
from scripts.benchmark.h2load import H2load
from scripts.benchmark.served import Served
from scripts.benchmark.transfers import Export, Import
from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.dockerd_structs import go_json
from tests.fakes.dockershim import DOCKERSHIM, Dockershim
from tests.fakes.dockershim_bodies import Container, Pod

CLIENT = "Docker-Client/20.10.24 (linux)"
"""The user agent by which the daemon knows the calls that are measured."""

HEADERS = (f"user-agent: {CLIENT}",)
POST = (*HEADERS, ":method: POST", "content-length: 0")
VERSION = f"/v{DOCKERSHIM.api}"
LABEL_FILTER = "%7B%22label%22%3A%7B%22io.kubernetes.docker.type%3Dcontainer%22%3Atrue%7D%7D"
LIST_TARGET = f"{VERSION}/containers/json?all=1&filters={LABEL_FILTER}"
IMPORT_TARGET = f"{VERSION}/images/create?fromSrc=-&message=&repo=bench&tag=1"
CONTAINER = Container(
    "main",
    BUSYBOX_IMAGE,
    command=("sleep", "1000"),
    envs=[(f"BENCH_VARIABLE_{number}", f"value {number}") for number in range(10)],
    resources={
        "cpu_period": 100_000,
        "cpu_quota": 50_000,
        "cpu_shares": 512,
        "memory_limit_in_bytes": 128 << 20,
        "oom_score_adj": 1000,
    },
)

Load = H2load | Export | Import


def prepare(served: Served, case: Case, way: str) -> Load:
    """Make what a case needs on a way; a held call gets a pod of its own, made on the same way."""
    return _PREPARE[case.route](served, case, way)


def _read(served: Served, case: Case, way: str) -> Load:
    target = {PING.route: "/_ping", DOCKER_LIST.route: LIST_TARGET}[case.route]
    return H2load(case, served.socket(way), _files(served, case, way), HEADERS, lambda calls: [target])


def _create(served: Served, case: Case, way: str) -> Load:
    with Dockershim(str(served.socket(way)), DOCKERSHIM) as shim:
        pod_id = run_pod(shim)
        pod, driver = shim.pods[pod_id], shim.cgroup_driver
    files, attempts = _files(served, case, way), count()
    body = files.with_suffix(".body")
    body.write_bytes(go_json(bodies.container_body(pod, CONTAINER, pod_id, driver)))

    def targets(calls: int) -> list[str]:
        return [create_target(pod, attempt) for attempt in islice(attempts, calls)]

    headers = (*HEADERS, "content-type: application/json")
    return H2load(case, served.socket(way), files, headers, targets, body)


def create_target(pod: Pod, attempt: int) -> str:
    """Return the target of a create: its name tells the attempt."""
    return f"{VERSION}/containers/create?name={bodies.container_name(pod, replace(CONTAINER, attempt=attempt))}"


def _start(served: Served, case: Case, way: str) -> Load:
    target = f"{VERSION}/containers/{_container(served, way)}/start"
    return H2load(case, served.socket(way), _files(served, case, way), POST, lambda calls: [target])


def _export(served: Served, case: Case, way: str) -> Load:
    target = f"{VERSION}/containers/{_container(served, way)}/export"
    return Export(served.socket(way), target, HEADERS, served.transfer_bytes)


def _import(served: Served, case: Case, way: str) -> Load:
    return Import(served.socket(way), IMPORT_TARGET, HEADERS, served.transfer_bytes)


_PREPARE: Mapping[str, Callable[[Served, Case, str], Load]] = {
    PING.route: _read,
    DOCKER_LIST.route: _read,
    DOCKER_CREATE.route: _create,
    START.route: _start,
    EXPORT.route: _export,
    IMPORT.route: _import,
}


def _files(served: Served, case: Case, way: str) -> Path:
    return served.client / f"{case.route.rpartition('/')[2]}-{way}"


def _container(served: Served, way: str) -> str:
    """Make a container in a pod; the fake daemon ends ``true`` at once, so it can be started again and again."""
    with Dockershim(str(served.socket(way)), DOCKERSHIM) as shim:
        made = shim.create_container(run_pod(shim), "main", command=["true"])
    served.made[way, DOCKER_CREATE.route] += 1
    return made


def run_pod(shim: Dockershim) -> str:
    """Run a pod, as a kubelet tells of it; return its id."""
    uid = str(uuid.uuid4())
    labels = {"app": "bench", "koordinator.sh/qosClass": "BE", "pod-template-hash": "6d4cf56db6"}
    annotations = {
        "kubernetes.io/config.source": "api",
        "scheduling.koordinator.sh/resource-status": '{"cpuset":"0-1"}',
    }
    parent = f"/kubepods/besteffort/pod{uid}"
    return shim.run_pod_sandbox("bench", uid, labels=labels, annotations=annotations, cgroup_parent=parent)
