"""The fake dockerd's short calls, each answered at once with all of its reply.

There is one function per route; an error is the daemon's, with its text and status.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from tests.fakes import dockerd_engines as engines
from tests.fakes.dockerd_checks import Refused, bad
from tests.fakes.dockerd_events import labels_match, parse_filters
from tests.fakes.dockerd_wire import JSON, Exchange

if TYPE_CHECKING:
    from tests.fakes.dockerd import DockerdState, FakeDockerd

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
    told = {**INFO, **counts, "CgroupDriver": state.cgroup_driver, "ServerVersion": dockerd.engine.version}
    await exchange.json(told)


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
    shown = dockerd.engine.shown(engines.INSPECT, exchange.api, inspected)
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
    await exchange.json(dockerd.engine.shown(engines.IMAGE, exchange.api, shown))


async def list_images(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    await exchange.json([image.listed() for image in dockerd.state.images.by_name.values()])
