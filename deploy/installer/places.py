"""How many nodes change at a time: each place is a lease that the chart makes, and who changes a node holds one.

Owns when a place is free, and at which places a node looks.
Must not know: what is done while it is held.
Invariant: a place whose holder is alive is nobody else's. A node that failed keeps its own, so that a version that
fails stops after as many nodes as there are places.
"""

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime

from .api import Api, Object

SECONDS = 600
"""How long a place is its holder's without a sign of life."""
FEW = 3
"""At how many of its pool's places a node looks: at each look it reads so many leases, however many there are."""


class Places:
    """The places of a pool, as a node sees them. Raises ApiError everywhere."""

    def __init__(
        self, api: Api, namespace: str, pool: str, count: int, holder: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._namespace = namespace
        # Drawn by the node's name: always the same, so that a node that begins again finds the place that it had.
        numbers = random.Random(holder).sample(range(count), min(FEW, count))
        self._names = [f"{pool}-{number}" for number in sorted(numbers)]
        self._holder = holder
        self._clock = clock
        self._seen: dict[str, tuple[str, float]] = {}
        """For each lease the holder's last sign of life, and when it was first seen by this node's own clock: clocks of
        two nodes may differ."""
        self.held: str | None = None

    def take(self) -> str:
        """Take one of this node's few places; return "" if it has one now, else who has them."""
        holders = []
        # A node that begins again takes the place that it had.
        leases = {name: self._api.lease(self._namespace, name) for name in self._names}
        for name in sorted(leases, key=lambda name: _holder(leases[name]) != self._holder):
            lease = leases[name]
            if self._free(name, lease) and self._put(lease, self._holder):
                self.held = name
                return ""
            holders.append(_holder(lease) or "another node")
        return ", ".join(holders)

    def renew(self) -> bool:
        """Give a sign of life; return whether the place is still this node's."""
        if self.held is None:
            return False
        lease = self._api.lease(self._namespace, self.held)
        return _holder(lease) == self._holder and self._put(lease, self._holder)

    def leave(self) -> None:
        """Give the place back, if this node has one."""
        if self.held is not None:
            lease = self._api.lease(self._namespace, self.held)
            if _holder(lease) == self._holder:
                self._put(lease, "")
            self.held = None

    def _free(self, name: str, lease: Object) -> bool:
        if _holder(lease) in ("", self._holder):
            return True
        sign = lease["spec"].get("renewTime", "")
        if self._seen.get(name, ("", 0.0))[0] != sign:
            self._seen[name] = sign, self._clock()
        return self._clock() - self._seen[name][1] > SECONDS

    def _put(self, lease: Object, holder: str) -> bool:
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": SECONDS,
            "renewTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        }
        return self._api.put_lease(self._namespace, lease | {"spec": spec})


def _holder(lease: Object) -> str:
    return lease.get("spec", {}).get("holderIdentity") or ""
