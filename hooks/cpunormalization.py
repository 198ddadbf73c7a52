"""cpunormalization: CPU quotas scaled by how fast this node's CPUs are, from the node's settings.

Owns which containers are scaled: shared CPUs, a quota, and a node that is faster than the unit (a ratio above 1); and
the annotation in which a container keeps what was asked for at its create.
Must not know: how the ratio is measured or read.
Invariant: what a create made of a quota is never scaled again. The proxy sends what the kubelet asked for; one that was
started since then sends what the runtime has, which is told by the annotation.
"""

import argparse
import re
from collections.abc import Mapping

from .koordinator import RESOURCE_STATUS, Qos, member, qos, read_json
from .node import Node, add_flag
from .sdk import ContainerContext, Hook, Malformed, main

NORMALIZED = "runtimeproxy.koordinator.sh/normalized-cpu-quota"
"""The container's annotation: the quota that was asked for and the one that was made of it, as "50000:41667"."""

_SHARING = frozenset({Qos.LS, Qos.NONE})
_QUOTAS = re.compile(r"([0-9]{1,19}):([0-9]{1,19})")


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
        """Scale the quota, if there is one and the container has no CPUs of its own. Raises Malformed."""
        asked = container.resources.cpu_quota
        if asked and _shares_cpus(container):
            scaled = container.resources.cpu_quota = self._node.settings.normalized(asked)
            if scaled != asked:
                container.annotations[NORMALIZED] = f"{asked}:{scaled}"

    def pre_update_container_resources(self, container: ContainerContext) -> None:
        """Scale the quota that the kubelet asked for, now or at the create. Raises Malformed."""
        quota = container.resources.cpu_quota
        if quota and _shares_cpus(container):
            container.resources.cpu_quota = self._node.settings.normalized(_asked(quota, container.annotations))


def _shares_cpus(container: ContainerContext) -> bool:
    return qos(container.pod.labels) in _SHARING and not _has_cpuset(container)


def _asked(quota: int, annotations: Mapping[str, str]) -> int:
    """Return the quota that was asked for where the create made this one of it; any other was asked for itself."""
    text = annotations.get(NORMALIZED)
    if text is None:
        return quota
    kept = _QUOTAS.fullmatch(text)
    if not kept:
        raise Malformed(f"annotation {NORMALIZED}", "must be two quotas in microseconds, ASKED:SCALED")
    return int(kept[1]) if int(kept[2]) == quota else quota


def _has_cpuset(container: ContainerContext) -> bool:
    return bool(member(read_json(container.pod.annotations, RESOURCE_STATUS, dict), "cpuset", str))


if __name__ == "__main__":
    main(CpuNormalization())
