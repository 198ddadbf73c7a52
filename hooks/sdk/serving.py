"""The gRPC server of hooks: calls come in, the hooks are asked, an answer or a status goes out.

Owns which method is served by whom, the threads, and the server's end.
Must not know: command lines, registration files, sockets, what hooks do, which exception becomes which status.
Invariant: a call that comes in is answered, whatever a hook raises.
"""

import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from runtimeproxy.errors import WireError
from runtimeproxy.hookapi import codec
from runtimeproxy.hookpoints import HookPoint
from runtimeproxy.wire import grpc

from .connection import Call
from .connections import Connections
from .health import Health
from .hook import Hook, ask, points_of
from .socket_path import SocketPath, place
from .statuses import status, subject
from .threads import Threads

if TYPE_CHECKING:
    from .background import BackgroundLoop

log = logging.getLogger(__name__)

THREADS = 16
"""Calls that are served at the same time, an ``async`` method's too; more wait."""

_LAST_CALLS_SECONDS = 0.1
_LOOK_SECONDS = 0.005


class HookServer:
    """Serves the hook points that ``hooks`` have methods for, and the health service; ``name`` is what logs call it."""

    def __init__(self, hooks: Sequence[Hook], name: str) -> None:
        self._hooks = tuple(hooks)
        self._name = name
        self._health = Health(("", codec.SERVICE))
        points = {codec.method_path(point): partial(self._submit, point) for point in points_of(self._hooks)}
        self._methods: Mapping[str, Callable[[Call], None]] = {**points, **self._health.methods}
        self._threads = Threads(THREADS, "hook-call")
        self._connections = Connections(self._threads, self._begin)
        self._loop: BackgroundLoop | None = None
        self._loop_lock = threading.Lock()
        self._path: SocketPath | None = None

    def start(self, path: str) -> None:
        """Listen on ``path`` with mode 0600. Raises ConfigError with what to do if that cannot be."""
        self._path = place(path, self._connections.listen)
        self._threads.start()

    def stop(self, grace_seconds: float) -> int:
        """Stop listening, let calls in flight end or cut them off after ``grace_seconds``, remove the socket.

        Returns how many calls run on in their threads all the same: they can be cut off from their callers only.
        """
        deadline = time.monotonic() + grace_seconds
        self._health.leave()
        self._connections.leave()
        while self._connections.busy and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        self._connections.close()
        left = self._threads.quiet(_LAST_CALLS_SECONDS)
        self._threads.close()
        if self._loop is not None:
            self._loop.close(_LAST_CALLS_SECONDS)
        if self._path is not None:
            self._path.close()
        return left

    # -- a call ------------------------------------------------------------------------------------------------------

    def _begin(self, call: Call) -> None:
        method = self._methods.get(call.path)
        if method is None:
            call.end(grpc.UNIMPLEMENTED, "no hook here has a method for it")
        else:
            method(call)

    def _submit(self, point: HookPoint, call: Call) -> None:
        job = partial(self._serve, point, call)
        if call.on_cut(partial(self._threads.withdraw, job)):
            self._threads.submit(job)

    def _serve(self, point: HookPoint, call: Call) -> None:
        if call.ended:
            return
        began = time.monotonic()
        try:
            request = codec.decode_request(point, call.message)
        except WireError as error:
            log.warning("%s was sent a %s", point.name, error)
            call.end(grpc.INVALID_ARGUMENT, str(error))
            return
        try:
            answer = ask(self._hooks, point, request, partial(self._wait, call))
            answered = codec.encode_answer(point, answer)
        except BaseException as error:  # SystemExit too: nobody else would answer
            call.end(*status(error, self._name, point, request))
            return
        call.answer(answered)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s: %s in %.3f ms", point.name, subject(request), 1000 * (time.monotonic() - began))

    def _wait(self, call: Call, awaitable: Awaitable[None]) -> None:
        running = self._background().submit(awaitable)
        if not call.on_cut(running.cancel):
            running.cancel()
        running.result()

    def _background(self) -> "BackgroundLoop":
        """Return the event loop, made when the first awaitable is to be waited for: many hooks have none."""
        with self._loop_lock:
            if self._loop is None:
                from .background import BackgroundLoop  # asyncio takes 5 MiB

                self._loop = BackgroundLoop()
            return self._loop
