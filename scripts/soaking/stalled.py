"""Pings beside clients that ask for much and read nothing: what these cost the others, and the memory.

Owns the clients, the turns of pings without and with them, the two figures and their limits.
Must not know: how figures are shown.
Invariant: pings without and with the clients take turns, so that what else the machine does meets both alike.
"""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median

from scripts.benchmark import programs
from scripts.benchmark.cases import DIRECT, DOCKER, EXPORT, PING, PROXY
from scripts.benchmark.limits import MIB
from scripts.benchmark.measure import send
from scripts.benchmark.modes import MODES
from scripts.benchmark.served import Served
from scripts.benchmark.transfers import Export
from tests.amounts import STALL_SECONDS

CLIENTS = 100
TURNS = 11
RATIO = 2.0
"""p99 of a ping beside the clients may be so many times that without them."""
GROWTH_BYTES = MIB
"""What a client that does not read may cost."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """p99 of a ping in microseconds, alone and beside the clients, turn by turn; what each client cost, in bytes."""

    turns: Sequence[tuple[int, int]]
    growth: int

    @property
    def ratio(self) -> float:
        """Return what the clients cost the pings: the median over the turns."""
        return median(beside / alone for alone, beside in self.turns)


def measure(share: float) -> Stalled:
    """Measure a proxy; ``share`` of the pings is sent, and of the time in which nothing is read. Raises DemoError."""
    mode = MODES[DOCKER]
    pings = max(int(PING.calls * share), TURNS) // TURNS
    turns, growth = [], 0
    with programs.served(mode, (DIRECT, PROXY)) as served:
        ping, export = mode.prepare(served, PING, PROXY), mode.prepare(served, EXPORT, PROXY)
        assert isinstance(export, Export)
        send(served, PING, PROXY, ping, pings)
        for _ in range(TURNS):
            alone = send(served, PING, PROXY, ping, pings).percentile(99)
            before = served.resident_bytes(PROXY)
            with _clients(served, export):
                time.sleep(max(STALL_SECONDS.at(share) / TURNS, 1))
                turns.append((alone, send(served, PING, PROXY, ping, pings).percentile(99)))
                growth = max(growth, served.resident_bytes(PROXY) - before)
    return Stalled(turns, growth // CLIENTS)


@contextmanager
def _clients(served: Served, export: Export) -> Iterator[None]:
    """Ask for an export on so many connections, and read none of them until the end of the block."""
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(str(served.socket(PROXY)))
            client.sendall(f"GET {export.target} HTTP/1.1\r\nHost: docker\r\n\r\n".encode())
        yield
