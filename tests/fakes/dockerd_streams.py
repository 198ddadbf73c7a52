"""The fake dockerd's long calls: events, wait, stats, pull, build, load, export and archive.

A line is sent as a chunk of its own, at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tests.fakes.dockerd_calls import PATH_STAT, Handler, flag, text
from tests.fakes.dockerd_engines import EVENT
from tests.fakes.dockerd_events import Event, event_matches, parse_filters
from tests.fakes.dockerd_records import Container
from tests.fakes.dockerd_replies import JSON
from tests.fakes.dockerd_structs import go_json
from tests.fakes.dockerd_wire import Exchange

if TYPE_CHECKING:
    from tests.fakes.dockerd import FakeDockerd

LOAD_LINE_BYTES = 1 << 20
"""A load tells its progress so often."""

TAR = ("Content-Type", "application/x-tar")
OCTETS = ("Content-Type", "application/octet-stream")
JSON_SEQUENCE = "application/json-seq"
RECORD_SEPARATOR = b"\x1e"


class Feed:
    """The progress lines of one pull or build, said by the test."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()

    def say(self, line: bytes) -> None:
        self.lines.put_nowait(line)

    def end(self) -> None:
        """Let the call end well."""
        self.lines.put_nowait(None)


# ---- events and what waits for them


@contextlib.contextmanager
def hearing(dockerd: FakeDockerd) -> Iterator[asyncio.Queue[Event]]:
    """Collect the events from now on."""
    heard: asyncio.Queue[Event] = asyncio.Queue()
    unsubscribe = dockerd.state.events.subscribe(heard.put_nowait)
    try:
        yield heard
    finally:
        unsubscribe()


async def until_event(heard: asyncio.Queue[Event], container: Container, *actions: str) -> Event:
    """Wait for one of these events of a container."""
    while True:
        event = await heard.get()
        if event["Actor"]["ID"] == container.id and event["Action"] in actions:
            return event


async def events(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    filters = parse_filters(text(exchange, "filters"))
    since, until = float(text(exchange, "since") or "inf"), float(text(exchange, "until") or "inf")
    with hearing(dockerd) as heard:
        past = [event for event in dockerd.state.events.kept if since <= event["timeNano"] / 1e9 <= until]
        kind = dockerd.engine.event_type(exchange.head.get("Accept"))
        before = RECORD_SEPARATOR if kind == JSON_SEQUENCE else b""

        async def send(event: Event) -> None:
            await exchange.send(before + go_json(dockerd.engine.shown(EVENT, exchange.api, event)))

        await exchange.begin(("Content-Type", kind))
        dockerd.watchers += 1
        try:
            async with asyncio.timeout(None if until == float("inf") else max(until - time.time(), 0.0)):
                await _tell(past, heard, lambda event: event_matches(event, filters), send)
        except TimeoutError:
            pass  # that was asked for
        finally:
            dockerd.watchers -= 1
    await exchange.finish()


async def _tell(
    past: list[Event],
    heard: asyncio.Queue[Event],
    chosen: Callable[[Event], bool],
    send: Callable[[Event], Awaitable[None]],
) -> None:
    for event in filter(chosen, past):
        await send(event)
    while True:
        event = await heard.get()
        if chosen(event):
            await send(event)


async def wait(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    condition = text(exchange, "condition") or "not-running"
    ends = {"next-exit": ("die",), "removed": ("destroy",)}
    container = dockerd.state.find(reference)
    with hearing(dockerd) as heard:
        await exchange.begin(JSON)
        if condition in ends or container.running:
            await until_event(heard, container, *ends.get(condition, ("die", "destroy")))
    await exchange.send(go_json({"Error": None, "StatusCode": container.exit_code}, html=False))
    await exchange.finish()


async def stats(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    container = dockerd.state.find(reference)
    if not flag(exchange, "stream", default=True):
        return await exchange.json(_figures(container))
    await exchange.begin(JSON)
    while True:
        await exchange.send(go_json(_figures(container), html=False))
        await asyncio.sleep(dockerd.stats_seconds)


def _figures(container: Container) -> dict[str, Any]:
    usage = {"cpu_usage": {"total_usage": 1, "percpu_usage": [1]}, "system_cpu_usage": 1, "online_cpus": 1}
    memory = {"usage": 1 << 20, "max_usage": 1 << 20, "limit": container.host["Memory"]}
    names = {"name": f"/{container.name}", "id": container.id}
    return {"read": "2026-01-01T00:00:00Z", "cpu_stats": usage, "memory_stats": memory, "pids_stats": {}, **names}


# ---- images and archives


async def _progress(dockerd: FakeDockerd, exchange: Exchange, route: str, subject: str) -> None:
    """Send the lines that the test says, else a fixed number of lines."""
    feed = dockerd.feeds.pop(route, None)
    if feed is not None:
        while (line := await feed.lines.get()) is not None:
            await exchange.send(line)
        return
    for number in range(dockerd.progress_lines):
        await asyncio.sleep(dockerd.progress_seconds)
        await exchange.send(go_json({"status": f"step {number}", "id": subject}))


async def pull(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    name, tag = text(exchange, "fromImage"), text(exchange, "tag")
    if not name:
        return await load(dockerd, exchange, reference)
    await exchange.begin(JSON)
    await _progress(dockerd, exchange, "POST /images/create", name)
    separator = "@" if ":" in tag else ":"
    image = dockerd.state.images.find_or_add(f"{name}{separator}{tag}" if tag else name)
    dockerd.state.events.emit("image", "pull", image.name, {"name": image.name})
    await exchange.finish()
    return None


async def build(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    while await exchange.piece():
        pass
    await exchange.begin(JSON)
    await _progress(dockerd, exchange, "POST /build", "build")
    await exchange.finish()


async def load(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    """Take an archive and tell the progress meanwhile: both ways at once, which net/http's handlers cannot."""
    data = await exchange.piece()
    await exchange.begin(JSON, settle=False)
    total = told = 0
    while data:
        total += len(data)
        if total - told >= LOAD_LINE_BYTES:
            told = total
            await exchange.send(go_json({"status": "Loading layer", "progressDetail": {"current": total}}))
        data = await exchange.piece()
    await exchange.send(go_json({"stream": f"Loaded {total} bytes\n"}))
    await exchange.finish()


async def export(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    of_container = exchange.received.route == "GET /containers/{ref}/export"
    if of_container:
        dockerd.state.find(reference)
    await exchange.begin(OCTETS if of_container else TAR)
    await exchange.fill(dockerd.export_bytes)
    await exchange.finish()


async def get_archive(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    dockerd.state.find(reference)
    await exchange.begin(TAR, ("X-Docker-Container-Path-Stat", PATH_STAT))
    await exchange.fill(dockerd.export_bytes)
    await exchange.finish()


async def put_archive(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    dockerd.state.find(reference)
    while await exchange.piece():
        pass
    await exchange.reply(200)


STREAMS: Mapping[str, Handler] = {
    "GET /events": events,
    "POST /containers/{ref}/wait": wait,
    "GET /containers/{ref}/stats": stats,
    "POST /images/create": pull,
    "POST /build": build,
    "POST /images/load": load,
    "GET /images/get": export,
    "GET /images/{ref}/get": export,
    "GET /containers/{ref}/export": export,
    "GET /containers/{ref}/archive": get_archive,
    "PUT /containers/{ref}/archive": put_archive,
}
