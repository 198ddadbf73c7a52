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
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from runtimeproxy.admin import protocol
from runtimeproxy.admin.protocol import PART_BYTES, REQUEST_BYTES, SCHEMA_VERSION, Part, Refused, line, part_line
from runtimeproxy.files import peer_credentials
from runtimeproxy.relay.hangups import has_hung_up

log = logging.getLogger(__name__)

CONNECTIONS = 32
"""Most connections of one socket that are open; others wait in its backlog."""
SILENT_SECONDS = 10.0
"""How long a client may send nothing while no request of it is answered, how long a request may take from its first to
its last byte, and how long a client may not read."""
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
        if given.keys() - self.takes.keys():
            raise Refused(protocol.BAD_REQUEST, f"unknown parameter: {takes}")
        if missing := [parameter for parameter in self.needs if parameter not in given]:
            raise Refused(protocol.BAD_REQUEST, f"{missing[0]} is missing: {takes}")
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
        self._paused: asyncio.TimerHandle | None = None
        self.clients: set[Client] = set()

    def start(self) -> None:
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)

    async def stop(self) -> None:
        self._loop.remove_reader(self._listener)
        if self._paused is not None:
            self._paused.cancel()
            self._paused = None
        tasks = [client.task for client in self.clients if client.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _accept(self) -> None:
        """Accept a connection. Without a place or a descriptor for it, pause."""
        if len(self.clients) >= CONNECTIONS:
            self._pause(REQUEST_SECONDS)
            return
        try:
            sock, _ = self._listener.accept()
        except OSError:
            self._pause(PAUSE_SECONDS)
            return
        sock.setblocking(False)
        client = Client(sock, self._loop.time())
        self.clients.add(client)
        client.task = self._loop.create_task(self._serve(client))
        client.task.add_done_callback(partial(self._close, client))

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._paused = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        """Accept again. While no place is free, connections without a request lose theirs."""
        if self._paused is not None:
            self._paused.cancel()
            self._paused = None
            self._loop.add_reader(self._listener, self._accept)
        for client in self.clients if len(self.clients) >= CONNECTIONS else ():
            if not client.requested and self._loop.time() - client.since >= REQUEST_SECONDS and client.task:
                client.task.cancel()

    def _close(self, client: Client, _: asyncio.Task[None]) -> None:
        """Close the connection of a task that has ended, even one that was cancelled before its first step."""
        self.clients.discard(client)
        client.sock.close()
        self._resume()

    async def _serve(self, client: Client) -> None:
        try:
            pid, user, _ = peer_credentials(client.sock)
            if self._private and user not in (0, os.geteuid()):
                await self._send(client, _error(None, protocol.FORBIDDEN, "only root may use the admin endpoint"))
                return
            while request := await self._request(client):
                client.requested = True
                await self._answer(client, request, f"uid {user}, pid {pid}")
        except (OSError, _ClientGoneError):
            pass

    async def _request(self, client: Client) -> bytes:
        """Return the next line, which may end with the stream; b"" at its end. Raises OSError and TimeoutError."""
        received, due = client.received, self._loop.time() + SILENT_SECONDS
        while (end := received.find(b"\n")) < 0 and len(received) <= REQUEST_BYTES:
            async with asyncio.timeout_at(due):
                octets = await self._loop.sock_recv(client.sock, REQUEST_BYTES)
            if not octets:
                end = len(received)
                break
            if not received:
                due = self._loop.time() + SILENT_SECONDS
            received += octets
        if not 0 <= end <= REQUEST_BYTES:
            await self._send(client, _error(None, protocol.BAD_REQUEST, f"a request has {REQUEST_BYTES} bytes at most"))
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
            last = _error(number, refused.status, refused.text)
        except _ClientGoneError:
            raise
        except Exception:
            log.exception("the request %s failed", name, extra={"kind": name})
            last = _error(number, protocol.INTERNAL_ERROR, f"{name}: an error in the proxy; see its log")
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


def _error(number: Any, status: int, text: str) -> bytes:
    return line(id=number, error={"status": status, "text": text})
