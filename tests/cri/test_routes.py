"""The table of paths: what is held, what goes to the image endpoint, and that all else passes."""

import pytest

from runtimeproxy.cri import routes
from runtimeproxy.cri.routes import HELD, IMAGE_PREFIXES, Route
from runtimeproxy.hookpoints import HOOK_POINTS, Operation

METHODS = [
    *("RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "UpdatePodSandboxResources", "CreateContainer"),
    *("StartContainer", "UpdateContainerResources", "StopContainer", "RemoveContainer"),
]


@pytest.mark.parametrize("version", ["v1", "v1alpha2"])
@pytest.mark.parametrize("method", METHODS)
def test_calls_of_a_lifecycle_are_held_in_both_versions(method: str, version: str) -> None:
    path = f"/runtime.{version}.RuntimeService/{method}"
    assert HELD[path.encode()] == Route(Operation(method), version)
    assert routes.runtime_path(version, method) == path


def test_no_other_call_is_held() -> None:
    assert len(HELD) == 2 * len(METHODS)


def test_every_operation_with_a_hook_point_is_held() -> None:
    assert {point.operation for point in HOOK_POINTS} <= {route.operation for route in HELD.values()}


@pytest.mark.parametrize(
    "path",
    [
        b"/runtime.v1.RuntimeService/ListContainers",
        b"/runtime.v1.RuntimeService/runpodsandbox",
        b"/runtime.v1.RuntimeService/RunPodSandbox/",
        b"runtime.v1.RuntimeService/RunPodSandbox",
        b"/runtime.v2.RuntimeService/RunPodSandbox",
        b"/runtime.v1.ImageService/RunPodSandbox",
        b"",
    ],
)
def test_what_is_not_in_the_table_passes(path: bytes) -> None:
    assert path not in HELD


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
