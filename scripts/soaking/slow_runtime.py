"""The bench's container runtime, with a gate before its creates.

Owns which method waits.
Must not know: when the gate is shut.
Invariant: no other call waits.
Run: ``python -m scripts.soaking.slow_runtime SOCKET CONTAINERS LIST_BYTES TRANSFER_BYTES``.
"""

import sys

import uvloop

from scripts.benchmark.cases import CREATE
from scripts.benchmark.runtime import CountingRuntime, serve
from scripts.soaking.gate import Gate
from tests.fakes.runtime import Context, Received


class SlowRuntime(CountingRuntime):
    """A runtime whose creates wait at the gate."""

    def __init__(self, socket_path: str) -> None:
        super().__init__(socket_path)
        self._gate = Gate()

    async def answer(self, received: Received, context: Context) -> bytes:
        """Answer when the gate is open."""
        if received.method == CREATE.route:
            await self._gate.passed()
        return await super().answer(received, context)


if __name__ == "__main__":
    uvloop.run(serve(SlowRuntime, sys.argv[1], *map(int, sys.argv[2:])))
