"""The fake dockerd's short calls: each is answered at once, with all of its reply.

One function a route; an error is the daemon's, with its text and status.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from tests.fakes import dockerd_engines as engines
from tests.fakes.dockerd_checks import Refused, bad
from tests.fakes.dockerd_events import labels_match, parse_filters
from tests.fakes.dockerd_records import Container
from tests.fakes.dockerd_wire import JSON, Exchange

if TYPE_CHECKING:
    from tests.fakes.dockerd import DockerdState, FakeDockerd

Handler = Callable[["FakeDockerd", Exchange, str], Awaitable[None]]

PATH_STAT = (
    "eyJuYW1lIjoiZiIsInNpemUiOjEsIm1vZGUiOjQyMCwibXRpbWUiOiIyMDI2LTAxLTAxVDAwOjAwOjAwWiIsImxpbmtUYXJnZXQiOiIifQ=="
)
"""{"name":"f","size":1,"mode":420,"mtime":"2026-01-01T00:00:00Z","linkTarget":""} as cp reads it from a header."""

STARTED_WITH_BODY = "starting container with non-empty request body was deprecated since API v1.22 and removed in v1.24"


def flag(exchange: Exchange, name: str, default: bool = False) -> bool:
    """Return a boolean of the query as Docker reads it."""
    value = exchange.head.query.get(name)
    return default if value is None else value.strip().lower() not in ("", "0", "no", "false", "none")


def text(exchange: Exchange, name: str) -> str:
    """Return a value of the query, "" if it is not there."""
    return exchange.head.query.get(name, "")


def done(status: int, change: Callable[[DockerdState, Exchange, str], object]) -> Handler:
    """Return a call that changes the records, or looks them up, and has an empty reply."""

    async def answer(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
        change(dockerd.state, exchange, reference)
        await exchange.reply(status)

    return answer


async def read_json(exchange: Exchange) -> tuple[bytes, dict[str, Any]]:
    """Return a body of JSON, as it came and parsed. Raises Refused."""
    kind = exchange.head.get("Content-Type")
    if (kind or exchange.head.length != 0) and kind.partition(";")[0].strip() != "application/json":
        raise bad(f"Content-Type specified ({kind}) must be 'application/json'")
    raw = await exchange.body()
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise bad("EOF" if not raw.strip() else f"invalid JSON: {error}") from error
    if value is not None and not isinstance(value, dict):
        raise bad("json: cannot unmarshal into Go value of a struct")
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
    engine = {"Version": dockerd.server_version, "ApiVersion": dockerd.api, "MinAPIVersion": dockerd.minimum}
    details = {"GitCommit": "fake", "GoVersion": "go1.18", "Os": "linux", "Arch": "amd64", "KernelVersion": "6.1.0"}
    component = {"Name": "Engine", "Version": dockerd.server_version, "Details": {**engine, **details}}
    await exchange.json({"Platform": {"Name": ""}, "Components": [component], **engine, **details})


async def info(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    containers = list(dockerd.state.each())
    running = sum(container.running for container in containers)
    told = {
        "ID": "FAKE:DOCKERD",
        "Containers": len(containers),
        "ContainersRunning": running,
        "ContainersPaused": 0,
        "ContainersStopped": len(containers) - running,
        "Images": len(dockerd.state.images.by_name),
        "Driver": "vfs",
        "LoggingDriver": "json-file",
        "CgroupDriver": dockerd.state.cgroup_driver,
        "CgroupVersion": "1",
        "KernelVersion": "6.1.0",
        "OperatingSystem": "fake",
        "OSType": "linux",
        "Architecture": "x86_64",
        "NCPU": 2,
        "MemTotal": 1 << 33,
        "DockerRootDir": "/var/lib/docker",
        "Name": "fake",
        "ServerVersion": dockerd.server_version,
        "Runtimes": {"runc": {"path": "runc"}},
        "DefaultRuntime": "runc",
        "SecurityOptions": [],
        "Warnings": None,
    }
    await exchange.json(dockerd.engine.shown(engines.INFO, exchange.api, told))


# ---- containers


async def create(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    raw, body = await read_json(exchange)
    if not body:
        raise bad("Config cannot be empty in order to create a container")
    container = dockerd.state.create(text(exchange, "name"), raw, body)
    await exchange.json({"Id": container.id, "Warnings": []}, 201)


async def start(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    if exchange.head.length is None or exchange.head.length > 7:
        raise bad(STARTED_WITH_BODY)
    dockerd.state.start(reference)
    await exchange.reply(204)


async def stop(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    seconds = text(exchange, "t")
    if seconds and not seconds.removeprefix("-").isdecimal():
        raise bad(f'strconv.Atoi: parsing "{seconds}": invalid syntax')
    dockerd.state.stop(reference)
    await exchange.reply(204)


async def update(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    _, body = await read_json(exchange)
    dockerd.state.update(reference, body)
    await exchange.json({"Warnings": None})


async def prune(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    await exchange.json({"ContainersDeleted": dockerd.state.prune() or None, "SpaceReclaimed": 0})


async def inspect(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    inspected = dockerd.state.find(reference).inspect(flag(exchange, "size"))
    shown = dockerd.engine.shown(engines.INSPECT, exchange.api, inspected)
    await exchange.json(shown if dockerd.mangle is None else dockerd.mangle(shown))


async def list_containers(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    if dockerd.big_list is not None and dockerd.big_list_for in ("", exchange.head.get("User-Agent")):
        await exchange.reply(200, dockerd.big_list, JSON)
        return
    filters = parse_filters(text(exchange, "filters"))
    every = flag(exchange, "all") or "status" in filters
    shown = [c for c in dockerd.state.each() if (every or c.running) and _chosen(c, filters)]
    limit = int(text(exchange, "limit") or 0)
    rows = [container.listed() for container in shown[: limit if limit > 0 else None]]
    await exchange.json([dockerd.engine.shown(engines.LISTED, exchange.api, row) for row in rows])


def _chosen(container: Container, filters: Mapping[str, frozenset[str]]) -> bool:
    matches: Mapping[str, Callable[[str], bool]] = {
        "id": container.id.startswith,
        "name": container.name.__contains__,
        "status": container.status.__eq__,
    }
    fits = all(any(map(matches[key], values)) for key, values in filters.items() if key in matches)
    return fits and labels_match(container.config["Labels"] or {}, filters.get("label", frozenset()))


async def stat_archive(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    dockerd.state.find(reference)
    await exchange.reply(200, b"", ("X-Docker-Container-Path-Stat", PATH_STAT))


# ---- execs and images


async def exec_create(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    _, body = await read_json(exchange)
    await exchange.json({"Id": dockerd.state.exec_create(reference, body).id}, 201)


async def exec_inspect(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    await exchange.json(dockerd.state.exec_find(reference).inspect())


async def image_inspect(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    try:
        shown = dockerd.state.images.find(reference).inspect()
    except Refused as refused:
        raise Refused(refused.status, f"no such image: {reference}: {refused.message}") from None
    await exchange.json(dockerd.engine.shown(engines.IMAGE, exchange.api, shown))


async def list_images(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    await exchange.json([image.listed() for image in dockerd.state.images.by_name.values()])
