"""What the kernel tells of unix sockets: on this machine, and in answers that a test makes."""

import errno
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.cli.doctor import machine
from runtimeproxy.cli.doctor.machine import UnixSocket, at, listed, reported_sockets

HERE = Path("/proc/self/ns/net")
ERROR, DONE = 2, 3


def inode(of: socket.socket) -> int:
    return os.fstat(of.fileno()).st_ino


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "runtime.sock"))
        listener.listen()
        yield listener


@pytest.mark.engine
def test_kernel_tells_what_proc_lists_and_the_peers(listener: socket.socket) -> None:
    path = listener.getsockname()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        accepted, _ = listener.accept()
        with accepted:
            found = at(path, reported_sockets([HERE]))
            ends = {inode(listener): (True, False, 0), inode(accepted): (False, True, inode(client))}
            assert {s.inode: (s.listening, s.connected, s.peer) for s in found} == ends
            assert {s._replace(peer=0) for s in found} == set(at(path, listed(Path("/proc/net/unix").read_text())))


@pytest.mark.engine
def test_clients_in_another_network_namespace_are_told(listener: socket.socket) -> None:
    path = listener.getsockname()
    code = "import os, socket, sys; s = socket.socket(1); s.connect(sys.argv[1]); print(os.fstat(s.fileno()).st_ino)"
    command = ["unshare", "--net", sys.executable, "-uc", f"{code}; input()", path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        number = int(client.stdout.readline())
        accepted, _ = listener.accept()  # the kernel leaves out what nobody has accepted
        with accepted:
            assert all(found.peer != number for found in reported_sockets([HERE]))
            (found,) = at(path, reported_sockets([Path("/proc/absent/ns/net"), Path(f"/proc/{client.pid}/ns/net")]))
            assert (found.inode, found.peer) == (inode(accepted), number)
        client.communicate(b"\n")


def answers(monkeypatch: pytest.MonkeyPatch, *datagrams: bytes) -> Iterator[UnixSocket]:
    """Return what is told where the kernel gives these answers."""
    kernel, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for datagram in datagrams:
        kernel.send(datagram)
    monkeypatch.setattr(machine, "_opened", lambda namespace: asked)
    with kernel:
        yield from reported_sockets([HERE])


def message(kind: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


def answer(number: int, path: bytes, peer: int, kind: int = socket.SOCK_STREAM) -> bytes:
    """Return one socket's answer; its path is padded to four bytes, as the kernel does."""
    name = struct.pack("=HH", 4 + len(path), 0) + path + bytes(-len(path) % 4)
    return message(20, struct.pack("=BBBBIII", 1, kind, 1, 0, number, 0, 0) + name + struct.pack("=HHI", 8, 2, peer))


def test_answers_may_share_a_datagram_and_end_with_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    others = answer(6, b"/b.sock\0", 2, kind=socket.SOCK_DGRAM) + answer(7, b"\0abstract", 3)
    done = message(DONE, bytes(4))
    assert list(answers(monkeypatch, answer(5, b"/a.sock\0", 1) + others, done)) == [
        UnixSocket(5, False, True, "/a.sock", 1),
        UnixSocket(7, False, True, "@abstract", 3),
    ]


@pytest.mark.parametrize("kind", [ERROR, DONE])
def test_error_of_the_kernel_is_raised(monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    with pytest.raises(OSError, match="No such file") as raised:
        list(answers(monkeypatch, answer(5, b"", 1), message(kind, struct.pack("=i", -errno.ENOENT))))
    assert raised.value.errno == errno.ENOENT
