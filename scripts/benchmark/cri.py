"""CRI mode's requests of a load, as the kubelet sends them.

Owns their bodies and headers.
Must not know: how they are sent, how many, what is measured.
Invariant: no two pods have the same uid.
"""

import uuid

from google.protobuf.message import Message

from scripts.benchmark.cases import Case
from scripts.benchmark.h2load import H2load
from scripts.benchmark.served import Served
from tests.engines import cri
from tests.fakes import cri_pb2

HEADERS = ("content-type: application/grpc", "te: trailers", "grpc-timeout: 120S")
"""The kubelet gives every call a deadline of 2 minutes."""


def prepare(served: Served, case: Case, way: str) -> H2load:
    """Make what a case needs on a way."""
    files = served.client / f"{case.route}-{way}"
    body = files.with_suffix(".body")
    body.write_bytes(framed(cri_pb2.VersionRequest()))
    target = f"/{cri.V1}.RuntimeService/{case.route}"
    return H2load(case, served.socket(way), files, HEADERS, lambda calls: [target], body)


def framed(message: Message) -> bytes:
    """Put gRPC's prefix before a message."""
    body = message.SerializeToString()
    return b"\0" + len(body).to_bytes(4, "big") + body


def pod() -> cri_pb2.PodSandboxConfig:
    """Make the config of a pod, as a kubelet gives it."""
    labels = {"app": "bench", "koordinator.sh/qosClass": "BE", "pod-template-hash": "6d4cf56db6"}
    annotations = {
        "kubernetes.io/config.source": "api",
        "scheduling.koordinator.sh/resource-status": '{"cpuset":"0-1"}',
    }
    uid = str(uuid.uuid4())
    parent = f"/kubepods/besteffort/pod{uid}"
    return cri.pod_config("bench", uid, cgroup_parent=parent, labels=labels, annotations=annotations)


def create(pod_id: str, pod_config: cri_pb2.PodSandboxConfig) -> cri_pb2.CreateContainerRequest:
    """Make the request of a container in that pod: 10 environment variables, CPU and memory limits."""
    envs = [(f"BENCH_VARIABLE_{number}", b"value %d" % number) for number in range(10)]
    resources = cri_pb2.LinuxContainerResources(
        cpu_period=100_000, cpu_quota=50_000, cpu_shares=512, memory_limit_in_bytes=128 << 20, oom_score_adj=1000
    )
    labels = {"io.kubernetes.container.name": "main", "io.kubernetes.pod.name": "bench"}
    annotations = {"io.kubernetes.container.hash": "5ba9a2b1", "io.kubernetes.container.restartCount": "0"}
    config = cri.container_config("main", envs=envs, resources=resources, labels=labels, annotations=annotations)
    return cri_pb2.CreateContainerRequest(pod_sandbox_id=pod_id, config=config, sandbox_config=pod_config)
