"""The answers of a real koordlet's hook plugins, and the requests that result: the rows of docs/koordlet.rst.

An answer is koordlet's echo of the request with ``sets`` and ``envs`` set in it, "" among the values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes import hookanswers

Values = Mapping[str, int | str]
Texts = Mapping[str, str]

POD, CREATE, UPDATE = "PreRunPodSandbox", "PreCreateContainer", "PreUpdateContainerResources"
MIB = 1 << 20
LS: Values = {"cpu_period": 100_000, "cpu_quota": 150_000, "cpu_shares": 1536, "memory_limit_in_bytes": 64 * MIB}
"""What the kubelet requests for a pod with limits."""
SMALL: Values = {"cpu_period": 100_000, "cpu_quota": 1000, "cpu_shares": 10}
"""A limit of 10m, which the kubelet raises to the kernel's least quota."""
BE: Values = {"cpu_period": 100_000, "cpu_shares": 2, "oom_score_adj": 1000}
"""What it requests for one without limits."""
GPU: Texts = {"NVIDIA_VISIBLE_DEVICES": "0"}
HAMI: Texts = {
    **GPU,
    "CUDA_DEVICE_MEMORY_LIMIT": "17179869184",
    "CUDA_DEVICE_SM_LIMIT": "50",
    "LD_PRELOAD": "/usr/local/vgpu/libvgpu.so",
}
MONITORED: Texts = {**HAMI, "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/pod-uid_main.cache"}


@dataclass(frozen=True, slots=True)
class Case:
    """One row: the kubelet's request, koordlet's answer, and what is sent to the runtime.

    ``changes`` are the resources that differ from the kubelet's, 0 and "" for a field that is taken out; ``held`` is
    what the container was created with, before an update. ``lifted`` replaces ``changes`` for runtimes that accept -1
    in an update.
    """

    name: str
    point: str
    queried: Values
    sets: Values
    changes: Values
    envs: Texts = field(default_factory=dict)
    held: Values = field(default_factory=dict)
    lifted: Values | None = None

    @property
    def answer(self) -> hookanswers.Answer:
        return hookanswers.echo(self._change)

    def _change(self, response: Any) -> None:
        target = response.resources if self.point == POD else response.container_resources
        for name, value in self.sets.items():
            setattr(target, name, value)
        if self.envs:
            response.container_envs.update(self.envs)


BATCH: Values = {"cpu_shares": 512, "cpu_quota": 50_000, "memory_limit_in_bytes": 64 * MIB}
LARGER: Values = {**BATCH, "memory_limit_in_bytes": 96 * MIB}
NO_LIMITS: Values = {"cpu_quota": -1, "memory_limit_in_bytes": -1}
NO_QUOTA: Values = {"cpu_quota": -1}
OWN_CPUS: Values = {"cpuset_cpus": "0-1", "cpu_quota": -1}
ONE_CPU: Values = {"cpuset_cpus": "1"}
NO_CPUSET: Values = {"cpuset_cpus": ""}
LEAST: Values = {"cpu_quota": 1000}
"""The kernel's least quota."""


def cpus(text: str) -> Values:
    return {"cpuset_cpus": text}


def update(
    name: str, queried: Values, sets: Values, changes: Values, held: Values, lifted: Values | None = None
) -> Case:
    return Case(f"update: {name}", UPDATE, queried, sets, changes, held=held, lifted=lifted)


CASES = (
    # PreRunPodSandbox
    Case("pod: nothing", POD, {}, {}, {}),
    Case("pod: own CPUs", POD, {}, NO_QUOTA, NO_QUOTA),
    Case("pod: batch limits", POD, {}, BATCH, BATCH),
    Case("pod: batch without limits", POD, {}, {"cpu_shares": 512, **NO_LIMITS}, {"cpu_shares": 512, **NO_QUOTA}),
    Case("pod: batch limit, scaled", POD, {}, {"cpu_quota": 834}, LEAST),
    # PreCreateContainer
    Case("nothing", CREATE, LS, {}, {}),
    Case("own CPUs", CREATE, LS, OWN_CPUS, OWN_CPUS),
    Case("own CPUs, quota kept", CREATE, LS, ONE_CPU, ONE_CPU),
    Case("own CPUs, odd text", CREATE, LS, cpus(" 0 ,, 1,"), cpus("0,1")),
    Case("shared pools", CREATE, LS, cpus("0,1"), cpus("0,1")),
    Case("shared pools, the last empty", CREATE, LS, cpus("0-1,"), cpus("0-1")),
    Case("shared pools, the first empty", CREATE, LS, cpus(",0-1"), cpus("0-1")),
    Case("shared pools, all empty", CREATE, {**LS, **ONE_CPU}, cpus(","), {}),
    Case("no pool", CREATE, {**LS, **ONE_CPU}, NO_CPUSET, NO_CPUSET),
    Case("no class", CREATE, LS, cpus("0-1"), cpus("0-1")),
    Case("no class, static CPU manager", CREATE, {**LS, **ONE_CPU}, {}, {}),
    Case("best effort", CREATE, {**BE, **ONE_CPU}, NO_CPUSET, NO_CPUSET),
    Case("best effort, pools of its NUMA nodes", CREATE, {**BE, **ONE_CPU}, cpus("0,1"), cpus("0,1")),
    Case("system pod", CREATE, BE, cpus("0"), cpus("0")),
    Case("batch limits", CREATE, BE, BATCH, BATCH),
    Case("batch without limits", CREATE, BE, {"cpu_shares": 512, **NO_LIMITS}, {"cpu_shares": 512, **NO_QUOTA}),
    Case("batch without limits, the kubelet's go", CREATE, LS, NO_LIMITS, {**NO_QUOTA, "memory_limit_in_bytes": 0}),
    Case("batch, CPU suppressed by quota", CREATE, LS, NO_QUOTA, NO_QUOTA),
    Case("normalized", CREATE, LS, {"cpu_quota": 125_000}, {"cpu_quota": 125_000}),
    Case("normalized, below the kernel's least", CREATE, SMALL, {"cpu_quota": 834}, {}),
    Case("normalized to a small one", CREATE, {**SMALL, "cpu_quota": 1100}, {"cpu_quota": 917}, LEAST),
    Case("GPU", CREATE, LS, {}, {}, {"NVIDIA_VISIBLE_DEVICES": "0,1"}),
    Case("GPU share by HAMi-core", CREATE, LS, {}, {}, HAMI),
    Case("GPU share by HAMi-core, monitored", CREATE, LS, {}, {}, MONITORED),
    Case("GPU, shared pools and a small quota", CREATE, SMALL, {"cpu_quota": 834, **cpus("0-1,")}, cpus("0-1"), GPU),
    Case("RDMA", CREATE, LS, {}, {}),
    Case("RDT", CREATE, LS, {}, {}),
    # PreUpdateContainerResources
    update("nothing", {"cpu_shares": 512}, {}, {}, LS),
    update("own CPUs", cpus("0"), OWN_CPUS, OWN_CPUS, LS),
    update("shared pools, the last empty", cpus("0"), cpus("0-1,"), cpus("0-1"), LS),
    update("best effort", cpus("0"), NO_CPUSET, NO_CPUSET, BE),
    update("batch without limits, none held", {"cpu_shares": 2}, NO_LIMITS, NO_QUOTA, BE),
    update("batch without limits, one held", {"cpu_shares": 512}, NO_LIMITS, NO_QUOTA, LS, lifted=NO_LIMITS),
    update("batch limits", {"cpu_shares": 2}, LARGER, LARGER, LS),
    update("normalized, below the kernel's least", LEAST, {"cpu_quota": 834}, {}, SMALL),
)


def goes_out(case: Case, *, lifts: bool) -> dict[str, int | str]:
    """Return the resources that are set in the released request."""
    changes = case.lifted if lifts and case.lifted is not None else case.changes
    return {name: value for name, value in {**case.queried, **changes}.items() if value}
