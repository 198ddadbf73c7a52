"""Real engines: what hook servers that fail or refuse mean under each policy, its own pod too (fault matrix H12)."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.fakes import hookanswers
from tests.fakes.cri_pb2 import LinuxContainerResources
from tests.fakes.faults import FaultRelay
from tests.fakes.hookanswers import Answer
from tests.system.node import PLUGIN, inside, serving, skipped
from tests.system.real import CONTAINERD, DOCKERD, OLD_CRI, Kind, RealNode, on, running

pytestmark = [pytest.mark.engine, on(CONTAINERD, OLD_CRI, DOCKERD)]

UPDATE = LinuxContainerResources(cpu_shares=99)
HANGS = hookanswers.hang()
WORDS, REFUSAL = "what a hook server says", "no room on this node"
FAULTS: Mapping[str, tuple[Answer | None, str]] = {
    "dead": (None, "unreachable"),
    "fails": (hookanswers.status(grpc.StatusCode.INTERNAL, WORDS), f"error_status: gRPC status 13: {WORDS}"),
    "hangs": (HANGS, "deadline"),
    "answers nonsense": (hookanswers.garbage(), "bad_answer"),
    "refuses": (hookanswers.status(grpc.StatusCode.PERMISSION_DENIED, REFUSAL), REFUSAL),
}
"""What the hook server does, None if there is none -> what the kubelet reads of it."""


@contextmanager
def faulty(kind: Kind, engine: Any, folder: Path, fault: str, policy: str) -> Iterator[tuple[RealNode, FaultRelay]]:
    """Run a proxy whose only plugin fails so at every point, and a relay that keeps what passes to the engine."""
    answer, _ = FAULTS[fault]

    def prepare(node: RealNode) -> None:
        if answer is not None:
            node.hooks.default = answer
            node.register(policy=policy, timeout="100ms" if answer is HANGS else "10s")
        else:
            node.proxy.register(f"{PLUGIN}.json", node.proxy.path / "nobody.sock", policy=policy)

    with (
        serving(FaultRelay(str(folder / "engine.sock"), engine.socket)) as relay,
        running(kind, engine, folder, prepare, runtime=relay.listen) as node,
    ):
        yield node, relay


def passed(relay: FaultRelay, text: str) -> bool:
    """Tell whether a text passed to the engine."""
    return any(text.encode() in bytes(sent.to_backend) for sent in relay.connections)


@pytest.mark.parametrize(("fault", "policy"), [*((fault, "Fail") for fault in FAULTS), ("refuses", "Ignore")])
def test_refused_call_does_not_reach_the_engine(
    kind: Kind, engine: Any, tmp_path: Path, fault: str, policy: str
) -> None:
    with faulty(kind, engine, tmp_path, fault, policy) as (node, relay), node.direct() as direct:
        pod, another = node.rich_pod(), node.rich_pod("another")
        pod_id = direct.run_pod(pod)
        container_id = direct.create(pod_id, node.rich_container(), pod)
        with node.client() as client:
            calls: dict[str, Callable[[], object]] = {
                "PreRunPodSandbox": lambda: client.run_pod(another),
                "PreCreateContainer": lambda: client.create(pod_id, node.rich_container("unwanted"), pod),
                "PreStartContainer": lambda: client.start(container_id),
                "PreUpdateContainerResources": lambda: client.update(container_id, UPDATE),
            }
            for point, call in calls.items():
                failed = node.failure(call)
                assert failed.status == (node.front.refused if fault == "refuses" else node.front.failed)
                for part in (PLUGIN, point, FAULTS[fault][1]):
                    assert part in failed.text
            assert client.version(), "the connection lives"
        assert not passed(relay, another.metadata.uid)
        assert not passed(relay, "unwanted")
        assert not node.is_running(direct, container_id)
        direct.start(container_id)
        assert inside(direct, container_id, "cpu_shares") != UPDATE.cpu_shares


@pytest.mark.parametrize(
    ("fault", "policy"),
    [*((fault, "Ignore") for fault in FAULTS if fault != "refuses"), ("dead", "Fail")],
)
def test_pod_comes_up_as_without_a_plugin(kind: Kind, engine: Any, tmp_path: Path, fault: str, policy: str) -> None:
    """Under Ignore; under Fail with the skip label: it may be the hook server's own pod."""
    with faulty(kind, engine, tmp_path, fault, policy) as (node, relay), node.direct() as direct:
        pod, container = node.rich_pod(), node.rich_container()
        if policy == "Fail":
            skipped(pod)
        with node.client() as client:
            seen = [node.lived(each, pod, container, UPDATE) for each in (client, direct)]
        assert seen[0] == seen[1]
        assert passed(relay, pod.metadata.uid)
