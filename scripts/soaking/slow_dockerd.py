"""The bench's dockerd, with a gate before its creates.

Owns which route waits.
Must not know: when the gate is shut.
Invariant: no other call waits.
Run: ``python -m scripts.soaking.slow_dockerd SOCKET CONTAINERS LIST_BYTES TRANSFER_BYTES``.
"""

import sys

import uvloop

from scripts.benchmark.cases import DOCKER_CREATE
from scripts.benchmark.dockerd import CountingDockerd, LightService, serve
from scripts.soaking.gate import Gate
from tests.fakes.dockerd_received import Injection
from tests.fakes.dockerd_routes import Match
from tests.fakes.dockerd_wire import Exchange


class SlowService(LightService):
    """Creates when the gate is open."""

    gate: Gate

    async def _answer(self, exchange: Exchange, found: Match, injection: Injection | None) -> None:
        if found.route.key == DOCKER_CREATE.route:
            await self.gate.passed()
        await super()._answer(exchange, found, injection)


class SlowDockerd(CountingDockerd):
    """A daemon whose creates wait at the gate."""

    def __init__(self, socket_path: str) -> None:
        super().__init__(socket_path)
        self._service = SlowService(self, self.api, self.minimum, self.server_version)
        self._service.gate = Gate()


if __name__ == "__main__":
    uvloop.run(serve(SlowDockerd, sys.argv[1], *map(int, sys.argv[2:])))
