"""Docker mode's requests of a load, as dockershim and the docker CLI send them.

Owns their targets, bodies and headers.
Must not know: how they are sent, how many, what is measured.
Invariant: what is exported is a pod's container that was made through the same socket, so the proxy knows it.
"""

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.benchmark.cases import DOCKER_LIST, EXPORT, IMPORT, PING, Case
from scripts.benchmark.h2load import H2load
from scripts.benchmark.served import Served
from scripts.benchmark.transfers import Export, Import
from tests.fakes.dockershim import DOCKERSHIM, Dockershim

CLIENT = "Docker-Client/20.10.24 (linux)"
"""The user agent by which the daemon knows the calls that are measured."""

HEADERS = (f"user-agent: {CLIENT}",)
VERSION = f"/v{DOCKERSHIM.api}"
LABEL_FILTER = "%7B%22label%22%3A%7B%22io.kubernetes.docker.type%3Dcontainer%22%3Atrue%7D%7D"
LIST_TARGET = f"{VERSION}/containers/json?all=1&filters={LABEL_FILTER}"
IMPORT_TARGET = f"{VERSION}/images/create?fromSrc=-&message=&repo=bench&tag=1"

Load = H2load | Export | Import


def prepare(served: Served, case: Case, way: str) -> Load:
    """Make what a case needs on a way."""
    return _PREPARE[case.route](served, case, way)


def _read(served: Served, case: Case, way: str) -> Load:
    target = {PING.route: "/_ping", DOCKER_LIST.route: LIST_TARGET}[case.route]
    return H2load(case, served.socket(way), _files(served, case, way), HEADERS, lambda calls: [target])


def _export(served: Served, case: Case, way: str) -> Load:
    target = f"{VERSION}/containers/{_container(served, way)}/export"
    return Export(served.socket(way), target, HEADERS, served.transfer_bytes)


def _import(served: Served, case: Case, way: str) -> Load:
    return Import(served.socket(way), IMPORT_TARGET, HEADERS, served.transfer_bytes)


_PREPARE: Mapping[str, Callable[[Served, Case, str], Load]] = {
    PING.route: _read,
    DOCKER_LIST.route: _read,
    EXPORT.route: _export,
    IMPORT.route: _import,
}


def _files(served: Served, case: Case, way: str) -> Path:
    return served.client / f"{case.route.rpartition('/')[2]}-{way}"


def _container(served: Served, way: str) -> str:
    """Make a container in a pod."""
    with Dockershim(str(served.socket(way)), DOCKERSHIM) as shim:
        return shim.create_container(run_pod(shim), "main", command=["true"])


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
