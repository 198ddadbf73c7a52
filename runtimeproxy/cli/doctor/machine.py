"""Readers of the machine's state for doctor: processes, units, files, and unix sockets in all network namespaces."""

import ctypes
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from runtimeproxy.settings.config import Config

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


def parse_proc_net_unix(text: str) -> Iterator[UnixSocket]:
    """Yield the sockets of the text of /proc/net/unix, without peers."""
    for row in (line.split(maxsplit=7) for line in text.splitlines()[1:]):
        if row[4] == _PROC_STREAM:
            listening = bool(int(row[3], 16) & _PROC_LISTENING)
            yield UnixSocket(int(row[6]), listening, row[5] == _PROC_CONNECTED, "".join(row[7:]))


def reported_sockets(namespaces: Iterable[Path]) -> Iterator[UnixSocket]:
    """Yield the sockets of network namespaces, such as /proc/PID/ns/net, with their peers; an ended namespace is left
    out. Source: sock_diag(7) and <linux/unix_diag.h>. Raises OSError."""
    request = _UNIX_DIAG_REQ.pack(
        *(socket.AF_UNIX, 0, 0, 1 << _ESTABLISHED | 1 << _LISTEN, 0, _UDIAG_SHOW_NAME | _UDIAG_SHOW_PEER, 0, 0)
    )
    head = (_NLMSGHDR.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST | _NLM_F_DUMP, 0, 0)
    for namespace in namespaces:
        try:
            with ThreadPoolExecutor(1) as thread:
                netlink = thread.submit(_open_netlink, namespace).result()
        except (FileNotFoundError, ProcessLookupError):
            continue
        with netlink:
            netlink.send(_NLMSGHDR.pack(*head) + request)
            yield from _answers(netlink)


def _open_netlink(namespace: Path) -> socket.socket:
    """Return a socket to the kernel that belongs to a network namespace, which the thread enters permanently."""
    with namespace.open() as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(namespace))
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG)
    netlink.connect((0, 0))
    return netlink


def _answers(netlink: socket.socket) -> Iterator[UnixSocket]:
    while True:
        answer = netlink.recv(_LONGEST_ANSWER)
        for kind, body in _parts(answer, _NLMSGHDR):
            if kind in (_NLMSG_ERROR, _NLMSG_DONE):
                if number := -int.from_bytes(body[:4], sys.byteorder, signed=True):
                    raise OSError(number, os.strerror(number))
                return
            _, socket_kind, state, _, inode = _UNIX_DIAG_MSG.unpack_from(body)
            attributes = dict(_parts(body[_UNIX_DIAG_MSG.size :], _NLATTR))
            path = attributes.get(_UNIX_DIAG_NAME, b"").rstrip(b"\0").replace(b"\0", b"@").decode(errors="replace")
            peer = int.from_bytes(attributes.get(_UNIX_DIAG_PEER, b""), sys.byteorder)
            if socket_kind == socket.SOCK_STREAM:
                yield UnixSocket(inode, state == _LISTEN, state == _ESTABLISHED, path, peer)


def _parts(data: bytes, head: struct.Struct) -> Iterator[tuple[int, bytes]]:
    """Yield kind and body of each message or attribute; both begin with length and kind, padded to 4 bytes."""
    offset = 0
    while offset < len(data):
        length, kind, *_ = head.unpack_from(data, offset)
        yield kind, data[offset + head.size : offset + length]
        offset += length + 3 & ~3


def sockets_at(path: str, sockets: Iterable[UnixSocket]) -> tuple[UnixSocket, ...]:
    """Return the sockets of a path: that of the listener, and its ends of the connections."""
    names = {os.path.basename(path), os.path.basename(os.path.realpath(path))}
    named = (unix_socket for unix_socket in sockets if os.path.basename(unix_socket.path) in names)
    return tuple(unix_socket for unix_socket in named if is_same_path(unix_socket.path, path))


def is_same_path(path: str, other_path: str) -> bool:
    """Return whether two paths lead to one place, as /run and /var/run do."""
    return os.path.realpath(path) == os.path.realpath(other_path)


SYSTEMCTL_SECONDS = 1.5


class Process(NamedTuple):
    pid: int
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        return os.path.basename(self.arguments[0])

    def flag(self, name: str) -> str | None:
        """Return the value of a flag, spelt ``--name=value`` or ``--name value``; of several the last; None if none."""
        value = None
        for place, argument in enumerate(self.arguments):
            if argument.startswith(f"--{name}="):
                value = argument.partition("=")[2]
            elif argument == f"--{name}" and place + 1 < len(self.arguments):
                value = self.arguments[place + 1]
        return value


def systemctl(arguments: Sequence[str]) -> str:
    """Return what systemctl prints. Raises OSError if it is missing, fails or takes too long."""
    command, nothing = ["systemctl", *arguments], subprocess.DEVNULL
    try:
        return subprocess.check_output(command, stdin=nothing, stderr=nothing, text=True, timeout=SYSTEMCTL_SECONDS)
    except subprocess.SubprocessError as error:
        raise OSError(0, f"systemctl {arguments[0]} does not answer ({type(error).__name__})") from None


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine below ``root``, with the configuration that the proxy has."""

    config: Config
    root: Path = Path("/")
    systemctl: Callable[[Sequence[str]], str] = systemctl
    kernel: Callable[[Iterable[Path]], Iterable[UnixSocket]] = reported_sockets

    def path(self, place: str) -> Path:
        return self.root / place

    def text(self, place: str) -> str:
        return self.path(place).read_text(errors="replace")

    def processes(self, *names: str) -> Iterator[Process]:
        """Yield the processes of these names, or all if none is given, without those that end meanwhile and the
        kernel's own. Raises OSError."""
        for entry in os.listdir(self.path("proc")):
            if entry.isdigit():
                try:
                    words = self.text(f"proc/{entry}/cmdline").rstrip("\0").split("\0")
                except (FileNotFoundError, ProcessLookupError):
                    continue
                process = Process(int(entry), tuple(words))
                if words[0] and (not names or process.name in names):
                    yield process

    def sockets(self) -> tuple[UnixSocket, ...]:
        """Return the unix stream sockets of this network namespace. Raises OSError."""
        return tuple(parse_proc_net_unix(self.text("proc/net/unix")))

    def sockets_with_peers(self) -> tuple[UnixSocket, ...]:
        """Return the unix stream sockets with their peers, of the network namespaces of all processes that may be read.
        Raises OSError where the kernel does not report peers."""
        namespaces: dict[int, Path] = {}
        for process in self.processes():
            place = self.path(f"proc/{process.pid}/ns/net")
            with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                namespaces.setdefault(os.stat(place).st_ino, place)
        return tuple(self.kernel(namespaces.values()))

    def listeners(self, path: str) -> frozenset[int]:
        return frozenset(unix_socket.inode for unix_socket in sockets_at(path, self.sockets()) if unix_socket.listening)

    def open_sockets(self, pid: int) -> frozenset[int]:
        """Return the inodes of the sockets that a process has open, none if it has ended. Raises OSError."""
        folder, inodes = self.path(f"proc/{pid}/fd"), set[int]()
        try:
            for entry in os.listdir(folder):
                with suppress(FileNotFoundError):  # closed meanwhile
                    if (link := os.readlink(folder / entry)).startswith("socket:["):
                        inodes.add(int(link[8:-1]))
        except (FileNotFoundError, ProcessLookupError):
            return frozenset()
        return frozenset(inodes)

    def lock_holder(self) -> int | None:
        """Return the process that holds the lock next to the proxy's socket, None if nobody does. It is read from
        /proc/locks: trying the lock would stop a proxy that starts now. Raises OSError."""
        try:
            status = os.stat(self.config.listen_endpoint + ".lock", follow_symlinks=False)
        except FileNotFoundError:
            return None
        lock_id = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        rows = (line.split() for line in self.text("proc/locks").splitlines())
        return next((int(row[4]) for row in rows if row[1] == "FLOCK" and row[5] == lock_id), None)

    def proxy(self) -> int | None:
        """Return the process that serves the proxy's socket; None if none is seen. It holds the lock; a socket that
        systemd handed over has none, and is open in systemd, too. Raises OSError."""
        if (holder := self.lock_holder()) is not None:
            return holder
        listening = self.listeners(self.config.listen_endpoint)
        pids = (process.pid for process in self.processes() if process.pid != 1) if listening else ()
        return next((pid for pid in pids if not listening.isdisjoint(self.open_sockets(pid))), None)


def is_denied(path: str) -> bool:
    """Return whether this process has no right to connect to a socket at a path, or to check whether there is one."""
    try:
        os.stat(path)
    except OSError as error:
        return isinstance(error, PermissionError)
    return not os.access(path, os.W_OK, effective_ids=True)
