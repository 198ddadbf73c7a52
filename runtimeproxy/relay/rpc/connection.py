"""A small unary gRPC client over a unix socket, for hook servers and for the proxy's own calls to the runtime.

Its connection is dialled on demand, shared by all calls, and replaced when another socket is at the path. Invariant: a
call ends by its deadline whatever the peer does. It is sent again only if the peer reports that it did not process it;
any other failure after a byte was written is raised to the caller.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from runtimeproxy.errors import WireError
from runtimeproxy.relay.connection import Endpoint, ReadBuffer
from runtimeproxy.relay.dial import (
    RETRY_SECONDS,
    SCARCE,
    SCARCE_RETRY_SECONDS,
    UntrustedSocket,
    dial_now,
    own_shortage,
)
from runtimeproxy.relay.eventloop import Deadlines, Pending, batch
from runtimeproxy.relay.rpc.framing import CallFailed, Calls, Kind, TooLong, Unprocessed
from runtimeproxy.wire import grpc, http2

__all__ = ["CallFailed", "Kind", "Peer", "Shortage", "TooLong", "UnaryClient", "Unprocessed"]

MAX_REPLY_BYTES = 4 * 2**20

ACK_SECONDS = 0.02
"""Seconds that the ACK of a PING waits to be sent with other data: each write wakes the peer."""
LONGEST_RETRY_SECONDS = 0.1
"""Longest pause in seconds before a refused call is retried; the pause doubles from RETRY_SECONDS on."""
_AT_THE_DEADLINE_SECONDS = 0.005  # the peer has the deadline too, and may end the call a moment before our timer does

_Identity = tuple[int, int, int]
_identify: Callable[[os.stat_result], _Identity] = attrgetter("st_dev", "st_ino", "st_ctime_ns")
"""Identify a socket: an inode number may be reused, but not with the same change time."""


class Shortage(CallFailed):
    """The proxy itself lacked a descriptor or memory for a connection, which is no sign of a fault in the peer."""

    def __init__(self, lacking: str) -> None:
        super().__init__(grpc.UNAVAILABLE, own_shortage(lacking), Kind.UNREACHABLE)


@dataclass(frozen=True, slots=True)
class Peer:
    """The state of the peer at a path; ``socket`` is None if it cannot be reached.

    ``socket`` changes when another socket is at the path, and with the first connection to one whose backlog was full
    before. ``connection`` is the number of the connection that a call would use, 0 if one has to be made first.
    """

    socket: Hashable
    connection: int


class UnaryClient:
    """A client of the server at a path; ``dialler`` connects, as ``dial_now`` does."""

    def __init__(
        self,
        path: str,
        *,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        dialler: Callable[[str], socket.socket | None] = dial_now,
    ) -> None:
        self._path = path
        self._max_reply_bytes = max_reply_bytes
        self._dialler = dialler
        self._link: _Link | None = None
        self.links: set[_Link] = set()
        self.deadlines = Deadlines()
        self.buffer = ReadBuffer()
        self._connected_to: _Identity | None = None
        self._connections = 0
        self._answered_by: _Identity | None = None
        """The last socket that sent SETTINGS, as far as ``_note_answer`` has seen it."""
        self._shortage = ""
        """The system's message of the last failed try to connect, if the proxy itself lacked a resource."""
        self._abandoned = False

    def peer(self) -> Peer:
        """Return the present peer at the path. A socket that was not connected to before is dialled without waiting."""
        try:
            identity = _identify(os.stat(self._path))
            if identity != self._connected_to:
                self._dialled(asyncio.get_running_loop(), identity)
        except (OSError, UntrustedSocket):
            return Peer(None, 0)
        link = self._link
        usable = link is not None and link.identity == identity and not link.calls.closing
        return Peer((identity, identity == self._connected_to), self._connections if usable else 0)

    def absence(self) -> str:
        """Return why no server is known to answer at the path; "" if one is. The next call uses a connection that is
        made here, which is not answered yet. A shortage in the proxy is not a fault of the server."""
        try:
            link = self._usable(asyncio.get_running_loop())
            if link is not None and link.calls.out:
                link.flush()  # the preface: servers may wait for it with their SETTINGS, and close without it
            self._note_answer()
            if self._shortage or _identify(os.stat(self._path)) == self._answered_by:
                return ""
        except CallFailed as failure:
            return failure.text
        except (UntrustedSocket, OSError) as error:
            return str(error)
        return f"{self._path}: listens, but has not answered as a gRPC server"

    def _note_answer(self) -> None:
        if self._link is not None and self._link.calls.greeted:
            self._answered_by = self._link.identity

    async def call(self, method_path: str, message: bytes, timeout_seconds: float, peer: Peer | None = None) -> bytes:
        """Send a message to a method ("/package.Service/Method") and return the reply's message.

        ``peer`` is a present result of ``peer()``, which is not called again then. Raises CallFailed, and what the
        dialler raises in addition to OSError.
        """
        if timeout_seconds <= 0:
            raise _late()
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + timeout_seconds, RETRY_SECONDS
        link = self._link
        if peer is None or not peer.connection or link is None or not link.calls.room:
            link = None
        while True:
            link = link or self._usable(loop) or await self._usable_until(loop, deadline)
            call: Pending[bytes] = Pending(loop=loop)
            stream = link.calls.open(method_path, message, deadline - loop.time())
            expiry = self.deadlines.add(deadline, partial(link.expire, call))
            link.open[stream] = call
            link.flush()
            try:
                return await call
            except Unprocessed:
                remaining = deadline - loop.time()
                if remaining <= RETRY_SECONDS:
                    raise
            except CallFailed as failure:
                if failure.kind is Kind.BROKEN and loop.time() > deadline - _AT_THE_DEADLINE_SECONDS:
                    raise _late() from None
                raise
            finally:
                expiry.late = None
                if stream in link.open or link.waiting or link.calls.closing:
                    link.release(stream)
                del call  # the error's traceback refers to this frame: each would keep the other alive
            link = None
            await asyncio.sleep(min(pause, remaining))
            pause = min(2 * pause, LONGEST_RETRY_SECONDS)

    def _usable(self, loop: asyncio.AbstractEventLoop) -> "_Link | None":
        """Return a connection that accepts a call now, a new one if necessary; None if that needs a wait. Raises
        CallFailed if nobody listens, or the client was abandoned.
        """
        if self._abandoned:
            raise _closed()
        self._shortage = ""
        try:
            identity = _identify(os.stat(self._path))
            link = self._link
            if link is None or link.identity != identity or link.calls.closing:
                link = self._dialled(loop, identity)
        except OSError as error:
            raise CallFailed(grpc.UNAVAILABLE, f"{self._path}: {error.strerror}", Kind.UNREACHABLE) from None
        return link if link is not None and link.calls.room else None

    def _dialled(self, loop: asyncio.AbstractEventLoop, identity: _Identity) -> "_Link | None":
        try:
            sock = self._dialler(self._path)
        except OSError as error:
            if error.errno not in SCARCE:
                raise
            self._shortage = str(error.strerror)
            return None
        if sock is None:
            return None
        if self._link is not None:
            self._note_answer()
            self._link.retire()
        self._connected_to = identity
        self._connections += 1
        self._link = _Link(loop, sock, identity, self._max_reply_bytes, self)
        return self._link

    async def _usable_until(self, loop: asyncio.AbstractEventLoop, deadline: float) -> "_Link":
        """Wait until the listener's backlog has room, a descriptor is available, and the peer accepts one more call."""
        while (link := self._usable(loop)) is None:
            remaining = deadline - loop.time()
            if remaining <= 0:
                raise Shortage(self._shortage) if self._shortage else _late()
            if self._link is not None and not self._link.calls.closing and not self._link.calls.room:
                await self._link.room(deadline)
            else:
                await asyncio.sleep(min(remaining, SCARCE_RETRY_SECONDS if self._shortage else RETRY_SECONDS))
        return link

    async def close(self) -> None:
        """Close the connections; calls in flight fail. A later call dials again."""
        self._end_links()

    def abandon(self) -> None:
        """Close the connections immediately. Calls in flight and later calls fail; a call that waits for a connection
        fails at its next try."""
        self._abandoned = True
        self._end_links()

    def _end_links(self) -> None:
        for link in list(self.links):
            link.end(_closed())
        self._link = None


class _Link:
    """One connection and the calls on it, by stream. New calls may be sent until ``calls.closing``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        identity: _Identity,
        max_reply_bytes: int,
        client: UnaryClient,
    ) -> None:
        self.identity = identity
        self._loop = loop
        self.calls = Calls(max_reply_bytes)
        self.open: dict[int, Pending[bytes]] = {}
        self.waiting: deque[asyncio.Future[None]] = deque()
        """The calls that wait for room, in order."""
        self._deadlines = client.deadlines
        self._links = client.links
        self._links.add(self)
        self._acks: asyncio.TimerHandle | None = None
        self._endpoint = Endpoint(loop, sock, self, client.buffer)
        self._endpoint.resume()

    async def room(self, deadline: float) -> None:
        """Wait for room for one more call, in order, or the connection's end. Raises CallFailed at the deadline."""
        future = self._loop.create_future()
        self.waiting.append(future)
        expiry = self._deadlines.add(deadline, partial(_end_late, future))
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():
                self.calls.granted -= 1
                self._wake()  # the next call gets the room
            raise
        finally:
            expiry.late = None
        self.calls.granted -= 1

    def release(self, stream: int) -> None:
        """Cancel the call of a stream if it has not ended, and let others use its room."""
        if self.open.pop(stream, None) is not None and not self._endpoint.closed:
            self.calls.cancel(stream)
            self.flush()
        if self.waiting:
            self._wake()
        self._close_if_done()

    def expire(self, call: Pending[bytes]) -> None:
        """Fail a call at its deadline; later calls use a new connection, in case this one is dead."""
        if not call.done():
            self.retire()
            _end_late(call)

    def retire(self) -> None:
        """Accept no more calls; close when those in flight have ended."""
        self.calls.closing = True
        self._wake()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self.calls.closing and not self.open:
            self._close()

    def end(self, failure: CallFailed) -> None:
        """Close immediately; calls in flight fail."""
        calls, self.open = list(self.open.values()), {}
        self._close()
        for call in calls:
            if not call.done():
                call.set_exception(CallFailed(failure.code, failure.text, failure.kind))

    def _close(self) -> None:
        self._endpoint.close()
        self.calls.closing = True
        self._links.discard(self)
        self._wake()

    def _wake(self) -> None:
        """Wake as many waiting calls as there is room for, or all of them if the connection accepts no more."""
        while self.waiting and (self.calls.room or self.calls.closing):
            future = self.waiting.popleft()
            if not future.done():
                self.calls.granted += 1
                future.set_result(None)

    def flush(self) -> None:
        """Send queued bytes, together with the ACKs of PINGs."""
        if batch.defers(self.flush):
            return
        if self.calls.acks:
            self.calls.sender.acknowledge()
        out = self.calls.out
        if out:
            self._endpoint.write(b"".join(out))
            out.clear()
        if self._endpoint.waiting and self._endpoint.slow:
            self._endpoint.pause()

    def _flush_acks(self) -> None:
        self._acks = None
        if self.calls.acks:
            self.flush()

    def received(self, endpoint: Endpoint, data: bytes) -> None:
        """Process the peer's bytes, then pass the outcomes to their callers."""
        calls = self.calls
        failure = None
        try:
            calls.receive(data)
        except WireError as error:
            calls.out.append(http2.goaway(0, http2.PROTOCOL_ERROR))
            failure = CallFailed(grpc.INTERNAL, f"the peer broke the protocol: {error}", Kind.BROKEN)
        if calls.out:
            self.flush()
        elif calls.acks and self._acks is None:
            self._acks = self._loop.call_later(ACK_SECONDS, self._flush_acks)
        ended, calls.ended = calls.ended, []
        for stream, outcome in batch.iterate(deque(ended)) if ended else ():
            call = self.open.pop(stream, None)
            if call is None or call.done():
                continue
            if isinstance(outcome, CallFailed):
                call.set_exception(outcome)
            else:
                call.set_result(outcome)
        if failure is not None:
            self.end(failure)
        if self.waiting:
            self._wake()
        if calls.closing:
            self._close_if_done()

    def ended(self, endpoint: Endpoint) -> None:
        """Handle the peer's EOF: calls in flight fail."""
        self.end(CallFailed(grpc.UNAVAILABLE, "the peer closed the connection before it answered", Kind.BROKEN))

    def drained(self, endpoint: Endpoint) -> None:
        """Continue reading, as the peer reads our bytes again."""
        endpoint.resume()


def _end_late(future: "asyncio.Future[Any]") -> None:
    if not future.done():
        future.set_exception(_late())


def _closed() -> CallFailed:
    return CallFailed(grpc.UNAVAILABLE, "the connection was closed", Kind.UNREACHABLE)


def _late() -> CallFailed:
    return CallFailed(grpc.DEADLINE_EXCEEDED, "no answer in time", Kind.DEADLINE)
