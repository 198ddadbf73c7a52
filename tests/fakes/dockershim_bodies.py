"""The bodies that dockershim and cri-dockerd write, as recorded of cri-dockerd, from the kubelet's values in CRI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.dockerd_shapes import CONFIG, HOST_CONFIG, RESOURCES, filled

SHM_BYTES = 64 << 20
SANDBOX_OOM_SCORE_ADJ, SANDBOX_SHARES = -998, 2
SYSTEMD = "systemd"

Values = Mapping[str, int | str]
"""Resources by CRI's names."""

SETTINGS = {"cpu_period": "CpuPeriod", "cpu_quota": "CpuQuota", "cpu_shares": "CpuShares", "cpuset_cpus": "CpusetCpus"}
SETTINGS |= {"cpuset_mems": "CpusetMems", "memory_limit_in_bytes": "Memory", "oom_score_adj": "OomScoreAdj"}
"""CRI's name of a setting -> Docker's."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod on the host's network as the kubelet describes it; ``cgroup_parent`` is CRI's, a full path."""

    name: str
    uid: str
    namespace: str = "default"
    attempt: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    cgroup_parent: str = ""


@dataclass(frozen=True, slots=True)
class Container:
    """A container as the kubelet describes it: ``command`` is CRI's, Docker's entrypoint."""

    name: str
    image: str
    attempt: int = 0
    command: Sequence[str] = ()
    args: Sequence[str] = ()
    envs: Sequence[tuple[str, str]] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    resources: Values = field(default_factory=dict)


def sandbox_name(pod: Pod) -> str:
    return f"k8s_POD_{pod.name}_{pod.namespace}_{pod.uid}_{pod.attempt}"


def container_name(pod: Pod, container: Container) -> str:
    return f"k8s_{container.name}_{pod.name}_{pod.namespace}_{pod.uid}_{container.attempt}"


def cgroup_parent(path: str, driver: str) -> str:
    """Return CRI's cgroup parent in the form for Docker's driver: systemd uses only the last element."""
    return path.rpartition("/")[2] if driver == SYSTEMD else path


def _labels(labels: Mapping[str, str], annotations: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    prefixed = {f"annotation.{key}": value for key, value in annotations.items()}
    return dict(sorted({**labels, **prefixed, **own}.items()))


def pod_labels(pod: Pod) -> dict[str, str]:
    return {f"io.kubernetes.pod.{key}": getattr(pod, key) for key in ("name", "namespace", "uid")}


def kubelets_annotations(container: Container) -> dict[str, str]:
    own = {"hash": "d464c1e4", "restartCount": str(container.attempt)}
    own |= {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
    prefixed = {f"io.kubernetes.container.{key}": value for key, value in own.items()}
    return {**prefixed, "io.kubernetes.pod.terminationGracePeriod": "30"}


def _body(config: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, Any]:
    return {**filled(CONFIG, config), "HostConfig": filled(HOST_CONFIG, host), "NetworkingConfig": None}


def sandbox_body(pod: Pod, image: str, driver: str, oom_score_adj: int = SANDBOX_OOM_SCORE_ADJ) -> dict[str, Any]:
    own = {"io.kubernetes.container.name": "POD", "io.kubernetes.docker.type": "podsandbox"}
    labels = _labels({**pod.labels, **pod_labels(pod)}, pod.annotations, own)
    host: dict[str, Any] = {"NetworkMode": "host", "IpcMode": "shareable", "SecurityOpt": ["no-new-privileges"]}
    host |= {"OomScoreAdj": oom_score_adj, "ShmSize": SHM_BYTES, "CpuShares": SANDBOX_SHARES}
    host |= {"PortBindings": {}, "CgroupParent": cgroup_parent(pod.cgroup_parent, driver)}
    return _body({"Hostname": pod.name, "Image": image, "Labels": labels}, host)


def container_body(pod: Pod, container: Container, sandbox_id: str, driver: str, runtime: str = "") -> dict[str, Any]:
    """Return the create body of a container; ``runtime`` is the sandbox's, "" if the shim does not request it."""
    own = {"io.kubernetes.container.logpath": log_path(pod, container), "io.kubernetes.sandbox.id": sandbox_id}
    own |= {"io.kubernetes.container.name": container.name, "io.kubernetes.docker.type": "container"}
    annotations = {**kubelets_annotations(container), **container.annotations}
    labels = _labels({**container.labels, **pod_labels(pod)}, annotations, own)
    config: dict[str, Any] = {"Image": container.image, "Labels": labels}
    config |= {"Cmd": list(container.args) or None, "Entrypoint": list(container.command) or None}
    config |= {"Env": [f"{key}={value}" for key, value in container.envs] or None, "Healthcheck": {"Test": ["NONE"]}}
    swap, modes = container.resources.get("memory_limit_in_bytes", 0), ("NetworkMode", "IpcMode")
    host = {**_resources(container.resources), "MemorySwap": swap, **dict.fromkeys(modes, f"container:{sandbox_id}")}
    host |= {"RestartPolicy": {"Name": "no", "MaximumRetryCount": 0}, "SecurityOpt": ["seccomp=unconfined"]}
    host |= {"UTSMode": "host", "ShmSize": SHM_BYTES, "Runtime": runtime, "Devices": []}
    return _body(config, {**host, "CgroupParent": cgroup_parent(pod.cgroup_parent, driver)})


def update_body(resources: Values, moves_swap: bool) -> dict[str, Any]:
    """Return the body of an update; ``moves_swap`` sets the swap limit to the memory limit, as cri-dockerd does."""
    swap = resources.get("memory_limit_in_bytes", 0) if moves_swap else 0
    policy = {"Name": "", "MaximumRetryCount": 0}
    return {**filled(RESOURCES, {**_resources(resources), "MemorySwap": swap}), "RestartPolicy": policy}


def exec_body(argv: Sequence[str]) -> dict[str, Any]:
    streams = {"AttachStdin": False, "AttachStderr": True, "AttachStdout": True}
    nothing = {"Detach": False, "DetachKeys": "", "Env": None, "WorkingDir": ""}
    return {"User": "", "Privileged": False, "Tty": False, **streams, **nothing, "Cmd": list(argv)}


def _resources(values: Values) -> dict[str, Any]:
    return {SETTINGS[name]: value for name, value in values.items()}


def log_path(pod: Pod, container: Container) -> str:
    return f"/var/log/pods/{pod.namespace}_{pod.name}_{pod.uid}/{container.name}/{container.attempt}.log"
