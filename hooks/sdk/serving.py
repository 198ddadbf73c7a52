"""The gRPC server of hooks: it receives calls, runs the hooks, and returns an answer or a status.

Invariants: each call is answered, whatever a hook raises. A thread that waits for an ``async`` method is always woken:
when the method ends or is cancelled, or when its event loop ends.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from runtimeproxy.errors import ConfigError, WireError
from runtimeproxy.hookapi import codec
from runtimeproxy.model.hookpoints import HookPoint

from .hook import Hook, call_hooks, hook_points_of
from .socket_path import FLAG, SocketPath, place
from .statuses import status

log = logging.getLogger(__name__)

THREADS = 16
"""Largest number of concurrent calls, ``async`` methods included; more calls wait."""
MAX_MESSAGE_BYTES = 16 << 20

_OPTIONS = (("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.max_send_message_length", MAX_MESSAGE_BYTES))
_CODES: Mapping[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
_LAST_CALLS_SECONDS = 0.1
_POLL_SECONDS = 0.005


class HookServer(grpc.GenericRpcHandler):
    """Serves the hook points that ``hooks`` have methods for, and the health service; ``name`` is used in log lines.

    ``interceptors`` get each call first; ``prepare`` is called with grpcio's server before it starts, to add services.
    """

    def __init__(
        self,
        hooks: Sequence[Hook],
        name: str,
        interceptors: Sequence[grpc.ServerInterceptor] = (),
        prepare: Callable[[grpc.Server], object] = lambda server: None,
    ) -> None:
        self._hooks = tuple(hooks)
        self._name = name
        self._handlers: Mapping[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            codec.PATHS[hook_point.name]: grpc.unary_unary_rpc_method_handler(partial(self._serve, hook_point))
            for hook_point in hook_points_of(self._hooks)
        }
        self._running: set[object] = set()
        """The calls being served: adding and discarding needs no lock."""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="hook-call")
        self._loop: BackgroundLoop | None = None
        self._loop_lock = threading.Lock()
        self._health = health.HealthServicer()
        self._health.set(codec.SERVICE, health_pb2.HealthCheckResponse.SERVING)
        self._server = grpc.server(self._threads, handlers=[self], interceptors=list(interceptors), options=_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        prepare(self._server)
        self._path: SocketPath | None = None

    def start(self, path: str) -> None:
        """Listen on ``path`` with mode 0600. Raises ConfigError with what to do if that fails."""
        self._path = place(path, partial(self._listen, path))

    def _listen(self, path: str, bound: str) -> None:
        try:
            self._server.add_insecure_port(f"unix:{bound}")
        except RuntimeError:
            raise ConfigError(f"cannot listen on {path}: gRPC could not bind there; set {FLAG}") from None
        self._server.start()

    def stop(self, grace_seconds: float) -> int:
        """Stop listening, cancel calls that do not end within ``grace_seconds``, and remove the socket. Returns the
        number of calls that still run in their threads: cancelled for the callers, but impossible to stop."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_seconds).wait()
        self._threads.shutdown(wait=False, cancel_futures=True)
        deadline = time.monotonic() + _LAST_CALLS_SECONDS
        while self._running and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        running = len(self._running)
        if self._loop is not None:
            self._loop.close(_LAST_CALLS_SECONDS)
        if self._path is not None:
            self._path.close()
        return running

    # -- a call ------------------------------------------------------------------------------------------------------

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a path; None (UNIMPLEMENTED) if no hook has a method for it."""
        return self._handlers.get(details.method)

    def _serve(self, hook_point: HookPoint, body: bytes, context: grpc.ServicerContext) -> bytes:
        self._running.add(context)
        try:
            began = time.monotonic()
            try:
                request = codec.decode_request(hook_point, body)
            except WireError as error:
                log.warning("%s was sent a %s", hook_point.name, error)
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            try:
                answer = call_hooks(self._hooks, hook_point, request, partial(self._wait, context))
                answered = codec.encode_answer(hook_point, answer)
            except BaseException as error:  # SystemExit too: gRPC would leave the call without an answer
                code, text = status(error, self._name, hook_point, request)
                context.abort(_CODES[code], text)
            if log.isEnabledFor(logging.DEBUG):
                log.debug("%s: %s in %.3f ms", hook_point.name, request.name, 1000 * (time.monotonic() - began))
            return answered
        finally:
            self._running.discard(context)

    def _wait(self, context: grpc.ServicerContext, awaitable: Awaitable[None]) -> None:
        with self._loop_lock:
            if self._loop is None:  # created for the first awaitable: many hooks have none
                self._loop = BackgroundLoop()
        running = self._loop.submit(awaitable)

        def cancel() -> None:
            running.cancel()

        if not context.add_callback(cancel):  # called when the call ends, also by its deadline or the stop
            cancel()
        running.result()


class BackgroundLoop:
    """An event loop in its own thread, for ``async`` methods; it runs from its construction until ``close``."""

    def __init__(self) -> None:
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._futures: set[Future[None]] = set()
        self._ended = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="hook-event-loop", daemon=True)
        self._thread.start()
        self._loop = self._ready.result()

    async def _run(self) -> None:
        self._closing = asyncio.Event()
        self._ready.set_result(asyncio.get_running_loop())
        await self._closing.wait()  # asyncio.run then cancels the running tasks

    def submit(self, awaitable: Awaitable[None]) -> Future[None]:
        """Run ``awaitable`` on the loop; the returned future can be waited for, and cancelled, from any thread."""
        finishing = _finish(awaitable)
        finishing.send(None)  # started, so that a cancel before the loop runs it closes the awaitable
        future = asyncio.run_coroutine_threadsafe(finishing, self._loop)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        if self._ended:  # the loop may have ended before it received it
            future.cancel()
        return future

    def close(self, timeout_seconds: float) -> None:
        """Cancel the tasks and end the loop; wait at most this long for a method that blocks it. May be repeated."""
        with suppress(RuntimeError):  # it is closed already
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(timeout_seconds)
        self._ended = not self._thread.is_alive()
        if self._ended:
            for future in tuple(self._futures):
                future.cancel()


async def _finish(awaitable: Awaitable[None]) -> None:
    try:
        await asyncio.sleep(0)  # until the loop runs it
        await awaitable
    except (SystemExit, KeyboardInterrupt) as error:  # asyncio would end the whole loop for these two
        raise RuntimeError(f"{type(error).__name__} in an async method") from error
    finally:
        if isinstance(awaitable, Coroutine):
            awaitable.close()
