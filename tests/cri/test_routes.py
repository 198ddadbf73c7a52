"""The table of paths: what is held, what goes to the image endpoint, and that every other path passes."""

import pytest

from runtimeproxy.cri import routes
from runtimeproxy.cri.routes import HELD, IMAGE_PREFIXES, Route
from runtimeproxy.model.hookpoints import HOOK_POINTS, Operation

METHODS = """
    RunPodSandbox StopPodSandbox RemovePodSandbox UpdatePodSandboxResources CreateContainer
    StartContainer UpdateContainerResources StopContainer RemoveContainer
"""


def test_held_calls_are_those_of_a_lifecycle_in_both_versions() -> None:
    table = {
        f"/runtime.{version}.RuntimeService/{name}": Route(Operation(name), version)
        for version in ("v1", "v1alpha2")
        for name in METHODS.split()
    }
    assert {path.encode(): route for path, route in table.items()} == HELD
    assert [routes.runtime_path(route.version, route.operation.value) for route in table.values()] == list(table)
    assert {point.operation for point in HOOK_POINTS} <= {route.operation for route in table.values()}


@pytest.mark.parametrize(
    ("path", "image"),
    [
        (b"/runtime.v1.ImageService/PullImage", True),
        (b"/runtime.v1alpha2.ImageService/ImageFsInfo", True),
        (b"/runtime.v1.RuntimeService/RunPodSandbox", False),
        (b"/runtime.v1.ImageServiceOther/PullImage", False),
        (b"/grpc.health.v1.Health/Check", False),
    ],
)
def test_calls_of_the_image_service_are_told_by_their_prefix(path: bytes, image: bool) -> None:
    assert path.startswith(IMAGE_PREFIXES) is image
