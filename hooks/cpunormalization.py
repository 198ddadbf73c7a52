"""cpunormalization: CPU quotas scaled by how fast this node's CPUs are, from the node's settings.

Owns which containers are scaled: shared CPUs, a quota, and a node that is faster than the unit (a ratio above 1).
Must not know: how the ratio is measured or read.
Invariant: a quota is scaled from what the kubelet asked for, which is what the proxy sends, so never twice.
"""

import argparse

from .koordinator import RESOURCE_STATUS, Qos, member, qos, read_json
from .node import Node, add_flag
from .sdk import ContainerContext, Hook, main

_SHARING = frozenset({Qos.LS, Qos.NONE})


class CpuNormalization(Hook):
    """Scales the quota of containers that share CPUs. Pods are left alone: at their hook point no quota is known."""

    def __init__(self, node: Node | None = None) -> None:
        self._node = node or Node(None)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the flag of the node's settings."""
        add_flag(parser)

    def configure(self, arguments: argparse.Namespace) -> None:
        """Take the node's settings, which are read now."""
        self._node = arguments.node_config
        self._node.look()

    def pre_create_container(self, container: ContainerContext) -> None:
        """Scale the quota, if there is one and the container has no CPUs of its own."""
        quota, settings = container.resources.cpu_quota, self._node.settings
        if quota and qos(container.pod.labels) in _SHARING and not _has_cpuset(container):
            container.resources.cpu_quota = settings.normalized(quota)

    pre_update_container_resources = pre_create_container


def _has_cpuset(container: ContainerContext) -> bool:
    return bool(member(read_json(container.pod.annotations, RESOURCE_STATUS, dict), "cpuset", str))


if __name__ == "__main__":
    main(CpuNormalization())
