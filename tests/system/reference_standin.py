"""``python -m tests.system.reference_standin ROOT CLASSES [flags]``: the RDT hook server on a stand-in for resctrl.

The hook is the project's own, unchanged; only the kernel below it is simulated.
"""

import sys
import time
from pathlib import Path

from runtimeproxy_hooks.lib.cgroups import Cgroups
from runtimeproxy_hooks.sdk import ContainerContext, Hook, main
from runtimeproxy_hooks.servers.rdt import Rdt
from tests.fakes.resctrl import Hardware, StandIn

PROCESSES = "example.com/processes"
"""The container annotation with the number of processes that it will have."""
MOST_SECONDS = 20.0


class Settled(Hook):
    """Waits until a container has all its processes, because the stand-in, unlike the kernel, does not know parents.

    Otherwise it would be random which of them exist when their threads are moved.
    """

    def post_start_container(self, container: ContainerContext) -> None:
        """Wait, but not for ever."""
        count, cgroups = int(container.annotations.get(PROCESSES, "1")), Cgroups()
        deadline = time.monotonic() + MOST_SECONDS
        while len(_pids(cgroups, container)) < count and time.monotonic() < deadline:
            time.sleep(0.01)


def _pids(cgroups: Cgroups, container: ContainerContext) -> list[int]:
    path = cgroups.container(container.cgroup_parent, container.id)
    return cgroups.pids(path) if path else []


if __name__ == "__main__":
    stand_in = StandIn(Path(sys.argv[1]), Hardware(closids=int(sys.argv[2])))
    main(Settled(), Rdt(stand_in), name="rdt", argv=sys.argv[3:])
