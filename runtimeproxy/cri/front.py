"""The CRI front: it pairs each client connection with one to the runtime and gives held calls to the lifecycle.

A client that closes its connection ends a call only while that is held (relay-rules C2).
"""

import asyncio
import logging
import socket

from runtimeproxy.core.call import MemoryBudget
from runtimeproxy.core.lifecycle import Lifecycle
from runtimeproxy.core.sync import Sync
from runtimeproxy.cri import bounds
from runtimeproxy.cri.backend import Backend, CriState
from runtimeproxy.cri.bounds import IMAGE_BYTES, OVERHEAD_BYTES, Excess, classify
from runtimeproxy.cri.calls import KINDS, CriShared
from runtimeproxy.cri.frame_relay import ALIVE_SECONDS
from runtimeproxy.cri.image import ImageLink
from runtimeproxy.cri.reader import CriHeld, NotHttp2, Reader
from runtimeproxy.errors import HookError, Reason, WireError
from runtimeproxy.model.hookpoints import BY_NAME, HOOK_POINTS
from runtimeproxy.observe.events import About, EventKind
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.plugins.manager import Manager
from runtimeproxy.plugins.registration import FailurePolicy
from runtimeproxy.relay.connection import Connection, Endpoint
from runtimeproxy.relay.dial import describe_error, dial
from runtimeproxy.relay.drain import Unfinished
from runtimeproxy.relay.eventloop import batch
from runtimeproxy.relay.front_base import DIAL_SECONDS, FrontBase
from runtimeproxy.wire import http2

log = logging.getLogger(__name__)

ACK_SECONDS = 0.02
"""Seconds for which ACKs of PINGs wait for other frames; a peer that measures the round trip sees a longer one."""
RESTORE = About("RestorePod")
NO_HTTP2 = "the client does not speak HTTP/2, and the runtime does not serve CRI: is --backend-runtime-mode right?"


class CriFront(FrontBase):
    def __init__(
        self,
        runtime_endpoint: str,
        image_endpoint: str,
        lifecycle: Lifecycle,
        manager: Manager,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(runtime_endpoint, metrics, loop, lifecycle.running)
        self.image_endpoint = image_endpoint
        self.lifecycle = lifecycle
        self.manager = manager
        self.backend = Backend(runtime_endpoint)
        self.sync = Sync(CriState(self.backend, lifecycle.store), lifecycle, metrics)
        self.budget = MemoryBudget()
        self.shared = CriShared(
            budget=self.budget,
            clock=loop.time,
            counters=metrics.counters,
            kinds=KINDS,
            separate_image=image_endpoint != runtime_endpoint,
            start_and_stop_pass=lifecycle.start_and_stop_pass,
            passes_ambiguous=self.passes_ambiguous,
            restore_refusal=self.restore_refusal,
            backend=self.backend,
            metrics=metrics,
        )

    async def start(self) -> None:
        self.sync.start()
        self.sync.soon()

    def paired(self, client: socket.socket, backend: socket.socket) -> "CriConnection":
        return CriConnection(self, client, backend)

    def unreachable(self, client: socket.socket) -> None:
        client.close()  # its gRPC library reconnects with its own backoff

    async def finish_answers(self, seconds: float, at_once: asyncio.Event) -> None:
        """Return immediately: streams are endless container events, as exec, attach and port-forward bypass the
        proxy."""

    async def close(self) -> None:
        await self.sync.stop()
        await self.backend.close()

    def passes_ambiguous(self) -> bool:
        """Count a request without exactly one :path. Return whether it passes, that is, no plugin has policy Fail."""
        self.metrics.count("requests_ambiguous")
        return not any(self.manager.fail_policy_registered(hook_point) for hook_point in HOOK_POINTS)

    def restore_refusal(self) -> str:
        """Record a RestorePod, which calls no hook server; return why it is refused, "" if it passes. It is refused if
        a hook server with policy Fail is registered for the create of pods or containers."""
        metrics = self.metrics
        for hook_point in (BY_NAME["PreRunPodSandbox"], BY_NAME["PreCreateContainer"]):
            for plugin in self.manager.plugins_for(hook_point):
                if plugin.policy is FailurePolicy.FAIL:
                    detail = "RestorePod would start a pod without calling it"
                    error = HookError(plugin.name, hook_point.name, Reason.UNHOOKED, detail)
                    name, hook, reason = plugin.name, hook_point.name, error.reason.value
                    metrics.count("hook_fail_closed", name, hook, reason)
                    metrics.events.add(EventKind.REFUSED, RESTORE, hook_server=name, hook=hook, reason=reason)
                    log.warning("%s (policy %s)", error.logged, plugin.policy.value)
                    return f"runtimeproxy: RestorePod refused: {error}"
        metrics.events.add(EventKind.UNHOOKED, RESTORE, text="passed without hooks")
        if self.lifecycle.hooked:
            log.warning("RestorePod passed without hooks: hook servers are not called for the create of its containers")
        return ""


class CriConnection(Connection):
    """A client's connection to the runtime, with its connections to the image service."""

    def __init__(self, front: CriFront, client: socket.socket, backend: socket.socket) -> None:
        self.front = front
        self.images: set[ImageConnection] = set()
        self._runtime_closed = False
        self._is_lingering = False
        self._piped = False
        self._unread_bytes = 0
        """Bytes of answers to the client's own frames while it reads nothing."""
        self._acks: asyncio.TimerHandle | None = None
        self.reader = Reader(front.shared, self.wake)
        to_client, to_runtime = self._senders = self.reader.to_client, self.reader.to_runtime
        super().__init__(front.loop, client, backend, front.buffer, (to_client.out, to_runtime.out), self.reader.ready)

    def client_bytes(self, data: bytes) -> None:
        output = self.reader.to_client.out
        before = len(output)  # bytes of the runtime may still be queued
        try:
            self.reader.from_client.feed(data)
            self._send_acks_along()
            if len(output) > before:  # DATA do not count: the client's credit bounds them
                length = sum(len(frames) for frames in output[before:] if frames[http2.TYPE_AT] != http2.DATA)
                if length:
                    self._unread_bytes = 0 if self.delivered else self._unread_bytes + length + OVERHEAD_BYTES
                    if self._unread_bytes > bounds.UNREAD_BYTES:
                        raise Excess("unread", "it does not read the answers to its own frames")
            for image in self.images:
                image.check()
        except WireError as error:
            self._close_broken(error, "client")
        for image in self.images:
            image.write()
        if self._runtime_closed:  # the client gave credit for a queued answer, or ended its call
            self.front.loop.call_soon(self.wake)

    def backend_bytes(self, data: bytes) -> None:
        try:
            self.reader.from_runtime.feed(data)
            self._send_acks_along()
        except WireError as error:
            self._close_broken(error, "runtime", data)
        for image in self.images:  # an image answer may have waited for the end of a runtime's frame
            image.write()

    def _close_broken(self, error: WireError, side: str, data: bytes = b"") -> None:
        """Count and log a peer's protocol error, send that peer GOAWAY, and close both connections of the pair."""
        kind, code = classify(error)
        self.front.metrics.count("connections_broken", side, kind)
        text = f"{error}; it speaks HTTP/1: is --backend-runtime-mode right?" if data.startswith(b"HTTP/1.") else error
        log.warning("connection closed: the %s broke the protocol: %s", side, text, extra={"kind": (side, kind)})
        self.reader.send_goaway(side == "client", code, str(error))
        self.flush()
        self.close()

    def client_eof(self) -> bool:
        """End the calls that are not yet released, and pass the EOF on."""
        self.reader.client_closed()
        self.act_on_ready()
        return False

    def backend_eof(self) -> bool:
        """Keep the client's connection open while answers wait for Post hooks or for its credit (relay-rules C5). Its
        other calls end, and new streams are refused, so that the client opens another connection."""
        if self._piped:
            return False
        reader = self.reader
        waits = reader.has_waiting_answers
        if not self.client_ended:  # the runtime closed first: its state may change meanwhile
            self.front.sync.soon()
            waits = waits or reader.to_client.congested
        self._runtime_closed = waits and not reader.to_client.cut_through  # nothing may follow half a frame
        if self._runtime_closed:
            reader.fail_open_calls()
            reader.drain(refusing=True)
        reader.runtime_closed()
        self.act_on_ready()
        if self._runtime_closed:
            self.wake()
        return self._runtime_closed

    def on_closed(self) -> None:
        """Forget the connection. Calls that the runtime has answered still complete."""
        if self._acks is not None:
            self._acks.cancel()
        self.reader.runtime_closed()
        self.act_on_ready()
        self.reader.closed()
        for image in list(self.images):
            image.close()
        self.front.connections.discard(self)

    def drain(self, refusing: bool) -> None:
        """Send GOAWAY (relay-rules A11); with ``refusing`` part if no stream is open."""
        if self._parted or self._piped:
            return
        self.reader.drain(refusing)
        self.wake()
        if refusing and not self.unfinished():
            self.part()

    def unfinished(self) -> Unfinished:
        """Count the open streams. A pipe, or bytes that wait for the client, count as an answer that has begun."""
        if self._piped and not self._parted:
            return Unfinished(answers=1)
        if self._parted or self.client_ended:
            return Unfinished()
        calls, answers, streams = self.reader.unfinished()
        calls += sum(len(image.link.streams) for image in self.images)
        return Unfinished(calls, answers or int(not self.delivered), streams)

    def part(self) -> None:
        """Half-close toward the client after the last GOAWAY: the client closes once it has read that."""
        if not self._parted and not self._piped:
            self.reader.drain(refusing=True)
        super().part()

    def act(self, event: object) -> None:
        match event:
            case CriHeld():
                self.front.lifecycle.proceed(event)
            case ImageLink():
                image = ImageConnection(self, event)
                self.images.add(image)
                image.write()
                self.front.add_task(self.front.loop.create_task(image.dial()))
            case NotHttp2(data):  # stop reading until it is known whether the bytes may pass (relay-rules A14)
                self._piped = True
                self.pause_client(True)
                self.front.add_task(self.front.loop.create_task(self._pipe(data)))

    async def _pipe(self, data: bytes) -> None:
        """Pipe the client only to a runtime that serves CRI: dockerd would create containers without hooks."""
        if not await self.front.backend.serves_cri():
            self._close_broken(Excess("preface", NO_HTTP2, http2.PROTOCOL_ERROR), "client")
            return
        self.front.metrics.count("connections_piped")
        self.reader.pipe(data)
        self.pause_client(False)
        self.flush()

    def wake(self) -> None:
        """Write pending output; during a read, after the read and the last call that it made ready."""
        if self._reading or batch.defers(self.wake):
            return
        self._send_acks_along()
        self.flush()
        for image in self.images:
            image.write()
        if self._runtime_closed and not self.reader.has_waiting_answers:  # the last answer has been sent
            if not self._is_lingering:  # this also limits the wait for a client that gives no credit
                self._is_lingering = True
                self.linger()
            if not self.reader.to_client.congested:
                self.part()

    def _send_acks_along(self) -> None:
        """Send ACKs of PINGs together with other frames; without other frames the ACKs wait for up to ACK_SECONDS."""
        for sender in self._senders:
            if sender.acks and sender.out:
                sender.acknowledge()
            if sender.acks and self._acks is None:
                self._acks = self.front.loop.call_later(ACK_SECONDS, self._acknowledge)

    def _acknowledge(self) -> None:
        """Send the waiting ACKs; those for a side that reads slowly are retried after ALIVE_SECONDS."""
        self._acks = None
        for sender, slow in zip(self._senders, self.slow, strict=True):
            if not slow:
                sender.acknowledge()
        self.flush()
        if any(sender.acks for sender in self._senders):
            self._acks = self.front.loop.call_later(ALIVE_SECONDS, self._acknowledge)


class ImageConnection:
    """The transport of one link to the image endpoint."""

    def __init__(self, connection: CriConnection, link: ImageLink) -> None:
        self._connection = connection
        self.link = link
        self._endpoint: Endpoint | None = None
        self._queued: list[bytes] = []
        self._queued_bytes = 0
        self._closed = False

    async def dial(self) -> None:
        """Connect, waiting while the service's backlog is full."""
        front = self._connection.front
        try:
            sock = await dial(front.image_endpoint, DIAL_SECONDS)
        except OSError as error:
            front.metrics.count("image_dial_failures")
            text = "image endpoint %s is not reachable (%s): its calls get UNAVAILABLE"
            log.warning(text, front.image_endpoint, describe_error(error))
            self._end()
            return
        if self._closed:
            sock.close()  # the client has closed its connection
            return
        self._endpoint = Endpoint(front.loop, sock, self, front.buffer)
        self._connection.attach(self._endpoint)
        self._endpoint.write(b"".join(self._queued))
        self._queued.clear()

    def write(self) -> None:
        out = self.link.sender.out
        if not out:
            return
        frames = b"".join(out)
        out.clear()
        if self._endpoint is None:
            self._queued.append(frames)
            self._queued_bytes += len(frames) + OVERHEAD_BYTES
        else:
            self._endpoint.write(frames)

    def check(self) -> None:
        """Raise Excess if too many bytes are queued: flow control limits only DATA, not headers and resets."""
        retained = self._queued_bytes if self._endpoint is None else self._endpoint.retained_bytes
        if self.link.sender.overfull or retained > IMAGE_BYTES:
            raise Excess("image_queue", "too much waits for the image service")

    def received(self, endpoint: Endpoint, data: bytes) -> None:
        try:
            self.link.receive(data)
        except WireError as error:
            self._connection.front.metrics.count("connections_broken", "image", classify(error)[0])
            log.warning("image connection closed: the image service broke the protocol: %s", error)
            self._end()
            return
        self._connection.wake()
        if endpoint.slow:
            endpoint.pause()  # it does not read the answers to its own frames

    def ended(self, endpoint: Endpoint) -> None:
        self._end()

    def drained(self, endpoint: Endpoint) -> None:
        self._connection.resume_attached(endpoint)

    def _end(self) -> None:
        self.link.close()
        self.close()
        self._connection.wake()

    def close(self) -> None:
        self._closed = True
        self._connection.images.discard(self)
        if self._endpoint is not None:
            self._endpoint.close()
            self._connection.detach(self._endpoint)
            self._endpoint = None
