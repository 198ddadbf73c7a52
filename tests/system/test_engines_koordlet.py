"""A stand-in koordlet works unchanged on real engines: how it registers, its echoes, its -1, its empty cpuset."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines import cgroups
from tests.fakes import hookanswers, registration
from tests.fakes.cri_pb2 import LinuxContainerResources
from tests.system.fronts import Values
from tests.system.koordlet_cases import CASES, POD, UPDATE, Case, goes_out
from tests.system.node import CPU
from tests.system.real import CONTAINERD, DOCKERD, OLD_CRI, Kind, RealNode, on, running

pytestmark = [pytest.mark.engine, on(CONTAINERD, OLD_CRI, DOCKERD)]

POINTS = ("PreRunPodSandbox", "PreCreateContainer", "PreUpdateContainerResources")
"""What a koordlet with its defaults lists, beside the point that the protocol lacks."""


@pytest.fixture
def node(kind: Kind, engine: Any, tmp_path: Path) -> Iterator[RealNode]:
    with running(kind, engine, tmp_path, lambda node: None) as made:
        yield made


def test_whole_echo_changes_nothing(node: RealNode, client: Any) -> None:
    node.hooks.default = hookanswers.koordlet()
    registration.write_as_koordlet(node.proxy.registrations, node.hooks.socket_path, POINTS)
    node.proxy.wait_for_registration("koordlet.json")
    pod, container = node.rich_pod(), node.rich_container(cpuset_cpus=CPU)
    with node.direct() as direct:
        asked = LinuxContainerResources(cpu_shares=300)
        seen = [node.lived(each, pod, container, asked) for each in (client, direct)]
    assert seen[0] == seen[1]
    assert [point for point, _ in node.told()] == list(POINTS)
    assert registration.KOORDLET_EXTRA_POINT in node.proxy.output(), "the unknown point has its warning"


def test_each_of_its_answers_holds_inside_the_container(node: RealNode, client: Any) -> None:
    """Under policy Fail."""
    node.hooks.default = hookanswers.echo()
    node.proxy.register("koordlet.json", node.hooks.socket_path, policy="Fail")
    node.proxy.wait_for_registration("koordlet.json")
    pod, config = node.plain_pod(), node.plain_container()
    pod_id = client.run_pod(pod)
    for number, case in enumerate(CASES):
        if case.point == POD:
            continue
        of_update = case.point == UPDATE
        config.metadata.name = f"c{number}"
        config.linux.resources.CopyFrom(LinuxContainerResources(**(case.held if of_update else case.asked)))  # type: ignore[arg-type]
        config = node.sent(config)
        node.hooks.answers.clear()
        if not of_update:
            node.hooks.on(case.point, case.answer)
        container_id = client.create(pod_id, config, pod)
        client.start(container_id)
        if of_update:
            node.hooks.on(case.point, case.answer)
            client.update(container_id, LinuxContainerResources(**case.asked))  # type: ignore[arg-type]
        lifts = node.front.name == "cri"  # containerd takes -1 in an update
        _assert_inside(client, container_id, case, {**case.held, **goes_out(case, lifts=lifts)})
        client.stop(container_id)
    assert "refused" not in node.proxy.output()


SETTINGS = ("cpu_shares", "cpu_quota", "memory_limit_in_bytes", "cpuset_cpus")
_LOOK = "; echo @; ".join(f"cat {file}" for file in (*map(cgroups.inside_file, SETTINGS), "/proc/1/environ"))


def _assert_inside(client: Any, container_id: str, case: Case, values: Values) -> None:
    *files, environment = client.exec_sync(container_id, "/bin/sh", "-c", _LOOK).stdout.split(b"@\n")
    for setting, file in zip(SETTINGS, files, strict=True):
        seen = cgroups.parse(setting, file.decode())
        if setting == "cpuset_cpus":
            assert cpus(str(seen)) == cpus(str(values.get(setting) or seen)), case.name
        else:
            assert seen == cgroups.expected(setting, values.get(setting, -1)), (case.name, setting)
    assert {f"{key}={value}".encode() for key, value in case.envs.items()} <= set(environment.split(b"\0")), case.name


def cpus(text: str) -> set[int]:
    ends = [part.partition("-")[::2] for part in text.strip().split(",")]
    return {cpu for first, last in ends for cpu in range(int(first), int(last or first) + 1)}
