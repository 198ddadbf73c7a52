"""The fake dockerd's long calls: events, pull, build, load, and the streams of a container.

A line is sent at once, as a chunk of its own; a hijacked connection is half-closed at its end, as by dockerd.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.fakes.dockerd_calls import flag, read_json, text
from tests.fakes.dockerd_engines import EVENT
from tests.fakes.dockerd_events import Event, event_matches, parse_filters
from tests.fakes.dockerd_programs import frame, run
from tests.fakes.dockerd_records import Container, Output, familiar
from tests.fakes.dockerd_state import KILLED
from tests.fakes.dockerd_structs import go_json
from tests.fakes.dockerd_wire import JSON, Exchange

if TYPE_CHECKING:
    from tests.fakes.dockerd import FakeDockerd

LOAD_LINE_BYTES = 1 << 20
"""A load reports its progress after so many bytes."""


class Feed(asyncio.Queue[bytes]):
    """The progress lines of one pull or build, given by the test."""

    say = asyncio.Queue.put_nowait


async def events(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    filters = parse_filters(text(exchange, "filters"))
    heard: asyncio.Queue[Event] = asyncio.Queue()
    unsubscribe = dockerd.state.events.subscribe(heard.put_nowait)
    dockerd.watchers += 1
    try:
        await exchange.begin(("Content-Type", dockerd.engine.event_type(exchange.head.get("Accept"))))
        while True:
            event = await heard.get()
            if event_matches(event, filters):
                await exchange.send(go_json(dockerd.engine.shown(EVENT, exchange.api, event)))
    finally:
        dockerd.watchers -= 1
        unsubscribe()


# ---- images and archives


async def _progress(dockerd: FakeDockerd, exchange: Exchange, route: str) -> None:
    """Send the lines that the test gives until the client's end, or one line if it gives none."""
    await exchange.begin(JSON)
    if (feed := dockerd.feeds.pop(route, None)) is not None:
        while True:
            await exchange.send(await feed.get())
    await exchange.send(go_json({"status": "step 1"}))
    await exchange.finish()


async def pull(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    name, tag = text(exchange, "fromImage"), text(exchange, "tag")
    if not name:
        return await load(dockerd, exchange, reference)
    reference = familiar(f"{name}:{tag}" if tag else name)
    if reference not in dockerd.state.images.by_name:
        dockerd.state.images.add(reference)
    return await _progress(dockerd, exchange, "POST /images/create")


async def build(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    await _progress(dockerd, exchange, "POST /build")


async def load(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    """Read an archive and report the progress meanwhile: both ways at once, which net/http's handlers cannot do."""
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


# ---- streams of a container


@contextlib.contextmanager
def output_of(dockerd: FakeDockerd, container: Container) -> Iterator[asyncio.Queue[Output | None]]:
    """Collect what a container writes from now on, followed by None when the container dies or is removed."""
    output: asyncio.Queue[Output | None] = asyncio.Queue()

    def hear(event: Event) -> None:
        if event["Actor"]["ID"] == container.id and event["Action"] in ("die", "destroy"):
            output.put_nowait(None)

    unsubscribe = dockerd.state.events.subscribe(hear)
    container.listeners.add(output.put_nowait)
    try:
        yield output
    finally:
        container.listeners.discard(output.put_nowait)
        unsubscribe()


def _spelt(container: Container, output: Output) -> bytes:
    return output[1] if container.tty else frame(*output)


async def logs(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    container = dockerd.state.find(reference)
    past = [] if text(exchange, "tail") == "0" else list(container.output)
    with output_of(dockerd, container) as output:
        if not flag(exchange, "follow") or not container.running:
            output.put_nowait(None)
        await exchange.begin()
        for line in past:
            await exchange.send(_spelt(container, line))
        while (said := await output.get()) is not None:
            await exchange.send(_spelt(container, said))
    await exchange.finish()


async def attach(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    """Attach to a container's output, which comes from ``say``."""
    container = dockerd.state.find(reference)
    with output_of(dockerd, container) as output:
        await exchange.hijack()
        while (said := await output.get()) is not None:
            await exchange.write(_spelt(container, said))
    await exchange.half_close()


async def exec_start(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    _, body = await read_json(exchange)
    made = dockerd.state.exec_find(reference)
    dockerd.state.exec_start(made)

    async def write(stream: int, data: bytes) -> None:
        await exchange.write(data if body.get("Tty") else frame(stream, data))

    await exchange.hijack(*exchange.common)
    code = KILLED
    try:
        read = exchange.reader.some if made.config.get("AttachStdin") else _nothing
        code = await run(made.config["Cmd"], made.container, read, write)
    finally:
        dockerd.state.exec_exit(made, code)
    await exchange.half_close()


async def _nothing() -> bytes:
    return b""
