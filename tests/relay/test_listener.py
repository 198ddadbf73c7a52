"""The listening socket: one owner, the right mode at every moment, nothing else touched; systemd's sockets.

That is fault matrix P4, P6 and X5, promise 17.
"""

import contextlib
import errno
import grp
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.files import folder_fault
from runtimeproxy.relay import listener as listener_module
from runtimeproxy.relay.listener import Listener, inherited, listen


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a directory that no other user can write in, whatever the umask of the run."""
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    path.chmod(0o700)
    return path


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def talk(path: Path, listening: socket.socket) -> bytes:
    listening.setblocking(True)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        accepted, _ = listening.accept()
        with accepted:
            client.sendall(b"hello")
            return accepted.recv(5)


def test_listener_replaces_a_stale_socket_and_removes_its_own(folder: Path) -> None:
    longest = folder / ("n" * (107 - len(os.fsencode(folder)) - 1))
    for path in (folder / "a.sock", longest):
        bind(path).close()  # as a killed process leaves it
        for _ in range(2):
            listener = listen(str(path))
            assert not listener.socket.getblocking()
            assert listener.socket.getsockname() == listener.path == str(path)
            assert talk(path, listener.socket) == b"hello"
            listener.close()
            listener.close()
            assert not path.exists()


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_mode_is_the_configured_one_whatever_the_umask(folder: Path, mode: int, umask: int) -> None:
    before = os.umask(umask)
    try:
        listener = listen(str(folder / "a.sock"), mode=mode)
    finally:
        os.umask(before)
    assert mode_of(folder / "a.sock") == mode
    listener.close()


_SLOW_START = """
import os, sys
from runtimeproxy.relay.listener import listen
os.umask(0)
listen(sys.argv[1], mode=int(sys.argv[2], 8), group=sys.argv[3]).close()
"""
_SLOWED = "bind,fchmod,chmod,fchmodat,chown,lchown,fchownat,listen"


@pytest.mark.slow
@pytest.mark.tool("strace")
@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_mode_is_never_wider_even_between_two_system_calls(folder: Path, mode: int) -> None:
    path, seen = folder / "a.sock", set[int]()
    command = ["strace", "-f", "-qq", "-e", f"trace={_SLOWED}", "-e", f"inject={_SLOWED}:delay_exit=50000"]
    command += [sys.executable, "-c", _SLOW_START, str(path), oct(mode), str(os.getgid())]
    for _ in range(5):  # a busy machine may not let us look between two system calls
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


_KILLED = """
import os, signal, socket, sys, time
listener = socket.create_server(sys.argv[1], family=socket.AF_UNIX)
if os.fork():
    os.kill(os.getpid(), signal.SIGKILL)
os.close(1)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize(("seconds", "free"), [(0.3, True), (30.0, False)])
def test_child_of_a_killed_proxy_is_waited_for(
    folder: Path, seconds: float, free: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the socket until it notices that its parent is gone."""
    monkeypatch.setattr(listener_module, "ORPHAN_SECONDS", 20.0 if free else 0.1)
    command = [sys.executable, "-c", _KILLED, str(folder / "a.sock"), str(seconds)]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE) as killed:
        killed.communicate()
    try:
        if free:
            listen(str(folder / "a.sock")).close()
        else:
            with pytest.raises(ConfigError, match=rf"another process \(pid {killed.pid}\) listens on"):
                listen(str(folder / "a.sock"))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(killed.pid, signal.SIGKILL)


@contextlib.contextmanager
def nobodys_folder() -> Iterator[str]:
    """Become a user without permissions.

    Its directory is in the system's temporary one, because pytest's is closed to others.
    """
    us = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        if us == 0:
            os.chown(folder, 65534, 65534)
        os.seteuid(us or 65534)
        try:
            yield folder
        finally:
            os.seteuid(us)


def test_group_that_cannot_be_given_leaves_no_socket() -> None:
    with nobodys_folder() as folder:
        with pytest.raises(ConfigError, match=r"cannot listen on .*: Operation not permitted"):
            listen(f"{folder}/a.sock", mode=0o660, group="1")
        assert os.listdir(folder) == ["a.sock.lock"]


def bind(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.bind(str(path))
    return sock


def answer(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM, clients: int = 0) -> list[socket.socket]:
    """Listen as another program at a path, with its backlog filled by clients; the caller must keep the sockets."""
    kept = [bind(path, kind)]
    if kind is socket.SOCK_STREAM:
        kept[0].listen(0 if clients else 8)
    for _ in range(clients):
        kept.append(socket.socket(socket.AF_UNIX))
        kept[-1].connect(str(path))
    return kept


def link_to_socket(path: Path) -> None:
    bind(path.with_name("socket")).close()
    path.symlink_to("socket")


NO_SOCKET = "a.sock exists and is not a socket; remove it"
NO_LOCK = r"a\.sock\.lock is not a regular file"
OPEN = "can be written by everybody"
AGAINST: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "file": ("a.sock", Path.touch, NO_SOCKET),
    "folder": ("a.sock", Path.mkdir, NO_SOCKET),
    "FIFO": ("a.sock", os.mkfifo, NO_SOCKET),
    "dangling link": ("a.sock", lambda path: path.symlink_to("nothing"), NO_SOCKET),
    "link to a socket": ("a.sock", link_to_socket, NO_SOCKET),
    "another program": ("a.sock", answer, rf"process \(pid {os.getpid()}\) listens on"),
    "another program, backlog full": ("a.sock", lambda path: answer(path, clients=1), "another process listens on"),
    "datagram socket": ("a.sock", lambda path: answer(path, socket.SOCK_DGRAM), "another process listens on"),
    "lock is a folder": ("a.sock.lock", Path.mkdir, NO_LOCK),
    "lock is a link": ("a.sock.lock", lambda path: path.symlink_to("nothing"), NO_LOCK),
    "lock is a FIFO": ("a.sock.lock", os.mkfifo, NO_LOCK),
    "folder is a link": ("in", lambda path: path.symlink_to("."), "no directory; set --koord-runtimeproxy"),
    "folder is a file": ("in", Path.touch, "is a link or no directory"),
    "folder of all": ("in", lambda path: (path.mkdir(), path.chmod(0o1777)), OPEN),
    "folder above is a file": ("above", Path.touch, "cannot listen on .*: File exists; check its directory"),
}
WAYS = {"in": "in/a.sock", "above": "above/in/a.sock"}


@pytest.mark.parametrize(("name", "make", "words"), AGAINST.values(), ids=AGAINST)
def test_obstacle_is_named_and_not_touched(folder: Path, name: str, make: Callable[[Path], object], words: str) -> None:
    def found() -> dict[Path, int]:
        lock = folder / "a.sock.lock"
        return {path: path.lstat().st_ino for path in folder.rglob("*") if path != lock}

    kept = make(folder / name)
    before = found()
    with pytest.raises(ConfigError, match=words):
        listen(str(folder / WAYS.get(name, "a.sock")))
    assert found() == before
    for sock in kept if isinstance(kept, list) else ():
        sock.close()


@pytest.mark.parametrize(
    ("path", "group", "words"),
    [
        ("a.sock", None, "is not an absolute path; set --admin-endpoint"),
        ("/run/" + "n" * 103, None, "is longer than 107 bytes"),
        ("/run/a.sock", "no-such-group", "no group 'no-such-group'"),
    ],
)
def test_bad_setting_is_named(path: str, group: str | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        listen(path, group=group, flag="--admin-endpoint")


GROUP = 12345 if os.geteuid() == 0 else os.getegid()
"""The socket's group; only root can set a group that it is not in, and the group need not exist."""
OTHERS = [12346] if os.geteuid() == 0 else []


def access(path: Path) -> tuple[int, int]:
    return mode_of(path), path.lstat().st_gid


def test_group_may_enter_a_created_directory(tmp_path: Path) -> None:
    group = grp.getgrgid(os.getgid())
    for spelling in (group.gr_name, str(group.gr_gid)):
        listener = listen(str(tmp_path / spelling / "a.sock"), mode=0o660, group=spelling)
        assert access(tmp_path / spelling / "a.sock") == (0o660, group.gr_gid)
        assert access(tmp_path / spelling) == (0o750, group.gr_gid)
        listener.close()


def test_created_directories_are_ours_whatever_the_umask(folder: Path) -> None:
    (folder / "link").symlink_to(".")
    before = os.umask(0)
    try:
        listen(str(folder / "link" / "x" / "y" / "z" / "a.sock")).close()
    finally:
        os.umask(before)
    assert [mode_of(folder / name) for name in ("x", "x/y", "x/y/z")] == [0o755, 0o755, 0o700]


CAN_ENTER = [(0o710, GROUP), *((0o711, group) for group in OTHERS)]
CANNOT = [(0o740, GROUP), (0o705, GROUP), *((0o750, group) for group in OTHERS)]


@pytest.mark.parametrize(("mode", "group"), CAN_ENTER + CANNOT)
def test_directory_that_the_group_cannot_enter_is_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture, mode: int, group: int
) -> None:
    os.chown(folder, -1, group)
    folder.chmod(mode)
    listen(str(folder / "a.sock"), mode=0o660, group=str(GROUP)).close()
    assert access(folder) == (mode, group)
    warning = f"group {GROUP} cannot enter {folder}, so it cannot use the socket: chgrp the directory to the group"
    lines = [(record.levelname, record.getMessage().startswith(warning)) for record in caplog.records]
    assert lines == ([("WARNING", True)] if (mode, group) in CANNOT else [])


@pytest.mark.parametrize(
    ("mode", "user", "group", "fault"),
    [
        *((0o700, 0, 0, ""), (0o755, os.geteuid(), 12345, ""), (0o755, 65534, 0, "belongs to user 65534")),
        *((0o770, 0, 0, ""), (0o770, 0, 999, ""), (0o770, 0, 12345, "can be written by group 12345")),
        *((0o777, 0, 0, "can be written by everybody"), (0o1777, 0, 0, "can be written by everybody")),
    ],
)
def test_directory_that_others_can_write_in_is_a_fault(mode: int, user: int, group: int, fault: str) -> None:
    found = os.stat_result((stat.S_IFDIR | mode, 1, 1, 1, user, group, 0, 0, 0, 0))
    assert folder_fault(found, group_id=999) == fault


def test_second_start_is_refused_and_the_first_does_not_notice(folder: Path) -> None:
    path = str(folder / "a.sock")
    listener = listen(path)
    before = (folder / "a.sock").lstat()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        call, _ = listener.socket.accept()
        with call, pytest.raises(ConfigError) as refused:
            listen(path)
        assert str(refused.value) == (
            f"another runtimeproxy (pid {os.getpid()}) listens on {path}, or still finishes calls and holds "
            f"{path}.lock; stop it and wait for its end, or choose another --koord-runtimeproxy-endpoint"
        )
    with pytest.raises(BlockingIOError):
        listener.socket.accept()  # the second start did not even connect
    assert (folder / "a.sock").lstat() == before
    assert talk(folder / "a.sock", listener.socket) == b"hello"
    listener.close()


def test_hundred_starts_at_once_leave_one(folder: Path) -> None:
    made: list[Listener] = []
    refused: list[ConfigError] = []
    start = threading.Barrier(10)

    def attempt(_: int) -> None:
        start.wait()
        for _ in range(10):
            try:
                made.append(listen(str(folder / "a.sock")))
            except ConfigError as error:
                refused.append(error)

    with ThreadPoolExecutor(10) as threads:
        list(threads.map(attempt, range(10)))
    assert (len(made), len(refused)) == (1, 99)
    assert talk(folder / "a.sock", made[0].socket) == b"hello"
    made[0].close()


def test_lock_is_not_handed_to_children(folder: Path) -> None:
    first = listen(str(folder / "a.sock"))
    with subprocess.Popen(["sleep", "30"], close_fds=False) as child:
        first.close()
        second = listen(str(folder / "a.sock"))
        second.close()
        child.terminate()


def test_withdrawn_socket_serves_earlier_clients_and_is_locked(folder: Path) -> None:
    path = str(folder / "a.sock")
    listener = listen(path)
    with socket.socket(socket.AF_UNIX) as early, socket.socket(socket.AF_UNIX) as late:
        early.connect(path)
        assert listener.withdraw()
        with pytest.raises(FileNotFoundError):
            late.connect(path)
        listener.socket.accept()[0].close()
    assert listener.withdraw(), "it is repeatable"
    with pytest.raises(ConfigError, match="another runtimeproxy"):
        listen(path)
    listener.close()
    listen(path).close()


def test_fault_of_a_listener_that_nobody_can_connect_to(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as given:
        given.bind(str(tmp_path / "given.sock"))
        handed_over = Listener(given, "a path in another mount namespace")
        assert handed_over.fault() == ""
        handed_over.close()
        assert handed_over.fault() == "the socket is closed"
    with socket.socket(socket.AF_UNIX) as given:
        given.bind(str(tmp_path / "taken.sock"))
        taken = Listener(given, str(tmp_path / "taken.sock"))
        assert taken.fault() == ""
        (tmp_path / "taken.sock").unlink()
        assert taken.fault().endswith("removed or replaced; restart its socket unit")
    listener = listen(str(path))
    assert listener.fault() == ""
    path.rename(tmp_path / "b.sock")
    assert listener.fault().startswith(f"{path} is no longer the proxy's socket")
    path.write_text("somebody's")
    assert listener.fault().startswith(f"{path} is no longer the proxy's socket")
    listener.close()


@pytest.mark.parametrize("left", [None, "somebody's"])
def test_file_that_took_the_sockets_place_stays(tmp_path: Path, left: str | None) -> None:
    path = tmp_path / "a.sock"
    listener = listen(str(path))
    path.unlink()
    if left is not None:
        path.write_text(left)
    assert listener.withdraw()
    listener.close()
    assert path.exists() == (left is not None)


def test_socket_that_cannot_be_removed_stays_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with (
        nobodys_folder() as folder,
        socket.socket(socket.AF_UNIX) as early,
        socket.socket(socket.AF_UNIX) as late,
    ):
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


_INHERIT = """
import os, sys
from runtimeproxy.errors import ConfigError
from runtimeproxy.relay.listener import inherited
count, names, *given = sys.argv[1:]
held = [os.dup(int(fd)) for fd in given]
for at, fd in enumerate(held):
    os.dup2(fd, 3 + at)
environ = {"LISTEN_FDS": count, "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": names, "OTHER": "1"}
try:
    found = inherited(environ)
except ConfigError as error:
    sys.exit(str(error))
assert environ == {"OTHER": "1"}
for listener in found.values():
    assert not listener.socket.getblocking() and not listener.socket.get_inheritable()
    assert not listener.withdraw()
    listener.socket.setblocking(True)
    listener.socket.accept()[0].sendall(listener.path.encode())
    listener.close()
order = sorted(found, key=["runtimeproxy", "admin", "metrics"].index)
print(*(f"{name}={os.path.basename(found[name].path)}" for name in order))
"""


def inherit(names: str, *given: socket.socket | IO[str]) -> subprocess.CompletedProcess[str]:
    """Hand something over to a new process, as systemd does."""
    descriptors = [each.fileno() for each in given]
    command = [sys.executable, "-c", _INHERIT, str(len(given)), names, *map(str, descriptors)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, pass_fds=descriptors)


def test_inherited_descriptor_of_another_kind_is_refused(tmp_path: Path) -> None:
    with (
        socket.socket(socket.AF_UNIX) as idle,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram,
        socket.socket(socket.AF_INET) as internet,
        (tmp_path / "file").open("w") as file,
    ):
        idle.bind(str(tmp_path / "a.sock"))
        internet.bind(("127.0.0.1", 0))
        internet.listen()
        for given in (idle, datagram, internet, file):
            run = inherit("runtimeproxy.socket", given)
            cause = "is not a socket" if given is file else "is not a listening unix stream socket"
            assert (run.returncode, cause in run.stderr, "Traceback" in run.stderr) == (1, True, False)


def test_variables_count_for_this_process_only() -> None:
    ours = str(os.getpid())
    others = [{}, {"LISTEN_FDS": "1"}, {"LISTEN_FDS": "1", "LISTEN_PID": "1"}, {"LISTEN_PID": ours}]
    for environ in (*others, {"LISTEN_FDS": "0", "LISTEN_PID": ours}):
        assert inherited(environ) == {}
        assert environ == {}


NAMES: list[tuple[int, str, str]] = [
    (1, "", "runtimeproxy=0"),
    (1, "runtimeproxy.socket", "runtimeproxy=0"),
    (1, "admin", "admin=0"),
    (3, "metrics:runtimeproxy:admin", "runtimeproxy=1 admin=2 metrics=0"),
    (2, "", "LISTEN_FDS is '2', with 1 names: give each socket unit one ListenStream=, and FileDescriptorName= one"),
    (2, "runtimeproxy:admin:metrics", "LISTEN_FDS is '2', with 3 names"),
    (2, "runtimeproxy:runtimeproxy", "LISTEN_FDNAMES: the name 'runtimeproxy' is there twice"),
    (2, "runtimeproxy:unknown", "LISTEN_FDNAMES: the name 'unknown' is unknown"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("count", "names", "found"), NAMES)
def test_inherited_sockets_serve_by_their_names_and_stay(tmp_path: Path, count: int, names: str, found: str) -> None:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(bind(tmp_path / str(at))) for at in range(count)]
        clients = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in held]
        for sock, client in zip(held, clients, strict=True):
            sock.listen()
            os.chmod(sock.getsockname(), 0o600)
            client.connect(sock.getsockname())
        run = inherit(names, *held)
        assert (run.stdout or run.stderr).startswith(found)
        assert len(os.listdir(tmp_path)) == count
        if run.returncode == 0:
            assert [client.recv(200).decode() for client in clients] == [sock.getsockname() for sock in held]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o660, 0o604])
def test_inherited_admin_socket_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    with bind(tmp_path / "0") as held:
        held.listen()
        os.chmod(tmp_path / "0", mode)
        run = inherit("admin", held)
    words = f"{tmp_path}/0 has the mode {mode:04o}: set SocketMode=0600 in the unit of admin\n"
    assert (run.returncode, run.stderr) == (1, words)
