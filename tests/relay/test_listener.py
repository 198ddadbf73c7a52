"""The listening socket: its one owner and modes; systemd's sockets (fault matrix P4, P6, P8 and X5, promise 17)."""

import asyncio
import contextlib
import errno
import grp
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.files import folder_fault
from runtimeproxy.relay import acceptor
from runtimeproxy.relay import listener as listener_module
from runtimeproxy.relay.listener import Listener, inherited, listen
from tests.fakes.descriptors import no_descriptors
from tests.patience import until

Patch = pytest.MonkeyPatch
Log = pytest.LogCaptureFixture


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a directory that no other user can write in, whatever the umask of the run."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o700)
    return tmp_path / "run"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def talk(path: Path, listening: socket.socket) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        with listening.accept()[0] as accepted:
            client.sendall(b"hello")
            return accepted.recv(5)


def bind(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.bind(str(path))
    return sock


def listen_elsewhere(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM, clients: int = 0) -> list[socket.socket]:
    """Listen as another program, with its backlog filled by clients; the caller closes the sockets."""
    sockets = [bind(path, kind), *(socket.socket(socket.AF_UNIX) for _ in range(clients))]
    if kind is socket.SOCK_STREAM:
        sockets[0].listen(0 if clients else 8)
    for client in sockets[1:]:
        client.connect(str(path))
    return sockets


@contextlib.contextmanager
def nobodys_folder() -> Iterator[str]:
    """Become a user without permissions; its directory is not in pytest's, which is closed to others."""
    us = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        if us == 0:
            os.chown(folder, 65534, 65534)
        os.seteuid(us or 65534)
        try:
            yield folder
        finally:
            os.seteuid(us)


def test_listener_replaces_stale_socket_and_removes_its_own(folder: Path) -> None:
    """Of concurrent starts one succeeds."""

    def attempt(path: Path) -> Listener | None:
        try:
            return listen(str(path))
        except ConfigError:
            return None

    longest = folder / ("n" * (107 - len(os.fsencode(folder)) - 1))
    for path in (folder / "a.sock", longest):
        bind(path).close()  # as a killed process leaves it
        for starts in (100, 1):
            with ThreadPoolExecutor(10) as threads:
                (listener,) = filter(None, threads.map(attempt, [path] * starts))
            with pytest.raises(BlockingIOError):
                listener.socket.accept()  # the other starts did not even connect
            assert listener.socket.getsockname() == listener.path == str(path)
            assert talk(path, listener.socket) == b"hello"
            listener.close()
            listener.close()
            assert not path.exists()


@pytest.mark.parametrize(("mode", "umask"), [(0o600, 0), (0o660, 0o022), (0o666, 0o777)])
def test_socket_mode_is_independent_of_umask(folder: Path, mode: int, umask: int) -> None:
    """So are the modes of created directories."""
    (folder / "link").symlink_to(".")
    before = os.umask(umask)
    try:
        listener = listen(str(folder / "a.sock"), mode=mode)
        if umask == 0:
            listen(str(folder / "link" / "x" / "y" / "z" / "a.sock")).close()
    finally:
        os.umask(before)
    assert mode_of(folder / "a.sock") == mode
    assert umask or [mode_of(folder / name) for name in ("x", "x/y", "x/y/z")] == [0o755, 0o755, 0o700]
    listener.close()


SLOWED_CALLS = "bind,fchmod,chmod,fchmodat,chown,lchown,fchownat,listen"
SLOW_START = """
import os, sys
from runtimeproxy.relay.listener import listen
os.umask(0)
listen(sys.argv[1], mode=int(sys.argv[2], 8), group=sys.argv[3]).close()
"""


@pytest.mark.slow
@pytest.mark.tool("strace")
@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_socket_mode_is_never_wider_between_system_calls(folder: Path, mode: int) -> None:
    path, seen = folder / "a.sock", set[int]()
    command = ["strace", "-f", "-qq", "-e", f"trace={SLOWED_CALLS}", "-e", f"inject={SLOWED_CALLS}:delay_exit=50000"]
    command += [sys.executable, "-c", SLOW_START, str(path), oct(mode), str(os.getgid())]
    for _ in range(5):  # on a busy machine no check may fall between two system calls
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            while process.poll() is None:
                with contextlib.suppress(FileNotFoundError):
                    seen.add(mode_of(path))
            assert process.stderr is not None
            trace = process.stderr.read()
        assert process.returncode == 0, trace
        assert "bind(" in trace
        if seen >= {0o600, mode}:
            break
    assert seen == {0o600, mode}


KILLED = """
import os, signal, socket, sys, time
listener = socket.create_server(sys.argv[1], family=socket.AF_UNIX)
if os.fork():
    os.kill(os.getpid(), signal.SIGKILL)
os.close(1)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "free"), [(0.3, True), (30.0, False)])
def test_start_waits_for_child_of_killed_proxy(folder: Path, seconds: float, free: bool, monkeypatch: Patch) -> None:
    """It listens until it notices the end of its parent."""
    monkeypatch.setattr(listener_module, "ORPHAN_SECONDS", 20.0 if free else 0.1)
    command = [sys.executable, "-c", KILLED, str(folder / "a.sock"), str(seconds)]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE) as killed:
        killed.communicate()
    refused = pytest.raises(ConfigError, match=rf"another process \(pid {killed.pid}\) listens on")
    try:
        with contextlib.nullcontext() if free else refused:
            listen(str(folder / "a.sock")).close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(killed.pid, signal.SIGKILL)


NO_SOCKET = "a.sock exists and is not a socket; remove it"
NO_LOCK = r"a\.sock\.lock is not a regular file"
OPEN = "can be written by everybody"
OBSTACLES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "file": ("a.sock", Path.touch, NO_SOCKET),
    "folder": ("a.sock", Path.mkdir, NO_SOCKET),
    "FIFO": ("a.sock", os.mkfifo, NO_SOCKET),
    "dangling link": ("a.sock", lambda path: path.symlink_to("nothing"), NO_SOCKET),
    "link to a socket": ("a.sock", lambda path: (bind(path.with_name("x")).close(), path.symlink_to("x")), NO_SOCKET),
    "another program": ("a.sock", listen_elsewhere, rf"process \(pid {os.getpid()}\) listens on"),
    "full backlog": ("a.sock", lambda path: listen_elsewhere(path, clients=1), "another process listens on"),
    "datagram socket": ("a.sock", lambda path: listen_elsewhere(path, socket.SOCK_DGRAM), "another process listens on"),
    "lock is a folder": ("a.sock.lock", Path.mkdir, NO_LOCK),
    "lock is a link": ("a.sock.lock", lambda path: path.symlink_to("nothing"), NO_LOCK),
    "lock is a FIFO": ("a.sock.lock", os.mkfifo, NO_LOCK),
    "folder is a link": ("in", lambda path: path.symlink_to("."), "no directory; set --koord-runtimeproxy"),
    "folder is a file": ("in", Path.touch, "is a link or no directory"),
    "folder of all": ("in", lambda path: (path.mkdir(), path.chmod(0o1777)), OPEN),
    "folder above is a file": ("above", Path.touch, "cannot listen on .*: File exists; check its directory"),
}
PATHS = {"in": "in/a.sock", "above": "above/in/a.sock"}


@pytest.mark.parametrize(("name", "make", "words"), OBSTACLES.values(), ids=OBSTACLES)
def test_obstacle_is_reported_and_stays(folder: Path, name: str, make: Callable[[Path], object], words: str) -> None:
    def inodes() -> dict[Path, int]:
        lock = folder / "a.sock.lock"
        return {path: path.lstat().st_ino for path in folder.rglob("*") if path != lock}

    sockets = make(folder / name)
    before = inodes()
    with pytest.raises(ConfigError, match=words):
        listen(str(folder / PATHS.get(name, "a.sock")))
    assert inodes() == before
    for sock in sockets if isinstance(sockets, list) else ():
        sock.close()


def test_bad_setting_is_reported() -> None:
    for path, group, words in (
        ("a.sock", None, "is not an absolute path; set --admin-endpoint"),
        ("/run/" + "n" * 103, None, "is longer than 107 bytes"),
        ("/run/a.sock", "no-such-group", "no group 'no-such-group'"),
    ):
        with pytest.raises(ConfigError, match=words):
            listen(path, group=group, flag="--admin-endpoint")


GROUP = 12345 if os.geteuid() == 0 else os.getegid()
"""The socket's group; only root can set a group that it is not in, and the group need not exist."""
OTHER_GROUPS = [12346] if os.geteuid() == 0 else []


def test_group_can_enter_created_directory(tmp_path: Path) -> None:
    group = grp.getgrgid(os.getgid())
    for spelling in (group.gr_name, str(group.gr_gid)):
        listener = listen(str(tmp_path / spelling / "a.sock"), mode=0o660, group=spelling)
        for path, its_mode in ((tmp_path / spelling / "a.sock", 0o660), (tmp_path / spelling, 0o750)):
            assert (mode_of(path), path.lstat().st_gid) == (its_mode, group.gr_gid)
        listener.close()
    with nobodys_folder() as folder:
        with pytest.raises(ConfigError, match=r"cannot listen on .*: Operation not permitted"):
            listen(f"{folder}/a.sock", mode=0o660, group="1")
        assert os.listdir(folder) == ["a.sock.lock"], "a socket whose group cannot be set is removed"


CAN_ENTER = [(0o710, GROUP), *((0o711, group) for group in OTHER_GROUPS)]
CANNOT = [(0o740, GROUP), (0o705, GROUP), *((0o750, group) for group in OTHER_GROUPS)]


@pytest.mark.parametrize(("mode", "group"), CAN_ENTER + CANNOT)
def test_directory_closed_to_group_is_logged(folder: Path, caplog: Log, mode: int, group: int) -> None:
    os.chown(folder, -1, group)
    folder.chmod(mode)
    listen(str(folder / "a.sock"), mode=0o660, group=str(GROUP)).close()
    assert (mode_of(folder), folder.lstat().st_gid) == (mode, group)
    warning = f"group {GROUP} cannot enter {folder}, so it cannot use the socket: chgrp the directory to the group"
    assert [line.startswith(warning) for line in caplog.messages] == [True] * ((mode, group) in CANNOT)


FOLDERS = [(0o700, 0, 0, ""), (0o755, os.geteuid(), 12345, ""), (0o755, 65534, 0, "belongs to user 65534")]
FOLDERS += [(0o770, 0, 0, ""), (0o770, 0, 999, ""), (0o770, 0, 12345, "can be written by group 12345")]
FOLDERS += [(0o777, 0, 0, OPEN), (0o1777, 0, 0, OPEN)]


@pytest.mark.parametrize(("mode", "user", "group", "fault"), FOLDERS)
def test_directory_writable_for_others_is_refused(mode: int, user: int, group: int, fault: str) -> None:
    status = os.stat_result((stat.S_IFDIR | mode, 1, 1, 1, user, group, 0, 0, 0, 0))
    assert folder_fault(status, group_id=999) == fault


def test_withdrawn_socket_serves_pending_clients_and_is_locked(folder: Path) -> None:
    path = str(folder / "a.sock")
    listener = listen(path)
    with socket.socket(socket.AF_UNIX) as early, socket.socket(socket.AF_UNIX) as late:
        early.connect(path)
        assert listener.withdraw()
        with pytest.raises(FileNotFoundError):
            late.connect(path)
        listener.socket.accept()[0].close()
    assert listener.withdraw(), "it is repeatable"
    held = "or still finishes calls and holds .*; stop it and wait for its end, or choose another --koord-"
    with pytest.raises(ConfigError, match=rf"another runtimeproxy \(pid {os.getpid()}\) listens on .*, {held}"):
        listen(path)
    listener.close()
    listen(path).close()


@pytest.mark.parametrize("handed_over", [False, True])
@pytest.mark.parametrize("replaced_by", ["", "a file"])
def test_listener_reports_and_keeps_replaced_socket(folder: Path, handed_over: bool, replaced_by: str) -> None:
    path = folder / "a.sock"
    listener = Listener(bind(path), str(path)) if handed_over else listen(str(path))
    assert listener.fault() == ""
    path.unlink()
    if replaced_by:
        path.write_text(replaced_by)
    words = "is no longer the proxy's socket: it was removed or replaced; restart"
    assert listener.fault() == f"{path} {words} {'its socket unit' if handed_over else 'the proxy'}"
    assert listener.withdraw() is not handed_over
    listener.close()
    assert (listener.fault(), path.exists()) == ("the socket is closed", bool(replaced_by))
    with bind(folder / "b.sock") as sock:
        assert Listener(sock, "/no/such/path").fault() == "", "a path of another mount namespace is no fault"


def test_socket_that_cannot_be_removed_stays_with_one_warning(caplog: Log) -> None:
    with nobodys_folder() as folder, socket.socket(socket.AF_UNIX) as early, socket.socket(socket.AF_UNIX) as late:
        listener = listen(f"{folder}/a.sock")
        os.chmod(folder, 0o500)
        early.connect(listener.path)
        assert listener.withdraw()
        assert late.connect_ex(listener.path) == errno.ECONNREFUSED
        listener.socket.accept()[0].close()
        listener.close()
        assert listener.socket.fileno() == -1
        os.chmod(folder, 0o700)
        listen(f"{folder}/a.sock").close()
    (line,) = caplog.records
    words = "it cannot be removed (Permission denied); the next start tries again"
    assert (line.levelname, line.getMessage()) == ("WARNING", f"{folder}/a.sock stays: {words}")


class Systemd:
    """Hands sockets over to this process: at descriptors from 500 on in place of 3."""

    def __init__(self, monkeypatch: Patch, folder: Path) -> None:
        self.folder, self.sockets = folder, contextlib.ExitStack()
        monkeypatch.setattr(listener_module, "_FIRST_FD", 500)

    def listen(self, name: str, mode: int = 0o600) -> socket.socket:
        sock = self.sockets.enter_context(bind(self.folder / name))
        sock.listen()
        (self.folder / name).chmod(mode)
        return sock

    def hand_over(self, names: str, *given: socket.socket | IO[str]) -> dict[str, Listener]:
        for at, descriptor in enumerate(given):
            os.dup2(descriptor.fileno(), 500 + at)
        environ = {"LISTEN_FDS": str(len(given)), "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": names, "OTHER": "1"}
        try:
            return inherited(environ)
        finally:
            assert environ == {"OTHER": "1"}


@pytest.fixture
def systemd(monkeypatch: Patch, tmp_path: Path) -> Iterator[Systemd]:
    made = Systemd(monkeypatch, tmp_path)
    with made.sockets:
        yield made
    os.closerange(500, 503)


@pytest.mark.parametrize("names", ["runtimeproxy.socket", "admin", "metrics:runtimeproxy:admin"])
def test_inherited_sockets_are_used_by_name_and_remain(tmp_path: Path, systemd: Systemd, names: str) -> None:
    order = names.removesuffix(".socket").split(":")
    listeners = systemd.hand_over(names, *map(systemd.listen, order))
    assert list(listeners) == order
    for name, listener in listeners.items():
        assert listener.path == str(tmp_path / name)
        sock = listener.socket
        assert (sock.getblocking(), sock.get_inheritable(), listener.withdraw()) == (False, False, False)
        assert talk(tmp_path / name, listener.socket) == b"hello"
        listener.close()
        assert (tmp_path / name).exists()


COUNT = "LISTEN_FDS is '2', with"
REFUSED_NAMES = {
    "": f"{COUNT} 1 names: give each socket unit one ListenStream=, and FileDescriptorName= one",
    "runtimeproxy:admin:metrics": f"{COUNT} 3 names",
    "runtimeproxy:runtimeproxy": "LISTEN_FDNAMES: the name 'runtimeproxy' is there twice",
    "runtimeproxy:unknown": "LISTEN_FDNAMES: the name 'unknown' is unknown",
}


def test_wrong_inherited_names_or_sockets_are_refused(tmp_path: Path, systemd: Systemd) -> None:
    ours = str(os.getpid())
    ignored = [{}, {"LISTEN_FDS": "1"}, {"LISTEN_FDS": "1", "LISTEN_PID": "1"}, {"LISTEN_PID": ours}]
    for environ in (*ignored, {"LISTEN_FDS": "0", "LISTEN_PID": ours}):
        assert (inherited(environ), environ) == ({}, {}), "variables of other processes are removed"
    given = [*map(systemd.listen, "ab")]
    for names, problem in REFUSED_NAMES.items():
        with pytest.raises(ConfigError, match=re.escape(problem)):
            systemd.hand_over(names, *given)
    with (
        bind(tmp_path / "idle") as idle,
        bind(tmp_path / "datagram", socket.SOCK_DGRAM) as datagram,
        socket.create_server(("127.0.0.1", 0)) as internet,
        (tmp_path / "file").open("w") as file,
    ):
        for other in (idle, datagram, internet, file):
            problem = "is not a socket" if other is file else "not a listening unix stream"
            with pytest.raises(ConfigError, match=problem):
                systemd.hand_over("runtimeproxy.socket", other)


@pytest.mark.parametrize("mode", [0o660, 0o604])
def test_inherited_admin_socket_with_wide_mode_is_refused(systemd: Systemd, mode: int) -> None:
    with pytest.raises(ConfigError, match=f"/0 has the mode {mode:04o}: set SocketMode=0600 in the unit of admin"):
        systemd.hand_over("admin", systemd.listen("0", mode))


async def test_accept_pauses_after_shortage_of_descriptors(folder: Path, monkeypatch: Patch, caplog: Log) -> None:
    monkeypatch.setattr(acceptor, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(acceptor, "BATCH", 2)
    sockets = [*listen_elsewhere(folder / "a.sock"), *(socket.socket(socket.AF_UNIX) for _ in range(3))]
    sockets[0].setblocking(False)
    for client in sockets[1:]:
        client.connect(str(folder / "a.sock"))
    accepted: list[socket.socket] = []
    made = acceptor.Acceptor(asyncio.get_running_loop(), sockets[0], accepted.append)
    with no_descriptors():
        made.accept()
    made.stop()
    await asyncio.sleep(0.05)
    assert not accepted, "none is accepted after a stop"
    made.accept()
    assert len(accepted) == 2, "one batch"
    caplog.clear()
    with no_descriptors():
        made.start()
        await until(lambda: len(caplog.records) == 2)
    assert caplog.records[1].created - caplog.records[0].created >= 0.01
    await until(lambda: len(accepted) == 3)
    made.stop()
    for sock in sockets + accepted:
        sock.close()
