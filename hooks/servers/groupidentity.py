"""groupidentity: set the CPU priority of pods by the bvt value of their cgroups.

Invariant: only a malformed annotation fails a call; if the file cannot be written, that is logged and the pod runs.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from ..lib.cgroups import overwrite
from ..lib.koordinator import CLASSES, CPU_QOS, Qos, kube_qos, member, qos, read_json
from ..lib.node import GroupIdentities
from ..lib.nodehook import NodeHook
from ..sdk import Malformed, PodContext, main

LOG = logging.getLogger(__name__)

FILE = "cpu.bvt_warp_ns"
"""The file of kernels such as Anolis OS's, with the same name in both versions of cgroups."""
LEAST, MOST = -1, 2

_LACKING = (
    "this kernel's cgroups have no %s, so pods run without a group identity; a kernel that has it may need the sysctl "
    "kernel.sched_group_identity_enabled=1"
)

_NEEDED = "run this server as root, with the node's cgroups mounted to be written"


class GroupIdentity(NodeHook):
    """Write the bvt value of pods when they are created. Source of the rules: koordlet's GroupIdentity.

    The kubelet has created the pod's cgroup by then. The hook writes the file itself; its answer is empty. The cgroups
    above the pods' (kubepods, besteffort, burstable) and kernel.sched_group_identity_enabled are koordlet's.
    """

    def pre_run_pod_sandbox(self, pod: PodContext) -> None:
        """Write the pod's value. Raises Malformed if the annotation or the cgroup's path is invalid."""
        value = bvt(self.node.settings.group_identity, pod.labels, pod.annotations, pod.cgroup_parent)
        if not pod.cgroup_parent:
            return  # a pod without a cgroup parent is not the kubelet's
        file = self.cgroups.file(pod.cgroup_parent, "cpu", FILE, FILE)
        try:
            overwrite(file, str(value))
        except OSError as error:
            self._report(error, pod, file, value)

    def _report(self, error: OSError, pod: PodContext, file: Path, value: int) -> None:
        if absent := self.cgroups.absent:
            self.warn_once("root", "pods run without a group identity: %s", absent)
        elif not isinstance(error, FileNotFoundError):
            LOG.warning("%s/%s gets no %s: %s: %s; %s", pod.namespace, pod.name, FILE, file, error.strerror, _NEEDED)
        elif not file.parent.is_dir():
            LOG.warning("%s/%s gets no %s: its cgroup %s is not there", pod.namespace, pod.name, FILE, file.parent)
        elif value:
            self.warn_once(FILE, _LACKING, FILE)


def bvt(
    settings: GroupIdentities, labels: Mapping[str, str], annotations: Mapping[str, str], cgroup_parent: str
) -> int:
    """Return a pod's bvt value, -1 to 2: by its annotation if it is LS, else by its class. Raises Malformed if the
    annotation of an LS pod is not JSON or its value is out of range."""
    qos_class = qos(labels)
    name = CLASSES.get(qos_class) or CLASSES[kube_qos(cgroup_parent)]
    value: int = getattr(settings, name.lower()) if settings.enable else 0
    own = read_json(annotations, CPU_QOS, dict) if qos_class is Qos.LS else None
    if own is None:
        return value
    given: int = member(own, "groupIdentity", int, value)
    if not LEAST <= given <= MOST:
        raise Malformed(f"annotation {CPU_QOS}", f"groupIdentity must be {LEAST} to {MOST}")
    return given if member(own, "enable", bool, False) else 0


if __name__ == "__main__":
    main(GroupIdentity())
