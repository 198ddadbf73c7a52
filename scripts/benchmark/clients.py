"""Clients of an admin socket, each in a thread: scrapers, which send a request each second, and followers of events."""

import json
import random
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event
from time import monotonic, sleep

from runtimeproxy.admin.protocol import Answer, request
from scripts.demonstration.processes import START_SECONDS, DemoError
from tests import control

SCRAPE_SECONDS = 1.0
QUIET_SECONDS = 0.5
"""Followers that received nothing for this time have all past events."""
SEED = 23


class Clients:
    """All clients of one socket; each sets an event when it was answered first, and raises for a wrong answer."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stopped = Event()
        self._sockets: list[socket.socket] = []
        self.followed = 0

    def scrape(self, pause: float, text: str, answered: Event) -> None:
        """Send a request each second, first after a pause."""
        (method, _, params), due = text.partition("="), monotonic() + pause
        while not self._stopped.wait(max(due - monotonic(), 0)):
            control.call(self._path, method, **json.loads(params or "{}"))
            answered.set()
            due = max(due + SCRAPE_SECONDS, monotonic())

    def follow(self, answered: Event) -> None:
        with socket.socket(socket.AF_UNIX) as client, client.makefile("rb") as received:
            client.connect(self._path)
            self._sockets.append(client)
            client.sendall(request("events", {"follow": True}))
            answer = Answer()
            for line in received:
                self.followed += len(answer.parse(line).get("events", ()))
                answered.set()
        if not self._stopped.is_set():
            raise EOFError("the events ended")

    def stop(self) -> None:
        self._stopped.set()
        for each in self._sockets:
            with suppress(OSError):  # the proxy may have closed it
                each.shutdown(socket.SHUT_RDWR)


@contextmanager
def clients(path: str, scrapers: int, followers: int, requests: Sequence[str]) -> Iterator[None]:
    """Run clients until the end of the block, which begins once all were answered and the followers have all past
    events. A request is a method, or a method and its parameters like ``store={"limit": 1000}``; each scraper begins at
    a random time in the first second and sends one of them. Raises DemoError if an answer was wrong."""
    made, phase = Clients(path), random.Random(SEED)
    firsts = [Event() for _ in range(scrapers + followers)]
    with ThreadPoolExecutor(len(firsts) or 1) as pool:
        working = [pool.submit(made.follow, first) for first in firsts[scrapers:]]
        for number, first in enumerate(firsts[:scrapers]):
            pause, text = phase.uniform(0, SCRAPE_SECONDS), requests[number % len(requests)]
            working.append(pool.submit(made.scrape, pause, text, first))
        try:
            if not all(first.wait(START_SECONDS) for first in firsts):
                raise DemoError("a client of the admin socket was not answered")
            followed = -1
            while followed != made.followed:  # it takes the server some time to send all old events
                followed = made.followed
                sleep(QUIET_SECONDS)
            yield
        finally:
            made.stop()
    if errors := [error for each in working if (error := each.exception())]:
        raise DemoError(f"{len(errors)} clients of the admin socket failed: {errors[0]!r}")
