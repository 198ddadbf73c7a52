"""The pods and containers on the bench's node, and the requests of its kubelet: small pods with one container each.

They have the sizes of real clusters': 7 labels, 7 annotations, 40 environment variables. The messages are never
modified.
"""

from tests.fakes import cri_pb2

LISTED = 200
ENVS = 40
IMAGE = "registry.local/busybox:1"
ANNOTATIONS = {
    "kubernetes.io/config.seen": "2026-11-20T00:00:00Z",
    "kubernetes.io/config.source": "api",
    "scheduling.koordinator.sh/resource-status": '{"cpuset":"0-1"}',
    "io.kubernetes.container.hash": "d464c1e4",
    "io.kubernetes.container.restartCount": "0",
    "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
    "io.kubernetes.container.ports": '[{"name":"http","containerPort":8080,"protocol":"TCP"}]',
}


def labels(number: int) -> dict[str, str]:
    return {
        "io.kubernetes.pod.name": f"web-{number}",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": f"5e3d1b60-8a55-4c0a-9d2e-{number:012}",
        "io.kubernetes.container.name": "main",
        "app": "web",
        "koordinator.sh/qosClass": "LS",
        "pod-template-hash": "6d4cf56db6",
    }


LABELS = labels(1)
DOCKER_ANNOTATIONS = {f"annotation.{key}": value for key, value in ANNOTATIONS.items()}

# ---- what exists on the node

VERSION = cri_pb2.VersionResponse(version="0.1.0", runtime_name="fake", runtime_version="1", runtime_api_version="v1")
POD_NAME = cri_pb2.PodSandboxMetadata(name="web", uid="1", namespace="default")
NAME = cri_pb2.ContainerMetadata(name="main")


def _pod(number: int) -> cri_pb2.PodSandbox:
    return cri_pb2.PodSandbox(
        id=f"{number:064x}",
        metadata=cri_pb2.PodSandboxMetadata(name=f"web-{number}", uid=str(number), namespace="default"),
        state=cri_pb2.SANDBOX_READY,
        created_at=1,
        labels=labels(number),
        annotations=ANNOTATIONS,
    )


def _container(number: int, padding: str) -> cri_pb2.Container:
    return cri_pb2.Container(
        id=f"c{number:063x}",
        pod_sandbox_id=f"{number:064x}",
        metadata=NAME,
        image=cri_pb2.ImageSpec(image="registry.local/web:1"),
        image_ref=f"sha256:{number:064x}",
        state=cri_pb2.CONTAINER_RUNNING,
        created_at=1,
        labels=labels(number),
        annotations=ANNOTATIONS | ({"padding": padding} if padding else {}),
    )


def _docker_container(number: int, padding: str) -> dict[str, object]:
    kind = {"io.kubernetes.docker.type": "container", "io.kubernetes.sandbox.id": f"{number:064x}"}
    return {
        "Id": f"c{number:063x}",
        "Names": [f"/k8s_main_web-{number}_default_u{number}_0"],
        "Image": "registry.local/web:1",
        "ImageID": "sha256:1",
        "Command": "sleep" + padding,
        "Created": 1,
        "State": "running",
        "Status": "Up",
        "Labels": labels(number) | DOCKER_ANNOTATIONS | kind,
    }


PODS = cri_pb2.ListPodSandboxResponse(items=[_pod(number) for number in range(LISTED)])


def containers(padding: str = "") -> cri_pb2.ListContainersResponse:
    """Return the list of containers, each with so much padding."""
    return cri_pb2.ListContainersResponse(containers=[_container(number, padding) for number in range(LISTED)])


def docker_containers(padding: str = "") -> list[dict[str, object]]:
    return [_docker_container(number, padding) for number in range(LISTED)]


# ---- the kubelet's requests

RESOURCES = cri_pb2.LinuxContainerResources(
    cpu_period=100_000, cpu_quota=50_000, cpu_shares=512, memory_limit_in_bytes=1 << 28
)


def _parent(number: int) -> str:
    return f"/kubepods/burstable/podu{number}"


def _envs(number: int) -> list[tuple[str, str]]:
    """Return a pod's variables: those of all pods, but one of its own, so that no two environments are equal."""
    return [(f"WEB_{of}_SERVICE_HOST", f"10.96.0.{1 if of else number}") for of in range(ENVS)]


def pod_config(number: int = 1) -> cri_pb2.PodSandboxConfig:
    return cri_pb2.PodSandboxConfig(
        metadata=cri_pb2.PodSandboxMetadata(name="web", uid=f"u{number}", namespace="default"),
        labels=labels(number),
        annotations=ANNOTATIONS,
        linux=cri_pb2.LinuxPodSandboxConfig(cgroup_parent=_parent(number)),
    )


def container_config(number: int = 1, name: str = "main") -> cri_pb2.ContainerConfig:
    return cri_pb2.ContainerConfig(
        metadata=cri_pb2.ContainerMetadata(name=name),
        image=cri_pb2.ImageSpec(image=IMAGE),
        command=["sleep", "1000"],
        envs=[cri_pb2.KeyValue(key=key, value=value.encode()) for key, value in _envs(number)],
        labels=labels(number),
        annotations=ANNOTATIONS,
        linux=cri_pb2.LinuxContainerConfig(resources=RESOURCES),
    )


def docker_body(name: str, kind: str, pod_id: str, number: int = 1) -> dict[str, object]:
    """Return the body of dockershim's create of a pod's sandbox, or with ``pod_id`` of a container in it."""
    told = {"io.kubernetes.container.name": name, "io.kubernetes.docker.type": kind}
    return {
        "Image": IMAGE,
        "Cmd": ["sleep", "1000"],
        "Labels": labels(number) | DOCKER_ANNOTATIONS | told | ({"io.kubernetes.sandbox.id": pod_id} if pod_id else {}),
        "Env": [f"{key}={value}" for key, value in _envs(number)],
        "HostConfig": {
            "CgroupParent": _parent(number),
            "Memory": 1 << 28,
            "CpuShares": 512,
            "CpuQuota": 50_000,
            "CpuPeriod": 100_000,
        },
    }
