"""The expected content of hook calls (hook-api, "What is sent"), field by field, made from what the kubelet sent."""

from runtimeproxy.hookapi import api_pb2
from tests.fakes.cri_pb2 import ContainerConfig, LinuxContainerResources, PodSandboxConfig


def of_pod(pod: PodSandboxConfig) -> api_pb2.PodSandboxHookRequest:
    return api_pb2.PodSandboxHookRequest(
        pod_meta=_pod_meta(pod),
        labels=pod.labels,
        annotations=pod.annotations,
        cgroup_parent=pod.linux.cgroup_parent,
        overhead=_resources(pod.linux.overhead) if pod.linux.HasField("overhead") else None,
        resources=_resources(pod.linux.resources) if pod.linux.HasField("resources") else None,
    )


def of_container(
    pod: PodSandboxConfig, container: ContainerConfig, container_id: str = ""
) -> api_pb2.ContainerResourceHookRequest:
    """Return the message of the container's hook points; before the create the runtime has given no id."""
    meta = container.metadata
    return api_pb2.ContainerResourceHookRequest(
        pod_meta=_pod_meta(pod),
        container_meta=api_pb2.ContainerMetadata(name=meta.name, attempt=meta.attempt, id=container_id),
        container_annotations=container.annotations,
        container_resources=_resources(container.linux.resources),
        pod_resources=_resources(pod.linux.resources) if pod.linux.HasField("resources") else None,
        pod_annotations=pod.annotations,
        pod_labels=pod.labels,
        pod_cgroup_parent=pod.linux.cgroup_parent,
        container_envs={entry.key: entry.value.decode() for entry in container.envs},
    )


def _pod_meta(pod: PodSandboxConfig) -> api_pb2.PodSandboxMetadata:
    # CRI and the hook protocol number these fields alike.
    return api_pb2.PodSandboxMetadata.FromString(pod.metadata.SerializeToString())


def _resources(resources: LinuxContainerResources) -> api_pb2.LinuxContainerResources:
    return api_pb2.LinuxContainerResources.FromString(resources.SerializeToString())
