"""A stand-in koordlet: what it lists, how it registers, what it sets.

Owns its way with its registration file; its answers are ``hookanswers.koordlet``.
Must not know: which engine runs the pods.
Invariant: it does as the real one does (hook-api, "Registration files").
"""

from itertools import count

from tests.fakes import hookanswers, registration
from tests.system.node import Hooked

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
