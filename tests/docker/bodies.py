"""A pod and its container as dockershim asks for them, whole structs, and what must be read of them."""

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from runtimeproxy.model import ContainerInfo, PodInfo, Resources
from tests.fakes import dockershim_bodies as shim
from tests.fakes.dockerd_structs import RESOURCES, filled

UID = "0c5c2f5e-1111-4222-8333-944455556666"
SANDBOX = "ab" * 32
PARENT = f"/kubepods/burstable/pod{UID}"
OWN_LABELS = {"app": "web", "koordinator.sh/qosClass": "LS"}
ANNOTATIONS = {"kubernetes.io/config.source": "api", "note": '{"a": "é"}'}
LIMITS = {"cpu_period": 100_000, "cpu_quota": -1, "cpu_shares": 512, "memory_limit_in_bytes": 2**28}
ENVS = ("HOST=10.96.0.1", "A=1=2", "EMPTY=", "UTF=é", "BARE", "=no key", "A=again")

_POD = shim.Pod("web-0", UID, "shop", 3, OWN_LABELS, ANNOTATIONS, PARENT)
_CONTAINER = shim.Container(
    "main",
    "busybox:1",
    attempt=2,
    command=("sleep", "1000"),
    resources={**LIMITS, "oom_score_adj": 968, "cpuset_cpus": "0-1", "cpuset_mems": "0"},
)
POD_NAME, CONTAINER_NAME = shim.sandbox_name(_POD), shim.container_name(_POD, _CONTAINER)
POD_BODY = shim.sandbox_body(_POD, "pause:3.10", "cgroupfs")
CONTAINER_BODY = {**shim.container_body(_POD, _CONTAINER, SANDBOX, "cgroupfs"), "Env": list(ENVS)}
POD_LABELS, CONTAINER_LABELS = POD_BODY["Labels"], CONTAINER_BODY["Labels"]
META_LABELS = {
    f"io.kubernetes.pod.{key}": POD_LABELS[f"io.kubernetes.pod.{key}"] for key in ("name", "namespace", "uid")
}
NO_LIMITS = filled(RESOURCES, {})
"""Docker's Resources as Go writes them: the whole struct."""
POD = PodInfo(
    name="web-0", uid=UID, namespace="shop", attempt=3, labels={**META_LABELS, **OWN_LABELS}, annotations=ANNOTATIONS
)
CONTAINER = ContainerInfo(
    pod_id=SANDBOX,
    name="main",
    attempt=2,
    annotations={
        "io.kubernetes.container.hash": "d464c1e4",
        "io.kubernetes.container.restartCount": "2",
        "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
        "io.kubernetes.container.terminationMessagePolicy": "File",
        "io.kubernetes.pod.terminationGracePeriod": "30",
    },
    resources=Resources(
        cpu_period=100_000,
        cpu_quota=-1,
        cpu_shares=512,
        memory_limit_in_bytes=2**28,
        oom_score_adj=968,
        cpuset_cpus="0-1",
        cpuset_mems="0",
        memory_swap_limit_in_bytes=2**28,
    ),
    envs={"HOST": "10.96.0.1", "A": "again", "EMPTY": "", "UTF": "é"},
)


def changed(body: Mapping[str, Any], changes: Mapping[str, object]) -> dict[str, Any]:
    """Copy a body with values at paths of keys with slashes between them."""
    copy: dict[str, Any] = json.loads(json.dumps(body))
    for path, value in changes.items():
        *parents, last = path.split("/")
        inner = copy
        for key in parents:
            inner = inner[key]
        inner[last] = value
    return copy


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
NO_DOCUMENTS = [b"", b"canary", b"[]", b"null", b"5", b'"canary"', b"{} {}", b'{"a":"\xff"}', b"[" * 100_000]
"""What is no JSON object."""
