"""Reading a machine made of files, and this one."""

import errno
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.cli.doctor import machine
from runtimeproxy.cli.doctor import machine as doctor_machine
from runtimeproxy.cli.doctor.machine import Machine, Process, UnixSocket, is_denied, reported_sockets, sockets_at
from tests.doctor.conftest import Made

NOBODY = 65534
FLAGS = [("--x=a", "a"), ("--x a", "a"), ("--x=a --x=b", "b"), ("--xy=a", None), ("--x", None), ("--x=", "")]


@pytest.mark.parametrize(("arguments", "value"), FLAGS)
def test_flag_is_read_in_both_spellings(arguments: str, value: str | None) -> None:
    assert Process(1, ("kubelet", *arguments.split())).flag("x") == value


def test_processes_are_found_by_program_name(made: Made) -> None:
    made.process(5, "/usr/bin/kubelet", "--x")
    made.process(6, "kubelet-helper")
    made.process(7)
    (made.root / "proc/8").mkdir()
    assert [process.pid for process in made.machine.processes("kubelet")] == [5]
    assert sorted(process.pid for process in made.machine.processes()) == [5, 6]
    assert made.machine.open_sockets(4711) == frozenset(), "a process that has ended has none"


def test_stream_socket_is_found_by_link(made: Made, tmp_path: Path) -> None:
    (tmp_path / "var").symlink_to(made.ours.parent)
    made.socket(9, tmp_path / "var" / made.ours.name, listening=True)
    assert made.machine.listeners(str(made.ours)) == {9}
    made.write("proc/net/unix", made.root.joinpath("proc/net/unix").read_text().replace(" 0001 ", " 0002 "))
    assert made.machine.sockets() == ()


def test_real_machine_lists_own_sockets_and_lock(made: Made) -> None:
    this = Machine(made.machine.config)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(made.ours))
        listener.listen()
        client.connect(str(made.ours))
        assert len(this.listeners(str(made.ours))) == 1
        assert this.listeners(str(made.ours)) < this.open_sockets(os.getpid())
        accepted, _ = listener.accept()
        with accepted:
            assert [found.connected for found in sockets_at(str(made.ours), this.sockets())].count(True) == 1
    with open(f"{made.ours}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert this.lock_holder() == os.getpid()


def test_proxy_is_found_by_socket_when_systemd_made_it(made: Made) -> None:
    made.socket(9, made.ours, listening=True)
    made.process(1, "/sbin/init", sockets=[9])
    made.process(30, "other", sockets=[8])
    assert made.machine.proxy() is None
    made.process(31, "python3", sockets=[9])
    assert made.machine.proxy() == 31


@pytest.mark.engine
def test_socket_is_denied_when_user_has_no_rights(made: Made) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(made.ours))
        made.ours.chmod(0o600)
    places = [str(made.ours), f"{made.ours}.absent", "/run/absent"]
    assert [is_denied(place) for place in places] == [False, False, False]
    try:
        os.seteuid(NOBODY)
        assert [is_denied(place) for place in places] == [True, True, False]
    finally:
        os.seteuid(0)


def test_failing_systemctl_raises_os_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "systemctl"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match="systemctl show does not answer"):
        doctor_machine.systemctl(["show"])


HERE = Path("/proc/self/ns/net")
ERROR, DONE = 2, 3


@pytest.mark.engine
def test_clients_in_other_network_namespace_are_reported(tmp_path: Path) -> None:
    path = str(tmp_path / "runtime.sock")
    code = "import os, socket, sys; s = socket.socket(1); s.connect(sys.argv[1]); print(os.fstat(s.fileno()).st_ino)"
    command = ["unshare", "--net", sys.executable, "-uc", f"{code}; input()", path]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            number = int(client.stdout.readline())
            accepted, _ = listener.accept()  # the kernel omits connections that were not accepted
            with accepted:
                assert all(found.peer != number for found in reported_sockets([HERE]))
                namespaces = [Path("/proc/absent/ns/net"), Path(f"/proc/{client.pid}/ns/net")]
                (found,) = sockets_at(path, reported_sockets(namespaces))
                assert (found.inode, found.peer) == (os.fstat(accepted.fileno()).st_ino, number)
            client.communicate(b"\n")


def answers(monkeypatch: pytest.MonkeyPatch, *datagrams: bytes) -> Iterator[UnixSocket]:
    """Return the sockets that are read from these answers of the kernel."""
    kernel, client = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for datagram in datagrams:
        kernel.send(datagram)
    monkeypatch.setattr(machine, "_open_netlink", lambda namespace: client)
    with kernel:
        yield from reported_sockets([HERE])


def message(kind: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


def answer(number: int, path: bytes, peer: int, kind: int = socket.SOCK_STREAM) -> bytes:
    """Return one socket's answer; its path is padded to four bytes, as the kernel does."""
    name = struct.pack("=HH", 4 + len(path), 0) + path + bytes(-len(path) % 4)
    return message(20, struct.pack("=BBBBIII", 1, kind, 1, 0, number, 0, 0) + name + struct.pack("=HHI", 8, 2, peer))


def test_answers_may_share_datagram(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = answer(6, b"/b.sock\0", 2, kind=socket.SOCK_DGRAM) + answer(7, b"\0abstract", 3)
    sockets = answers(monkeypatch, answer(5, b"/a.sock\0", 1) + shared, message(DONE, bytes(4)))
    assert [(end.inode, end.path, end.peer) for end in sockets] == [(5, "/a.sock", 1), (7, "@abstract", 3)]


@pytest.mark.parametrize("kind", [ERROR, DONE])
def test_kernel_error_is_raised(monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    with pytest.raises(OSError, match="No such file") as raised:
        list(answers(monkeypatch, answer(5, b"", 1), message(kind, struct.pack("=i", -errno.ENOENT))))
    assert raised.value.errno == errno.ENOENT
