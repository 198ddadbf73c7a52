"""oomscoreadj: set how early the kernel kills a container when memory runs out, from Koordinator's annotations.

Invariant: a value that cannot be read or expressed in the protocol is logged, without the value, and leaves the
kubelet's in effect.
"""

import logging
import re
from collections.abc import Mapping

from ..lib.koordinator import OOM_SCORE_ADJ, OOM_SCORE_ADJ_SPEC, read_json
from ..lib.nodehook import NodeHook
from ..sdk import ContainerContext, Malformed, main

LOG = logging.getLogger(__name__)

LEAST, MOST = -1000, 1000
"""The range that the kernel accepts (proc(5), oom_score_adj)."""
_RULE = f"must be a whole number from {LEAST} to {MOST}"
_NUMBER = re.compile(r"([+-]?)0*([0-9]{1,4})")


class OomScoreAdj(NodeHook):
    """Set oom_score_adj of containers. Source of the rules: koordlet's OOMScoreAdj.

    koordlet writes it into /proc every ten seconds; here the runtime sets it once, when it creates the container. The
    pause container keeps its own. A value below the runtime's own needs CAP_SYS_RESOURCE: if the runtime lacks it
    (rootless, in a user namespace), the runtime decides whether the container starts with another value or not at all.
    The kubelet's value is replaced, also for Guaranteed pods (-997). 0 cannot be set: in the protocol it means "not
    set".
    """

    reads_settings = reads_cgroups = False

    def pre_create_container(self, container: ContainerContext) -> None:
        """Set the value of an annotation; an unreadable one is logged and changes nothing."""
        try:
            value = requested_score(container.pod.annotations, container.name)
        except Malformed as error:
            pod = container.pod
            LOG.warning("%s/%s %s keeps its oom_score_adj: %s", pod.namespace, pod.name, container.name, error)
            return
        if value:
            container.resources.oom_score_adj = value
        elif value == 0 and container.resources.oom_score_adj is not None:
            self.warn_once(0, "an oom_score_adj of 0 cannot be requested on the wire, the kubelet's holds")


def requested_score(annotations: Mapping[str, str], container: str) -> int | None:
    """Return the value for a container: its own, else the pod's, else None. Raises Malformed if the annotation that
    applies is not a JSON object of whole numbers, not a number, or out of range."""
    spec = read_json(annotations, OOM_SCORE_ADJ_SPEC, dict) or {}
    if not all(value is None or type(value) is int for value in spec.values()):
        raise Malformed(f"annotation {OOM_SCORE_ADJ_SPEC}", "must be a JSON object of whole numbers")
    if container in spec:  # a map's key, which Go matches in exact letter case; null is 0
        return _in_range(spec[container] or 0, OOM_SCORE_ADJ_SPEC)
    text = annotations.get(OOM_SCORE_ADJ)
    if not text:
        return None
    number = _NUMBER.fullmatch(text)
    if number is None:
        raise Malformed(f"annotation {OOM_SCORE_ADJ}", _RULE)
    # Without leading zeros: int() refuses texts of too many digits.
    return _in_range(int("".join(number.groups())), OOM_SCORE_ADJ)


def _in_range(value: int, key: str) -> int:
    if not LEAST <= value <= MOST:
        raise Malformed(f"annotation {key}", _RULE)
    return value


if __name__ == "__main__":
    main(OomScoreAdj())
