"""Containers on a real engine whose quota a hook server scales, while the proxy is killed again and again.

After each kill an update says nothing of the quota.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fakes import hookanswers
from tests.fakes.cri_pb2 import ContainerConfig, LinuxContainerResources, PodSandboxConfig
from tests.system.keeping import file_of, rows
from tests.system.node import CPU, Hooked, end, inside, register
from tests.system.proxy import wait_until
from tests.system.real import kill

KILLS = 5
QUOTA, CHANGED_QUOTA = 60_000, 45_000
SCALED, CHANGED_SCALED = 40_000, 30_000


def scale(response: Any) -> None:
    """Scale a quota as koordlet does where CPUs are 1.5 times as fast."""
    quota = response.container_resources.cpu_quota
    if quota > 0:
        response.container_resources.cpu_quota = -(-quota * 2 // 3)


def keeping(memory: Path) -> Callable[[Hooked], None]:
    """Return what has a proxy keep the kubelet's own values in a directory, and its hook server scale."""

    def prepare(node: Hooked) -> None:
        node.proxy.command.append(f"--originals-dir={memory}")
        for point in ("PreCreateContainer", "PreUpdateContainerResources"):
            node.hooks.on(point, hookanswers.echo(scale))
        register(node)

    return prepare


def over_kills(
    node: Hooked,
    client: Any,
    memory: Path,
    pod: PodSandboxConfig,
    container_of: Callable[[str], ContainerConfig],
) -> None:
    """Scale the quota of one container at its create and of another one at an update, then kill the proxy."""
    file = file_of(memory, node.proxy.socket)
    pod_id = client.run_pod(pod)
    created, updated = (client.create(pod_id, container_of(name), pod) for name in ("created", "updated"))
    for one in (created, updated):
        client.start(one)
    client.update(updated, LinuxContainerResources(cpu_quota=CHANGED_QUOTA))
    expected = {created: [QUOTA, SCALED], updated: [CHANGED_QUOTA, CHANGED_SCALED]}
    wait_until(
        lambda: {one: pairs.get("resources.cpu_quota") for one, pairs in rows(file).items()} == expected,
        "they are kept",
        lambda: str(rows(file)),
    )
    for _ in range(KILLS):
        kill(node)
        for one, (asked, scaled) in expected.items():
            client.update(one, LinuxContainerResources(cpuset_cpus=CPU))
            ((_, update),) = node.told()
            assert update.container_resources.cpu_quota == asked
            assert inside(client, one, "cpu_quota") == scaled
    end(client, pod_id, created, updated)
    wait_until(lambda: not rows(file), "nothing is kept any more", lambda: str(rows(file)))
