"""The resident proxy: its start, its memory, what it has loaded, and the longest list.

Owns the measurement of the start, and of memory with records in the Store and over very many calls.
Must not know: limits, how figures are shown.
Invariant: each figure is of a proxy that was started for it.
"""

import time
from contextlib import closing
from dataclasses import dataclass
from statistics import median

from scripts.benchmark import measure, programs
from scripts.benchmark.cases import CRI, DIRECT, HOOKED, PROXY
from scripts.benchmark.kubelet import CLIENTS
from scripts.benchmark.modes import MODES, Mode
from scripts.benchmark.served import Served
from tests.engines.cri import CriClient
from tests.fakes import cri_pb2

STARTS = 5
RECORDS = 100
CALLS = 100_000
SETTLE_SECONDS = 3.0
"""By then the proxy has done what it does by itself in its first seconds: that is none of the calls'."""
HUGE_LIST_BYTES = (16 << 20) - 1024
"""The longest reply that the kubelet takes over CRI, its limit of 16 MiB less some room."""


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes of the proxy: idle; with the records that hooked calls left; after the first and the second ``calls``.

    ``start_seconds`` are those from the start of its process to its first answer.
    """

    start_seconds: float
    idle: int
    loaded: tuple[str, ...]
    """Those of the libraries that an idle proxy must not have."""
    calls: int
    with_records: int
    after_first: int
    after_second: int

    @property
    def growth(self) -> int:
        """Return the bytes by which the proxy grew over the second calls."""
        return self.after_second - self.after_first


def resident(mode: Mode, share: float) -> Resident:
    """Measure proxies; ``share`` of the many calls is made. Raises DemoError."""
    calls = max(int(CALLS * share), 1)
    with programs.served(mode, (DIRECT, PROXY)) as served:
        time.sleep(SETTLE_SECONDS)
        idle = served.resident_bytes(PROXY)
        loaded = tuple(name for name, part in mode.libraries.items() if served.has_loaded(PROXY, part))
        start_seconds = median(_start_seconds(served, mode, f"start-{number}") for number in range(STARTS))
    with programs.served(mode, (DIRECT, HOOKED, programs.HOOKS), peers=True) as served:
        create = mode.prepare(served, mode.create, HOOKED)  # one record is its pod
        measure.send(served, mode.create, HOOKED, create, RECORDS - 1)
        time.sleep(SETTLE_SECONDS)
        with_records = served.resident_bytes(HOOKED)
        small = mode.prepare(served, mode.small, HOOKED)
        measure.send(served, mode.small, HOOKED, small, calls)
        after_first = served.resident_bytes(HOOKED)
        measure.send(served, mode.small, HOOKED, small, calls)
        after_second = served.resident_bytes(HOOKED)
    return Resident(start_seconds, idle, loaded, calls, with_records, after_first, after_second)


def _start_seconds(served: Served, mode: Mode, name: str) -> float:
    served.registrations(name).mkdir(parents=True)
    began = time.perf_counter()
    with (
        programs.program(served, name, programs.proxy_command(served, mode, name)),
        closing(CLIENTS[mode.name](served.socket(name))) as client,
    ):
        client.prepare(mode.small.route)()
        return time.perf_counter() - began


def huge_list_passes() -> bool:
    """Tell whether a list of 16 MiB, the longest that the kubelet takes, is the same with and without the proxy."""
    with programs.served(MODES[CRI], (DIRECT, PROXY), list_bytes=HUGE_LIST_BYTES) as served:
        replies = []
        for way in (DIRECT, PROXY):
            with CriClient(str(served.socket(way))) as client:
                reply = client.call("ListContainers", cri_pb2.ListContainersRequest())
            replies.append(reply.SerializeToString())
    return replies[0] == replies[1] and len(replies[0]) >= HUGE_LIST_BYTES - 1024
