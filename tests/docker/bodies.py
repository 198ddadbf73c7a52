"""The complete create bodies that dockershim sends for a pod and its container, and the values to be read from them."""

import json
from collections.abc import Mapping
from typing import Any

from runtimeproxy.model.fields import ContainerInfo, PodInfo, Resources
from tests.engines.images import BUSYBOX_IMAGE, PAUSE_IMAGE
from tests.fakes import dockershim_bodies as shim

MIB = 1 << 20
SANDBOX = "ab" * 32
PARENT = "/kubepods/burstable/pod6f1c7c9e"
SYSTEMD_PARENT = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod6f1c7c9e.slice"

POD = shim.Pod("web-0", "6f1c7c9e", "default", 1, {"app": "web"}, {"note": "pod"}, PARENT)
LIMITS: dict[str, Any] = {"cpu_shares": 1024, "memory_limit_in_bytes": 64 * MIB, "cpuset_cpus": "0-1"}
ENVS = {"A": "1", "B": "2"}
COMMAND, NOTES = ("sleep", "1000"), {"note": "container"}
CONTAINER = shim.Container("main", BUSYBOX_IMAGE, 2, COMMAND, (), tuple(ENVS.items()), {}, NOTES, LIMITS)
POD_NAME, CONTAINER_NAME = shim.sandbox_name(POD), shim.container_name(POD, CONTAINER)
POD_BODY = shim.sandbox_body(POD, PAUSE_IMAGE, "cgroupfs")
CONTAINER_BODY = shim.container_body(POD, CONTAINER, SANDBOX, "cgroupfs")

KUBELET_LABELS, ANNOTATIONS = shim.pod_labels(POD), {**shim.kubelets_annotations(CONTAINER), **NOTES}
REPORTED_POD = PodInfo(
    "", "web-0", "6f1c7c9e", "default", 1, "", {"app": "web", **KUBELET_LABELS}, {"note": "pod"}, PARENT
)
REQUESTED = Resources(**LIMITS, memory_swap_limit_in_bytes=64 * MIB)
"""The kubelet's resources of ``CONTAINER``: dockershim adds the swap limit."""
REPORTED = ContainerInfo("", SANDBOX, "main", 2, ANNOTATIONS, REQUESTED, ENVS)


def changed(body: Mapping[str, Any], changes: Mapping[str, object]) -> dict[str, Any]:
    """Return a copy of a body with other values at paths, whose keys are separated by slashes."""
    copy: dict[str, Any] = json.loads(json.dumps(body))
    for path, value in changes.items():
        *parents, last = path.split("/")
        inner = copy
        for key in parents:
            inner = inner[key]
        inner[last] = value
    return copy
