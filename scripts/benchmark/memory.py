"""The resident proxy: its memory, what it has loaded, and the longest list.

Owns the measurement of memory with records in the Store and over very many calls.
Must not know: limits, how figures are shown.
Invariant: each figure is of a proxy that was started for it.
"""

import time
from dataclasses import dataclass

from scripts.benchmark import measure, programs
from scripts.benchmark.cases import CRI, DIRECT, PROXY
from scripts.benchmark.modes import MODES, Mode
from tests.engines.cri import CriClient
from tests.fakes import cri_pb2

RECORDS = 100
CALLS = 100_000
SETTLE_SECONDS = 3.0
"""By then the proxy has done what it does by itself in its first seconds: that is none of the calls'."""
HUGE_LIST_BYTES = (16 << 20) - 1024
"""The longest reply that the kubelet takes over CRI, its limit of 16 MiB less some room."""


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes of the proxy with the records, after the first and after the second ``calls``; libraries while idle."""

    calls: int
    with_records: int
    after_first: int
    after_second: int
    loaded: tuple[str, ...]
    """Those of the libraries that an idle proxy must not have."""

    @property
    def growth(self) -> int:
        """Return the bytes by which the proxy grew over the second calls."""
        return self.after_second - self.after_first


def resident(mode: Mode, share: float) -> Resident:
    """Measure a proxy; ``share`` of the many calls is made. Raises DemoError."""
    calls = max(int(CALLS * share), 1)
    with programs.served(mode, (DIRECT, PROXY)) as served:
        loaded = tuple(name for name, part in mode.libraries.items() if served.has_loaded(PROXY, part))
        create = mode.prepare(served, mode.create, PROXY)  # one record is its pod
        measure.send(served, mode.create, PROXY, create, RECORDS - 1)
        time.sleep(SETTLE_SECONDS)
        with_records = served.resident_bytes(PROXY)
        small = mode.prepare(served, mode.small, PROXY)
        measure.send(served, mode.small, PROXY, small, calls)
        after_first = served.resident_bytes(PROXY)
        measure.send(served, mode.small, PROXY, small, calls)
        after_second = served.resident_bytes(PROXY)
    return Resident(calls, with_records, after_first, after_second, loaded)


def huge_list_passes() -> bool:
    """Tell whether a list of 16 MiB, the longest that the kubelet takes, is the same with and without the proxy."""
    with programs.served(MODES[CRI], (DIRECT, PROXY), list_bytes=HUGE_LIST_BYTES) as served:
        replies = []
        for way in (DIRECT, PROXY):
            with CriClient(str(served.socket(way))) as client:
                reply = client.call("ListContainers", cri_pb2.ListContainersRequest())
            replies.append(reply.SerializeToString())
    return replies[0] == replies[1] and len(replies[0]) >= HUGE_LIST_BYTES - 1024
