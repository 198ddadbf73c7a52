"""A stand-in koordlet: what it lists, how it registers, what it sets.

Owns its way with its registration file; its answers are ``hookanswers.koordlet``.
Must not know: which engine runs the pods.
Invariant: it does as the real one does (hook-api, "Registration files").
"""

from itertools import count
from typing import Protocol

from tests.engines import cgroups
from tests.fakes import hookanswers, registration
from tests.fakes.cri_pb2 import ContainerConfig, LinuxContainerResources, PodSandboxConfig
from tests.system.koordlet_cases import CASES, POD, UPDATE, Case, Values, goes_out
from tests.system.node import Hooked, end
from tests.system.node import Kubelet as Ending

POINTS = ("PreRunPodSandbox", "PreCreateContainer", "PreUpdateContainerResources")
"""What a koordlet with its defaults lists, beside the point that the protocol lacks."""
UNLIMITED = {"cpu_shares": 700, "cpu_quota": -1, "memory_limit_in_bytes": -1}


class Koordlet:
    """Registers again and again, in place, each time in another order, and leaves its file there in the end."""

    def __init__(self, node: Hooked) -> None:
        self._node = node
        self._seeds = count()

    def register(self) -> None:
        """Write the file."""
        folder, socket_path = self._node.proxy.registrations, self._node.hooks.socket_path
        registration.write_as_koordlet(folder, socket_path, POINTS, seed=next(self._seeds))

    def truncate(self) -> None:
        """Leave the file as a reader may find it in the middle of a write: empty."""
        self._node.proxy.registrations.joinpath("koordlet.json").write_text("")


def nobody(node: Hooked) -> None:
    """Register nothing before the proxy starts."""


def registered(node: Hooked) -> Koordlet:
    """Let the node's hook server be a koordlet, and wait until the proxy knows it."""
    node.hooks.default = hookanswers.koordlet()
    koordlet = Koordlet(node)
    koordlet.register()
    node.proxy.wait_for_registration("koordlet.json")
    return koordlet


class Kubelet(Ending, Protocol):
    """What is asked alike of a client of CRI and of one of dockerd."""

    def create(self, pod_id: str, config: ContainerConfig, pod: PodSandboxConfig) -> str: ...
    def start(self, container_id: str) -> None: ...
    def update(self, container_id: str, resources: LinuxContainerResources) -> None: ...


def see_each_answer(
    node: Hooked, client: Kubelet, pod_id: str, pod: PodSandboxConfig, config: ContainerConfig, *, lifts: bool
) -> None:
    """Give a container of a running pod each of a koordlet's answers, under policy Fail, and look inside.

    ``lifts``: the runtime takes -1 in an update.
    """
    node.hooks.default = hookanswers.echo()
    node.proxy.register("koordlet.json", node.hooks.socket_path, policy="Fail")
    node.proxy.wait_for_registration("koordlet.json")
    made = []
    for number, case in enumerate(CASES):
        if case.point == POD:
            continue
        of_update = case.point == UPDATE
        config.metadata.name = f"c{number}"
        config.linux.resources.CopyFrom(LinuxContainerResources(**(case.held if of_update else case.asked)))  # type: ignore[arg-type]
        if config.linux.resources.memory_limit_in_bytes:
            config.linux.resources.memory_swap_limit_in_bytes = config.linux.resources.memory_limit_in_bytes
        node.hooks.answers.clear()
        if not of_update:
            node.hooks.on(case.point, case.answer)
        container_id = client.create(pod_id, config, pod)
        made.append(container_id)
        client.start(container_id)
        if of_update:
            node.hooks.on(case.point, case.answer)
            client.update(container_id, LinuxContainerResources(**case.asked))  # type: ignore[arg-type]
        _assert_inside(client, container_id, case, {**case.held, **goes_out(case, lifts=lifts)})
    assert "refused" not in node.proxy.output()
    end(client, pod_id, *made)


SETTINGS = ("cpu_shares", "cpu_quota", "memory_limit_in_bytes", "cpuset_cpus")
_LOOK = "; echo @; ".join(f"cat {file}" for file in (*map(cgroups.inside_file, SETTINGS), "/proc/1/environ"))


def _assert_inside(client: Kubelet, container_id: str, case: Case, values: Values) -> None:
    *files, environment = client.exec_sync(container_id, "/bin/sh", "-c", _LOOK).stdout.split(b"@\n")
    for setting, file in zip(SETTINGS, files, strict=True):
        seen = cgroups.parse(setting, file.decode())
        if setting == "cpuset_cpus":
            assert cpus(str(seen)) == cpus(str(values.get(setting) or seen)), case.name
        else:
            assert seen == cgroups.expected(setting, values.get(setting, -1)), (case.name, setting)
    assert {f"{key}={value}".encode() for key, value in case.envs.items()} <= set(environment.split(b"\0")), case.name


def cpus(text: str) -> set[int]:
    """Return the numbers of a cpuset."""
    ends = [part.partition("-")[::2] for part in text.strip().split(",")]
    return {cpu for first, last in ends for cpu in range(int(first), int(last or first) + 1)}
