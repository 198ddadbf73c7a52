"""The base of all fronts: pair each accepted client with a new connection to the backend.

Invariant: a client is paired, refused without a backend, or closed; nothing waits for another client's dial.
"""

import asyncio
import errno
import logging
import socket
from abc import ABC, abstractmethod

from runtimeproxy.observe.events import EventKind
from runtimeproxy.observe.logs import UNLIMITED
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.relay.connection import ReadBuffer
from runtimeproxy.relay.dial import SCARCE, SCARCE_RETRY_SECONDS, describe_error, dial, dial_now
from runtimeproxy.relay.drain import Drain, Drainable, Unfinished, total

log = logging.getLogger(__name__)

DIAL_SECONDS = 5.0
"""Seconds to wait while the runtime's backlog is full: the connect timeout of the kubelet's client."""
CANCEL_SECONDS = 1.0
"""Seconds that cancelled tasks have to end."""


class FrontBase(ABC):
    """The connections of a front."""

    def __init__(
        self,
        backend_endpoint: str,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
        calls: set[asyncio.Future[None]],
    ) -> None:
        self.backend_endpoint = backend_endpoint
        self.metrics = metrics
        self.loop = loop
        self.connections: set[Drainable] = set()
        self.buffer = ReadBuffer()
        """The read buffer of all connections: they share one event loop."""
        self.tasks = calls
        """The calls, and tasks added by ``add_task``: they end before the front does."""
        self._reported_unavailable = False

    @abstractmethod
    def paired(self, client: socket.socket, backend: socket.socket) -> Drainable:
        """Called with a client and its backend: make and return the connection of both."""

    @abstractmethod
    def unreachable(self, client: socket.socket) -> None:
        """Called with a client whose backend is unavailable: answer or close it."""

    def inspect(self) -> None:
        """Log if nothing listens at the backend's path, before any client connects: the path may be wrong. A full
        backlog and a shortage in the proxy are not logged here: ``dial`` waits for their end.
        """
        try:
            backend = dial_now(self.backend_endpoint)
        except OSError as error:
            if error.errno not in SCARCE:
                self.report_unavailable(error)
        else:
            if backend is not None:
                backend.close()

    def backend_fault(self) -> str:
        """Return why the backend accepts no connection now; "" if it does, or if the proxy itself lacks a resource."""
        try:
            backend = dial_now(self.backend_endpoint)
        except OSError as error:
            return "" if error.errno in SCARCE else f"{self.backend_endpoint}: {describe_error(error)}"
        if backend is None:
            return f"{self.backend_endpoint}: its backlog is full"
        backend.close()
        return ""

    def accept(self, client: socket.socket) -> None:
        """Dial the backend immediately for a client that was accepted (relay-rules A12)."""
        try:
            backend = dial_now(self.backend_endpoint)
        except OSError as error:
            if error.errno not in SCARCE:
                self.unavailable(client, error)
                return
            backend = None
        if backend is None:
            self.connections.add(_Unpaired(self, client))
        else:
            self.pair(client, backend)

    async def dial(self) -> socket.socket:
        """Connect to the backend, for DIAL_SECONDS at most. It waits while the backend's backlog is full or the proxy
        lacks a descriptor. Raises OSError; TimeoutError only if the backend does not accept.
        """
        lacking = ""
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                while True:
                    try:
                        return await dial(self.backend_endpoint, DIAL_SECONDS)
                    except OSError as error:
                        if error.errno not in SCARCE:
                            raise
                        lacking = str(error.strerror)
                    await asyncio.sleep(SCARCE_RETRY_SECONDS)
        except TimeoutError:
            if lacking:
                raise OSError(errno.EMFILE, lacking) from None
            raise

    def unavailable(self, client: socket.socket, error: OSError) -> None:
        """Log that the backend is unavailable, and end the client."""
        self.report_unavailable(error)
        self.unreachable(client)

    def report_unavailable(self, error: OSError) -> None:
        """Count and log that the backend cannot be reached."""
        self._reported_unavailable = True
        self.metrics.count("backend_dial_failures")
        if error.errno not in SCARCE:
            self.metrics.events.runtime_lost("clients", "unreachable", describe_error(error))
        log.warning(
            "container runtime at %s is not reachable (%s): check --remote-runtime-service-endpoint and the runtime",
            self.backend_endpoint,
            describe_error(error),
        )

    def report_reached(self) -> None:
        """Log that the backend can be reached again, if it was logged as not reachable."""
        if self._reported_unavailable:
            self._reported_unavailable = False
            self.metrics.events.runtime_back("clients")
            log.info("container runtime at %s is reachable again", self.backend_endpoint, extra=UNLIMITED)

    def pair(self, client: socket.socket, backend: socket.socket) -> None:
        """Make a connection of a client and its backend."""
        self.report_reached()
        self.metrics.count("connections")
        self.connections.add(self.paired(client, backend))

    def add_task(self, task: asyncio.Future[None]) -> None:
        """Let the drain wait for a task."""
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def unfinished(self) -> Unfinished:
        """Return the unfinished work of all clients."""
        return total(connection.unfinished() for connection in self.connections)

    async def drain(self, seconds: float, at_once: asyncio.Event | None = None) -> None:
        """Finish the calls in progress, for ``seconds`` at most and until ``at_once``, then close every connection."""
        self.metrics.events.add(EventKind.DRAIN, reason="begun")
        end_reason = await Drain(self.connections, self.tasks).run(seconds, at_once or asyncio.Event())
        self.metrics.events.add(EventKind.DRAIN, reason="ended", text=end_reason)
        for connection in tuple(self.connections):
            connection.close()
        unfinished = tuple(self.tasks)
        if unfinished:
            for task in unfinished:
                task.cancel()
            await asyncio.wait(unfinished, timeout=CANCEL_SECONDS)


class _Unpaired:
    """A client whose backend is being dialled; its requests wait in the socket."""

    def __init__(self, front: FrontBase, client: socket.socket) -> None:
        self._front = front
        self._client = client
        self._shut = False
        self._dialling = front.loop.create_task(self._dial())

    async def _dial(self) -> None:
        try:
            backend = await self._front.dial()
        except OSError as error:
            self._front.connections.discard(self)
            self._front.unavailable(self._client, error)
        else:
            self._front.connections.discard(self)
            self._front.pair(self._client, backend)

    def _has_requested(self) -> bool:
        """Return whether the client has sent bytes, which count as part of a request."""
        try:
            return bool(self._client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    def drain(self, refusing: bool) -> None:
        """If ``refusing``, stop reading from a client that has sent nothing: later requests fail with EPIPE."""
        if refusing and not self._shut and not self._has_requested():
            self._shut = True
            self._client.shutdown(socket.SHUT_RD)

    def unfinished(self) -> Unfinished:
        """Return one call if the client has sent anything: dialling ends in time, with an answer or a refusal."""
        return Unfinished(calls=int(self._has_requested()))

    def part(self) -> None:
        """Close: nothing was sent to the client."""
        self.close()

    def close(self) -> None:
        """Stop dialling and close the client."""
        self._front.connections.discard(self)
        self._dialling.cancel()
        self._client.close()
