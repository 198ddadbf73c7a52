"""The measurement of a proxy on a full node finds all that runs there, in both modes."""

import pytest

from scripts.benchmark import fullnode, inhabited
from scripts.benchmark.cases import CRI, DOCKER
from scripts.benchmark.modes import MODES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("mode", [CRI, DOCKER])
def test_all_that_runs_is_found(mode: str) -> None:
    found = fullnode.full_node(MODES[mode], pods=3, containers=2)
    assert (found.pods, found.containers) == (3, 6)
    assert min(found.ready, found.complete) >= 0
    assert found.busy > 0
    assert min(found.calls) > 0


def test_a_node_has_as_many_pods_as_were_asked_for_and_no_two_alike() -> None:
    runtime, dockerd = inhabited.cri_node("", 3, 2), inhabited.docker_node("", 3, 2)
    assert (len(runtime.state.pods), len(runtime.state.containers)) == (3, 6)
    assert len(dockerd.state.containers) == 9
    labels = [tuple(sorted(pod.config.labels.items())) for pod in runtime.state.pods.values()]
    assert len(set(labels)) == 3
