"""The hook server of ten lines in docs/hooks.rst, run as it stands there, before real containerd and dockerd."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs import CODE
from tests.engines.containerd import Containerd
from tests.engines.dockerd import Dockerd
from tests.hooks.sdk import processes
from tests.system import docker_node, node
from tests.system.docker_told import plain_pod as docker_pod
from tests.system.node import end, plain_pod, rich_container

pytestmark = pytest.mark.engine

GREETING = {"example.com/greeting": "good day"}


def nobody(made: node.Hooked) -> None:
    """Register no other hook server."""


@pytest.fixture(params=["containerd", "dockerd"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, Callable[[], Any]]]:
    """Return a node of each mode, and what makes a pod on it."""
    if request.param == "containerd":
        engine: Containerd = request.getfixturevalue("containerd")
        with node.running(engine, tmp_path, nobody) as with_containerd:
            yield with_containerd, lambda: plain_pod(engine, "greeted")
    else:
        dockerd: Dockerd = request.getfixturevalue("dockerd")
        with docker_node.running(dockerd, tmp_path, nobody) as with_dockerd:
            yield with_dockerd, lambda: docker_pod(dockerd, "greeted")


def test_the_ten_lines(made: tuple[Any, Callable[[], Any]], tmp_path: Path) -> None:
    on, pod_of = made
    (tmp_path / "hello.py").write_text(CODE)
    flags = (f"--register-dir={on.proxy.registrations}",)
    with (
        processes.running(tmp_path, *flags, program=(str(tmp_path / "hello.py"),), file="hello.json") as hello,
        on.client() as client,
    ):
        on.proxy.wait_for_registration("hello.json")
        pod = pod_of()
        pod.annotations.update(GREETING)
        assert greeted(client, pod) == {"POD_UID": pod.metadata.uid, "GREETING": "good day"}
        assert hello.end(15) == 0
        assert greeted(client, pod_of()) == {}


def greeted(client: Any, pod: Any) -> dict[str, str]:
    """Run a pod with a container; return what its first process has of the two variables."""
    pod_id = client.run_pod(pod)
    container_id = client.create(pod_id, rich_container(), pod)
    client.start(container_id)
    environ = bytes(client.exec_sync(container_id, "cat", "/proc/1/environ").stdout).decode()
    end(client, pod_id, container_id)
    entries = dict(entry.partition("=")[::2] for entry in environ.split("\0"))
    return {name: entries[name] for name in ("POD_UID", "GREETING") if name in entries}
