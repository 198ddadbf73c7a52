"""batchresource: set shares, quota and memory limit of best-effort pods, from Koordinator's extended-resource-spec.

Invariant: only pods of QoS class BE are changed, and the values follow from the annotation and the node alone.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..lib.koordinator import (
    BATCH_CPU,
    BATCH_MEMORY,
    EXTENDED_RESOURCE_SPEC,
    MAX_INT64,
    UNLIMITED,
    Qos,
    cpu_quota,
    cpu_shares,
    entry,
    member,
    qos,
    quantity,
    read_json,
)
from ..lib.node import Settings
from ..lib.nodehook import NodeHook
from ..sdk import ContainerContext, Malformed, PodContext, main

_LOG = logging.getLogger(__name__)
_LIMITS = ("cpu_quota", "memory_limit_in_bytes")


@dataclass(frozen=True, slots=True)
class _Batch:
    """Requested milli cores, limits in milli cores and in bytes; 0 means not set."""

    request: int
    cpu_limit: int
    memory_limit: int


class BatchResource(NodeHook):
    """Sets the resources of containers and pods with batch resources."""

    def pre_run_pod_sandbox(self, pod: PodContext) -> None:
        """Set the pod's sums, in the answer and in the cgroup that the kubelet has created for it."""
        containers = _containers(pod.labels, pod.annotations)
        if not containers:
            return
        batch = _sum(_batch(containers, name) for name in containers)
        for field, value in _fields(batch, self.node.settings).items():
            pod.resources.set(field, value)
            self._change_pod(self.cgroups.write, pod.cgroup_parent, field, value)

    def pre_create_container(self, container: ContainerContext) -> None:
        """Set the annotation's values for this container. A container that it does not name is unchanged, and the
        pod's limits, which are the sums of the named ones, are lifted: version 1 refuses a quota above the pod's."""
        containers = _containers(container.pod.labels, container.pod.annotations)
        if container.name in containers:
            for field, value in _fields(_batch(containers, container.name), self.node.settings).items():
                container.resources.set(field, value)
        elif containers:
            lifted = [field for field in _LIMITS if self._change_pod(self.cgroups.lift, container.cgroup_parent, field)]
            if lifted:
                _LOG.info("%r is not in %s: lifted %s of its pod", container, EXTENDED_RESOURCE_SPEC, ", ".join(lifted))

    pre_update_container_resources = pre_create_container

    def _change_pod(self, change: Callable[..., bool | None], path: str, field: str, *value: int) -> bool | None:
        """Call ``change``, a method of the cgroups, and return its result; None with a warning if it fails."""
        try:
            return change(path, field, *value)
        except (OSError, Malformed) as error:
            self.warn_once((field, type(error)), "%s of a pod's cgroup is not written: %s", field, error)
            return None


def _containers(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Mapping[str, Any]:
    if qos(labels) != Qos.BE:
        return {}
    containers: Mapping[str, Any] = member(read_json(annotations, EXTENDED_RESOURCE_SPEC, dict), "containers", dict, {})
    return containers


def _batch(containers: Mapping[str, Any], name: str) -> _Batch:
    spec = entry(containers, name, dict, {})
    requests, limits = member(spec, "requests", dict), member(spec, "limits", dict)
    return _Batch(_amount(requests, BATCH_CPU), _amount(limits, BATCH_CPU), _amount(limits, BATCH_MEMORY))


def _amount(values: Mapping[str, Any] | None, name: str) -> int:
    value = entry(values, name, (str, int, float), 0)
    return max(quantity(value, f"{name} in annotation {EXTENDED_RESOURCE_SPEC}"), 0)


def _sum(batches: Iterable[_Batch]) -> _Batch:
    """Return a pod's amounts; it has a limit only if each of its containers has one."""
    requests, cpu_limits, memory_limits = zip(
        *((batch.request, batch.cpu_limit, batch.memory_limit) for batch in batches), strict=True
    )
    return _Batch(
        request=sum(requests),
        cpu_limit=sum(cpu_limits) if all(cpu_limits) else 0,
        memory_limit=min(sum(memory_limits), MAX_INT64) if all(memory_limits) else 0,
    )


def _fields(batch: _Batch, settings: Settings) -> Mapping[str, int]:
    # If the node throttles all best-effort pods by one quota, their own quotas would throttle them twice.
    suppressed = settings.cpu_suppress_policy == "cfsQuota"
    return {
        "cpu_shares": cpu_shares(batch.request),
        "cpu_quota": UNLIMITED if suppressed else settings.normalized(cpu_quota(batch.cpu_limit)),
        "memory_limit_in_bytes": batch.memory_limit or UNLIMITED,
    }


if __name__ == "__main__":
    main(BatchResource())
