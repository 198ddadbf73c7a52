"""Serve the control protocol on the admin and the metrics socket (docs/control-protocol.rst).

Invariant: in one iteration of the event loop one request is read or one part of an answer is made, however many
clients wait.
"""

import asyncio
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from runtimeproxy.admin import protocol
from runtimeproxy.admin.protocol import PART_BYTES, REQUEST_BYTES, SCHEMA_VERSION, Part, Refused, line, part_line
from runtimeproxy.files import peer_credentials
from runtimeproxy.relay.hangups import has_hung_up

log = logging.getLogger(__name__)

CONNECTIONS = 32
"""Most connections of one socket that are open; others wait in its backlog."""
SILENT_SECONDS = 10.0
"""How long a client may send nothing while no request of it is answered, and how long it may not read."""
REQUEST_SECONDS = 0.1
"""How long a connection keeps its place without a request while all places are taken."""
PAUSE_SECONDS = 0.5

POLL_SECONDS = 0.25
"""How long an answer waits that has nothing to add yet."""

Query = Callable[[Mapping[str, Any]], Iterator[Part | bytes | None] | AsyncIterator[Part]]
"""Makes the parts of an answer, each in less than 2 ms: an object, or its JSON; b"" for nothing yet, and None if more
may follow after POLL_SECONDS. Raises Refused."""


@dataclass(frozen=True, slots=True)
class Method:
    """What can be requested: ``takes`` are the parameters with the check of each, which raises ValueError; those in
    ``needs`` must be given. ``public`` methods are served on the metrics socket too; ``signed`` ones are given who
    requests it as the parameter ``by``."""

    query: Query
    takes: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    public: bool = False
    signed: bool = False

    def checked(self, name: str, given: Any) -> dict[str, Any]:
        """Return the parameters of a request. Raises Refused, without the request's values."""
        if not isinstance(given, dict):
            raise Refused(protocol.BAD_REQUEST, f"{name}: params is not a JSON object")
        takes = f"{name} takes {', '.join(self.takes) or 'no parameters'}"
        for parameter in given:
            if parameter not in self.takes:
                raise Refused(protocol.BAD_REQUEST, f"unknown parameter: {takes}")
        for parameter in self.needs:
            if parameter not in given:
                raise Refused(protocol.BAD_REQUEST, f"{parameter} is missing: {takes}")
        checked = {}
        for parameter, value in given.items():
            try:
                checked[parameter] = self.takes[parameter](value)
            except ValueError as error:
                raise Refused(protocol.BAD_REQUEST, f"{parameter} {error}") from None
        return checked


@dataclass(eq=False, slots=True)
class Client:
    """One connection. ``requested`` is whether a whole request came on it."""

    sock: socket.socket
    since: float
    received: bytearray = field(default_factory=bytearray)
    requested: bool = False
    task: "asyncio.Task[None] | None" = None


class _ClientGoneError(Exception):
    """The client left, or does not read."""


class Server:
    """Serves methods on a listening socket. On a private socket, every method, and only to root and this process's own
    user; on a public one the public methods, to all that can connect."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        methods: Mapping[str, Method],
        making: asyncio.Lock,
        *,
        private: bool,
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._methods = methods if private else {name: each for name, each in methods.items() if each.public}
        self._making = making
        self._private = private
        self._left = asyncio.Event()
        self._accepting: asyncio.Task[None] | None = None
        self.clients: set[Client] = set()

    def start(self) -> None:
        self._listener.setblocking(False)
        self._accepting = self._loop.create_task(self._accept())

    async def stop(self) -> None:
        tasks = [self._accepting, *(client.task for client in self.clients)]
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def _accept(self) -> None:
        while True:
            await self._place()
            try:
                sock, _ = await self._loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            sock.setblocking(False)
            client = Client(sock, self._loop.time())
            self.clients.add(client)
            client.task = self._loop.create_task(self._serve(client))

    async def _place(self) -> None:
        """Wait for a place. A connection without a request loses its place if none becomes free."""
        while len(self.clients) >= CONNECTIONS:
            self._left.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(REQUEST_SECONDS):
                    await self._left.wait()
                continue
            for client in self.clients:
                if not client.requested and self._loop.time() - client.since >= REQUEST_SECONDS and client.task:
                    client.task.cancel()

    async def _serve(self, client: Client) -> None:
        try:
            pid, user, _ = peer_credentials(client.sock)
            if self._private and user not in (0, os.geteuid()):
                await self._send(
                    client, _error(None, Refused(protocol.FORBIDDEN, "only root may use the admin endpoint"))
                )
                return
            while request := await self._request(client):
                client.requested = True
                await self._answer(client, request, f"uid {user}, pid {pid}")
        except (OSError, _ClientGoneError):
            pass
        finally:
            self.clients.discard(client)
            client.sock.close()
            self._left.set()

    async def _request(self, client: Client) -> bytes:
        """Return the next line, which may end with the stream; b"" at its end. Raises OSError and TimeoutError."""
        received = client.received
        while (end := received.find(b"\n")) < 0 and len(received) <= REQUEST_BYTES:
            async with asyncio.timeout(SILENT_SECONDS):
                octets = await self._loop.sock_recv(client.sock, REQUEST_BYTES)
            if not octets:
                end = len(received)
                break
            received += octets
        if not 0 <= end <= REQUEST_BYTES:
            await self._send(
                client, _error(None, Refused(protocol.BAD_REQUEST, f"a request has {REQUEST_BYTES} bytes at most"))
            )
            return b""
        request = bytes(received[: end + 1])
        del received[: end + 1]
        return request

    async def _answer(self, client: Client, request: bytes, by: str) -> None:
        """Answer one request. Raises _ClientGoneError."""
        number: Any = None
        name: Any = None
        try:
            async with self._making:  # a client may send thousands of wrong requests at one time
                await asyncio.sleep(0)
                number, name, params = _read(request)
                method = self._methods.get(name)
                if method is None:
                    raise Refused(protocol.NOT_FOUND, f"no such method; there are {', '.join(self._methods)}")
                parts = method.query(method.checked(name, params) | ({"by": by} if method.signed else {}))
            if isinstance(parts, Iterator):
                await self._send_parts(client, number, parts)
            else:
                async for part in parts:
                    await self._send(client, part_line(number, part))
            last = line(id=number, end={"schemaVersion": SCHEMA_VERSION})
        except Refused as refused:
            last = _error(number, refused)
        except _ClientGoneError:
            raise
        except Exception:
            log.exception("the request %s failed", name, extra={"kind": name})
            last = _error(number, Refused(protocol.INTERNAL_ERROR, f"{name}: an error in the proxy; see its log"))
        await self._send(client, last)

    async def _send_parts(self, client: Client, number: Any, parts: Iterator[Part | bytes | None]) -> None:
        """Make and send each part in an iteration of the loop in which no other part is made."""
        while True:
            async with self._making:
                await asyncio.sleep(0)
                try:
                    part = next(parts)
                except StopIteration:
                    return
                octets = b"" if part is None or part == b"" else part_line(number, part)
            if octets:
                await self._send(client, octets)
            elif part is not None:
                continue
            elif has_hung_up(client.sock):
                raise _ClientGoneError
            else:
                await asyncio.sleep(POLL_SECONDS)

    async def _send(self, client: Client, octets: bytes) -> None:
        """Send a line. Raises _ClientGoneError, ValueError for a line that is too long."""
        if len(octets) > PART_BYTES:
            raise ValueError("a part of an answer is too long")
        try:
            async with asyncio.timeout(SILENT_SECONDS):
                await self._loop.sock_sendall(client.sock, octets)
        except OSError:
            raise _ClientGoneError from None


def _read(request: bytes) -> tuple[Any, str, Any]:
    """Return id, method and parameters of a request. Raises Refused."""
    try:
        found = json.loads(request, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("method"), str):
        raise Refused(protocol.BAD_REQUEST, 'a request is a line like {"id": 1, "method": "hooks", "params": {}}')
    number = found.get("id")
    return number if isinstance(number, int | str) else None, found["method"], found.get("params", {})


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        raise ValueError("a name is there twice")
    return found


def _error(number: Any, refused: Refused) -> bytes:
    return line(id=number, error={"status": refused.status, "text": refused.text})
