"""A fake CRI runtime on a unix socket: runtime.v1, runtime.v1alpha2, and an echo for every unknown service.

Run alone: ``python -m tests.fakes.runtime --socket PATH``.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import uvloop

from tests.fakes.runtime_state import Refused, RuntimeState
from tests.fakes.server import Server, grpc_server, wait_for_signal

API_VERSIONS = {"runtime.v1": "v1", "runtime.v1alpha2": "v1alpha2"}
SERVICES = ("RuntimeService", "ImageService")
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(slots=True)
class Received:
    path: str
    message: bytes
    metadata: tuple[tuple[str, str | bytes], ...]
    deadline_seconds: float | None  # what remains
    at: float  # by ``time.monotonic``
    cancelled: bool = False  # the caller disconnected, or its deadline expired, before the answer

    @property
    def method(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(slots=True)
class Injection:
    """Faults of a method's next ``times`` calls (None: of all), in order: a delay, a closed gate, an error status."""

    delay_seconds: float = 0.0
    code: grpc.StatusCode | None = None
    details: str = ""
    times: int | None = None
    gate: asyncio.Event | None = None


class FakeRuntime(Server, grpc.GenericRpcHandler):
    """The server; a later one on the same socket may have its ``state``, as after a restart of the runtime.

    ``keep_received`` bounds the record of requests (None: no bound); ``counts`` counts all by path.
    """

    def __init__(self, socket_path: str, state: RuntimeState | None = None, keep_received: int | None = None) -> None:
        self.socket_path, self.state = socket_path, state or RuntimeState()
        self.received: deque[Received] = deque(maxlen=keep_received)
        self.counts: Counter[str] = Counter()
        self.injections: dict[str, Injection] = {}
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = await grpc_server(self.socket_path, self)

    async def stop(self) -> None:
        """Stop listening and cancel the calls in flight."""
        if self._server is not None:
            await self._server.stop(None)
        self._server = None

    def requests(self, method: str) -> list[Received]:
        """Return the requests received for a method, named with or without its service."""
        return [received for received in self.received if method in (received.method, received.path)]

    def inject(self, method: str, injection: Injection) -> None:
        self.injections[method] = injection

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        """Serve all methods alike: on the wire a unary call is a stream of one message."""
        return grpc.stream_stream_rpc_method_handler(partial(self._serve, details.method))

    async def _serve(self, path: str, messages: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        service, _, method = path[1:].rpartition("/")
        package, _, name = service.rpartition(".")
        is_cri = package in API_VERSIONS and name in SERVICES
        async for message in messages:
            metadata = tuple((key, value) for key, value in context.invocation_metadata() or ())
            received = Received(path, message, metadata, context.time_remaining(), time.monotonic())
            self.received.append(received)
            self.counts[path] += 1
            if is_cri and self.state.has(method):
                yield await self._answer(API_VERSIONS[package], received, context)
                continue
            await self._inject(received, context)
            if is_cri and method == "GetContainerEvents":
                await context.send_initial_metadata(())  # a client may wait for them before it reads
                await asyncio.Event().wait()
            yield message

    async def _answer(self, version: str, received: Received, context: Context) -> bytes:
        try:
            await self._inject(received, context)
            return self.state.answer(version, received.method, received.message)
        except Refused as refused:
            await context.abort(refused.code, refused.details)
        except asyncio.CancelledError:
            received.cancelled = True
            self.state.finish_abandoned(received.method, received.message)
            raise

    async def _inject(self, received: Received, context: Context) -> None:
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


async def main() -> None:
    parser = argparse.ArgumentParser(description="fake CRI runtime")
    parser.add_argument("--socket", required=True)
    async with FakeRuntime(parser.parse_args().socket, keep_received=0) as runtime:
        await wait_for_signal(f"fake runtime {{}} listens on {runtime.socket_path}")


if __name__ == "__main__":
    uvloop.run(main())
