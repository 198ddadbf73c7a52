"""Clients of an admin socket: scrapers, which send a request each second, and followers of events.

Each scraper begins at a random time in the first second and sends one of the requests. READY is printed once all were
answered and the followers have all past events. At the end one JSON line has how often an answer was wrong, incomplete
or missing.

Run: ``python -m scripts.benchmark.clients SOCKET SCRAPERS FOLLOWERS [REQUEST...]``; a request is a method, or a method
and its parameters like ``store={"limit": 1000}``.
"""

import asyncio
import json
import random
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import uvloop

from runtimeproxy.admin.protocol import PART_BYTES, Answer, Refused, request

READY = "all clients were answered"
METRICS = "metrics"
SCRAPE_SECONDS = 1.0
QUIET_SECONDS = 0.5
"""Followers that received nothing for this time have all past events."""
SEED = 23


class Clients:
    """All clients of one socket, and what they received; each sets its event ``answered`` when it was answered."""

    followed = failed = 0

    def __init__(self, path: str) -> None:
        self._path = path

    async def scrape(self, pause: float, answered: asyncio.Event, text: str) -> None:
        """Send a request each second, first after a pause."""
        now, (method, _, params) = asyncio.get_running_loop().time, text.partition("=")
        due = now() + pause
        while True:
            await asyncio.sleep(due - now())
            await self._request(method, json.loads(params or "{}"), asyncio.Event())
            answered.set()
            due = max(due + SCRAPE_SECONDS, now())

    async def follow(self, answered: asyncio.Event) -> None:
        """Read events until the end of the answer, which is a failure."""
        await self._request("events", {"follow": True}, answered)
        self.failed += 1

    async def _request(self, method: str, params: Mapping[str, Any], answered: asyncio.Event) -> None:
        """Send a request and read the answer, which must be complete; ``answered`` is set after its first part."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._path, limit=PART_BYTES)
            with closing(writer):
                writer.write(request(method, params))
                answer = Answer()
                while not answer.complete:
                    part = answer.take(await reader.readuntil(b"\n"))
                    self.followed += len(part.get("events", ())) if "follow" in params else 0
                    answered.set()
        except (OSError, EOFError, asyncio.LimitOverrunError, Refused, ValueError):
            self.failed += 1


async def main(path: str, scrapers: int, followers: int, requests: Sequence[str]) -> None:
    """Send requests until SIGTERM."""
    clients, phase, stopped = Clients(path), random.Random(SEED), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    firsts = [asyncio.Event() for _ in range(scrapers + followers)]
    working = [clients.follow(first) for first in firsts[scrapers:]]
    for number, first in enumerate(firsts[:scrapers]):
        working.append(clients.scrape(phase.uniform(0, SCRAPE_SECONDS), first, requests[number % len(requests)]))
    tasks = [asyncio.create_task(each) for each in working]
    for first in firsts:
        await first.wait()
    followed = -1
    while followed != clients.followed:  # at first the followers read all old events, which takes the server some time
        followed = clients.followed
        await asyncio.sleep(QUIET_SECONDS)
    print(READY, flush=True)
    await stopped.wait()
    for task in tasks:
        task.cancel()
    print(json.dumps({"failed": clients.failed}), flush=True)


if __name__ == "__main__":
    _, socket_path, scrapers, followers, *texts = sys.argv
    uvloop.run(main(socket_path, int(scrapers), int(followers), texts or [METRICS]))
