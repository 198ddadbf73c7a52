"""Reading a machine made of files, and this one: who is a client of the runtime, and who uses the proxy."""

import errno
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from runtimeproxy.cli.doctor import clients, machine
from runtimeproxy.cli.doctor.machine import Machine, Process, UnixSocket, is_denied, reported_sockets, sockets_at
from tests.doctor.conftest import CANARY, Made, only, verdicts

END_AT_PROXY = 900


def kernel(made: Made, *ends: int) -> list[UnixSocket]:
    """Return what the kernel lists if these are the clients' ends of the runtime's connections."""
    return made.connections(made.runtime, *ends, more=made.connections(made.ours, END_AT_PROXY)[1:])


def test_each_connected_process_yields_one_finding(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may not be read is only counted; a connection that ends meanwhile is not reported."""
    made.kernel = [kernel(made, 201, 202, 203, 204, 205), kernel(made, 201, 202, 203, 204)]
    made.proxy(ends=[201, 202])
    made.process(50, "/usr/bin/crictl", "ps", CANARY, sockets=[203, 9])
    made.process(51, "other", sockets=[204])
    made.process(52, "idle", sockets=[9], network="pod")

    def open_sockets(machine: Machine, pid: int, opened: Any = Machine.open_sockets) -> Any:
        if pid == 51:
            raise PermissionError
        return opened(machine, pid)

    monkeypatch.setattr(Machine, "open_sockets", open_sockets)
    assert sorted(verdicts(clients.bypassing_clients(made.machine))) == [
        ("ok", f"the proxy (pid 70) has 2 connections to {made.runtime}"),
        ("unknown", f"1 connection to {made.runtime} of processes that cannot be seen here"),
        ("warning", f"crictl (pid 50) has 1 connection to {made.runtime}, past the proxy"),
    ]
    assert made.namespaces == [{"../../namespaces/n", "../../namespaces/pod"}] * 2
    made.kernel = [kernel(made)]
    assert only(clients.bypassing_clients, made) == ("ok", f"nobody is connected to {made.runtime}")


def test_client_is_judged_by_name_and_connections(tmp_path: Path) -> None:
    judged = [
        ("kubelet", [201], "failed", ", and none to the proxy", "the check kubelet"),
        ("kubelet", [201, END_AT_PROXY], "ok", ": cAdvisor inside it reads there", ""),
        ("cri-dockerd", [201, END_AT_PROXY], "warning", ", past the proxy", "the proxy's socket"),
        ("crictl", [201, END_AT_PROXY], "warning", ", past the proxy", "/etc/crictl.yaml"),
        ("docker", [201], "warning", ", past the proxy", "DOCKER_HOST"),
        ("unheard-of", [201], "warning", ", past the proxy", "others may stay"),
        *((name, [201], "ok", f": {why}", "") for name, why in clients.EXPECTED_CLIENTS.items() if name != "kubelet"),
    ]
    for at, (name, sockets, verdict, words, to_do) in enumerate(judged):
        (tmp_path / str(at)).mkdir()
        made = Made(tmp_path / str(at))
        made.kernel = [kernel(made, 201)]
        made.process(50, f"/usr/bin/{name}", sockets=sockets)
        (finding,) = clients.bypassing_clients(made.machine)
        why = f"{name} (pid 50) has 1 connection to {made.runtime}{words}"
        assert (finding.verdict.value, finding.why, to_do in finding.do) == (verdict, why, True)


@pytest.mark.parametrize("own", [1, 3])
def test_connections_above_proxy_count_name_suspects(made: Made, own: int) -> None:
    why = f"{made.runtime} has {{}} connections, no more than the proxy's own"
    assert only(clients.bypassing_clients, made) == ("ok", why.format(0))
    made.socket(100, made.runtime, listening=True)
    for inode in (101, 102, 103):
        made.socket(inode, made.runtime)
    assert only(clients.bypassing_clients, made)[1].endswith("(may be: no known client is seen)")
    made.proxy(ends=range(201, 201 + own))
    for inode in (301, 302):
        made.socket(inode)
    made.process(50, "/usr/bin/kubelet", "--x", CANARY, sockets=[301])
    made.process(51, "crictl")
    made.process(52, "unheard-of", sockets=[302])
    suspects = f"2 or more of 3 connections to {made.runtime} go past the proxy (may be: kubelet pid 50)"
    found = only(clients.bypassing_clients, made)
    assert found == (("ok", why.format(3)) if own == 3 else ("warning", suspects))


def users(made: Made) -> list[str]:
    return list(clients.users(made.machine))


def test_in_use_lists_connected_programs_until_they_end(made: Made) -> None:
    made.kernel = [made.connections(made.ours, 900)]
    assert users(made) == [f"1 connection to {made.ours} of processes that cannot be seen here"]
    made.kernel = [made.connections(made.ours, 900), made.connections(made.ours)]
    assert (users(made), made.units) == ([], []), "without systemd no unit is queried"
    made.kernel = [made.connections(made.ours, 900, 901)]
    made.proxy(ends=[1900, 1901])
    made.process(40, "/usr/bin/k3s", CANARY, sockets=[900, 901, 5])
    assert users(made) == [f"k3s (pid 40) has 2 connections to {made.ours}"]
    made.kernel = []
    made.socket(1902, made.ours)
    assert users(made) == [f"1 connection to {made.ours}; the kernel does not report whose"]


BY_FLAG = "--container-runtime-endpoint"
CONFIGURED = [
    ("kubelet", f"{BY_FLAG}=unix://{{}}", BY_FLAG),
    ("kubelet", "--image-service-endpoint={}", "--image-service-endpoint"),
    ("cri-dockerd", "--docker-endpoint=unix:{}", "--docker-endpoint"),
    ("kubelet", "--config=/k.yaml", "containerRuntimeEndpoint in /k.yaml"),
    ("kubelet", f"{BY_FLAG}=unix:///other.sock", ""),
]


def test_in_use_lists_programs_configured_for_proxy(made: Made) -> None:
    made.kernel = [made.connections(made.ours)]
    for pid, (name, flag, _) in enumerate(CONFIGURED):
        made.process(pid, f"/usr/bin/{name}", flag.format(made.ours), CANARY)
        made.write(f"proc/{pid}/root/k.yaml", f"containerRuntimeEndpoint: unix://{made.ours}\n")
    listed = [(pid, name, by) for pid, (name, _, by) in enumerate(CONFIGURED) if by]
    assert sorted(users(made)) == sorted(f"{n} (pid {pid}) is configured to call it, by {by}" for pid, n, by in listed)


ENVIRONMENT = f'Environment="KUBELET_EXTRA_ARGS=--x={CANARY} {BY_FLAG}=unix://{{ours}}" A=b\n'
FILES = "EnvironmentFiles=/not/there (ignore_errors=yes)\nEnvironmentFiles=/var/flags.env (ignore_errors=yes)\n"
UNITS = [
    (f"ExecStart={{{{ path=/k ; argv[]=/k {BY_FLAG}=unix://{{ours}} ; ignore_errors=no }}}}\n", ""),
    (ENVIRONMENT, ""),
    (FILES, " by /var/flags.env"),
    ("Environment=KUBELET_CONFIG_ARGS=--config=/var/config.yaml\n", " by /var/config.yaml"),
    (f"ExecStart={{{{ argv[]=/k {BY_FLAG}=unix:///run/containerd/containerd.sock }}}}\n", None),
]


def test_in_use_lists_stopped_unit(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.kernel = [made.connections(made.ours)]
    made.write("run/systemd/system/x", "")
    made.write("var/flags.env", f'KUBELET_KUBEADM_ARGS="{BY_FLAG}=unix://{made.ours}"\n')
    made.write("var/config.yaml", f'containerRuntimeEndpoint: "unix://{made.ours}"\n')
    for unit, origin in UNITS:
        made.unit = unit.format(ours=made.ours)
        listed = [] if origin is None else [f"{name}{origin} is configured to call it" for name in clients.UNITS]
        assert users(made) == listed
    assert [arguments[-1] for arguments in made.units] == [*clients.UNITS] * len(UNITS)
    monkeypatch.setattr(Made, "_systemctl", Mock(side_effect=OSError(0, "systemctl show does not answer")))
    with pytest.raises(OSError, match="does not answer"):
        users(made)


NOBODY = 65534
FLAGS = [("--x=a", "a"), ("--x a", "a"), ("--x=a --x=b", "b"), ("--xy=a", None), ("--x", None), ("--x=", "")]


def test_processes_and_proxy_are_found(made: Made, tmp_path: Path) -> None:
    """A flag is read in both spellings."""
    assert [Process(1, ("kubelet", *text.split())).flag("x") for text, _ in FLAGS] == [value for _, value in FLAGS]
    made.process(5, "/usr/bin/kubelet", "--x")
    made.process(6, "kubelet-helper")
    made.process(7)
    (made.root / "proc/8").mkdir()
    assert [process.pid for process in made.machine.processes("kubelet")] == [5]
    assert sorted(process.pid for process in made.machine.processes()) == [5, 6]
    assert made.machine.open_sockets(4711) == frozenset(), "a process that has ended has none"
    (tmp_path / "var").symlink_to(made.ours.parent)
    made.socket(9, tmp_path / "var" / made.ours.name, listening=True)
    assert made.machine.listeners(str(made.ours)) == {9}
    made.process(1, "/sbin/init", sockets=[9])
    made.process(30, "other", sockets=[8])
    assert made.machine.proxy() is None
    made.process(31, "python3", sockets=[9])
    assert made.machine.proxy() == 31
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
    (tmp_path / "systemctl").symlink_to("/bin/false")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match="systemctl show does not answer"):
        machine.systemctl(["show"])


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


def test_answers_of_kernel_may_share_datagram(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = answer(6, b"/b.sock\0", 2, kind=socket.SOCK_DGRAM) + answer(7, b"\0abstract", 3)
    sockets = answers(monkeypatch, answer(5, b"/a.sock\0", 1) + shared, message(DONE, bytes(4)))
    assert [(end.inode, end.path, end.peer) for end in sockets] == [(5, "/a.sock", 1), (7, "@abstract", 3)]
    for kind in (ERROR, DONE):
        with pytest.raises(FileNotFoundError, match="No such file"):
            list(answers(monkeypatch, answer(5, b"", 1), message(kind, struct.pack("=i", -errno.ENOENT))))
