"""The handlers of the fake dockerd's routes: short calls, streams, and the commands that an exec can run.

A line of a stream is sent immediately, as a chunk of its own; a hijacked connection is half-closed at its end, as by
dockerd.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from tests.fakes import inside
from tests.fakes.cri_pb2 import ContainerConfig, KeyValue, LinuxContainerResources
from tests.fakes.dockerd_shapes import EVENT, IMAGE, INSPECT, go_json
from tests.fakes.dockerd_state import (
    KILLED,
    Container,
    DockerdState,
    Event,
    Output,
    Refused,
    bad,
    event_matches,
    familiar,
    labels_match,
    parse_filters,
)
from tests.fakes.dockerd_wire import JSON, Exchange
from tests.fakes.dockershim_bodies import SETTINGS

if TYPE_CHECKING:
    from tests.fakes.dockerd import FakeDockerd


STDOUT, STDERR = 1, 2


def frame(stream: int, data: bytes) -> bytes:
    """Return bytes of stdout (1) or stderr (2) as a frame of a multiplexed stream."""
    return struct.pack(">BxxxL", stream, len(data)) + data


async def run(
    command: list[str],
    container: Container,
    read: Callable[[], Awaitable[bytes]],
    write: Callable[[int, bytes], Awaitable[None]],
) -> int:
    """Run a command, whose stdin ends with b""; return its exit code.

    ``cat`` echoes its stdin, ``sleep N`` takes N seconds. All others are those of the fake CRI runtime.
    """
    match command:
        case ["cat"]:
            while data := await read():
                await write(STDOUT, data)
            return 0
        case ["sleep", seconds]:
            await asyncio.sleep(float(seconds))
            return 0
    pairs = (entry.partition("=") for entry in container.config["Env"] or [])
    envs = [KeyValue(key=key, value=value.encode(errors="replace")) for key, _, value in pairs]
    resources = LinuxContainerResources(**{name: container.host[field] for name, field in SETTINGS.items()})
    result = inside.run(command, ContainerConfig(envs=envs), resources)
    for stream, data in ((STDOUT, result.stdout), (STDERR, result.stderr)):
        if data:
            await write(stream, data)
    return result.exit_code


Handler = Callable[["FakeDockerd", Exchange, str], Awaitable[None]]

INFO = json.loads("""{
    "ID":"FAKE:DOCKERD", "Driver":"vfs", "LoggingDriver":"json-file", "CgroupVersion":"1", "KernelVersion":"6.1.0",
    "OperatingSystem":"fake", "OSType":"linux", "Architecture":"x86_64", "NCPU":1024, "MemTotal":8589934592,
    "DockerRootDir":"/var/lib/docker", "Name":"fake", "Runtimes":{"runc":{"path":"runc"}}, "DefaultRuntime":"runc",
    "SecurityOptions":[], "Warnings":null
}""")


def flag(exchange: Exchange, name: str) -> bool:
    """Return a boolean of the query as Docker reads it, false if it is absent."""
    return text(exchange, name).lower() not in ("", "0", "no", "false", "none")


def text(exchange: Exchange, name: str) -> str:
    """Return a value of the query, "" if it is absent."""
    return exchange.head.query.get(name, "")


def done(status: int, change: Callable[[DockerdState, Exchange, str], object]) -> Handler:
    """Return the handler of a call that changes the records, or looks them up, and has an empty reply."""

    async def answer(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
        change(dockerd.state, exchange, reference)
        await exchange.reply(status)

    return answer


async def read_json(exchange: Exchange) -> tuple[bytes, dict[str, Any]]:
    """Return a body of JSON, as it came and parsed. Raises Refused."""
    if exchange.head.length != 0 and not exchange.head.get("Content-Type").startswith("application/json"):
        raise bad("Content-Type specified must be 'application/json'")
    raw = await exchange.body()
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise bad("EOF" if not raw.strip() else f"invalid JSON: {error}") from error
    return raw, value or {}


# ---- the system

PING_HEADERS = (("Cache-Control", "no-cache, no-store, must-revalidate"), ("Pragma", "no-cache"))
EMPTY_PING = (("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", "0"))


async def ping(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    await exchange.reply(200, b"OK", *PING_HEADERS, *dockerd.engine.ping)


async def ping_head(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    await exchange.reply(200, b"", *PING_HEADERS, *dockerd.engine.ping, *EMPTY_PING)


async def not_found(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    raise Refused(HTTPStatus.NOT_FOUND, "page not found")


async def version(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    engine = {"Version": dockerd.engine.version, "ApiVersion": dockerd.api, "MinAPIVersion": dockerd.minimum}
    component = {"Name": "Engine", "Version": dockerd.engine.version, "Details": engine}
    await exchange.json({"Platform": {"Name": ""}, "Components": [component], **engine, "Os": "linux", "Arch": "amd64"})


async def info(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    state, running = dockerd.state, sum(container.running for container in dockerd.state.each())
    counts = {"Containers": len(state.containers), "ContainersRunning": running, "Images": len(state.images.by_name)}
    notified = {**INFO, **counts, "CgroupDriver": state.cgroup_driver, "ServerVersion": dockerd.engine.version}
    await exchange.json(notified)


# ---- containers


async def create(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    raw, body = await read_json(exchange)
    container = dockerd.state.create(text(exchange, "name"), raw, body)
    await exchange.json({"Id": container.id, "Warnings": []}, 201)


async def update(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    _, body = await read_json(exchange)
    dockerd.state.update(reference, body)
    await exchange.json({"Warnings": None})


async def inspect(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    inspected = dockerd.state.find(reference).inspect()
    shown = dockerd.engine.shown(INSPECT, exchange.api, inspected)
    await exchange.json(shown if dockerd.mangle is None else dockerd.mangle(shown))


async def list_containers(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    if dockerd.big_list is not None:
        return await exchange.reply(200, dockerd.big_list, JSON)
    labels = parse_filters(text(exchange, "filters")).get("label", frozenset())
    every = flag(exchange, "all")
    shown = [one for one in dockerd.state.each() if (every or one.running) and labels_match(one.labels, labels)]
    return await exchange.json([one.listed() for one in shown])


# ---- execs and images


async def exec_create(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    _, body = await read_json(exchange)
    await exchange.json({"Id": dockerd.state.exec_create(reference, body).id}, 201)


async def exec_inspect(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    await exchange.json(dockerd.state.exec_find(reference).inspect())


async def image_inspect(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    shown = dockerd.state.images.find(reference).inspect()
    await exchange.json(dockerd.engine.shown(IMAGE, exchange.api, shown))


async def list_images(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    await exchange.json([image.listed() for image in dockerd.state.images.by_name.values()])


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
    """Begin the reply with the first piece of an archive: net/http's handlers cannot send and read at once."""
    total = len(await exchange.section())
    await exchange.begin(JSON, settle=False)
    total += len(await exchange.body())
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
        while (stated := await output.get()) is not None:
            await exchange.send(_spelt(container, stated))
    await exchange.finish()


async def attach(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    """Attach to a container's output, which comes from ``say``."""
    container = dockerd.state.find(reference)
    with output_of(dockerd, container) as output:
        await exchange.hijack()
        while (stated := await output.get()) is not None:
            await exchange.write(_spelt(container, stated))
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
