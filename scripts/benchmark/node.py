"""What runs on the node of the bench's peers, and what its kubelet asks for: a small pod with one container.

Owns the messages of both modes, in the sizes of a cluster's: 7 labels, 7 annotations, 40 environment variables.
Must not know: how they are sent.
Invariant: nothing here is changed.
"""

from tests.fakes import cri_pb2

LISTED = 200
ENVS = 40
PARENT = "/kubepods/burstable/podu1"
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
    """Return the labels of a pod's container."""
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

# ---- what runs


def pod_status(any_id: str) -> cri_pb2.PodSandboxStatus:
    """Return what the runtime tells of a pod."""
    named = cri_pb2.PodSandboxMetadata(name="web", uid="1", namespace="default")
    return cri_pb2.PodSandboxStatus(id=any_id, metadata=named, labels=LABELS, annotations=ANNOTATIONS)


def container_status(any_id: str) -> cri_pb2.ContainerStatus:
    """Return what the runtime tells of a container."""
    named = cri_pb2.ContainerMetadata(name="main")
    return cri_pb2.ContainerStatus(id=any_id, metadata=named, labels=LABELS, annotations=ANNOTATIONS)


def _pod(number: int) -> cri_pb2.PodSandbox:
    return cri_pb2.PodSandbox(
        id=f"{number:064x}",
        metadata=cri_pb2.PodSandboxMetadata(name=f"web-{number}", uid=str(number), namespace="default"),
        state=cri_pb2.SANDBOX_READY,
        created_at=1,
        labels=labels(number),
        annotations=ANNOTATIONS,
    )


def _container(number: int) -> cri_pb2.Container:
    return cri_pb2.Container(
        id=f"c{number:063x}",
        pod_sandbox_id=f"{number:064x}",
        metadata=cri_pb2.ContainerMetadata(name="main"),
        image=cri_pb2.ImageSpec(image="registry.local/web:1"),
        image_ref=f"sha256:{number:064x}",
        state=cri_pb2.CONTAINER_RUNNING,
        created_at=1,
        labels=labels(number),
        annotations=ANNOTATIONS,
    )


def _docker_container(number: int) -> dict[str, object]:
    told = labels(number) | {f"annotation.{key}": value for key, value in ANNOTATIONS.items()}
    return {
        "Id": f"c{number:063x}",
        "Names": [f"/k8s_main_web-{number}_default_u{number}_0"],
        "Image": "registry.local/web:1",
        "ImageID": "sha256:1",
        "Command": "sleep",
        "Created": 1,
        "State": "running",
        "Status": "Up",
        "Labels": told | {"io.kubernetes.docker.type": "container", "io.kubernetes.sandbox.id": f"{number:064x}"},
    }


VERSION = cri_pb2.VersionResponse(version="0.1.0", runtime_name="fake", runtime_version="1", runtime_api_version="v1")
PODS = cri_pb2.ListPodSandboxResponse(items=[_pod(number) for number in range(LISTED)])
CONTAINERS = cri_pb2.ListContainersResponse(containers=[_container(number) for number in range(LISTED)])
DOCKER_CONTAINERS = [_docker_container(number) for number in range(LISTED)]

# ---- what is asked for

POD = cri_pb2.PodSandboxConfig(
    metadata=cri_pb2.PodSandboxMetadata(name="web", uid="u1", namespace="default"),
    labels=LABELS,
    annotations=ANNOTATIONS,
    linux=cri_pb2.LinuxPodSandboxConfig(cgroup_parent=PARENT),
)
RESOURCES = cri_pb2.LinuxContainerResources(
    cpu_period=100_000, cpu_quota=50_000, cpu_shares=512, memory_limit_in_bytes=1 << 28
)
CONTAINER = cri_pb2.ContainerConfig(
    metadata=cri_pb2.ContainerMetadata(name="main"),
    image=cri_pb2.ImageSpec(image=IMAGE),
    command=["sleep", "1000"],
    envs=[cri_pb2.KeyValue(key=f"WEB_{number}_SERVICE_HOST", value=b"10.96.0.1") for number in range(ENVS)],
    labels=LABELS,
    annotations=ANNOTATIONS,
    linux=cri_pb2.LinuxContainerConfig(resources=RESOURCES),
)


def docker_body(name: str, kind: str, pod_id: str) -> dict[str, object]:
    """Return the body of a create of dockershim's: a pod's sandbox, or with ``pod_id`` a container in it."""
    told = LABELS | {f"annotation.{key}": value for key, value in ANNOTATIONS.items()}
    told |= {"io.kubernetes.container.name": name, "io.kubernetes.docker.type": kind}
    return {
        "Image": IMAGE,
        "Cmd": ["sleep", "1000"],
        "Labels": told | ({"io.kubernetes.sandbox.id": pod_id} if pod_id else {}),
        "Env": [f"WEB_{number}_SERVICE_HOST=10.96.0.1" for number in range(ENVS)],
        "HostConfig": {
            "CgroupParent": PARENT,
            "Memory": 1 << 28,
            "CpuShares": 512,
            "CpuQuota": 50_000,
            "CpuPeriod": 100_000,
        },
    }
