"""On real engines: what a hook server that is dead, fails, hangs, answers badly or refuses means under each policy."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.fakes import hookanswers
from tests.fakes.cri_pb2 import LinuxContainerResources
from tests.fakes.faults import FaultRelay
from tests.fakes.hookanswers import Answer
from tests.system.node import PLUGIN, inside, register, serving, skipped
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


@dataclass(frozen=True, slots=True)
class Faulty:
    """A node whose only plugin fails, and which keeps what passes to its engine."""

    node: RealNode
    to_engine: FaultRelay

    def was_asked(self, text: str) -> bool:
        return any(text.encode() in bytes(sent.to_backend) for sent in self.to_engine.connections)


@contextmanager
def faulty(kind: Kind, engine: Any, folder: Path, answer: Answer | None, policy: str) -> Iterator[Faulty]:
    """Run a proxy whose only plugin does so at every point."""

    def prepare(node: RealNode) -> None:
        if answer is not None:
            node.hooks.default = answer
            register(node, policy=policy, timeout="100ms" if answer is HANGS else "10s")
        else:
            node.proxy.register(f"{PLUGIN}.json", node.proxy.path / "nobody.sock", policy=policy)

    with ExitStack() as stack:
        relay = stack.enter_context(serving(FaultRelay(str(folder / "engine.sock"), engine.socket)))
        yield Faulty(stack.enter_context(running(kind, engine, folder, prepare, runtime=relay.listen)), relay)


@pytest.mark.parametrize(("fault", "policy"), [*((fault, "Fail") for fault in FAULTS), ("refuses", "Ignore")])
def test_refused_call_does_not_reach_the_engine(
    kind: Kind, engine: Any, tmp_path: Path, fault: str, policy: str
) -> None:
    answer, reason = FAULTS[fault]
    with faulty(kind, engine, tmp_path, answer, policy) as made, made.node.direct() as direct:
        node = made.node
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
                for part in (PLUGIN, point, reason):
                    assert part in failed.text
            assert client.version(), "the connection lives"
        assert not made.was_asked(another.metadata.uid)
        assert not made.was_asked("unwanted")
        assert not node.is_running(direct, container_id)
        direct.start(container_id)
        assert inside(direct, container_id, "cpu_shares") != UPDATE.cpu_shares


@pytest.mark.parametrize(
    ("fault", "policy"),
    [*((fault, "Ignore") for fault in FAULTS if fault != "refuses"), ("dead", "Fail")],
)
def test_pod_comes_up_as_without_a_plugin(kind: Kind, engine: Any, tmp_path: Path, fault: str, policy: str) -> None:
    """Under Ignore; under Fail with the skip label: it may be the hook server's own pod."""
    with faulty(kind, engine, tmp_path, FAULTS[fault][0], policy) as made, made.node.direct() as direct:
        node = made.node
        pod, container = node.rich_pod(), node.rich_container()
        if policy == "Fail":
            skipped(pod)
        with node.client() as client:
            seen = [node.lived(each, pod, container, UPDATE) for each in (client, direct)]
        assert seen[0] == seen[1]
        assert made.was_asked(pod.metadata.uid)
