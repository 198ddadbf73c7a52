"""cpuset: set the CPUs of a container, from Koordinator's resource-status annotation or else from the node's pools.

Invariant: an annotation that cannot be read raises Malformed and changes nothing. A cpuset is cleared only if there is
one; if the protocol cannot express that, it is logged.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Any

from ..lib.koordinator import (
    BATCH_CPU,
    RESOURCE_STATUS,
    UNLIMITED,
    KubeQos,
    Objects,
    Qos,
    entry,
    kube_qos,
    member,
    milli,
    qos,
    read_json,
)
from ..lib.node import Pool, Settings
from ..lib.nodehook import NodeHook
from ..sdk import ContainerContext, Malformed, NotSayable, PodContext, main

_LOG = logging.getLogger(__name__)

_ANNOTATION = f"annotation {RESOURCE_STATUS}"
_CPU = "cpu"
_STATIC = "static"


class Cpuset(NodeHook):
    """Give containers their CPUs. Source of the rules: koordlet's CPUSetAllocator."""

    def pre_run_pod_sandbox(self, pod: PodContext) -> None:
        """Remove the quota of a pod with its own CPUs, in the answer and in its cgroup. Raises Malformed.

        The kubelet has already created that cgroup with its quota, and writes it itself, so the answer alone would have
        no effect. An error in writing is logged and does not stop the pod.
        """
        own, _ = _allocation(pod.annotations)
        if not own or not self.node.settings.unset_cpu_quota:
            return
        pod.resources.cpu_quota = UNLIMITED
        try:
            self.cgroups.write(pod.cgroup_parent, "cpu_quota", UNLIMITED)
        except (OSError, Malformed) as error:
            _LOG.warning("%s/%s: the quota of the pod's cgroup stays as it is: %s", pod.namespace, pod.name, error)

    def pre_create_container(self, container: ContainerContext) -> None:
        """Set or clear the container's CPUs. Raises Malformed."""
        (own, nodes), settings = _allocation(container.pod.annotations), self.node.settings
        if own:
            try:
                container.resources.cpuset_cpus = own
            except NotSayable as error:
                raise Malformed(_ANNOTATION, f"its cpuset cannot be used: {error}") from None
            if settings.unset_cpu_quota:
                container.resources.cpu_quota = UNLIMITED
            return
        cpus = pool_cpus(settings, qos(container.pod.labels), kube_qos(container.cgroup_parent), nodes)
        if cpus:
            container.resources.cpuset_cpus = cpus
        elif cpus is not None:
            try:
                container.resources.cpuset_cpus = ""  # no edit if none is set
            except NotSayable as error:
                self.warn_once(container.hook_point, "a cpuset that should be cleared stays as it is: %s", error)

    pre_update_container_resources = pre_create_container


def pool_cpus(settings: Settings, qos_class: Qos, kube_class: KubeQos, nodes: Collection[int]) -> str | None:
    """Return the CPUs of a container whose pod has none of its own: "" clears the cpuset, None leaves it.

    ``nodes`` are the NUMA nodes whose CPUs are allocated to the pod. The first row that applies decides. One difference
    from koordlet, which measures the pools: here the settings name them. Without any shared pool they are unknown, and
    no cpuset is cleared.
    """
    static = settings.kubelet_cpu_manager_policy == _STATIC
    if not (static or settings.shared_pools or settings.be_shared_pools or settings.system_cpuset):
        return None  # the settings do not mention CPUs
    is_be = qos_class == Qos.BE
    shared = _joined(settings.shared_pools)
    rows: tuple[tuple[object, str | None], ...] = (
        (nodes and is_be and settings.be_cpu_manager, _joined(settings.be_shared_pools, nodes) or ""),
        (nodes and not is_be, _joined(settings.shared_pools, nodes)),
        (qos_class == Qos.SYSTEM and settings.system_cpuset, settings.system_cpuset),
        (qos_class == Qos.LS, shared),
        (kube_class == KubeQos.BEST_EFFORT, ""),  # best-effort pods are limited all together, elsewhere
        (static, None),
    )
    return next((cpus for holds, cpus in rows if holds), shared)


def _joined(pools: Collection[Pool], nodes: Collection[int] | None = None) -> str | None:
    """Return the CPUs of the pools of some NUMA nodes, or of all; "" for pools without CPUs, None without pools."""
    chosen = (pool.cpuset for pool in pools if nodes is None or pool.node in nodes)
    return ",".join(filter(None, chosen)) if pools else None


def _allocation(annotations: Mapping[str, str]) -> tuple[str, frozenset[int]]:
    """Return the pod's own CPUs, "" for none, and the NUMA nodes of its allocated shared CPUs."""
    status = read_json(annotations, RESOURCE_STATUS, dict)
    given = member(status, "numaNodeResources", Objects, [])
    nodes = frozenset(member(item, "node", int, 0) for item in given)
    with_cpus = [item for item in given if _has_cpus(item)]
    return member(status, "cpuset", str, ""), nodes if with_cpus else frozenset()


def _has_cpus(given: Any) -> bool:
    """Return whether the resources allocated on a NUMA node include CPUs; they may be only memory."""
    resources = member(given, "resources", dict)
    return _milli(resources, _CPU) != 0 or _milli(resources, BATCH_CPU) > 0


def _milli(resources: Any, name: str) -> int:
    return milli(entry(resources, name, (str, int, float), 0), f"{name} in {_ANNOTATION}")


if __name__ == "__main__":
    main(Cpuset())
