"""The gRPC paths that are held, and those that go to the image endpoint.

Owns the table of paths of CRI v1 and v1alpha2.
Must not know: frames, messages.
Invariant: a path that is not in the table passes.
"""

from dataclasses import dataclass

from runtimeproxy.model.hookpoints import Operation
from runtimeproxy.observe.metric_table import OTHER, Key

VERSIONS = ("v1", "v1alpha2")


@dataclass(frozen=True, slots=True)
class Route:
    """A held method: its operation, and the CRI version of its path."""

    operation: Operation
    version: str


HELD: dict[bytes, Route] = {
    f"/runtime.{version}.RuntimeService/{operation.value}".encode(): Route(operation, version)
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

PASSING: dict[bytes, Key] = {
    f"/runtime.{version}.{service}/{method}".encode(): ("calls_passed", (method,))
    for version in VERSIONS
    for service, methods in _METHODS.items()
    for method in methods
}
"""The series that counts the passing calls of a path; a method of the Operations passes while nobody is asked."""
PASSING_OTHER: Key = ("calls_passed", (OTHER,))

RESTORES: frozenset[bytes] = frozenset(f"/runtime.{version}.RuntimeService/RestorePod".encode() for version in VERSIONS)
"""The paths of the method that creates and starts a whole pod, so at no hook point."""


def runtime_path(version: str, method: str) -> str:
    """Return the path of a RuntimeService method."""
    return f"/runtime.{version}.RuntimeService/{method}"
