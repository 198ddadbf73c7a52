"""A pod and its container as dockershim asks for them, whole structs, and what must be read of them."""

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from runtimeproxy.model import ContainerInfo, PodInfo, Resources

UID = "0c5c2f5e-1111-4222-8333-944455556666"
SANDBOX = "ab" * 32
POD_NAME = f"k8s_POD_web-0_shop_{UID}_3"
CONTAINER_NAME = f"k8s_main_web-0_shop_{UID}_2"
PARENT = f"/kubepods/burstable/pod{UID}"

META_LABELS = {"io.kubernetes.pod.name": "web-0", "io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.uid": UID}
POD_LABELS = {
    **META_LABELS,
    "annotation.kubernetes.io/config.source": "api",
    "annotation.note": '{"a": "é"}',
    "app": "web",
    "io.kubernetes.container.name": "POD",
    "io.kubernetes.docker.type": "podsandbox",
    "koordinator.sh/qosClass": "LS",
}
CONTAINER_LABELS = {
    **META_LABELS,
    "annotation.io.kubernetes.container.hash": "d464c1e4",
    "annotation.io.kubernetes.container.restartCount": "2",
    "io.kubernetes.container.logpath": "/var/log/pods/main/2.log",
    "io.kubernetes.container.name": "main",
    "io.kubernetes.docker.type": "container",
    "io.kubernetes.sandbox.id": SANDBOX,
}
NO_LIMITS: dict[str, Any] = {
    "CpuShares": 0,
    "Memory": 0,
    "NanoCpus": 0,
    "CgroupParent": "",
    "BlkioWeight": 0,
    "BlkioWeightDevice": None,
    "CpuPeriod": 0,
    "CpuQuota": 0,
    "CpusetCpus": "",
    "CpusetMems": "",
    "Devices": None,
    "MemoryReservation": 0,
    "MemorySwap": 0,
    "OomKillDisable": None,
    "Ulimits": None,
}
"""Docker's Resources as Go writes them: the whole struct."""
POD_BODY: dict[str, Any] = {
    "Hostname": "web-0",
    "Env": None,
    "Cmd": None,
    "Image": "pause:3.10",
    "Labels": POD_LABELS,
    "HostConfig": {
        **NO_LIMITS,
        "Binds": None,
        "LogConfig": {"Type": "", "Config": None},
        "NetworkMode": "none",
        "OomScoreAdj": -998,
        "CpuShares": 2,
        "CgroupParent": PARENT,
        "SecurityOpt": ["no-new-privileges"],
        "ShmSize": 67108864,
    },
    "NetworkingConfig": None,
}
CONTAINER_BODY: dict[str, Any] = {
    "Hostname": "",
    "Env": ["HOST=10.96.0.1", "A=1=2", "EMPTY=", "UTF=é", "BARE", "=no key", "A=again"],
    "Cmd": None,
    "Image": "busybox:1",
    "Entrypoint": ["sleep", "1000"],
    "Labels": CONTAINER_LABELS,
    "HostConfig": {
        **NO_LIMITS,
        "NetworkMode": f"container:{SANDBOX}",
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "OomScoreAdj": 968,
        "CpuShares": 512,
        "Memory": 268435456,
        "MemorySwap": 268435456,
        "CpuPeriod": 100000,
        "CpuQuota": -1,
        "CpusetCpus": "0-1",
        "CpusetMems": "0",
        "CgroupParent": PARENT,
    },
    "NetworkingConfig": None,
}
POD = PodInfo(
    name="web-0",
    uid=UID,
    namespace="shop",
    attempt=3,
    labels={**META_LABELS, "app": "web", "koordinator.sh/qosClass": "LS"},
    annotations={"kubernetes.io/config.source": "api", "note": '{"a": "é"}'},
)
CONTAINER = ContainerInfo(
    pod_id=SANDBOX,
    name="main",
    attempt=2,
    annotations={"io.kubernetes.container.hash": "d464c1e4", "io.kubernetes.container.restartCount": "2"},
    resources=Resources(
        cpu_period=100000,
        cpu_quota=-1,
        cpu_shares=512,
        memory_limit_in_bytes=268435456,
        oom_score_adj=968,
        cpuset_cpus="0-1",
        cpuset_mems="0",
        memory_swap_limit_in_bytes=268435456,
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
