"""One client's connection, and the calls on it, for the threads that serve them.

Owns the socket, what could not be sent yet, and which calls are open.
Must not know: frames (``wire.served`` has them), methods, what a call is answered.
Invariants: a call ends once; whoever is told of its being cut off is told without the connection's lock, and never of a
call that was answered; a client that does not read is not read from either.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterable
from math import inf

from runtimeproxy.errors import WireError
from runtimeproxy.wire import grpc
from runtimeproxy.wire.served import Request, Served

from .threads import READABLE, WRITABLE, Threads

MAX_MESSAGE_BYTES = 16 << 20

_READ_BYTES = 64 * 1024
_HIGH_WATER = 256 * 1024
"""Bytes that wait for a client from which on it is not read from."""


class Call:
    """A call that waits for its answer."""

    __slots__ = ("_connection", "cut_off", "deadline", "ended", "message", "path", "stream")

    def __init__(self, connection: "Connection", request: Request) -> None:
        self._connection = connection
        self.stream = request.stream
        self.path = request.path
        self.message = request.message
        self.deadline = inf if request.seconds is None else time.monotonic() + request.seconds
        self.ended = False
        self.cut_off: Callable[[], object] | None = None

    def on_cut(self, cut_off: Callable[[], object]) -> bool:
        """Have ``cut_off`` called, in place of what was before, if the call ends without an answer; False if it has."""
        self.cut_off = cut_off
        return not self.ended

    def tell(self, message: bytes) -> None:
        """Send one of several messages of an answer."""
        self._connection.tell(self, message)

    def answer(self, message: bytes) -> None:
        """Send the whole answer; nothing if the call has ended."""
        self._connection.answer(self, message)

    def end(self, code: int, text: str) -> None:
        """Send a gRPC status; nothing if the call has ended."""
        self._connection.end(self, code, text)


class Connection:
    """A connected socket whose calls are handed to ``begin``; ``gone`` is told of its end."""

    def __init__(
        self,
        sock: socket.socket,
        threads: Threads,
        begin: Callable[[Call], None],
        gone: Callable[["Connection"], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._file = sock.fileno()
        self._threads = threads
        self._begin = begin
        self._gone = gone
        self._lock = threading.Lock()
        self._served = Served(MAX_MESSAGE_BYTES)
        self._calls: dict[int, Call] = {}
        self._unsent = bytearray()
        self._armed = 0
        self._leaving = self._closed = False
        with self._lock:  # who is told of an event of the file descriptor's last owner waits until it can be armed
            threads.watch(self._file, self, 0)

    def start(self) -> None:
        """Greet the client and wait for what it sends."""
        with self._lock:
            self._sent()

    @property
    def closed(self) -> bool:
        """Tell whether its end has come."""
        return self._closed

    @property
    def busy(self) -> bool:
        """Tell whether a call is open, or the last byte of an answer is still here."""
        return bool(self._calls or self._unsent or not self._served.idle)

    # What the client sends.

    def ready(self, events: int) -> None:
        """Take what the socket is ready for, and hand out the calls that came."""
        with self._lock:
            if self._closed:
                return
            self._armed = 0
            if events & WRITABLE:
                self._send_unsent()
            if events & ~WRITABLE:
                self._read()
            begun = [self._opened(request) for request in self._served.requests]
            self._served.requests.clear()
            cut = [self._calls.pop(stream) for stream in self._served.cancelled if stream in self._calls]
            self._served.cancelled.clear()
            lost = self._sent()
        _cut_off(cut + lost)
        for call in begun:
            self._begin(call)

    def broken(self) -> None:
        """End it after an error of ours."""
        self.close()

    def _read(self) -> None:
        try:
            data = self._sock.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._shut()
            return
        try:
            self._served.receive(data)
        except WireError as error:
            self._served.refuse(str(error))
            self._flush()
            self._shut()

    def _opened(self, request: Request) -> Call:
        call = self._calls[request.stream] = Call(self, request)
        return call

    # What it is sent.

    def tell(self, call: Call, message: bytes) -> None:
        """Send a message of a call's answer."""
        with self._lock:
            if call.ended or self._closed:
                return
            self._served.tell(call.stream, message)
            lost = self._sent()
        _cut_off(lost)

    def answer(self, call: Call, message: bytes) -> None:
        """Send a call's answer."""
        with self._lock:
            if not self._ended(call):
                return
            self._served.answer(call.stream, message)
            lost = self._sent()
        _cut_off(lost)

    def end(self, call: Call, code: int, text: str) -> None:
        """Send a call's status."""
        with self._lock:
            if not self._ended(call):
                return
            self._served.end(call.stream, code, text)
            lost = self._sent()
        _cut_off(lost)

    def _ended(self, call: Call) -> bool:
        """Take a call as ended; return False if it has already."""
        if self._calls.pop(call.stream, None) is None:
            return False
        call.ended = True
        return True

    def _sent(self) -> list[Call]:
        """Send what there is, and wait for what is to come; return the calls that are lost if that was the end."""
        self._flush()
        if self._leaving and not self.busy:
            self._shut()
        if self._closed:
            lost = list(self._calls.values())
            self._calls.clear()
            return lost
        wanted = (READABLE if len(self._unsent) <= _HIGH_WATER else 0) | (WRITABLE if self._unsent else 0)
        if wanted != self._armed:
            self._armed = wanted
            self._threads.arm(self._file, wanted)
        return []

    def _flush(self) -> None:
        out = self._served.out
        if not out or self._closed:
            return
        data = b"".join(out)
        out.clear()
        if self._unsent:
            self._unsent += data
            return
        sent = self._send(data)
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]

    def _send_unsent(self) -> None:
        sent = self._send(self._unsent)
        del self._unsent[:sent]

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self._shut()
            return 0

    # Its end.

    def _shut(self) -> None:
        """Close the socket; what is left of the calls is for ``_sent`` to see to."""
        if not self._closed:
            self._closed = True
            self._unsent.clear()
            self._threads.forget(self._file)
            self._sock.close()
            self._gone(self)

    def expire(self, now: float) -> float:
        """End the calls whose deadline has passed; return the earliest of the others, ``inf`` if there is none."""
        with self._lock:
            late = [call for call in self._calls.values() if call.deadline <= now]
            for call in late:
                del self._calls[call.stream]
                self._served.end(call.stream, grpc.DEADLINE_EXCEEDED, "the deadline passed before there was an answer")
            following = min((call.deadline for call in self._calls.values()), default=inf)
            lost = self._sent()
        _cut_off(late + lost)
        return following

    def leave(self) -> None:
        """Take no more calls; close when those that are open have ended."""
        with self._lock:
            self._served.leave()
            self._leaving = True
            lost = self._sent()
        _cut_off(lost)

    def close(self) -> None:
        """End the calls that are open, and the connection at once."""
        with self._lock:
            for stream in self._calls:
                self._served.end(stream, grpc.UNAVAILABLE, "the server ended before there was an answer")
            self._flush()
            self._shut()
            lost = self._sent()
        _cut_off(lost)


def _cut_off(calls: Iterable[Call]) -> None:
    """Tell whoever works on calls that nobody waits for an answer any more."""
    for call in calls:
        call.ended = True
        if call.cut_off is not None:
            call.cut_off()
