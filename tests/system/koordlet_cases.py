"""What a real koordlet's hook plugins answer, and what goes to each runtime for it: the rows of docs/koordlet.rst.

Owns the table. Sources: koordinator's pkg/koordlet/runtimehooks, as facts of the project's own words.
Must not know: which runtime is there, how a request gets to it.
Invariant: an answer is koordlet's echo of the request with ``said`` and ``envs`` set in it, "" among the values.
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
"""What the kubelet asks for a pod with limits."""
SMALL: Values = {"cpu_period": 100_000, "cpu_quota": 1000, "cpu_shares": 10}
"""A limit of 10m: the kubelet makes the kernel's least quota of it."""
BE: Values = {"cpu_period": 100_000, "cpu_shares": 2, "oom_score_adj": 1000}
"""What it asks for one without limits."""
BATCH: Values = {"cpu_shares": 512, "cpu_quota": 50_000, "memory_limit_in_bytes": 64 * MIB}
MORE = {**BATCH, "memory_limit_in_bytes": 96 * MIB}
NO_QUOTA: Values = {"cpu_shares": 512, "cpu_quota": -1}
LIFTED: Values = {"cpu_quota": -1, "memory_limit_in_bytes": -1}
UNLIMITED = {**NO_QUOTA, **LIFTED}
"""What koordlet says of batch resources, with limits and without."""
OWN_CPUS: Values = {"cpuset_cpus": "0-1", "cpu_quota": -1}
HAMI: Texts = {
    "NVIDIA_VISIBLE_DEVICES": "0",
    "CUDA_DEVICE_MEMORY_LIMIT": "17179869184",
    "CUDA_DEVICE_SM_LIMIT": "50",
    "LD_PRELOAD": "/usr/local/vgpu/libvgpu.so",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A row: to what the kubelet asks, koordlet says this, and then this goes out.

    ``changes`` are the resources that differ from the kubelet's, 0 and "" where a field is taken out; ``held`` is what
    the container was created with, before an update. ``lifted`` takes the place of ``changes`` for runtimes that take
    -1 in an update.
    """

    name: str
    point: str
    asked: Values
    said: Values
    changes: Values
    envs: Texts = field(default_factory=dict)
    held: Values = field(default_factory=dict)
    lifted: Values | None = None

    @property
    def answer(self) -> hookanswers.Answer:
        """Answer as koordlet does."""
        return hookanswers.echo(self._change)

    def _change(self, response: Any) -> None:
        target = response.resources if self.point == POD else response.container_resources
        for name, value in self.said.items():
            setattr(target, name, value)
        if self.envs:
            response.container_envs.update(self.envs)


CASES = (
    # PreRunPodSandbox
    Case("pod: nothing", POD, {}, {}, {}),
    Case("pod: own CPUs", POD, {}, {"cpu_quota": -1}, {"cpu_quota": -1}),
    Case("pod: batch limits", POD, {}, BATCH, BATCH),
    Case("pod: batch without limits", POD, {}, UNLIMITED, NO_QUOTA),
    Case("pod: batch limit, scaled", POD, {}, {"cpu_quota": 834}, {"cpu_quota": 1000}),
    # PreCreateContainer
    Case("nothing", CREATE, LS, {}, {}),
    Case("own CPUs", CREATE, LS, OWN_CPUS, OWN_CPUS),
    Case("own CPUs, quota kept", CREATE, LS, {"cpuset_cpus": "1"}, {"cpuset_cpus": "1"}),
    Case("own CPUs, odd text", CREATE, LS, {"cpuset_cpus": " 0 ,, 1,"}, {"cpuset_cpus": "0,1"}),
    Case("shared pools", CREATE, LS, {"cpuset_cpus": "0,1"}, {"cpuset_cpus": "0,1"}),
    Case("shared pools, the last empty", CREATE, LS, {"cpuset_cpus": "0-1,"}, {"cpuset_cpus": "0-1"}),
    Case("shared pools, the first empty", CREATE, LS, {"cpuset_cpus": ",0-1"}, {"cpuset_cpus": "0-1"}),
    Case("shared pools, all empty", CREATE, {**LS, "cpuset_cpus": "1"}, {"cpuset_cpus": ","}, {}),
    Case("one pool, empty", CREATE, {**LS, "cpuset_cpus": "1"}, {"cpuset_cpus": ""}, {"cpuset_cpus": ""}),
    Case("best effort", CREATE, {**BE, "cpuset_cpus": "1"}, {"cpuset_cpus": ""}, {"cpuset_cpus": ""}),
    Case("system pod", CREATE, BE, {"cpuset_cpus": "0"}, {"cpuset_cpus": "0"}),
    Case("batch limits", CREATE, BE, BATCH, BATCH),
    Case("batch without limits", CREATE, BE, UNLIMITED, NO_QUOTA),
    Case("batch without limits, the kubelet's go", CREATE, LS, LIFTED, {"cpu_quota": -1, "memory_limit_in_bytes": 0}),
    Case("batch, CPU suppressed by quota", CREATE, LS, {"cpu_quota": -1}, {"cpu_quota": -1}),
    Case("normalized", CREATE, LS, {"cpu_quota": 125_000}, {"cpu_quota": 125_000}),
    Case("normalized, below the kernel's least", CREATE, SMALL, {"cpu_quota": 834}, {}),
    Case("normalized to a small one", CREATE, {**SMALL, "cpu_quota": 1100}, {"cpu_quota": 917}, {"cpu_quota": 1000}),
    Case("GPU", CREATE, LS, {}, {}, {"NVIDIA_VISIBLE_DEVICES": "0,1"}),
    Case("GPU share by HAMi-core", CREATE, LS, {}, {}, HAMI),
    Case(
        "GPU, shared pools and a small quota",
        CREATE,
        SMALL,
        {"cpu_quota": 834, "cpuset_cpus": "0-1,"},
        {"cpuset_cpus": "0-1"},
        {"NVIDIA_VISIBLE_DEVICES": "0"},
    ),
    Case("RDMA", CREATE, LS, {}, {}),
    # PreUpdateContainerResources
    Case("update: nothing", UPDATE, {"cpu_shares": 512}, {}, {}, held=LS),
    Case("update: own CPUs", UPDATE, {"cpuset_cpus": "0"}, OWN_CPUS, OWN_CPUS, held=LS),
    Case(
        "update: shared pools, the last empty",
        UPDATE,
        {"cpuset_cpus": "0"},
        {"cpuset_cpus": "0-1,"},
        {"cpuset_cpus": "0-1"},
        held=LS,
    ),
    Case("update: best effort", UPDATE, {"cpuset_cpus": "0"}, {"cpuset_cpus": ""}, {"cpuset_cpus": ""}, held=BE),
    Case("update: batch without limits, none held", UPDATE, {"cpu_shares": 2}, LIFTED, {"cpu_quota": -1}, held=BE),
    Case(
        "update: batch without limits, one held",
        UPDATE,
        {"cpu_shares": 512},
        LIFTED,
        {"cpu_quota": -1},
        held=LS,
        lifted=LIFTED,
    ),
    Case("update: batch limits", UPDATE, {"cpu_shares": 2}, MORE, MORE, held=LS),
    Case(
        "update: normalized, below the kernel's least", UPDATE, {"cpu_quota": 1000}, {"cpu_quota": 834}, {}, held=SMALL
    ),
)


def goes_out(case: Case, *, lifts: bool) -> dict[str, int | str]:
    """Return the resources that are set in the request as it is released."""
    changes = case.lifted if lifts and case.lifted is not None else case.changes
    return {name: value for name, value in {**case.asked, **changes}.items() if value}
