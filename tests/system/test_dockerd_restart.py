"""The proxy before a real dockerd is killed with pods running."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.dockerd import Dockerd
from tests.fakes.dockershim import Generation
from tests.system import docker_told, restarted
from tests.system.docker_node import GENERATIONS, DockerNode, running

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture
def node(dockerd: Dockerd, tmp_path: Path) -> Iterator[DockerNode]:
    with running(dockerd, tmp_path) as made:
        yield made


@pytest.mark.parametrize("generation", GENERATIONS, ids=lambda generation: generation.host)
def test_after_a_kill_every_hook_message_is_as_the_one_before(node: DockerNode, generation: Generation) -> None:
    with node.client(generation) as client:
        restarted.compare(
            node, client, lambda node, name: docker_told.rich_pod(node.engine, name), docker_told.rich_container()
        )
