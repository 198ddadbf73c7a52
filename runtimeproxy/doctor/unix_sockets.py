"""The unix stream sockets of a machine: as /proc/net/unix lists them, and as the kernel tells them with their peers.

Owns the form of both answers.
Must not know: processes, and who may be connected to what.
Invariant: it only asks. A thread of its own enters a network namespace, and ends with it.
"""

import ctypes
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

_PROC_LISTENING = 0x10000
"""__SO_ACCEPTCON in the flags of /proc/net/unix (proc_net(5))."""
_PROC_CONNECTED, _PROC_STREAM = "03", "0001"

_CLONE_NEWNET = 0x40000000
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_ESTABLISHED, _LISTEN = 1, 10
_UDIAG_SHOW_NAME, _UDIAG_SHOW_PEER = 0x1, 0x4
_UNIX_DIAG_NAME, _UNIX_DIAG_PEER = 0, 2
_NLMSGHDR = struct.Struct("=IHHII")
_NLATTR = struct.Struct("=HH")
_UNIX_DIAG_REQ = struct.Struct("=BBHIIIII")
_UNIX_DIAG_MSG = struct.Struct("=BBBBI8x")
_LONGEST_ANSWER = 1 << 16
"""More than the kernel puts into one datagram of a dump, which is 32 KiB."""


class UnixSocket(NamedTuple):
    """A stream socket; ``path`` is "" for one that was not bound, as clients' are; ``peer`` 0 if it is not known."""

    inode: int
    listening: bool
    connected: bool
    path: str
    peer: int = 0


def listed(text: str) -> Iterator[UnixSocket]:
    """Yield the sockets of the text of /proc/net/unix, without peers."""
    for row in (line.split(maxsplit=7) for line in text.splitlines()[1:]):
        if row[4] == _PROC_STREAM:
            listening = bool(int(row[3], 16) & _PROC_LISTENING)
            yield UnixSocket(int(row[6]), listening, row[5] == _PROC_CONNECTED, "".join(row[7:]))


def told(namespaces: Iterable[Path]) -> Iterator[UnixSocket]:
    """Yield the sockets of network namespaces, such as /proc/PID/ns/net, with their peers. Raises OSError.

    One that is gone is left out. A struct unix_diag_req asks, a struct unix_diag_msg answers for each socket.
    Source: sock_diag(7) and <linux/unix_diag.h>.
    """
    request = _UNIX_DIAG_REQ.pack(
        *(socket.AF_UNIX, 0, 0, 1 << _ESTABLISHED | 1 << _LISTEN, 0, _UDIAG_SHOW_NAME | _UDIAG_SHOW_PEER, 0, 0)
    )
    head = (_NLMSGHDR.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST | _NLM_F_DUMP, 0, 0)
    for namespace in namespaces:
        try:
            with ThreadPoolExecutor(1) as thread:
                asked = thread.submit(_opened, namespace).result()
        except (FileNotFoundError, ProcessLookupError):
            continue
        with asked:
            asked.send(_NLMSGHDR.pack(*head) + request)
            yield from _answers(asked)


def _opened(namespace: Path) -> socket.socket:
    """Return a socket to the kernel that belongs to a network namespace, which the thread enters for good."""
    with namespace.open() as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(namespace))
    asked = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG)
    asked.connect((0, 0))
    return asked


def _answers(asked: socket.socket) -> Iterator[UnixSocket]:
    while True:
        answer = asked.recv(_LONGEST_ANSWER)
        for kind, body in _parts(answer, _NLMSGHDR):
            if kind in (_NLMSG_ERROR, _NLMSG_DONE):
                if number := -int.from_bytes(body[:4], sys.byteorder, signed=True):
                    raise OSError(number, os.strerror(number))
                return
            if (found := _socket(body)) is not None:
                yield found


def _socket(body: bytes) -> UnixSocket | None:
    """Return the socket of a struct unix_diag_msg and its attributes; None if it is not a stream's."""
    _, kind, state, _, inode = _UNIX_DIAG_MSG.unpack_from(body)
    attributes = dict(_parts(body[_UNIX_DIAG_MSG.size :], _NLATTR))
    path = attributes.get(_UNIX_DIAG_NAME, b"").rstrip(b"\0").replace(b"\0", b"@").decode(errors="replace")
    peer = int.from_bytes(attributes.get(_UNIX_DIAG_PEER, b""), sys.byteorder)
    found = UnixSocket(inode, state == _LISTEN, state == _ESTABLISHED, path, peer)
    return found if kind == socket.SOCK_STREAM else None


def _parts(data: bytes, head: struct.Struct) -> Iterator[tuple[int, bytes]]:
    """Yield kind and body of each message or attribute; both begin with length and kind and end at four bytes."""
    at = 0
    while at < len(data):
        length, kind, *_ = head.unpack_from(data, at)
        yield kind, data[at + head.size : at + length]
        at += length + 3 & ~3


def at(path: str, sockets: Iterable[UnixSocket]) -> tuple[UnixSocket, ...]:
    """Return the sockets of a path: that of the listener, and its ends of the connections."""
    names = {os.path.basename(path), os.path.basename(os.path.realpath(path))}
    named = (found for found in sockets if os.path.basename(found.path) in names)
    return tuple(found for found in named if same(found.path, path))


def same(one: str, other: str) -> bool:
    """Return whether two paths lead to the same place, as those below /run and /var/run do."""
    return os.path.realpath(one) == os.path.realpath(other)
