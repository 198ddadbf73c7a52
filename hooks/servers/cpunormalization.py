"""cpunormalization: CPU quotas scaled by how fast this node's CPUs are, from the node's settings.

Owns which containers are scaled: shared CPUs, a quota, and a node that is faster than the unit (a ratio above 1); and
the annotation in which a container keeps what was asked for at its create.
Must not know: how the ratio is measured or read.
Invariant: what a create made of a quota is never scaled again. The proxy sends what the kubelet asked for; one that was
started since then sends what the runtime has, which is told by the annotation.
"""

import re
from collections.abc import Mapping

from ..lib.koordinator import RESOURCE_STATUS, Qos, member, qos, read_json
from ..lib.nodehook import NodeHook
from ..sdk import ContainerContext, Malformed, main

NORMALIZED = "runtimeproxy.koordinator.sh/normalized-cpu-quota"
"""The container's annotation: the quota that was asked for and the one that was made of it, as "50000:41667"."""

_SHARING = frozenset({Qos.LS, Qos.NONE})
_QUOTAS = re.compile(r"([0-9]{1,19}):([0-9]{1,19})")


class CpuNormalization(NodeHook):
    """Scales the quota of containers that share CPUs. Pods are left alone: at their hook point no quota is known."""

    reads_cgroups = False

    def pre_create_container(self, container: ContainerContext) -> None:
        """Scale the quota, if there is one and the container has no CPUs of its own. Raises Malformed."""
        asked = container.resources.cpu_quota
        if asked and _shares_cpus(container):
            scaled = container.resources.cpu_quota = self.node.settings.normalized(asked)
            if scaled != asked:
                container.annotations[NORMALIZED] = f"{asked}:{scaled}"

    def pre_update_container_resources(self, container: ContainerContext) -> None:
        """Scale the quota that the kubelet asked for, now or at the create. Raises Malformed."""
        quota = container.resources.cpu_quota
        if quota and _shares_cpus(container):
            container.resources.cpu_quota = self.node.settings.normalized(_asked(quota, container.annotations))


def _shares_cpus(container: ContainerContext) -> bool:
    if qos(container.pod.labels) not in _SHARING:
        return False
    return not member(read_json(container.pod.annotations, RESOURCE_STATUS, dict), "cpuset", str)


def _asked(quota: int, annotations: Mapping[str, str]) -> int:
    """Return the quota that was asked for where the create made this one of it; any other was asked for itself."""
    text = annotations.get(NORMALIZED)
    if text is None:
        return quota
    kept = _QUOTAS.fullmatch(text)
    if not kept:
        raise Malformed(f"annotation {NORMALIZED}", "must be two quotas in microseconds, ASKED:SCALED")
    return int(kept[1]) if int(kept[2]) == quota else quota


if __name__ == "__main__":
    main(CpuNormalization())
