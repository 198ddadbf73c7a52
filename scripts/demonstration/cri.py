"""The scene on a CRI runtime: a pod with two containers goes through the proxy's socket as a kubelet would send it.

Owns the pod, its containers, the annotations, and which effect each must have inside.
Must not know: whether the runtime is real, how the programs were started.
Invariant: what is "true inside" was read by a process in the container, through the proxy.
"""

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scripts.demonstration.report import Effect
from tests.engines import cgroups, cri
from tests.fakes.cri_pb2 import ContainerConfig
from tests.fakes.cri_pb2 import LinuxContainerResources as Resources

MIB = 1 << 20
CPUSET = str(min(os.sched_getaffinity(0)))
ANNOTATIONS = {
    "scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [{"minor": 0}, {"minor": 1}]}),
    "scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": CPUSET}),
    "node.koordinator.sh/extended-resource-spec": json.dumps(
        {
            "containers": {
                "main": {
                    "requests": {"kubernetes.io/batch-cpu": "500"},
                    "limits": {"kubernetes.io/batch-memory": "64Mi"},
                },
                "side": {
                    "requests": {"kubernetes.io/batch-cpu": "250"},
                    "limits": {"kubernetes.io/batch-memory": "32Mi"},
                },
            }
        }
    ),
}
EXPECTED_CALLS = {
    "PreRunPodSandbox": 1,
    "PreCreateContainer": 2,
    "PreStartContainer": 2,
    "PostStartContainer": 2,
    "PreUpdateContainerResources": 1,
    "PostStopContainer": 2,
    "PostStopPodSandbox": 1,
}

Values = dict[str, int | str]


@dataclass(frozen=True, slots=True)
class Part:
    """A container of the scene: what the kubelet asks for, and what the hook server must make of it."""

    name: str
    envs: dict[str, str]
    asked: Values
    hook: Values
    update: Values = field(default_factory=dict)
    """What the kubelet asks for later, by UpdateContainerResources."""


HOOK_ENVS = {"NVIDIA_VISIBLE_DEVICES": "0,1"}
PARTS = (
    Part(
        "main",
        {"LOG_LEVEL": "info", "NVIDIA_VISIBLE_DEVICES": "none"},
        {"cpu_shares": 2, "cpu_quota": 50000, "cpu_period": 100000, "memory_limit_in_bytes": 128 * MIB},
        {"cpu_shares": 512, "cpu_quota": -1, "cpuset_cpus": CPUSET, "memory_limit_in_bytes": 64 * MIB},
        {"cpu_quota": 20000, "cpu_shares": 100},
    ),
    Part(
        "side",
        {"LOG_LEVEL": "debug"},
        {},
        {"cpu_shares": 256, "cpu_quota": -1, "cpuset_cpus": CPUSET, "memory_limit_in_bytes": 32 * MIB},
    ),
)


def play(socket_path: Path, cgroup_parent: str, log_directory: str) -> list[Effect]:
    """Run the pod through the socket, look inside, update, look again, stop and remove; return what was found.

    Raises grpc.RpcError if a call fails.
    """
    pod = cri.pod_config(
        "demo",
        str(uuid.uuid4()),
        cgroup_parent=cgroup_parent,
        log_directory=log_directory,
        labels={"koordinator.sh/qosClass": "BE"},
        annotations=ANNOTATIONS,
    )
    with cri.CriClient(str(socket_path)) as client:
        pod_id = client.run_pod(pod)
        containers = [(part, client.create(pod_id, _config(part), pod)) for part in PARTS]
        for _, container_id in containers:
            client.start(container_id)
        effects = [effect for part, container_id in containers for effect in _look(client, part, container_id)]
        effects += [effect for part, container_id in containers for effect in _update(client, part, container_id)]
        for _, container_id in containers:
            client.stop(container_id)
            client.remove(container_id)
        client.stop_pod(pod_id)
        client.remove_pod(pod_id)
    return effects


def _config(part: Part) -> ContainerConfig:
    envs = [(name, value.encode()) for name, value in part.envs.items()]
    resources = Resources(**part.asked) if part.asked else None  # type: ignore[arg-type]
    return cri.container_config(part.name, envs=envs, resources=resources)


def _look(client: cri.CriClient, part: Part, container_id: str) -> Iterator[Effect]:
    environment = client.environment(container_id)
    for name in {**part.envs, **HOOK_ENVS}:
        inside = environment.get(name, b"-").decode()
        yield Effect(part.name, f"env {name}", part.envs.get(name, "-"), HOOK_ENVS.get(name, ""), inside)
    yield from _cgroup(client, part, container_id, part.asked, "")


def _update(client: cri.CriClient, part: Part, container_id: str) -> Iterator[Effect]:
    if part.update:
        client.update(container_id, Resources(**part.update))  # type: ignore[arg-type]
        yield from _cgroup(client, part, container_id, part.update, " after update")


def _cgroup(client: cri.CriClient, part: Part, container_id: str, asked: Values, when: str) -> Iterator[Effect]:
    for setting, value in part.hook.items():
        file = cgroups.inside_file(setting)
        content = client.exec_sync(container_id, "cat", file).stdout.decode()
        hook = str(cgroups.expected(setting, value))
        yield Effect(
            part.name, Path(file).name + when, str(asked.get(setting, "-")), hook, str(cgroups.parse(setting, content))
        )
