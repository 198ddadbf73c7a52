"""Clients of an admin socket: scrapers, which ask once each second, and followers of /events.

Each scraper has a moment of its own in the first second at which it begins, and one of the targets in turn. READY is
printed once all were answered and the followers have all events that there were. At the end one JSON line has the
number of scrapes since then, the microseconds that 99 % of them did not exceed (from when each was due), the number of
events that followers got, and how often a client was answered badly or not at all.

Run: ``python -m scripts.benchmark.clients SOCKET SCRAPERS FOLLOWERS [TARGET...]``.
"""

import asyncio
import json
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import uvloop

from scripts.benchmark.ends import READ_BYTES, read_message
from scripts.benchmark.loads import Run

READY = "all clients are answered"
METRICS = "/metrics"
SCRAPE_SECONDS = 1.0
QUIET_SECONDS = 0.5
"""Followers that got nothing for so long have all events that there were."""
SEED = 23
_OK = "HTTP/1.1 200 "


class Clients:
    """All clients of one socket, and what they got."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.took: list[int] = []
        self.events = self.failed = 0

    @asynccontextmanager
    async def _asked(self, target: str) -> AsyncIterator[asyncio.StreamReader]:
        reader, writer = await asyncio.open_unix_connection(self._path)
        try:
            writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            yield reader
        finally:
            writer.close()

    async def scrape(self, due: float, answered: Callable[[], object], target: str) -> None:
        """Get a target each second, first at a time of the loop's clock; ``answered`` is called each time."""
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(due - now())
            try:
                async with self._asked(target) as reader:
                    answer = read_message(await reader.read())
            except OSError:
                answer = None
            self.failed += answer is None or not answer[0].startswith(_OK)
            self.took.append(round((now() - due) * 1e6))
            answered()
            due = max(due + SCRAPE_SECONDS, now())

    async def follow(self, answered: Callable[[], object]) -> None:
        """Read events until the end of the connection, which is a failure; ``answered`` is called once."""
        async with self._asked("/events?follow=1") as reader:
            self.failed += not (await reader.readuntil(b"\r\n\r\n")).decode().startswith(_OK)
            answered()
            while data := await reader.read(READ_BYTES):
                self.events += data.count(b"}\n")
        self.failed += 1


async def main(path: str, scrapers: int, followers: int, targets: Sequence[str]) -> None:
    """Ask until SIGTERM."""
    loop, clients, phase = asyncio.get_running_loop(), Clients(path), random.Random(SEED)
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    firsts = [asyncio.Event() for _ in range(scrapers + followers)]
    working = [
        asyncio.create_task(
            clients.scrape(loop.time() + phase.uniform(0, SCRAPE_SECONDS), first.set, targets[number % len(targets)])
            if number < scrapers
            else clients.follow(first.set)
        )
        for number, first in enumerate(firsts)
    ]
    for first in firsts:
        await first.wait()
    had = -1
    while had != clients.events:
        had = clients.events
        await asyncio.sleep(QUIET_SECONDS)
    clients.took.clear()  # at first the followers read all old events, which takes the server some time
    print(READY, flush=True)
    await stopped.wait()
    for task in working:
        task.cancel()
    found = {"scrapes": len(clients.took), "p99": Run(clients.took).percentile(99) if clients.took else 0}
    print(json.dumps(found | {"events": clients.events, "failed": clients.failed}), flush=True)


if __name__ == "__main__":
    _, socket_path, many, few, *wanted = sys.argv
    uvloop.run(main(socket_path, int(many), int(few), wanted or [METRICS]))
