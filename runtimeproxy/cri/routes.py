"""The gRPC paths that are held, and those that go to the image endpoint.

Owns the table of paths of CRI v1 and v1alpha2.
Must not know: frames, messages.
Invariant: a path that is not in the table passes.
"""

from dataclasses import dataclass

from runtimeproxy.model.hookpoints import Operation

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


def runtime_path(version: str, method: str) -> str:
    """Return the path of a RuntimeService method."""
    return f"/runtime.{version}.RuntimeService/{method}"
