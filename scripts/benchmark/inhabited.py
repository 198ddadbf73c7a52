"""A fake runtime in which many pods run already: what a proxy finds when it starts on a full node.

Owns the pods and containers, as a kubelet asks for them.
Must not know: what is measured.
Invariant: no two containers have all their labels, annotations and environment alike.
Run: ``python -m scripts.benchmark.inhabited cri|docker SOCKET PODS CONTAINERS_OF_EACH``; prints a line when it listens.
"""

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import uvloop

from scripts.benchmark.cases import CRI, DOCKER
from scripts.benchmark.prepared import PreparedRuntime
from tests.engines.images import BUSYBOX_IMAGE, PAUSE_IMAGE
from tests.fakes import cri_pb2
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.dockerd_state import CGROUPFS
from tests.fakes.dockerd_structs import go_json
from tests.fakes.dockershim_bodies import Container, Pod
from tests.fakes.runtime_state import RuntimeState
from tests.fakes.spec import MASKED_PATHS, READONLY_PATHS

LISTENS = "inhabited runtime listens"
SERVICES = 10
"""Of the namespace: each gives every container two variables."""
KUBELETS_LABELS = ("name", "namespace", "uid")
_LABELS = ("container.name", *(f"pod.{name}" for name in KUBELETS_LABELS))
_MOUNTS = (
    ("/etc/hosts", "etc-hosts", False),
    ("/dev/termination-log", "containers/main/0", False),
    ("/var/run/secrets/kubernetes.io/serviceaccount", "volumes/kubernetes.io~projected/kube-api-access", True),
    ("/data", "volumes/kubernetes.io~empty-dir/data", False),
)
_NAMESPACES = cri_pb2.NamespaceOption(pid=cri_pb2.CONTAINER)


def pod(number: int) -> Pod:
    """Return a pod as a kubelet makes it of a Deployment."""
    uid, name = f"{number:08x}-7a66-4aef-8c4a-3f2f0c0e{number:04x}", f"web-7d9c5c8f9b-{number:05x}"
    labels = {"app": "web", "app.kubernetes.io/name": "web", "pod-template-hash": "7d9c5c8f9b"}
    named = dict(zip(KUBELETS_LABELS, (name, "production", uid), strict=True))
    return Pod(
        name,
        uid,
        namespace="production",
        labels=labels | {f"io.kubernetes.pod.{key}": value for key, value in named.items()},
        annotations={
            "kubernetes.io/config.source": "api",
            "kubernetes.io/config.seen": f"2024-05-05T10:11:12.{number:09d}Z",
            "prometheus.io/scrape": "true",
        },
        cgroup_parent=f"/kubepods/burstable/pod{uid}",
    )


def container(number: int) -> Container:
    """Return a container of a pod as a kubelet makes it."""
    services = [(f"SERVICE_{service}_SERVICE_HOST", f"10.96.0.{service}") for service in range(SERVICES)]
    services += [(f"SERVICE_{service}_PORT", f"tcp://10.96.0.{service}:8080") for service in range(SERVICES)]
    return Container(
        f"main-{number}",
        BUSYBOX_IMAGE,
        command=("sleep", "3600"),
        envs=(*services, ("POD_NUMBER", f"{number}")),
        annotations={
            "io.kubernetes.container.hash": f"{number:08x}",
            "io.kubernetes.container.restartCount": "0",
            "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
            "io.kubernetes.container.terminationMessagePolicy": "File",
            "io.kubernetes.pod.terminationGracePeriod": "30",
        },
        resources={"cpu_period": 100_000, "cpu_quota": 50_000 + number, "cpu_shares": 512, "oom_score_adj": 968},
    )


def cri_node(socket: str, pods: int, containers: int) -> PreparedRuntime:
    """Return a CRI runtime with pods."""
    state = RuntimeState()
    for number in range(pods):
        config = _pod_config(pod(number))
        run = cri_pb2.RunPodSandboxRequest(config=config)
        made = state.answer("v1", "RunPodSandbox", run.SerializeToString())
        pod_id = cri_pb2.RunPodSandboxResponse.FromString(made).pod_sandbox_id
        for each in range(containers):
            create = cri_pb2.CreateContainerRequest(
                pod_sandbox_id=pod_id, config=_container_config(container(each), config), sandbox_config=config
            )
            made = state.answer("v1", "CreateContainer", create.SerializeToString())
            start = cri_pb2.StartContainerRequest(
                container_id=cri_pb2.CreateContainerResponse.FromString(made).container_id
            )
            state.answer("v1", "StartContainer", start.SerializeToString())
    return PreparedRuntime(socket, state)


def _pod_config(asked: Pod) -> cri_pb2.PodSandboxConfig:
    return cri_pb2.PodSandboxConfig(
        metadata=cri_pb2.PodSandboxMetadata(name=asked.name, uid=asked.uid, namespace=asked.namespace),
        hostname=asked.name,
        log_directory=f"/var/log/pods/{asked.namespace}_{asked.name}_{asked.uid}",
        labels=asked.labels,
        annotations=asked.annotations,
        linux=cri_pb2.LinuxPodSandboxConfig(
            cgroup_parent=asked.cgroup_parent,
            security_context=cri_pb2.LinuxSandboxSecurityContext(namespace_options=_NAMESPACES),
        ),
    )


def _container_config(asked: Container, of: cri_pb2.PodSandboxConfig) -> cri_pb2.ContainerConfig:
    named = (asked.name, of.metadata.name, of.metadata.namespace, of.metadata.uid)
    return cri_pb2.ContainerConfig(
        metadata=cri_pb2.ContainerMetadata(name=asked.name),
        image=cri_pb2.ImageSpec(image=asked.image),
        command=asked.command,
        envs=[cri_pb2.KeyValue(key=key, value=value.encode()) for key, value in asked.envs],
        mounts=[
            cri_pb2.Mount(
                container_path=path, host_path=f"/var/lib/kubelet/pods/{of.metadata.uid}/{where}", readonly=readonly
            )
            for path, where, readonly in _MOUNTS
        ],
        labels={f"io.kubernetes.{key}": value for key, value in zip(_LABELS, named, strict=True)},
        annotations=asked.annotations,
        log_path=f"{asked.name}/0.log",
        linux=cri_pb2.LinuxContainerConfig(
            resources=cri_pb2.LinuxContainerResources(**asked.resources),
            security_context=cri_pb2.LinuxContainerSecurityContext(
                namespace_options=_NAMESPACES, masked_paths=MASKED_PATHS, readonly_paths=READONLY_PATHS
            ),
        ),
    )


def docker_node(socket: str, pods: int, containers: int) -> FakeDockerd:
    """Return a fake dockerd with pods that dockershim made."""
    dockerd = FakeDockerd(socket, keep_received=0)
    for number in range(pods):
        asked = pod(number)
        body = bodies.sandbox_body(asked, PAUSE_IMAGE, CGROUPFS)
        sandbox = dockerd.state.create(bodies.sandbox_name(asked), go_json(body), body)
        for each in range(containers):
            one = replace(container(each), command=("sleep", "3600"))
            body = bodies.container_body(asked, one, sandbox.id, CGROUPFS)
            dockerd.state.create(bodies.container_name(asked, one), go_json(body), body)
    return dockerd


NODES: dict[str, Callable[[str, int, int], AbstractAsyncContextManager[object]]] = {CRI: cri_node, DOCKER: docker_node}


async def serve(mode: str, socket: str, pods: int, containers: int) -> None:
    """Serve until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with NODES[mode](socket, pods, containers):
        print(LISTENS, flush=True)
        await stopped.wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
