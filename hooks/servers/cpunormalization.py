"""cpunormalization: scale CPU quotas by the speed of this node's CPUs, from the node's settings.

Invariant: a quota that a create has scaled is never scaled again. A proxy normally sends the kubelet's quota. A proxy
that started after the create sends the runtime's, which the annotation shows.
"""

import re
from collections.abc import Mapping

from ..lib.koordinator import RESOURCE_STATUS, Qos, member, qos, read_json
from ..lib.nodehook import NodeHook
from ..sdk import ContainerContext, Malformed, main

NORMALIZED = "runtimeproxy.koordinator.sh/normalized-cpu-quota"
"""The container's annotation with the quota that was requested and the scaled one, as "50000:41667"."""

_SHARING = frozenset({Qos.LS, Qos.NONE})
_QUOTAS = re.compile(r"([0-9]{1,19}):([0-9]{1,19})")


class CpuNormalization(NodeHook):
    """Scales the quota of containers that share CPUs. Pods are unchanged: at their hook point no quota is known."""

    reads_cgroups = False

    def pre_create_container(self, container: ContainerContext) -> None:
        """Scale the quota, if the container has one and no CPUs of its own. Raises Malformed."""
        requested = container.resources.cpu_quota
        if requested and _shares_cpus(container):
            scaled = container.resources.cpu_quota = self.node.settings.normalized(requested)
            if scaled != requested:
                container.annotations[NORMALIZED] = f"{requested}:{scaled}"

    def pre_update_container_resources(self, container: ContainerContext) -> None:
        """Scale the quota that the kubelet requests now or requested at the create. Raises Malformed."""
        quota = container.resources.cpu_quota
        if quota and _shares_cpus(container):
            container.resources.cpu_quota = self.node.settings.normalized(_requested(quota, container.annotations))


def _shares_cpus(container: ContainerContext) -> bool:
    if qos(container.pod.labels) not in _SHARING:
        return False
    return not member(read_json(container.pod.annotations, RESOURCE_STATUS, dict), "cpuset", str)


def _requested(quota: int, annotations: Mapping[str, str]) -> int:
    """Return the original quota if this one is the create's scaled quota; else this one is the original."""
    text = annotations.get(NORMALIZED)
    if text is None:
        return quota
    matched = _QUOTAS.fullmatch(text)
    if not matched:
        raise Malformed(f"annotation {NORMALIZED}", "must be two quotas in microseconds, REQUESTED:SCALED")
    return int(matched[1]) if int(matched[2]) == quota else quota


if __name__ == "__main__":
    main(CpuNormalization())
