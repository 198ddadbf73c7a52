"""What is sent: one row a case.

Owns the cases, how many calls each makes in a round, the requests' bodies.
Must not know: sockets, programs, limits.
Invariant: a held create belongs to a pod that was made through the same socket, so the proxy knows it.
"""

import uuid
from dataclasses import dataclass, field

from google.protobuf.message import Message

from tests.engines import cri
from tests.fakes import cri_pb2

DIRECT, PIPE, PROXY, HOOKED = "direct", "pipe", "proxy", "proxy+hook"
LIST_CONTAINERS = 200
LIST_BYTES = 1 << 20
HUGE_LIST_BYTES = (16 << 20) - 1024
"""The longest reply that the kubelet takes, its limit of 16 MiB less some room."""


@dataclass(frozen=True, slots=True)
class Case:
    """``calls`` are those of one round on each way; ``concurrency`` is the number of calls in flight at a time."""

    name: str
    method: str
    calls: int
    concurrency: int = 1
    ways: tuple[str, ...] = (DIRECT, PIPE, PROXY)
    headers: tuple[str, ...] = field(default=("grpc-timeout: 120S",))
    """The kubelet gives every call a deadline of 2 minutes."""

    @property
    def path(self) -> str:
        """Name the method as HTTP/2's :path does."""
        return f"/{cri.V1}.RuntimeService/{self.method}"


SMALL = Case("small call (Version)", "Version", 6_000)
SMALL_16 = Case("small call, 16 at a time", "Version", 12_000, concurrency=16)
LIST = Case("list of 200 (1 MiB)", "ListContainers", 400)
LIST_16 = Case("list of 200, 16 at a time", "ListContainers", 400, concurrency=16)
CREATE = Case("held create", "CreateContainer", 2_000, ways=(DIRECT, PROXY, HOOKED))
CASES = (SMALL, SMALL_16, LIST, LIST_16, CREATE)


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
