"""A fake CRI runtime on a unix socket: runtime.v1 and runtime.v1alpha2, and an echo for every unknown service.

Messages are handled as raw bytes; requests are recorded as they came.

Run alone: ``python -m tests.fakes.runtime --socket PATH``.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import uvloop

from tests.fakes import cri_pb2
from tests.fakes.runtime_state import Refused, RuntimeState
from tests.fakes.server import Server, grpc_server, stay

API_VERSIONS = {"runtime.v1": "v1", "runtime.v1alpha2": "v1alpha2"}
SERVICES = ("RuntimeService", "ImageService")
Metadata = tuple[tuple[str, str | bytes], ...]
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(slots=True)
class Received:
    """One request as it came; ``deadline_seconds`` is the rest of the caller's deadline, None if it gave none."""

    path: str
    message: bytes
    metadata: Metadata
    deadline_seconds: float | None
    at: float
    """Time of ``time.monotonic``, in seconds."""
    cancelled: bool = False
    """The caller went away, or its deadline passed, before the answer."""

    @property
    def method(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(slots=True)
class Injection:
    """The faults of a method's calls, in this order: a delay, a closed gate, an error status.

    ``times`` calls are affected; None means all.
    """

    delay_seconds: float = 0.0
    code: grpc.StatusCode | None = None
    details: str = ""
    times: int | None = None
    gate: asyncio.Event | None = None


class FakeRuntime(Server):
    """The server; ``state`` may be given to a later server on the same socket, as after a restart of the runtime.

    ``keep_received`` bounds the record of requests (None keeps all); ``counts`` counts them by path, without bound.
    """

    def __init__(self, socket_path: str, state: RuntimeState | None = None, keep_received: int | None = None) -> None:
        self.socket_path = socket_path
        self.state = state or RuntimeState()
        self.received: deque[Received] = deque(maxlen=keep_received)
        self.counts: Counter[str] = Counter()
        self.injections: dict[str, Injection] = {}
        self.streamed: list[bytes] = []
        """The messages of each answer to a streamed list."""
        self._subscribers: set[asyncio.Queue[cri_pb2.ContainerEventResponse]] = set()
        self._subscribed = asyncio.Condition()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = await grpc_server(self.socket_path, _Handlers(self))

    async def stop(self) -> None:
        """Stop listening and cancel the calls in flight."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def requests(self, method: str) -> list[Received]:
        """Return the requests received for a method, named with or without its service."""
        return [received for received in self.received if method in (received.method, received.path)]

    def inject(self, method: str, injection: Injection) -> None:
        """Make a method's calls go wrong from now on, in place of what was injected before."""
        self.injections[method] = injection

    # ---- events

    async def wait_for_subscriber(self) -> None:
        async with self._subscribed:
            await self._subscribed.wait_for(lambda: self._subscribers)

    def send_event(self, container_id: str, kind: cri_pb2.ContainerEventType = cri_pb2.CONTAINER_STARTED_EVENT) -> None:
        """Send an event to every open stream; its created_at is the present time (``time.time_ns``)."""
        event = cri_pb2.ContainerEventResponse(container_id=container_id, container_event_type=kind)
        event.created_at = time.time_ns()
        for subscriber in self._subscribers:
            subscriber.put_nowait(event)

    async def stream_events(self, received: Received, context: Context) -> AsyncIterator[bytes]:
        subscriber: asyncio.Queue[cri_pb2.ContainerEventResponse] = asyncio.Queue()
        async with self._subscribed:
            self._subscribers.add(subscriber)
            self._subscribed.notify_all()
        try:
            # The headers at once: a client may wait for them before it reads.
            await context.send_initial_metadata(())
            while True:
                yield (await subscriber.get()).SerializeToString()
        finally:
            received.cancelled = True
            self._subscribers.discard(subscriber)

    # ---- calls

    def record(self, path: str, message: bytes, context: Context) -> Received:
        metadata = tuple((key, value) for key, value in context.invocation_metadata() or ())
        received = Received(path, message, metadata, context.time_remaining(), time.monotonic())
        self.received.append(received)
        self.counts[path] += 1
        return received

    async def answer(self, received: Received, context: Context) -> bytes:
        """Answer one unary call of a known method, or what was injected in its place."""
        package, _, _ = received.path[1:].rpartition("/")[0].rpartition(".")
        try:
            await self.go_wrong(received, context)
            return self.state.answer(API_VERSIONS[package], received.method, received.message)
        except Refused as refused:
            await context.abort(refused.code, refused.details)
        except asyncio.CancelledError:
            received.cancelled = True
            self.state.left(received.method, received.message)
            raise

    async def go_wrong(self, received: Received, context: Context) -> None:
        """Do what was injected for the call's method, if anything."""
        injection = self.injections.get(received.path) or self.injections.get(received.method)
        if injection is None or injection.times == 0:
            return
        if injection.times is not None:
            injection.times -= 1
        await asyncio.sleep(injection.delay_seconds)
        if injection.gate is not None:
            await injection.gate.wait()
        if injection.code is not None:
            await context.abort(injection.code, injection.details)


class _Handlers(grpc.GenericRpcHandler):
    """Returns the handler of a path: a known method, the event stream, else the echo."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self._runtime = runtime

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        path = details.method
        service, _, method = path[1:].rpartition("/")
        package, _, name = service.rpartition(".")
        if package not in API_VERSIONS or name not in SERVICES:
            return grpc.stream_stream_rpc_method_handler(self._echo(path))
        if method == "GetContainerEvents":
            return grpc.unary_stream_rpc_method_handler(self._events(path))
        if method.startswith("Stream"):
            return grpc.unary_stream_rpc_method_handler(self._streamed(path))
        if self._runtime.state.knows(method):
            return grpc.unary_unary_rpc_method_handler(self._unary(path))
        return grpc.stream_stream_rpc_method_handler(self._echo(path))

    def _unary(self, path: str) -> Any:
        async def unary(message: bytes, context: Context) -> bytes:
            return await self._runtime.answer(self._runtime.record(path, message, context), context)

        return unary

    def _events(self, path: str) -> Any:
        async def events(message: bytes, context: Context) -> AsyncIterator[bytes]:
            received = self._runtime.record(path, message, context)
            await self._runtime.go_wrong(received, context)
            async for event in self._runtime.stream_events(received, context):
                yield event

        return events

    def _streamed(self, path: str) -> Any:
        async def streamed(message: bytes, context: Context) -> AsyncIterator[bytes]:
            await self._runtime.go_wrong(self._runtime.record(path, message, context), context)
            for part in self._runtime.streamed:
                yield part

        return streamed

    def _echo(self, path: str) -> Any:
        async def echo(messages: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            async for message in messages:
                await self._runtime.go_wrong(self._runtime.record(path, message, context), context)
                yield message

        return echo


async def alone() -> None:
    parser = argparse.ArgumentParser(description="fake CRI runtime")
    parser.add_argument("--socket", required=True)
    async with FakeRuntime(parser.parse_args().socket, keep_received=0) as runtime:
        await stay(f"fake runtime {{}} listens on {runtime.socket_path}")


if __name__ == "__main__":
    uvloop.run(alone())
