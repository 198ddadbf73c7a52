"""Clients of an admin socket: scrapers, which send a request each second, and followers of events.

Each scraper begins at a random time in the first second and sends one of the requests. READY is printed once all were
answered and the followers have all past events. At the end one JSON line has the microseconds that 99 % of the scrapes
since then did not exceed (from when each was due), and how often an answer was wrong, incomplete or missing.

Run: ``python -m scripts.benchmark.clients SOCKET SCRAPERS FOLLOWERS [REQUEST...]``; a request is a method, or a method
and its parameters like ``store={"limit": 1000}``.
"""

import asyncio
import json
import random
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import uvloop

from runtimeproxy.admin.protocol import PART_BYTES, Answer, Part, Refused, request
from scripts.benchmark.loads import Run

READY = "all clients were answered"
METRICS = "metrics"
SCRAPE_SECONDS = 1.0
QUIET_SECONDS = 0.5
"""Followers that received nothing for this time have all past events."""
SEED = 23
_BAD = (OSError, EOFError, asyncio.LimitOverrunError, Refused, ValueError)
"""The errors of an answer that has no last line."""


class Clients:
    """All clients of one socket, and what they received."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.durations: list[int] = []
        self.events = self.failed = 0

    async def _parts(self, method: str, params: Mapping[str, Any]) -> AsyncGenerator[Part, None]:
        """Yield the parts of an answer. Raises one of ``_BAD``."""
        reader, writer = await asyncio.open_unix_connection(self._path, limit=PART_BYTES)
        try:
            writer.write(request(method, params))
            answer = Answer()
            while not answer.complete:
                yield answer.parse(await reader.readuntil(b"\n"))
        finally:
            writer.close()

    async def scrape(self, due: float, answered: Callable[[], object], request_text: str) -> None:
        """Send a request each second, first at a time of the loop's clock; ``answered`` is called each time."""
        now = asyncio.get_running_loop().time
        method, _, params = request_text.partition("=")
        while True:
            await asyncio.sleep(due - now())
            try:
                async for _ in self._parts(method, json.loads(params or "{}")):
                    pass
            except _BAD:
                self.failed += 1
            self.durations.append(round((now() - due) * 1e6))
            answered()
            due = max(due + SCRAPE_SECONDS, now())

    async def follow(self, answered: Callable[[], object]) -> None:
        """Read events until the end of the answer, which is a failure; ``answered`` is called for each part."""
        try:
            async with aclosing(self._parts("events", {"follow": True})) as parts:
                async for part in parts:
                    self.events += len(part.get("events", ()))
                    answered()
        except _BAD:
            pass
        self.failed += 1


async def main(path: str, scrapers: int, followers: int, requests: Sequence[str]) -> None:
    """Send requests until SIGTERM."""
    loop, clients, phase = asyncio.get_running_loop(), Clients(path), random.Random(SEED)
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    firsts = [asyncio.Event() for _ in range(scrapers + followers)]
    working = [
        asyncio.create_task(
            clients.scrape(loop.time() + phase.uniform(0, SCRAPE_SECONDS), first.set, requests[number % len(requests)])
            if number < scrapers
            else clients.follow(first.set)
        )
        for number, first in enumerate(firsts)
    ]
    for first in firsts:
        await first.wait()
    events = -1
    while events != clients.events:
        events = clients.events
        await asyncio.sleep(QUIET_SECONDS)
    clients.durations.clear()  # at first the followers read all old events, which takes the server some time
    print(READY, flush=True)
    await stopped.wait()
    for task in working:
        task.cancel()
    p99 = Run(clients.durations).percentile(99) if clients.durations else 0
    print(json.dumps({"p99": p99, "failed": clients.failed}), flush=True)


if __name__ == "__main__":
    _, socket_path, scrapers, followers, *texts = sys.argv
    uvloop.run(main(socket_path, int(scrapers), int(followers), texts or [METRICS]))
