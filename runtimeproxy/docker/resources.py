"""Docker's names for the resource fields and labels that the hook protocol uses.

Owns the table of resource fields and the labels that dockershim and cri-dockerd set.
Must not know: bodies, requests, any wire format.
Invariant: no other file names these keys and labels (docs/docker-mode.rst, "Names and labels" and "Bodies").
"""

RESOURCE_TABLE: dict[str, str] = {
    "cpu_period": "CpuPeriod",
    "cpu_quota": "CpuQuota",
    "cpu_shares": "CpuShares",
    "memory_limit_in_bytes": "Memory",
    "oom_score_adj": "OomScoreAdj",
    "cpuset_cpus": "CpusetCpus",
    "cpuset_mems": "CpusetMems",
    "memory_swap_limit_in_bytes": "MemorySwap",
}
"""Maps a field of ``Resources`` to its key in Docker's HostConfig; Docker's API has no other fields."""

LABEL_PREFIX = "annotation."
"""What dockershim puts before the key of a CRI annotation to make it a label."""

TYPE_LABEL = "io.kubernetes.docker.type"
POD_TYPE = "podsandbox"
CONTAINER_TYPE = "container"
SANDBOX_LABEL = "io.kubernetes.sandbox.id"
LOGPATH_LABEL = "io.kubernetes.container.logpath"
POD_NAME_LABEL = "io.kubernetes.pod.name"
POD_NAMESPACE_LABEL = "io.kubernetes.pod.namespace"
POD_UID_LABEL = "io.kubernetes.pod.uid"
CONTAINER_NAME_LABEL = "io.kubernetes.container.name"
