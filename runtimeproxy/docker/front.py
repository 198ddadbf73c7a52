"""The Docker front: it pairs each client connection with one to dockerd and gives held calls to the lifecycle.

Invariant: the lifecycle runs each call. A client that closes ends its call only while that is held (relay-rules C2).
"""

import asyncio
import logging
import socket
from functools import partial

from runtimeproxy.core.call import MemoryBudget, Unreadable
from runtimeproxy.core.lifecycle import Lifecycle
from runtimeproxy.core.sync import Sync
from runtimeproxy.docker import exchange
from runtimeproxy.docker.backend import Backend
from runtimeproxy.docker.calls import BY_REFERENCE, CreateCall, DockerCall, DockerShared
from runtimeproxy.docker.exchange import Action, DockerHeld, MessageCaches, ReaderEvent, RefusedRequest, Route
from runtimeproxy.docker.reader import Reader
from runtimeproxy.docker.sync import EventFollower, Lookup
from runtimeproxy.errors import BackendError
from runtimeproxy.model import hookpoints
from runtimeproxy.model.fields import Subject
from runtimeproxy.model.hookpoints import BY_NAME, HOOK_POINTS, UNRECORDED, Operation
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.plugins.manager import Manager
from runtimeproxy.relay.connection import REQUEST_BYTES, Connection, Endpoint, ReadBuffer
from runtimeproxy.relay.dial import dial_now
from runtimeproxy.relay.drain import Drainable, Unfinished, answers_ended
from runtimeproxy.relay.front_base import FrontBase
from runtimeproxy.relay.hangups import Hangups
from runtimeproxy.wire import http1
from runtimeproxy.wire.http1 import BadMessage

log = logging.getLogger(__name__)

WAIT_SECONDS = 10.0
"""Seconds that such a client has to send its request's head and, after the answer, to close."""

_CALLS: dict[Action, type[DockerCall]] = {Action.CREATE: CreateCall, **BY_REFERENCE}


class DockerFront(FrontBase):
    def __init__(
        self,
        daemon_endpoint: str,
        lifecycle: Lifecycle,
        manager: Manager,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(daemon_endpoint, metrics, loop, lifecycle.running)
        self.lifecycle = lifecycle
        self.manager = manager
        self.budget = MemoryBudget()
        self.hangups = Hangups(loop)
        self._backend = Backend(daemon_endpoint)
        self._lookup = Lookup(self._backend, lifecycle.store)
        self._events = EventFollower(
            self._backend,
            lifecycle.store,
            metrics,
            on_removed=self._lookup.forget_plain,
            on_died=self._on_died,
            on_restarted=lifecycle.forget_stop,
            on_connected=self._read_info,
            on_missed=lambda: self.sync.soon(),
        )
        self.sync = Sync(self._lookup, lifecycle, metrics, on_dropped=self._events.forget_container)
        self.shared = DockerShared(
            budget=self.budget,
            caches=MessageCaches(counters=metrics.counters),
            kinds=_CALLS,
            intercepts=self.intercepts,
            admit_http2=self.admit_http2,
            backend=self._backend,
            lookup=self._lookup,
            events=self._events,
            metrics=metrics,
            passes_creates=self._passes_creates,
            has_pod_fail_policy=partial(manager.fail_policy_registered, BY_NAME["PreRunPodSandbox"]),
        )
        self._following: asyncio.Task[None] | None = None
        self.http2: set[DockerConnection] = set()
        """Connections that bypass the hook servers, since their client speaks HTTP/2 (relay-rules B4)."""
        manager.on_change = self._end_http2

    async def start(self) -> None:
        self._backend.load()
        self.sync.start()
        self._following = self.loop.create_task(self._events.run())

    async def _read_info(self) -> None:
        """Read GET /info after each connect, since a restarted daemon may have other settings. Raises BackendError."""
        try:
            await self._lookup.read_driver()
        except Unreadable as error:
            raise BackendError(f"GET /info: {error}") from None

    def paired(self, client: socket.socket, backend: socket.socket) -> "DockerConnection":
        return DockerConnection(self, client, backend)

    def unreachable(self, client: socket.socket) -> None:
        BadGateway(self.loop, client, self.connections)

    async def finish_answers(self, seconds: float, at_once: asyncio.Event) -> None:
        """Wait for answers and tunnels: an exec probe, a build or a pull ends by itself, and cannot be resumed."""
        await answers_ended(self.connections, seconds, at_once)

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self.sync.stop()
        self.hangups.close()
        await self._backend.close()

    def _on_died(self, container_id: str) -> None:
        if self.lifecycle.has_pending_end(container_id) and not self._lookup.is_plain(container_id):
            stored = self._lookup.stored(container_id)  # its record is dropped if it is removed with its end
            ended = self.lifecycle.ended(container_id, partial(self._read_ended, container_id, stored))
            self.add_task(self.loop.create_task(ended))

    async def _read_ended(self, container_id: str, stored: Subject | None) -> Subject | None:
        """Return a pod's container that has ended. None if it belongs to no pod, if its restart policy starts it again,
        or if the daemon does not answer: then its stop or remove notifies the hook servers."""
        try:
            subject = stored or await self._lookup.container(container_id)
            if subject is None or subject.container is None:
                return None
            life = await self._lookup.life(container_id)
            return subject if life is None or not life.running else None
        except (BackendError, Unreadable):
            pass
        except Exception as error:  # its text may hold values
            self.metrics.count("internal_errors", "events")
            log.error("internal error in following the daemon's events", exc_info=error)
        return None

    def _end_http2(self) -> None:
        if self.http2 and self._has_fail_policy():
            log.warning("connections that speak HTTP/2 are closed, as a plugin has policy Fail: %d", len(self.http2))
            for connection in tuple(self.http2):
                connection.close()

    def intercepts(self, route: Route) -> bool:
        """Hold a create, and a request on a stored subject or on one that may have hooks. A start or a stop is not held
        while no hook server is registered and no call waits."""
        if route.action is Action.CREATE:
            return True
        kind, reference = BY_REFERENCE[route.action], route.reference
        if kind.container_operation in UNRECORDED and self.lifecycle.start_and_stop_pass():
            return False
        stored = self._lookup.stored(reference)
        if stored is not None:
            return stored.container is not None or kind.pod_operation is not None
        return not self._lookup.is_plain(reference) and self.manager.registered(kind.lookup_hook_points)

    def _passes_creates(self) -> bool:
        hook_points = hookpoints.CONCERNED[Operation.CREATE_CONTAINER]  # include those of pods: containers get edits
        return not (self.manager.registered(hook_points) or self.lifecycle.store.changed_parents)

    def admit_http2(self) -> bool:
        """Count an HTTP/2 client; return whether it passes, that is, no plugin has policy Fail (relay-rules B4)."""
        self.metrics.count("http2_tunnels")
        passes = not self._has_fail_policy()
        consequence = "calls bypass the hook servers" if passes else "connection is closed, as a plugin has policy Fail"
        log.warning("a client speaks HTTP/2 to dockerd: its %s", consequence)
        return passes

    def _has_fail_policy(self) -> bool:
        return any(self.manager.fail_policy_registered(hook_point) for hook_point in HOOK_POINTS)

    def proceed(self, call: DockerHeld) -> None:
        """Start a call whose request is complete, or continue it once it has its reply."""
        if call.is_plain:
            call.answer()
        elif call.reply is not None or call.identify():
            self.lifecycle.proceed(call)
        else:
            counters = self.metrics.counters
            counters[exchange.CREATE_SERIES] = counters.get(exchange.CREATE_SERIES, 0) + 1


class DockerConnection(Connection):
    bulk = True

    def __init__(self, front: DockerFront, client: socket.socket, backend: socket.socket) -> None:
        self._front = front
        self._finished = False
        self._client_shut = False
        self._eof_from_drain = False
        """True once an EOF was read that ``drain`` caused, after complete requests."""
        reader = self.reader = Reader(front.shared, self.wake, self._redial)
        self.client_bytes, self.backend_bytes = reader.client_bytes, reader.daemon_bytes
        self.client_passes, self.backend_passes = reader.client_passes, reader.backend_passes
        outputs = reader.to_client, reader.to_daemon
        super().__init__(front.loop, client, backend, front.buffer, outputs, reader.ready, front.hangups)

    def act(self, event: object) -> None:
        match event:
            case DockerHeld():
                self._front.proceed(event)
            case RefusedRequest(status, reason):
                self._front.metrics.count("requests_refused")
                log.warning("a request was answered %d: %s", status, reason)
            case ReaderEvent.PAUSE | ReaderEvent.RESUME:
                self.pause_client(event is ReaderEvent.PAUSE)
            case ReaderEvent.PASS_CLIENT_EOF if not self._eof_from_drain:
                self.pass_client_eof()
            case ReaderEvent.FINISH:
                self._finished = True
                self.finish_client()
                self.linger()
            case ReaderEvent.TUNNEL_HTTP2:
                self._front.http2.add(self)

    def client_eof(self) -> bool:
        """Return True if the EOF must wait for a held call. An EOF that ``drain`` caused is never passed on: a daemon
        may end the calls of a client that has sent EOF."""
        self._eof_from_drain = self._client_shut and self.reader.between_requests
        waits = self.reader.client_ended()
        self.act_on_ready()
        return waits or self._eof_from_drain

    def client_closed(self) -> None:
        self.reader.stop()
        self.act_on_ready()

    def backend_eof(self) -> bool:
        """Return True while a tunnel, a held call or an unsent answer remains (relay-rules B9, C5)."""
        if self.reader.tunnel:
            self.half_close()
            return True
        stays_open = self.reader.daemon_ended()
        self.act_on_ready()
        return stays_open or self._finished

    def on_closed(self) -> None:
        self.client_closed()
        self._front.connections.discard(self)
        self._front.http2.discard(self)

    def _redial(self) -> bool:
        try:
            backend = dial_now(self._front.backend_endpoint)
        except OSError as error:
            self._front.report_unavailable(error)
            return False
        if backend is None:
            return False
        self._front.report_reached()
        self.replace_backend(backend)
        return True

    def part(self) -> None:
        self.client_closed()
        super().part()

    def drain(self, refusing: bool) -> None:
        """Accept no more requests once the client is between requests, and part when all are answered. A client that
        has sent no request yet may still do so until ``refusing``."""
        if not self._client_shut and self.reader.between_requests and (refusing or self.reader.requests.has_started):
            self._client_shut = True
            self.shut_client()
        if self._client_shut and not self.unfinished():
            self.part()

    def unfinished(self) -> Unfinished:
        """Also count requests that unread bytes may contain, and bytes that wait for a slow client as an answer."""
        if self._parted:
            return Unfinished()
        calls, answers, streams = self.reader.unfinished()
        unread = self._client_shut and not self.client_ended
        return Unfinished(calls or int(unread), answers or int(not self.delivered), streams)


class BadGateway:
    """Answers a client's first request with 502 while dockerd is not reachable (docs/docker-mode.rst, "Wire rules").
    Nothing is sent before a request has come: HTTP clients discard an answer to no request."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: socket.socket, connections: set[Drainable]) -> None:
        self._head = bytearray()
        self._answered = False
        self._shut = False
        self._client = client
        self._connections = connections
        connections.add(self)
        self._endpoint = Endpoint(loop, client, self, ReadBuffer(REQUEST_BYTES))
        self._timer = loop.call_later(WAIT_SECONDS, self.close)
        self._endpoint.resume()

    def received(self, endpoint: Endpoint, data: bytes) -> None:
        if self._answered:
            return
        seen = len(self._head)
        self._head += data
        try:
            end = http1.head_end(self._head, 0, seen)
            if not end:
                return
            method = http1.request_head(bytes(self._head[:end])).method
            answer = http1.response(502, f"runtimeproxy: {exchange.DAEMON_UNAVAILABLE}", close=True, method=method)
        except BadMessage as error:
            answer = http1.response(error.status, f"runtimeproxy: {error}", close=True)
        self._answered = True
        endpoint.write(answer)
        endpoint.finish()

    def ended(self, endpoint: Endpoint) -> None:
        self.close()

    def drained(self, endpoint: Endpoint) -> None:
        """Do nothing: the answer is short."""

    def drain(self, refusing: bool) -> None:
        """With ``refusing``, stop reading from a client that has begun no request; sent bytes are still read."""
        if refusing and not self._head and not self._shut:
            self._shut = True
            self._client.shutdown(socket.SHUT_RD)

    def unfinished(self) -> Unfinished:
        """Return one call while an unanswered request has begun or may be among unread bytes."""
        return Unfinished(calls=int(not self._answered and (self._shut or bool(self._head))))

    def part(self) -> None:
        self._endpoint.finish()

    def close(self) -> None:
        self._timer.cancel()
        self._connections.discard(self)
        self._endpoint.close()
