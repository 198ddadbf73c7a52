"""The fake dockerd's long calls: events, wait, stats, pull, build, load, archives, and the streams of a container.

A line is sent at once, as a chunk of its own; a hijacked connection is half-closed at its end, as dockerd does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from tests.fakes.dockerd_calls import flag, read_json, text
from tests.fakes.dockerd_checks import Refused, bad
from tests.fakes.dockerd_engines import EVENT
from tests.fakes.dockerd_events import Event, event_matches, parse_filters
from tests.fakes.dockerd_programs import Stdio, frame, run
from tests.fakes.dockerd_records import Container, Exec, Output
from tests.fakes.dockerd_state import KILLED
from tests.fakes.dockerd_structs import go_json, version_number
from tests.fakes.dockerd_wire import JSON, Exchange

if TYPE_CHECKING:
    from tests.fakes.dockerd import FakeDockerd

LOAD_LINE_BYTES = 1 << 20
"""A load tells its progress so often."""

OCTETS = ("Content-Type", "application/octet-stream")
STATS_SECONDS = 1.0


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

        async def send(event: Event) -> None:
            await exchange.send(go_json(dockerd.engine.shown(EVENT, exchange.api, event)))

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
        await asyncio.sleep(STATS_SECONDS)


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
    for number in range(3):
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
    dockerd.state.find(reference)
    await exchange.begin(OCTETS)
    await exchange.fill(dockerd.export_bytes)
    await exchange.finish()


async def put_archive(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    dockerd.state.find(reference)
    while await exchange.piece():
        pass
    await exchange.reply(200)


# ---- streams of a container

RAW = "application/vnd.docker.raw-stream"
MULTIPLEXED = "application/vnd.docker.multiplexed-stream"
ENDS = ("die", "destroy")


@contextlib.contextmanager
def output_of(dockerd: FakeDockerd, container: Container) -> Iterator[asyncio.Queue[Output | None]]:
    """Collect what a container writes from now on, with None behind it when the container dies or is removed."""
    output: asyncio.Queue[Output | None] = asyncio.Queue()

    def hear(event: Event) -> None:
        if event["Actor"]["ID"] == container.id and event["Action"] in ENDS:
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


def _is_new(exchange: Exchange) -> bool:
    return version_number(exchange.api) >= (1, 42)


def _stream_type(exchange: Exchange, tty: bool) -> str:
    return RAW if tty or not _is_new(exchange) else MULTIPLEXED


async def logs(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    streams = {number for number, name in ((1, "stdout"), (2, "stderr")) if flag(exchange, name)}
    if not streams:
        raise bad("Bad parameters: you must choose at least one stream")
    container = dockerd.state.find(reference)
    tail = text(exchange, "tail")
    past = list(container.output)
    # 20.10 names no type, and Go finds none where the head is flushed before the first line.
    kind = ("Content-Type", _stream_type(exchange, container.tty))
    with output_of(dockerd, container) as output:
        if not flag(exchange, "follow") or not container.running:
            output.put_nowait(None)
        await exchange.begin(*([kind] if _is_new(exchange) else []))
        for line in past[len(past) - int(tail) if tail.isdecimal() and int(tail) < len(past) else 0 :]:
            if line[0] in streams:
                await exchange.send(_spelt(container, line))
        while (said := await output.get()) is not None:
            if said[0] in streams:
                await exchange.send(_spelt(container, said))
    await exchange.finish()


async def attach(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    """Attach: the container's output comes from ``say``; stdin is kept, and echoed if its command is ``cat``."""
    try:
        container = dockerd.state.find(reference)
    except Refused as refused:
        phrase = f"{refused.status.value} {refused.status.phrase}"
        head = f"HTTP/1.1 {phrase}\r\nContent-Type: {RAW}\r\n\r\n{refused.message}\r\n"
        await exchange.hijack(refused.status, head.encode())
        return await exchange.half_close()
    with output_of(dockerd, container) as output:
        await _hijack(dockerd, exchange, container.tty, common=False)
        stdin = asyncio.create_task(_take_stdin(dockerd, exchange, container))
        try:
            while (said := await output.get()) is not None:
                await exchange.write(_spelt(container, said))
        finally:
            stdin.cancel()
            await asyncio.gather(stdin, return_exceptions=True)
    return await exchange.half_close()


async def _take_stdin(dockerd: FakeDockerd, exchange: Exchange, container: Container) -> None:
    echoes = flag(exchange, "stdin") and container.command == ["cat"]
    with hearing(dockerd) as heard:
        if container.status == "created":  # nobody reads it until then
            await until_event(heard, container, "start")
    while data := await exchange.reader.some():
        if flag(exchange, "stdin"):
            container.stdin += data
        if echoes:
            dockerd.state.say(container.id, data)
    if echoes and container.running:
        dockerd.state.exit(container, 0)


async def _hijack(dockerd: FakeDockerd, exchange: Exchange, tty: bool, common: bool) -> None:
    """Answer 101 to a request with Upgrade, else 200 without framing; ``common`` sends the common headers too."""
    kind = f"Content-Type: {_stream_type(exchange, tty)}\r\n"
    more = "".join(f"{key}: {value}\r\n" for key, value in sorted(exchange.common)) if common else ""
    if exchange.head.upgrade:
        head = f"HTTP/1.1 101 UPGRADED\r\n{kind}Connection: Upgrade\r\nUpgrade: tcp\r\n{more}\r\n"
    else:
        head = f"HTTP/1.1 200 OK\r\n{kind}{more}\r\n"
    await exchange.hijack(101 if exchange.head.upgrade else 200, head.encode())


async def exec_start(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    _, body = await read_json(exchange)
    made = dockerd.state.exec_find(reference)
    dockerd.state.exec_start(made)
    if body.get("Detach"):
        dockerd.detach(_run(dockerd, made, Stdio(_nothing, _nowhere)))
        return await exchange.reply(200)

    async def write(stream: int, data: bytes) -> None:
        await exchange.write(data if body.get("Tty") else frame(stream, data))

    await _hijack(dockerd, exchange, bool(body.get("Tty")), common=True)
    await _run(dockerd, made, Stdio(exchange.reader.some if made.config.get("AttachStdin") else _nothing, write))
    return await exchange.half_close()


async def _run(dockerd: FakeDockerd, made: Exec, stdio: Stdio) -> None:
    """Run an exec's command until it ends, its container dies, or its client is gone."""
    with hearing(dockerd) as heard:
        death = asyncio.create_task(until_event(heard, made.container, *ENDS))
        command = asyncio.create_task(run(made.command, stdio, made.container))
        try:
            await asyncio.wait({death, command}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            death.cancel()
            command.cancel()
            code, _ = await asyncio.gather(command, death, return_exceptions=True)
            dockerd.state.exec_exit(made, code if isinstance(code, int) else KILLED)


async def _nothing() -> bytes:
    return b""


async def _nowhere(stream: int, data: bytes) -> None:
    pass
