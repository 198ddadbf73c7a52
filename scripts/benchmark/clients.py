"""Clients of an admin socket: scrapers, which send a request each second, and followers of events."""

import asyncio
import json
import random
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from threading import Thread
from typing import Any

import uvloop

from runtimeproxy.admin.protocol import PART_BYTES, Answer, Refused, request
from scripts.demonstration.processes import START_SECONDS, DemoError

SCRAPE_SECONDS = 1.0
QUIET_SECONDS = 0.5
"""Followers that received nothing for this time have all past events."""
SEED = 23


class Clients:
    """All clients of one socket, and how often an answer was wrong, incomplete or missing."""

    followed = failed = 0

    def __init__(self, path: str) -> None:
        self._path = path
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, scrapers: int, followers: int, requests: Sequence[str]) -> None:
        """Start the clients; wait until each was answered and the followers have all past events. Each scraper begins
        at a random time in the first second and sends one of the requests."""
        phase, firsts = random.Random(SEED), [asyncio.Event() for _ in range(scrapers + followers)]
        working = [self._follow(first) for first in firsts[scrapers:]]
        for number, first in enumerate(firsts[:scrapers]):
            working.append(self._scrape(phase.uniform(0, SCRAPE_SECONDS), first, requests[number % len(requests)]))
        self._tasks = [asyncio.create_task(each) for each in working]
        await asyncio.wait([asyncio.create_task(first.wait()) for first in firsts], timeout=START_SECONDS)
        self.failed += sum(not first.is_set() for first in firsts)
        followed = -1
        while followed != self.followed:  # at first the followers read all old events, which takes the server some time
            followed = self.followed
            await asyncio.sleep(QUIET_SECONDS)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _scrape(self, pause: float, answered: asyncio.Event, text: str) -> None:
        """Send a request each second, first after a pause."""
        now, (method, _, params) = asyncio.get_running_loop().time, text.partition("=")
        due = now() + pause
        while True:
            await asyncio.sleep(due - now())
            await self._request(method, json.loads(params or "{}"), asyncio.Event())
            answered.set()
            due = max(due + SCRAPE_SECONDS, now())

    async def _follow(self, answered: asyncio.Event) -> None:
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


@contextmanager
def clients(path: str, scrapers: int, followers: int, requests: Sequence[str]) -> Iterator[None]:
    """Run clients, in a thread, until the end of the block, which begins once all were answered; a request is a method,
    or a method and its parameters like ``store={"limit": 1000}``. Raises DemoError if an answer was wrong."""
    loop, made = uvloop.new_event_loop(), Clients(path)

    def call(coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        call(made.start(scrapers, followers, requests))
        yield
    finally:
        call(made.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    if made.failed:
        raise DemoError(f"{made.failed} requests to the admin socket were answered wrongly or not at all")
