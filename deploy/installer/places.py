"""How many nodes change at the same time: each place is a lease that the chart creates, and a changing node holds one.

Owns when a place is free, and which places a node checks.
Must not know: the work that is done while it is held.
Invariant: no node acquires a place whose holder is alive. A node that failed keeps its place, so a version that fails
reaches at most as many nodes as there are places.
"""

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime

from .api import Api, Object

LEASE_SECONDS = 600
"""How long a holder keeps its place without renewing it."""
CANDIDATES = 3
"""How many of its pool's places a node checks: each check reads this many leases, whatever the size of the pool."""


class Places:
    """The places of a pool that a node may acquire. Every method raises ApiError."""

    def __init__(
        self, api: Api, namespace: str, pool: str, count: int, holder: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._namespace = namespace
        # Seeded by the node's name, so that a restarted node finds the place that it holds.
        numbers = random.Random(holder).sample(range(count), min(CANDIDATES, count))
        self._names = [f"{pool}-{number}" for number in sorted(numbers)]
        self._holder = holder
        self._clock = clock
        self._renewals: dict[str, tuple[str, float]] = {}
        """For each lease its renewTime, and when this node first read it by its own clock: clocks of nodes may
        differ."""
        self.held: str | None = None

    def acquire(self) -> str:
        """Acquire one of this node's candidate places; return "" on success, else their holders."""
        holders = []
        # A restarted node acquires its own place first.
        leases = {name: self._api.lease(self._namespace, name) for name in self._names}
        for name in sorted(leases, key=lambda name: _holder(leases[name]) != self._holder):
            lease = leases[name]
            if self._is_free(name, lease) and self._put(lease, self._holder):
                self.held = name
                return ""
            holders.append(_holder(lease) or "another node")
        return ", ".join(holders)

    def renew(self) -> bool:
        """Renew the lease; return whether this node still holds the place."""
        if self.held is None:
            return False
        lease = self._api.lease(self._namespace, self.held)
        return _holder(lease) == self._holder and self._put(lease, self._holder)

    def release(self) -> None:
        """Release the place, if this node holds one."""
        if self.held is not None:
            lease = self._api.lease(self._namespace, self.held)
            if _holder(lease) == self._holder:
                self._put(lease, "")
            self.held = None

    def _is_free(self, name: str, lease: Object) -> bool:
        if _holder(lease) in ("", self._holder):
            return True
        renew_time = lease["spec"].get("renewTime", "")
        if self._renewals.get(name, ("", 0.0))[0] != renew_time:
            self._renewals[name] = renew_time, self._clock()
        return self._clock() - self._renewals[name][1] > LEASE_SECONDS

    def _put(self, lease: Object, holder: str) -> bool:
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        }
        return self._api.put_lease(self._namespace, lease | {"spec": spec})


def _holder(lease: Object) -> str:
    return lease.get("spec", {}).get("holderIdentity") or ""
