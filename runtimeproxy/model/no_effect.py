"""The fields that a runtime accepts and does not use, by the name and version that its Version returns.

A field counts as used unless the table has it, so an unknown runtime, version or runtime handler uses all fields.

Sources: sandbox_run and container_update_resources in containerd's internal/cri/server and in CRI-O's server (pull
request 9820 for ``unified``); sandbox_helpers, helpers_linux and container_update_resources in cri-dockerd's core.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from runtimeproxy.model.fields import MEMORY, RESOURCE_FIELDS, SWAP, Adjustment
from runtimeproxy.model.hookpoints import Operation

Fields = frozenset[str]
"""Names of fields without a map's key: "annotations", "resources.unified" (``fields.kind_of``)."""

_RESOURCES: Fields = frozenset(f"resources.{name}" for name in RESOURCE_FIELDS)
_ANNOTATIONS: Fields = frozenset({"annotations"})
_UNIFIED: Fields = frozenset({"resources.unified"})
_HUGEPAGES: Fields = frozenset({"resources.hugepage_limits"})
_OWN_SWAP: Fields = frozenset({f"resources.{SWAP}"})
"""The runtime sets the swap limit to the memory limit, whatever the request has."""


@dataclass(frozen=True, slots=True)
class Row:
    """Fields that have no effect in a runtime at a call; ``until`` is the first version that uses them."""

    runtime: str
    operation: Operation
    fields: Fields
    until: tuple[int, int] | None = None


ROWS = (
    Row("containerd", Operation.RUN_POD_SANDBOX, _RESOURCES),
    Row("containerd", Operation.UPDATE_CONTAINER_RESOURCES, _ANNOTATIONS),
    Row("cri-o", Operation.RUN_POD_SANDBOX, _RESOURCES),
    Row("cri-o", Operation.CREATE_CONTAINER, frozenset({"cgroup_parent"})),
    Row("cri-o", Operation.UPDATE_CONTAINER_RESOURCES, _ANNOTATIONS | _HUGEPAGES | _OWN_SWAP),
    Row("cri-o", Operation.UPDATE_CONTAINER_RESOURCES, _UNIFIED, until=(1, 36)),
    Row("docker", Operation.RUN_POD_SANDBOX, _RESOURCES),
    Row("docker", Operation.CREATE_CONTAINER, _HUGEPAGES | _UNIFIED | _OWN_SWAP),
    Row("docker", Operation.UPDATE_CONTAINER_RESOURCES, _ANNOTATIONS | _HUGEPAGES | _UNIFIED | _OWN_SWAP),
)
""""docker" is cri-dockerd. An update is also the one before a start (hook-api, PreStartContainer)."""

PLAIN_HANDLERS = frozenset({"", "crun", "nvidia", "runc"})
"""The runtime handlers for which a pod's resources have no effect; Kata sizes its virtual machine by them."""


def of_runtime(name: str, version: str) -> Mapping[Operation, Fields]:
    """Return the fields without effect by operation, for the name and version that a runtime reports."""
    numbers = re.match(r"v?(\d{1,9})\.(\d{1,9})", version)
    release = (int(numbers[1]), int(numbers[2])) if numbers else None
    unused: dict[Operation, Fields] = {}
    for row in ROWS:
        if row.runtime == name and (row.until is None or (release is not None and release < row.until)):
            unused[row.operation] = unused.get(row.operation, frozenset()) | row.fields
    return unused


def used(sent: Adjustment, unused: Fields) -> tuple[Adjustment, Fields]:
    """Return the part of an adjustment that the runtime uses, and the names of the other fields."""
    resources = {name: value for name, value in sent.resources.items() if f"resources.{name}" not in unused}
    if MEMORY in resources and SWAP in sent.resources and SWAP not in resources:
        resources[SWAP] = resources[MEMORY]
    made = replace(
        sent,
        annotations={} if "annotations" in unused else sent.annotations,
        cgroup_parent=None if "cgroup_parent" in unused else sent.cgroup_parent,
        resources=resources,
    )
    dropped = {f"resources.{name}" for name, value in sent.resources.items() if resources.get(name) != value}
    dropped |= {name for name in ("annotations", "cgroup_parent") if getattr(made, name) != getattr(sent, name)}
    return made, frozenset(dropped)
