"""Serve the control protocol on the admin and the metrics socket (docs/control-protocol.rst).

Invariant: an iteration of the event loop reads one request or makes one part of an answer, however many clients wait.
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
"""Most open connections of a socket; further ones wait in its backlog."""
SILENT_SECONDS = 10.0
"""Time limit of a connection without a pending request, of a request from its first to its last byte, and of a client
that does not read."""
REQUEST_SECONDS = 0.1
"""How long a connection without a request stays open while the limit is reached."""
PAUSE_SECONDS = 0.5

POLL_SECONDS = 0.25
"""How long an answer without a new part waits."""

Query = Callable[[Mapping[str, Any]], Iterator[Part | bytes | None] | AsyncIterator[Part]]
"""Makes the parts of an answer, each in less than 2 ms: an object or its JSON, b"" for an empty part, None to wait for
POLL_SECONDS. Raises Refused."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the protocol: ``parameters`` has the check of each parameter, which raises ValueError. ``public``
    methods are served on the metrics socket too; ``signed`` ones receive the client's identity as the parameter
    ``by``."""

    query: Query
    parameters: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    public: bool = False
    signed: bool = False

    def check_params(self, name: str, given: Any) -> dict[str, Any]:
        """Return the parameters of a request. Raises Refused, without the request's values."""
        if not isinstance(given, dict):
            raise Refused(protocol.BAD_REQUEST, f"{name}: params is not a JSON object")
        accepted = f"{name} takes {', '.join(self.parameters) or 'no parameters'}"
        if given.keys() - self.parameters.keys():
            raise Refused(protocol.BAD_REQUEST, f"unknown parameter: {accepted}")
        if missing := [parameter for parameter in self.required if parameter not in given]:
            raise Refused(protocol.BAD_REQUEST, f"{missing[0]} is missing: {accepted}")
        values = {}
        for parameter, value in given.items():
            try:
                values[parameter] = self.parameters[parameter](value)
            except ValueError as error:
                raise Refused(protocol.BAD_REQUEST, f"{parameter} {error}") from None
        return values


@dataclass(eq=False, slots=True)
class Client:
    """One connection; its first complete request sets ``requested``."""

    sock: socket.socket
    since: float
    received: bytearray = field(default_factory=bytearray)
    requested: bool = False
    task: "asyncio.Task[None] | None" = None


class _ClientClosedError(Exception):
    """The client closed the connection, or does not read."""


class Server:
    """Serves methods on a listening socket. A private one serves all methods, but only to root and this process's own
    user; a public one serves the public methods to any client."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        methods: Mapping[str, Method],
        part_lock: asyncio.Lock,
        *,
        private: bool,
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._methods = methods if private else {name: method for name, method in methods.items() if method.public}
        self._part_lock = part_lock
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
        """Accept a connection; pause at the limit of connections or descriptors."""
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
        """Resume accepting. While the limit is reached, close connections without a request."""
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
        except (OSError, _ClientClosedError):
            pass

    async def _request(self, client: Client) -> bytes:
        """Return the next line, b"" at the end of the stream; the last one needs no line feed. Raises OSError and
        TimeoutError."""
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
            async with self._part_lock:  # a client may send thousands of wrong requests at one time
                await asyncio.sleep(0)
                number, name, params = _read(request)
                method = self._methods.get(name)
                if method is None:
                    raise Refused(protocol.NOT_FOUND, f"no such method; there are {', '.join(self._methods)}")
                parts = method.query(method.check_params(name, params) | ({"by": by} if method.signed else {}))
            if isinstance(parts, Iterator):
                await self._send_parts(client, number, parts)
            else:
                async for part in parts:
                    await self._send(client, part_line(number, part))
            last = line(id=number, end={"schemaVersion": SCHEMA_VERSION})
        except Refused as refused:
            last = _error(number, refused.status, refused.text)
        except _ClientClosedError:
            raise
        except Exception:
            log.exception("the request %s failed", name, extra={"kind": name})
            last = _error(number, protocol.INTERNAL_ERROR, f"{name}: an error in the proxy; see its log")
        await self._send(client, last)

    async def _send_parts(self, client: Client, number: Any, parts: Iterator[Part | bytes | None]) -> None:
        """Make and send the parts, each in an iteration of the loop without another part."""
        while True:
            async with self._part_lock:
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
                raise _ClientClosedError
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
            raise _ClientClosedError from None


def _read(request: bytes) -> tuple[Any, str, Any]:
    """Return id, method and parameters of a request. Raises Refused."""
    try:
        message = json.loads(request, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict) or not isinstance(message.get("method"), str):
        raise Refused(protocol.BAD_REQUEST, 'a request is a line like {"id": 1, "method": "hooks", "params": {}}')
    number = message.get("id")
    return number if isinstance(number, int | str) else None, message["method"], message.get("params", {})


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(members)
    if len(values) < len(members):
        raise ValueError("a name is there twice")
    return values


def _error(number: Any, status: int, text: str) -> bytes:
    return line(id=number, error={"status": status, "text": text})
