"""A fake dockerd, 20.10 by default, on a unix socket: the part of its HTTP API that runtimes' clients use.

Requests are recorded as they came; those of one connection are answered in order. It uses plain asyncio streams,
because aiohttp's server can neither answer after a half-close nor send an unframed reply. The router matches a decoded
path, as gorilla/mux does; a reference may contain slashes.

Run alone: ``python -m tests.fakes.dockerd --socket PATH``.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import re
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import uvloop

from tests.fakes import dockerd_calls as calls
from tests.fakes.dockerd_calls import Feed, Handler, done, flag, text
from tests.fakes.dockerd_shapes import ENGINE_20, Engine, go_json, version_number
from tests.fakes.dockerd_state import CGROUPFS, Container, DockerdState, Refused, bad
from tests.fakes.dockerd_wire import JSON, Cut, Exchange, Head, Header, Injection, Reader, Received, parse
from tests.fakes.server import Listener, stay

REF = "{ref}"


@dataclass(frozen=True, slots=True)
class Route:
    """A row: ``cancels`` means that the daemon stops as soon as it sees that its client sends no more."""

    key: str
    """Method and path with ``{ref}`` for the reference, as FakeDockerd's injector takes it."""
    handler: Handler
    cancels: bool = False


PING = Route("GET /_ping", calls.ping)
NOT_FOUND = Route("not found", calls.not_found)

ROUTES = (
    Route("GET /containers/json", calls.list_containers),
    Route("GET /containers/{ref}/json", calls.inspect),
    Route("GET /containers/{ref}/logs", calls.logs, cancels=True),
    Route("GET /exec/{ref}/json", calls.exec_inspect),
    Route("POST /containers/create", calls.create),
    Route("POST /containers/{ref}/start", done(204, lambda state, sent, ref: state.start(ref))),
    Route("POST /containers/{ref}/stop", done(204, lambda state, sent, ref: state.stop(ref))),
    Route("POST /containers/{ref}/resize", done(200, lambda state, sent, ref: state.find(ref))),
    Route("POST /containers/{ref}/attach", calls.attach),
    Route("POST /containers/{ref}/exec", calls.exec_create),
    Route("POST /exec/{ref}/start", calls.exec_start),
    Route("POST /exec/{ref}/resize", done(200, lambda state, sent, ref: state.exec_find(ref))),
    Route("POST /containers/{ref}/rename", done(204, lambda state, sent, ref: state.rename(ref, text(sent, "name")))),
    Route("POST /containers/{ref}/update", calls.update),
    Route("DELETE /containers/{ref}", done(204, lambda state, sent, ref: state.remove(ref, flag(sent, "force")))),
    Route("GET /images/json", calls.list_images),
    Route("GET /images/{ref}/json", calls.image_inspect),
    Route("POST /images/load", calls.load),
    Route("POST /images/create", calls.pull, cancels=True),
    Route("HEAD /_ping", calls.ping_head),
    PING,
    Route("GET /events", calls.events, cancels=True),
    Route("GET /info", calls.info),
    Route("GET /version", calls.version),
    Route("POST /build", calls.build, cancels=True),
)


def _pattern(route: Route) -> re.Pattern[str]:
    method, path = route.key.split(" ")
    return re.compile(f"{method} (?:/v(?P<version>[0-9.]+))?{re.escape(path).replace(re.escape(REF), '(?P<ref>.*)')}")


_PATTERNS = {route: _pattern(route) for route in ROUTES}


@dataclass(frozen=True, slots=True)
class Match:
    """The router's decision; ``version`` is "" if the path has none."""

    route: Route
    version: str = ""
    reference: str = ""


@functools.lru_cache(maxsize=256)
def match(head: Head) -> Match:
    for route, pattern in _PATTERNS.items():
        if found := pattern.fullmatch(f"{head.method} {head.path}"):
            parts = found.groupdict()
            return Match(route, parts["version"] or "", parts.get("ref") or "")
    return Match(NOT_FOUND)


BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n400 Bad Request"
"""The answer to something that is not a head of HTTP/1."""


class Service:
    def __init__(self, dockerd: FakeDockerd) -> None:
        self._dockerd = dockerd
        server = ("Server", f"Docker/{dockerd.engine.version} (linux)")
        self._versioned: tuple[Header, ...] = (("Api-Version", dockerd.api), ("Ostype", "linux"), server)
        self._common: tuple[Header, ...] = (*self._versioned, ("Docker-Experimental", "false"))

    async def serve(self, reader: Reader, writer: asyncio.StreamWriter, connection: int) -> None:
        """Serve a connection until its end."""
        try:
            while await self._serve_request(reader, writer, connection):
                pass
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, Cut):
            pass  # the client is gone, or a cut was injected
        finally:
            writer.close()

    async def _serve_request(self, reader: Reader, writer: asyncio.StreamWriter, connection: int) -> bool:
        """Serve one request; return whether the connection can carry another."""
        try:
            head = parse(await reader.readuntil(b"\r\n\r\n"))
        except ValueError:
            writer.write(BAD_REQUEST)
            return False
        found = match(head)
        received = Received(head, found.route.key, connection, time.monotonic(), self._dockerd.keep_body_bytes)
        self._dockerd.record(received)
        reader.current = received
        try:
            return await self._exchange(Exchange(head, received, reader, writer), found)
        finally:
            reader.current = None

    async def _exchange(self, exchange: Exchange, found: Match) -> bool:
        injection = self._take_injection(found.route.key)
        if injection is not None:
            exchange.cut_after_bytes = injection.cut_after_bytes
        work = self._answer(exchange, found, injection)
        await (_until_client_ends(exchange, work) if found.route.cancels else work)
        return exchange.keep_alive

    def _take_injection(self, route: str) -> Injection | None:
        injection = self._dockerd.injections.get(route)
        if injection is None or injection.times == 0:
            return None
        if injection.times is not None:
            injection.times -= 1
        return injection

    async def _answer(self, exchange: Exchange, found: Match, injection: Injection | None) -> None:
        try:
            if found.route is not NOT_FOUND:
                exchange.common = self._versioned
                self._check_version(found.version)
                exchange.api = found.version or self._dockerd.api
                exchange.common = self._common
            if injection is not None:
                await injection.wait()
                if injection.raw is not None:
                    exchange.keep_alive = True
                    return await exchange.write(injection.raw)
                if injection.status:
                    raise Refused(HTTPStatus(injection.status), injection.message)
            return await found.route.handler(self._dockerd, exchange, found.reference)
        except Refused as refused:
            await exchange.reply(refused.status, go_json({"message": refused.message}, html=False), JSON)

    def _check_version(self, version: str) -> None:
        least, most = self._dockerd.minimum, self._dockerd.api
        if version and version_number(version) < version_number(least):
            raise bad(f"client version {version} is too old. Minimum supported API version is {least}")
        if version and version_number(version) > version_number(most):
            raise bad(f"client version {version} is too new. Maximum supported API version is {most}")


async def _until_client_ends(exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
    """Do the work of a call until its client sends no more, as net/http's context does."""
    task = asyncio.create_task(work)
    end = asyncio.create_task(_client_end(exchange))
    try:
        await asyncio.wait({task, end}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return
        exchange.received.cancelled = True
        exchange.keep_alive = False
    finally:
        end.cancel()
        task.cancel()
        await asyncio.gather(end, task, return_exceptions=True)
    await exchange.finish()


async def _client_end(exchange: Exchange) -> None:
    await exchange.body_over.wait()  # before it, an end is a read error
    await exchange.reader.ended.wait()


KEPT_BODY_BYTES = 1 << 20

__all__ = ["DockerdState", "FakeDockerd", "Feed", "Injection", "Received"]


class FakeDockerd(Listener):
    """The server; ``state`` may be given to a later server on the same socket, as after a restart of dockerd.

    ``engine`` is the version of Docker Engine; ``api`` and ``minimum``, the range of API versions, default to the
    engine's. ``keep_received`` bounds the record of requests (None keeps all), ``keep_body_bytes`` what is kept of each
    body; ``counts`` counts them by route, without bound.
    """

    mangle: Callable[[Any], Any] | None = None
    """Replaces the answer of an inspect, for a daemon that answers what none should."""

    def __init__(
        self,
        socket_path: str,
        state: DockerdState | None = None,
        *,
        engine: Engine = ENGINE_20,
        api: str | None = None,
        minimum: str | None = None,
        cgroup_driver: str = CGROUPFS,
        keep_received: int | None = None,
        keep_body_bytes: int = KEPT_BODY_BYTES,
    ) -> None:
        super().__init__(socket_path)
        self.state = state or DockerdState(cgroup_driver)
        self.engine = engine
        self.api, self.minimum = api or engine.api, minimum or engine.minimum
        self.keep_body_bytes = keep_body_bytes
        self.received: deque[Received] = deque(maxlen=keep_received)
        self.counts: Counter[str] = Counter()
        self._accepted = 0
        self.watchers = 0
        """How many GET /events are open."""
        self.big_list: bytes | None = None
        """The answer of GET /containers/json in place of the containers; see ``fill_list``."""
        self.feeds: dict[str, Feed] = {}
        self.injections: dict[str, Injection] = {}
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter | socket.socket] = {}
        """The socket until it is a stream."""
        self._service = Service(self)

    # ---- start and stop

    async def end(self) -> None:
        self.drop_connections()
        await asyncio.gather(*self._connections, return_exceptions=True)

    @property
    def connections(self) -> int:
        return len(self._connections)

    def streams(self) -> list[asyncio.StreamWriter]:
        return [connection for connection in self._connections.values() if isinstance(connection, asyncio.StreamWriter)]

    def send(self, data: bytes) -> None:
        """Send bytes on every connection."""
        for stream in self.streams():
            stream.write(data)

    def drop_connections(self) -> None:
        for stream in self.streams():
            stream.transport.abort()
        for task in self._connections:
            task.cancel()

    # ---- interface for tests

    def requests(self, route: str) -> list[Received]:
        """Return the requests received on a route.

        It is given as in ROUTES ("POST /containers/{ref}/start").
        """
        self._known(route)
        return [received for received in self.received if received.route == route]

    def inject(self, route: str, injection: Injection) -> Injection:
        """Make a route's calls go wrong from now on, in place of what was injected before."""
        self._known(route)
        self.injections[route] = injection
        return injection

    def feed(self, route: str) -> Feed:
        """Return the feed of the next POST /images/create or POST /build, which is sent its lines."""
        self._known(route)
        return self.feeds.setdefault(route, Feed())

    def container(self, reference: str) -> Container:
        return self.state.find(reference)

    def fill_list(self, count: int, total_bytes: int) -> None:
        """Make GET /containers/json answer ``count`` containers in about ``total_bytes`` bytes, built once, here."""
        life = {"Command": "sleep", "State": "running", "Status": "Up 1 second"}
        padding = {**life, "HostConfig": {"NetworkMode": "host"}}
        listed = [{"Id": f"{n:064x}", "Names": [f"/fake_{n}"], "Labels": {}, **padding} for n in range(count)]
        rest = max(0, total_bytes - len(go_json(listed))) // max(1, count)
        for container in listed:
            container["Labels"] = {"padding": "x" * max(0, rest - len('"padding":""'))}
        self.big_list = go_json(listed)

    @staticmethod
    def _known(route: str) -> None:
        if route not in {row.key for row in ROUTES}:
            raise KeyError(f"no such route: {route!r}; ROUTES lists them")

    # ---- connections

    def accepted(self, client: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(client, self._accepted))
        self._accepted += 1
        self._connections[task] = client
        task.add_done_callback(self._ended)

    async def _serve(self, client: socket.socket, number: int) -> None:
        loop, reader = asyncio.get_running_loop(), Reader()
        transport, protocol = await loop.connect_accepted_socket(lambda: asyncio.StreamReaderProtocol(reader), client)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            await self._service.serve(reader, writer, number)
        except RuntimeError:
            if not transport.is_closing():
                raise
            # raised by uvloop for a connection that is closed

    def _ended(self, task: asyncio.Task[None]) -> None:
        connection = self._connections.pop(task)
        if isinstance(connection, socket.socket):
            connection.close()  # the task was cancelled before it had a stream

    def record(self, received: Received) -> None:
        self.received.append(received)
        self.counts[received.route] += 1


async def alone() -> None:
    parser = argparse.ArgumentParser(description="fake dockerd")
    parser.add_argument("--socket", required=True)
    async with FakeDockerd(parser.parse_args().socket, keep_received=0, keep_body_bytes=0) as dockerd:
        await stay(f"fake dockerd {{}} listens on {dockerd.socket_path}")


if __name__ == "__main__":
    uvloop.run(alone())
