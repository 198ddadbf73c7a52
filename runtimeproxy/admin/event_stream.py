"""The events as lines of JSON: those that the daemon keeps, and those to come.

Owns the one poll that feeds all followers, the filters, and the pace of a client that reads slowly.
Must not know: how events are kept; an event's members beyond number, kind, pod and hook servers.
Invariant: a client gets every event behind the number that it named once, in their order, or is told of the gap. What a
slow client has not read stays with the daemon, which drops it in time: nothing piles up here.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from runtimeproxy.admin.channel import Refused, looked_at
from runtimeproxy.admin.records import is_of_pod
from runtimeproxy.plugins.registration import plugin_name

POLL_SECONDS = 0.25
AT_ONCE = 200
"""Most events that the daemon is asked for at once."""
WRITE_SECONDS = 10.0
"""How long a client may take to make room for more."""
WINDOW = 1000
"""Most events of the last polls that are kept for followers that are a little behind."""

Event = dict[str, Any]


class Events:
    """The daemon's events; ``ask`` brings those behind a number, at most so many."""

    def __init__(self, ask: Callable[[int, int], Awaitable[list[Event]]]) -> None:
        self._ask = ask
        self._window: list[Event] = []
        self._from = self._at = -1
        """The window has all events behind the first number, up to the second one."""
        self._polling: asyncio.Task[None] | None = None

    async def after(self, at: int, *, follow: bool) -> AsyncIterator[Event]:
        """Return the events behind a number that there are now, or without an end. Raises what ``ask`` raises, then and
        later."""
        return self._going_on(await self._ask(at, AT_ONCE), at, follow)

    async def _going_on(self, found: list[Event], at: int, follow: bool) -> AsyncIterator[Event]:
        while found or follow:
            for event in found:
                yield event
                at = number(event)
            found = await (self._behind(at) if follow else self._ask(at, AT_ONCE))

    async def _behind(self, at: int) -> list[Event]:
        """Wait for events behind a number, and return the first ones."""
        while True:
            if self._from <= at < self._at:
                return [event for event in self._window if number(event) > at]
            if at != self._at:
                if found := await self._ask(at, AT_ONCE):
                    return found
                self._window, self._from, self._at = [], at, at  # this is the newest one
            if self._polling is None or self._polling.done():
                self._polling = asyncio.create_task(self._poll())
                self._polling.add_done_callback(looked_at)
            await asyncio.shield(self._polling)

    async def _poll(self) -> None:
        await asyncio.sleep(POLL_SECONDS)
        at = self._at
        if found := await self._ask(at, AT_ONCE):
            joined = [*self._window, *found] if self._at == at else found
            self._window = joined[-WINDOW:]
            self._from = number(joined[-WINDOW - 1]) if len(joined) > WINDOW else min(self._from, at)
            self._at = number(found[-1])


def number(event: Event) -> int:
    """Return an event's number; of a gap the last one that is missing."""
    return int(event["to"] if event["kind"] == "gap" else event["number"])


def matches(event: Event, wanted: Mapping[str, Any]) -> bool:
    """Return whether an event is one of those that ``pod``, ``hookServer`` and ``kind`` select. A gap always is. The
    name of a registration file selects its hook server."""
    name = wanted.get("hookServer")
    return event["kind"] == "gap" or (
        wanted.get("kind") in (None, event["kind"])
        and _is_of_pod(event, wanted.get("pod", ""))
        and (name is None or not _hook_servers(event).isdisjoint({name, plugin_name(name)}))
    )


def _is_of_pod(event: Event, wanted: str) -> bool:
    ids = [event.get(key, "") for key in ("podId", "containerId")]
    return is_of_pod(wanted, event.get("namespace"), event.get("pod"), *ids)


def _hook_servers(event: Event) -> set[str]:
    return {event.get("hookServer", ""), *(field["hookServer"] for field in event.get("fields", ()))}


async def stream(
    request: web.Request, events: AsyncIterator[Event], wanted: Mapping[str, Any], limit: int | None
) -> web.StreamResponse:
    """Send the wanted events, each as one line; break off if the client takes none for WRITE_SECONDS, or if the daemon
    does not answer."""
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    response.force_close()
    await response.prepare(request)
    assert request.transport is not None
    request.transport.set_write_buffer_limits(0)  # aiohttp then lets 64 KiB be unsent
    try:
        async for event in events:
            if matches(event, wanted):
                async with asyncio.timeout(WRITE_SECONDS):
                    await response.write(json.dumps(event, separators=(",", ":")).encode() + b"\n")
                limit = None if limit is None else limit - 1
                if limit == 0:
                    break
    except (TimeoutError, Refused):
        if request.transport is not None:
            request.transport.abort()
    return response
