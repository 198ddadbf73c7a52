"""The gRPC paths of CRI v1 and v1alpha2: held calls, calls to the image endpoint, passing calls."""

from dataclasses import dataclass

from runtimeproxy.model.hookpoints import Operation
from runtimeproxy.observe.metric_table import OTHER_LABEL, Key

VERSIONS = ("v1", "v1alpha2")


def runtime_path(version: str, method: str) -> str:
    return f"/runtime.{version}.RuntimeService/{method}"


@dataclass(frozen=True, slots=True)
class Route:
    operation: Operation
    version: str


HELD: dict[bytes, Route] = {
    runtime_path(version, operation.value).encode(): Route(operation, version)
    for version in VERSIONS
    for operation in Operation
}

IMAGE_PREFIXES: tuple[bytes, ...] = tuple(f"/runtime.{version}.ImageService/".encode() for version in VERSIONS)

_RUNTIME_METHODS = """
    Version Status UpdateRuntimeConfig RuntimeConfig ListMetricDescriptors ListPodSandboxMetrics GetContainerEvents
    PodSandboxStatus ListPodSandbox PodSandboxStats ListPodSandboxStats PortForward
    ContainerStatus ListContainers ContainerStats ListContainerStats ReopenContainerLog CheckpointContainer
    ExecSync Exec Attach CheckpointPod RestorePod
    StreamPodSandboxes StreamContainers StreamContainerStats StreamPodSandboxStats StreamPodSandboxMetrics
"""
_IMAGE_METHODS = "ListImages StreamImages ImageStatus PullImage RemoveImage ImageFsInfo"
_METHODS = {
    "RuntimeService": [*_RUNTIME_METHODS.split(), *(operation.value for operation in Operation)],
    "ImageService": _IMAGE_METHODS.split(),
}

PASSING_SERIES: dict[bytes, Key] = {
    f"/runtime.{version}.{service}/{method}".encode(): ("calls_passed", (method,))
    for version in VERSIONS
    for service, methods in _METHODS.items()
    for method in methods
}
"""The series that counts the passing calls of a path; an Operation passes while no hook server is registered for it."""
OTHER_SERIES: Key = ("calls_passed", (OTHER_LABEL,))

RESTORES: frozenset[bytes] = frozenset(runtime_path(version, "RestorePod").encode() for version in VERSIONS)
"""The paths of the method that creates and starts a pod with its containers, without hook points."""
ENDLESS: frozenset[bytes] = frozenset(runtime_path(version, "GetContainerEvents").encode() for version in VERSIONS)
"""Paths of methods with an endless stream; before the first event only the path shows that."""
