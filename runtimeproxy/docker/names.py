"""The names that dockershim and cri-dockerd give to pods and containers.

Owns what the parts of such a name mean.
Must not know: labels, ids, requests.
Invariant: no text raises; what is no such name is None.
Source: facts/docker-mode.md, "Names and labels": k8s_<container>_<pod>_<namespace>_<uid>_<attempt>, with a seventh part
after a conflict of names; POD stands for the container of a sandbox.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DockerName:
    """The parts of a name; ``container`` is POD in a sandbox's."""

    container: str
    pod: str
    namespace: str
    uid: str
    attempt: int


_NAME = re.compile(r"/?k8s_([^_]+)_([^_]+)_([^_]+)_([^_]+)_([0-9]{1,10})(?:_[^_]+)?")
_UINT32 = range(2**32)


def parse(name: str) -> DockerName | None:
    """Read a name, with or without the leading "/" that inspect shows."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    container, pod, namespace, uid, attempt = match.groups()
    return DockerName(container, pod, namespace, uid, int(attempt)) if int(attempt) in _UINT32 else None
