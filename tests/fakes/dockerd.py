"""A fake dockerd, 20.10 by default, on a unix socket: the part of its HTTP API that runtimes' clients use.

Of asyncio streams: aiohttp's server can neither answer after a half-close nor send an unframed reply.
Run alone: ``python -m tests.fakes.dockerd --socket PATH``.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import re
import socket
import struct
import time
from collections import Counter, deque
from http import HTTPStatus
from typing import Any

import uvloop

from tests.fakes import dockerd_state as states
from tests.fakes import inside
from tests.fakes.cri_pb2 import ContainerConfig, KeyValue, LinuxContainerResources
from tests.fakes.dockerd_shapes import ENGINE_20, EVENT, IMAGE, INSPECT, Engine, go_json, version_number
from tests.fakes.dockerd_state import CGROUPFS, KILLED, Container, DockerdState, Refused, bad_request, parse_filters
from tests.fakes.dockerd_wire import JSON, Cut, Exchange, Head, Header, Injection, Reader, Received, chunk, parse
from tests.fakes.dockershim_bodies import SETTINGS
from tests.fakes.server import Listener, wait_for_signal

__all__ = ["DockerdState", "FakeDockerd", "Injection", "Received"]

STDOUT, STDERR = 1, 2
NOT_FOUND = "not found"
BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n400 Bad Request"
RECORDED_BODY_BYTES = 1 << 20


def frame(stream: int, data: bytes) -> bytes:
    return struct.pack(">BxxxL", stream, len(data)) + data


ROUTES = (
    *("GET /containers/json", "GET /containers/{ref}/json", "GET /exec/{ref}/json", "POST /containers/create"),
    *(f"POST /containers/{{ref}}/{action}" for action in ("start", "stop", "exec", "rename", "update")),
    *("POST /exec/{ref}/start", "DELETE /containers/{ref}", "GET /images/json", "GET /images/{ref}/json"),
    *("HEAD /_ping", "GET /_ping", "GET /events", "GET /info", "GET /version"),
)
"""Method and path, with ``{ref}`` for the reference."""
INFO = {"ID": "FAKE:DOCKERD", "Driver": "vfs", "CgroupVersion": "1", "OSType": "linux", "DefaultRuntime": "runc"}
PING_HEADERS = (("Cache-Control", "no-cache, no-store, must-revalidate"), ("Pragma", "no-cache"))
EMPTY_PING = (("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", "0"))


async def answer(dockerd: FakeDockerd, exchange: Exchange, route: str, reference: str) -> None:
    """Carry out a request and answer it: with 204 if it has no reply. Raises Refused."""
    state, engine, head = dockerd.state, dockerd.engine, exchange.head
    reply: Any = None
    match route:
        case "POST /containers/create":
            reply = {"Id": state.create(head.query.get("name", ""), await read_json(exchange)).id, "Warnings": []}
        case "POST /containers/{ref}/start":
            state.start(reference)
        case "POST /containers/{ref}/stop":
            state.stop(reference)
        case "POST /containers/{ref}/rename":
            state.rename(reference, head.query.get("name", ""))
        case "POST /containers/{ref}/update":
            state.update(reference, await read_json(exchange))
            reply = {"Warnings": None}
        case "DELETE /containers/{ref}":
            state.remove(reference, head.flag("force"))
        case "POST /containers/{ref}/exec":
            reply = {"Id": state.exec_create(reference, (await read_json(exchange))["Cmd"])}
        case "POST /exec/{ref}/start":
            return await exec_start(dockerd, exchange, reference)
        case "GET /exec/{ref}/json":
            code = state.exec_find(reference).exit_code
            reply = {"ID": reference, "Running": code is None, "ExitCode": code}
        case "GET /containers/{ref}/json":
            reply = engine.render(INSPECT, exchange.api, state.find(reference).inspect())
        case "GET /containers/json":
            if dockerd.big_list is not None:
                return await exchange.reply(200, dockerd.big_list, JSON)
            labels = parse_filters(head.query.get("filters", "")).get("label", frozenset())
            listed = [
                found for found in reversed(state.containers.values()) if states.labels_match(found.labels, labels)
            ]
            reply = [found.listed() for found in listed if head.flag("all") or found.running]
        case "GET /images/{ref}/json":
            reply = engine.render(IMAGE, exchange.api, state.images.inspect(reference))
        case "GET /images/json":
            reply = [state.images.inspect(name) for name in state.images.by_name]
        case "GET /events":
            return await events(dockerd, exchange)
        case "GET /info":
            reply = {**INFO, "CgroupDriver": state.cgroup_driver, "ServerVersion": engine.version}
        case "GET /version":
            details = {"Version": engine.version, "ApiVersion": engine.api, "MinAPIVersion": engine.minimum}
            component = {"Name": "Engine", "Version": engine.version, "Details": details}
            reply = {"Platform": {"Name": ""}, "Components": [component], **details, "Os": "linux", "Arch": "amd64"}
        case "HEAD /_ping":
            return await exchange.reply(200, b"", *PING_HEADERS, *engine.ping, *EMPTY_PING)
        case "GET /_ping":
            return await exchange.reply(200, b"OK", *PING_HEADERS, *engine.ping)
    if reply is None:
        return await exchange.reply(204)
    return await exchange.json(
        reply, 201 if route in ("POST /containers/create", "POST /containers/{ref}/exec") else 200
    )


async def read_json(exchange: Exchange) -> dict[str, Any]:
    if exchange.head.length != 0 and not exchange.head.get("content-type").startswith("application/json"):
        raise bad_request("Content-Type specified must be 'application/json'")
    raw = await exchange.body()
    try:
        return json.loads(raw) or {}
    except ValueError as error:
        raise bad_request("EOF" if not raw.strip() else f"invalid JSON: {error}") from error


async def events(dockerd: FakeDockerd, exchange: Exchange) -> None:
    """Send each event as a separate chunk until the client's EOF."""
    filters = parse_filters(exchange.head.query.get("filters", ""))
    queue: asyncio.Queue[states.Event | None] = asyncio.Queue()
    dockerd.state.subscribers.add(queue.put_nowait)
    exchange.reader.on_end = lambda: queue.put_nowait(None)
    dockerd.watchers += 1
    if exchange.reader.at_eof():
        queue.put_nowait(None)
    try:
        await exchange.stream(JSON)
        while (event := await queue.get()) is not None:
            if states.event_matches(event, filters):
                await exchange.write(chunk(go_json(dockerd.engine.render(EVENT, exchange.api, event))))
        exchange.keep_alive = False
    finally:
        dockerd.watchers -= 1
        dockerd.state.subscribers.discard(queue.put_nowait)


async def exec_start(dockerd: FakeDockerd, exchange: Exchange, reference: str) -> None:
    """Run a command: ``cat`` echoes its stdin; the other commands are those of the fake CRI runtime."""
    body = await read_json(exchange)
    process = dockerd.state.exec_find(reference)
    await exchange.hijack()
    if process.command == ["cat"]:
        process.exit_code = KILLED
        while data := await exchange.reader.read(1 << 18):
            await exchange.write(data if body.get("Tty") else frame(STDOUT, data))
        process.exit_code = 0
    else:
        host, pairs = process.container.host, (entry.partition("=") for entry in process.container.config["Env"] or [])
        envs = [KeyValue(key=key, value=value.encode(errors="replace")) for key, _, value in pairs]
        resources = LinuxContainerResources(**{name: host[field] for name, field in SETTINGS.items()})
        result = inside.run(process.command, ContainerConfig(envs=envs), resources)
        for stream, data in ((STDOUT, result.stdout), (STDERR, result.stderr)):
            if data:
                await exchange.write(data if body.get("Tty") else frame(stream, data))
        process.exit_code = result.exit_code
    await exchange.half_close()


def _pattern(route: str) -> re.Pattern[str]:
    method, path = route.split(" ")
    return re.compile(f"{method} (?:/v([0-9.]+))?{path.replace('{ref}', '(.*)')}()")


_PATTERNS = {route: _pattern(route) for route in ROUTES}


@functools.lru_cache(maxsize=256)
def find_route(head: Head) -> tuple[str, str, str]:
    """Return the route of a request, its API version, "" if the path has none, and its reference."""
    for route, pattern in _PATTERNS.items():
        if matched := pattern.fullmatch(f"{head.method} {head.path}"):
            return route, matched[1] or "", matched[2]
    return NOT_FOUND, "", ""


class FakeDockerd(Listener):
    """The server; a later server on the same socket may use its ``state``, as after a restart of dockerd.

    ``keep_received`` bounds the recorded requests (None: no bound), ``keep_body_bytes`` the recorded bytes of each
    body; ``counts`` counts all requests by route.
    """

    def __init__(
        self,
        socket_path: str,
        state: DockerdState | None = None,
        *,
        engine: Engine = ENGINE_20,
        cgroup_driver: str = CGROUPFS,
        keep_received: int | None = None,
        keep_body_bytes: int = RECORDED_BODY_BYTES,
    ) -> None:
        super().__init__(socket_path)
        self.state = state or DockerdState(cgroup_driver)
        self.engine = engine
        self.api, self.minimum = engine.api, engine.minimum
        self.keep_body_bytes = keep_body_bytes
        self.received: deque[Received] = deque(maxlen=keep_received)
        self.counts: Counter[str] = Counter()
        self.watchers = 0
        self.big_list: bytes | None = None
        """The answer of GET /containers/json in place of the containers; see ``fill_list``."""
        self.injections: dict[str, Injection] = {}
        self._accepted = 0
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter | socket.socket] = {}
        server = ("Server", f"Docker/{engine.version} (linux)")
        self._versioned: tuple[Header, ...] = (("Api-Version", self.api), ("Ostype", "linux"), server)
        self._common: tuple[Header, ...] = (*self._versioned, ("Docker-Experimental", "false"))

    @property
    def connections(self) -> int:
        return len(self._connections)

    def send(self, data: bytes) -> None:
        for connection in self._connections.values():
            if isinstance(connection, asyncio.StreamWriter):
                connection.write(data)

    def drop_connections(self) -> None:
        for task, connection in self._connections.items():
            if isinstance(connection, asyncio.StreamWriter):
                connection.transport.abort()
            task.cancel()

    def requests(self, route: str) -> list[Received]:
        """Return the requests received on a route, which is a key of ROUTES."""
        assert route in ROUTES
        return [received for received in self.received if received.route == route]

    def inject(self, route: str, injection: Injection) -> Injection:
        assert route in ROUTES
        self.injections[route] = injection
        return injection

    def container(self, reference: str) -> Container:
        return self.state.find(reference)

    def fill_list(self, count: int, total_bytes: int) -> None:
        """Make GET /containers/json answer ``count`` containers in about ``total_bytes`` bytes, built once, here."""
        labels = {
            "padding": "x" * max(0, total_bytes // max(1, count) - 210)
        }  # the other fields of a row have up to 210
        life = {"Command": "sleep", "State": "running", "HostConfig": {"NetworkMode": "host"}, "Labels": labels}
        self.big_list = go_json([{"Id": f"{n:064x}", "Names": [f"/fake_{n}"], **life} for n in range(count)])

    async def end(self) -> None:
        self.drop_connections()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def accepted(self, client: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(client, self._accepted))
        self._accepted += 1
        self._connections[task] = client
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        connection = self._connections.pop(task)
        if isinstance(connection, socket.socket):
            connection.close()  # the task was cancelled before it had a stream

    async def _serve(self, client: socket.socket, number: int) -> None:
        loop, reader = asyncio.get_running_loop(), Reader()
        transport, protocol = await loop.connect_accepted_socket(lambda: asyncio.StreamReaderProtocol(reader), client)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            while await self._serve_request(reader, writer, number):
                pass
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, Cut):
            pass  # the client has closed, or a cut was injected
        except RuntimeError:
            if not transport.is_closing():
                raise
            # raised by uvloop for a connection that is closed
        finally:
            writer.close()

    async def _serve_request(self, reader: Reader, writer: asyncio.StreamWriter, connection: int) -> bool:
        try:
            head = parse(await reader.readuntil(b"\r\n\r\n"))
        except ValueError:
            writer.write(BAD_REQUEST)
            return False
        route, version, reference = find_route(head)
        reader.current = received = Received(head, route, connection, time.monotonic(), self.keep_body_bytes)
        self.received.append(received)
        self.counts[route] += 1
        exchange = Exchange(head, received, reader, writer)
        try:
            await self._answer(exchange, route, version, reference)
        except Refused as refused:
            await exchange.reply(refused.status, go_json({"message": refused.message}, html=False), JSON)
        finally:
            reader.current = None
        return exchange.keep_alive

    async def _answer(self, exchange: Exchange, route: str, version: str, reference: str) -> None:
        injection = self.injections.get(route)
        if injection is not None and injection.times == 0:
            injection = None
        if injection is not None:
            injection.times = injection.times and injection.times - 1
            exchange.cut_after_bytes = injection.cut_after_bytes
        if route == NOT_FOUND:
            raise Refused(HTTPStatus.NOT_FOUND, "page not found")
        exchange.common, exchange.api = self._versioned, version or self.api
        if version_number(exchange.api) < version_number(self.minimum):
            raise bad_request(f"client version {version} is too old. Minimum supported API version is {self.minimum}")
        if version_number(exchange.api) > version_number(self.api):
            raise bad_request(f"client version {version} is too new. Maximum supported API version is {self.api}")
        exchange.common = self._common
        if injection is not None:
            await injection.wait()
            if injection.raw is not None:
                exchange.keep_alive = True
                return await exchange.write(injection.raw)
            if injection.status:
                raise Refused(HTTPStatus(injection.status), injection.message)
        return await answer(self, exchange, route, reference)


async def main() -> None:
    parser = argparse.ArgumentParser(description="fake dockerd")
    parser.add_argument("--socket", required=True)
    async with FakeDockerd(parser.parse_args().socket, keep_received=0, keep_body_bytes=0) as dockerd:
        await wait_for_signal(f"fake dockerd {{}} listens on {dockerd.socket_path}")


if __name__ == "__main__":
    uvloop.run(main())
