"""Detect peers that have closed their socket, which EOF alone does not distinguish from a half-close (relay-rules B1).

One epoll(7) descriptor reports only hang-ups; the event loop reads it like a socket.
Invariant: a watched socket costs nothing until it hangs up, however many there are.
"""

import asyncio
import select
import socket
from collections.abc import Callable


def has_hung_up(sock: socket.socket) -> bool:
    """Return whether the peer of a connected unix socket has closed it. That is true as soon as its EOF can be read,
    and no earlier. A socket with both directions shut down counts as hung up too, whichever peer shut them.
    """
    poller = select.poll()
    poller.register(sock, 0)  # POLLHUP and POLLERR are always reported
    return bool(poller.poll(0))


class Hangups:
    """Watches connected unix sockets for hang-ups. POLLHUP is set when the peer has closed, not when it has only shut
    down writing (tested).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        loop.add_reader(self._epoll.fileno(), self._ready)

    def watch(self, sock: socket.socket, notify: Callable[[], None]) -> None:
        """Call ``notify`` once when the peer hangs up; ``forget`` must be called before the socket is closed."""
        self._epoll.register(sock, 0)  # EPOLLHUP and EPOLLERR are always reported
        self._callbacks[sock.fileno()] = notify

    def forget(self, sock: socket.socket) -> None:
        """Stop watching a socket, if it is watched."""
        if self._callbacks.pop(sock.fileno(), None) is not None:
            self._epoll.unregister(sock)

    def _ready(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            notify = self._callbacks.pop(descriptor, None)
            if notify is not None:
                self._epoll.unregister(descriptor)
                notify()

    def close(self) -> None:
        """Stop watching all sockets and close the epoll descriptor."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        self._callbacks.clear()
