"""The bench's container runtime: the tests' fake one, which tells at its end how many calls it answered well.

h2load sees HTTP's status only; that no call failed in gRPC is known by counting here.
Run: ``python -m scripts.benchmark.runtime SOCKET CONTAINERS LIST_BYTES TRANSFER_BYTES``; CRI has no transfers.
"""

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import Callable

import uvloop

from tests.fakes.runtime import Context, FakeRuntime, Received

CLIENT = "h2load"
"""Only its calls are counted: a proxy may ask the runtime on its own account."""


class CountingRuntime(FakeRuntime):
    """A fake runtime that counts its good answers by method."""

    def __init__(self, socket_path: str) -> None:
        super().__init__(socket_path, keep_received=0)
        self.answered: Counter[str] = Counter()

    async def answer(self, received: Received, context: Context) -> bytes:
        """Answer and count; a refused call raises before it is counted."""
        message = await super().answer(received, context)
        self.answered[received.method] += CLIENT in str(dict(received.metadata).get("user-agent"))
        return message


async def serve(
    kind: Callable[[str], CountingRuntime], socket_path: str, containers: int, list_bytes: int, transfer_bytes: int
) -> None:
    """Serve until SIGTERM, then print the counts as one JSON line."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with kind(socket_path) as runtime:
        runtime.state.fill_list(containers, list_bytes)
        await stopped.wait()
    print(json.dumps({method: count for method, count in runtime.answered.items() if count}))


if __name__ == "__main__":
    uvloop.run(serve(CountingRuntime, sys.argv[1], *map(int, sys.argv[2:])))
