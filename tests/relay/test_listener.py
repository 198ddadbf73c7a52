"""The listening socket: one owner, the right mode at every moment, nothing else touched.

That is fault matrix P4, P6 and X5, promise 17.
"""

import grp
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.relay.listener import Listener, folder_fault, listen
from tests.relay.processes import run_python


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory that nobody else can write in, whatever the umask of the run."""
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    path.chmod(0o700)
    return path


@pytest.fixture
def listener(folder: Path) -> Iterator[Listener]:
    made = listen(str(folder / "a.sock"))
    yield made
    made.close()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def talk(path: Path, listening: socket.socket) -> bytes:
    """Connect and send through the listening socket."""
    listening.setblocking(True)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        accepted, _ = listening.accept()
        with accepted:
            client.sendall(b"hello")
            return accepted.recv(5)


def stale(path: Path) -> None:
    """Leave a socket behind that nobody listens on, as a killed process does."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def test_it_listens(folder: Path, listener: Listener) -> None:
    assert not listener.socket.getblocking()
    assert listener.socket.getsockname() == listener.path == str(folder / "a.sock")
    assert talk(folder / "a.sock", listener.socket) == b"hello"


def test_close_removes_the_socket_and_gives_the_lock_back(folder: Path) -> None:
    for _ in range(3):
        listener = listen(str(folder / "a.sock"))
        listener.close()
        listener.close()
        assert sorted(os.listdir(folder)) == ["a.sock.lock"]


def test_close_leaves_a_socket_that_another_made(folder: Path) -> None:
    listener = listen(str(folder / "a.sock"))
    (folder / "a.sock").unlink()
    stale(folder / "a.sock")
    listener.close()
    assert (folder / "a.sock").is_socket()


def test_close_bears_that_the_socket_is_gone(folder: Path) -> None:
    listener = listen(str(folder / "a.sock"))
    (folder / "a.sock").unlink()
    listener.close()
    assert not (folder / "a.sock").exists()


# Mode and group.


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_the_mode_is_the_configured_one_whatever_the_umask(folder: Path, mode: int, umask: int) -> None:
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
_DELAY_MICROSECONDS = 50_000
_TRIES = 5  # a busy machine may not let us look between two system calls
_SLOWED = "bind,fchmod,chmod,fchmodat,chown,lchown,fchownat,listen"


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_the_mode_is_never_wider_not_even_between_two_system_calls(folder: Path, mode: int) -> None:
    group = os.getgid()
    slow = f"inject={_SLOWED}:delay_exit={_DELAY_MICROSECONDS}"
    command = ["strace", "-f", "-qq", "-e", f"trace={_SLOWED}", "-e", slow]
    command += [sys.executable, "-c", _SLOW_START, str(folder / "a.sock"), oct(mode), str(group)]
    seen: set[int] = set()
    for _ in range(_TRIES):
        seen |= modes_while(command, folder / "a.sock")
        if seen >= {0o600, mode}:
            break
    assert seen == {0o600, mode}


def modes_while(command: list[str], path: Path) -> set[int]:
    """Run a command under strace; return the modes that a path has meanwhile."""
    seen = set()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            try:
                seen.add(mode_of(path))
            except FileNotFoundError:
                pass
        assert process.stderr is not None
        trace = process.stderr.read()
    assert process.returncode == 0, trace
    assert "bind(" in trace
    return seen


def test_the_group_by_name_and_by_number(folder: Path) -> None:
    group = grp.getgrgid(os.getgid())
    for spelling in (group.gr_name, str(group.gr_gid)):
        listener = listen(str(folder / "a.sock"), mode=0o660, group=spelling)
        assert (folder / "a.sock").lstat().st_gid == group.gr_gid
        listener.close()


def test_a_group_that_is_none(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no group 'no-such-group'"):
        listen(str(folder / "a.sock"), group="no-such-group")


def test_a_group_that_cannot_be_given_leaves_no_socket() -> None:
    code = """
import os, sys
from runtimeproxy.relay.listener import listen
os.chmod(sys.argv[1], 0o755)
if os.geteuid() == 0:
    os.chown(sys.argv[1], 65534, 65534)
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
listen(sys.argv[1] + "/a.sock", mode=0o660, group="1")
"""
    # In the system's own temporary directory: pytest's is closed to the user that the code becomes.
    with tempfile.TemporaryDirectory() as folder:
        run = run_python(code, folder)
        assert "ConfigError: cannot listen on" in run.stderr
        assert "Operation not permitted" in run.stderr
        assert os.listdir(folder) == ["a.sock.lock"]


# The directory.


def test_the_directory_is_made_for_us_only(folder: Path) -> None:
    listener = listen(str(folder / "new" / "deep" / "a.sock"))
    assert mode_of(folder / "new" / "deep") == 0o700
    listener.close()


def test_links_above_the_directory_are_followed(folder: Path) -> None:
    (folder / "real" / "own").mkdir(parents=True, mode=0o700)
    (folder / "link").symlink_to("real")
    listener = listen(str(folder / "link" / "own" / "a.sock"))
    assert (folder / "real" / "own" / "a.sock").is_socket()
    listener.close()


def test_a_directory_that_is_a_link_is_refused(folder: Path) -> None:
    (folder / "real").mkdir(mode=0o700)
    (folder / "link").symlink_to("real")
    with pytest.raises(ConfigError, match="is a link or no directory; set --koord-runtimeproxy-endpoint"):
        listen(str(folder / "link" / "a.sock"))
    assert os.listdir(folder / "real") == []


def test_a_directory_that_is_a_file_is_refused(folder: Path) -> None:
    (folder / "file").write_text("mine")
    with pytest.raises(ConfigError, match="no directory"):
        listen(str(folder / "file" / "a.sock"))
    assert (folder / "file").read_text() == "mine"


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_directory_that_others_can_write_in_is_refused(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    with pytest.raises(ConfigError, match="can be written by everybody"):
        listen(str(folder / "a.sock"))
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("mode", "user", "group", "fault"),
    [
        (0o700, 0, 0, ""),
        (0o755, os.geteuid(), 12345, ""),
        (0o755, 65534, 0, "belongs to user 65534"),
        (0o770, 0, 0, ""),
        (0o770, 0, 999, ""),
        (0o770, 0, 12345, "can be written by group 12345"),
        (0o777, 0, 0, "can be written by everybody"),
        (0o1777, 0, 0, "can be written by everybody"),
    ],
)
def test_who_may_write_in_the_directory(mode: int, user: int, group: int, fault: str) -> None:
    found = os.stat_result((stat.S_IFDIR | mode, 1, 1, 1, user, group, 0, 0, 0, 0))
    assert folder_fault(found, group_id=999) == fault


# What stands at the path.


def test_a_stale_socket_is_replaced(folder: Path) -> None:
    stale(folder / "a.sock")
    listener = listen(str(folder / "a.sock"))
    assert talk(folder / "a.sock", listener.socket) == b"hello"
    listener.close()


def test_it_starts_after_a_kill(folder: Path) -> None:
    code = """
import os, signal, sys
from runtimeproxy.relay.listener import listen
listener = listen(sys.argv[1])
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run_python(code, str(folder / "a.sock")).returncode == -9
    assert (folder / "a.sock").is_socket()
    listen(str(folder / "a.sock")).close()


def test_a_live_socket_of_another_program_is_refused(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(folder / "a.sock"))
        other.listen()
        with pytest.raises(ConfigError, match=rf"another process \(pid {os.getpid()}\) listens on"):
            listen(str(folder / "a.sock"))
        assert (folder / "a.sock").is_socket()


def test_a_live_socket_with_a_full_backlog_is_refused(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as waiting:
        other.bind(str(folder / "a.sock"))
        other.listen(0)
        waiting.connect(str(folder / "a.sock"))
        with pytest.raises(ConfigError, match="another process listens on"):
            listen(str(folder / "a.sock"))


def test_a_datagram_socket_is_refused(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(folder / "a.sock"))
        with pytest.raises(ConfigError, match="another process listens on"):
            listen(str(folder / "a.sock"))


def test_what_is_no_socket_is_never_touched(folder: Path) -> None:
    (folder / "file").write_text("mine")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "fifo")
    (folder / "link").symlink_to("file")
    (folder / "dangling").symlink_to("nothing")
    stale(folder / "socket")
    (folder / "to-socket").symlink_to("socket")
    for name in ("file", "folder", "fifo", "link", "dangling", "to-socket"):
        before = (folder / name).lstat()
        with pytest.raises(ConfigError, match="is no socket; remove it"):
            listen(str(folder / name))
        assert (folder / name).lstat().st_ino == before.st_ino
    assert (folder / "file").read_text() == "mine"
    assert not (folder / "nothing").exists()


@pytest.mark.parametrize("kind", ["folder", "link", "fifo"])
def test_a_lock_that_is_no_file_is_refused(folder: Path, kind: str) -> None:
    lock = folder / "a.sock.lock"
    (folder / "target").write_text("mine")
    make: dict[str, Callable[[], None]] = {
        "folder": lock.mkdir,
        "link": lambda: lock.symlink_to("target"),
        "fifo": lambda: os.mkfifo(lock),
    }
    make[kind]()
    with pytest.raises(ConfigError, match=r"a\.sock\.lock is no regular file"):
        listen(str(folder / "a.sock"))
    assert (folder / "target").read_text() == "mine"


# A second start.


def test_a_second_start_is_refused_and_the_first_does_not_notice(folder: Path, listener: Listener) -> None:
    before = (folder / "a.sock").lstat()
    code = """
import sys
from runtimeproxy.errors import ConfigError
from runtimeproxy.relay.listener import listen
try:
    listen(sys.argv[1])
except ConfigError as error:
    sys.exit(str(error))
"""
    listener.socket.setblocking(True)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(listener.path)
        call, _ = listener.socket.accept()
        run = run_python(code, listener.path)
        assert run.returncode == 1
        expected = f"another runtimeproxy (pid {os.getpid()}) listens on {listener.path}, or still finishes calls and "
        expected += f"holds {listener.path}.lock; stop it and wait for its end, or choose another"
        assert run.stderr == f"{expected} --koord-runtimeproxy-endpoint\n"
        client.sendall(b"still")
        assert call.recv(5) == b"still"
        call.close()
    listener.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.socket.accept()  # the second start did not even connect
    assert (folder / "a.sock").lstat() == before
    assert talk(folder / "a.sock", listener.socket) == b"hello"


def test_a_hundred_second_starts_at_once_leave_one(folder: Path) -> None:
    made: list[Listener] = []
    refused: list[ConfigError] = []
    start = threading.Barrier(10)

    def attempt() -> None:
        start.wait()
        for _ in range(10):
            try:
                made.append(listen(str(folder / "a.sock")))
            except ConfigError as error:
                refused.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(refused)) == (1, 99)
    assert talk(folder / "a.sock", made[0].socket) == b"hello"
    made[0].close()


def test_the_lock_is_not_handed_to_children(folder: Path) -> None:
    first = listen(str(folder / "a.sock"))
    with subprocess.Popen(["sleep", "30"], close_fds=False) as child:
        first.close()
        second = listen(str(folder / "a.sock"))
        second.close()
        child.terminate()


# Paths.


def test_a_path_of_107_bytes_is_taken_and_a_longer_one_refused(folder: Path) -> None:
    room = 107 - len(os.fsencode(folder)) - 1
    listen(str(folder / ("n" * room))).close()
    with pytest.raises(ConfigError, match="is longer than 107 bytes"):
        listen(str(folder / ("n" * (room + 1))))


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="is no absolute path; set --admin-endpoint"):
        listen("a.sock", flag="--admin-endpoint")


def test_a_directory_that_cannot_be_made_is_named(folder: Path) -> None:
    (folder / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot listen on .*: File exists; check its directory"):
        listen(str(folder / "file" / "new" / "a.sock"))
