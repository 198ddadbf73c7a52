"""The path of a hook server's socket: one owner, narrow, served before it has its name, nothing else touched."""

import errno
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy_hooks.sdk.socket_path import SocketPath, listens, place


class Servers:
    """Binds as gRPC does: whatever stands at the path that it is given is removed, before and at the end."""

    def __init__(self) -> None:
        self._made: list[tuple[socket.socket, str]] = []

    def __call__(self, path: str) -> None:
        if os.path.lexists(path):
            os.unlink(path)
        listening = socket.socket(socket.AF_UNIX)
        self._made.append((listening, path))
        listening.bind(path)
        listening.listen()

    def stop(self) -> None:
        for listening, path in self._made:
            listening.close()
            if os.path.lexists(path):
                os.unlink(path)
        self._made.clear()


@pytest.fixture
def serve() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    return path


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def stale(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_the_socket_is_served_and_narrow_whatever_the_umask(folder: Path, serve: Servers, umask: int) -> None:
    before = os.umask(umask)
    try:
        placed = place(str(folder / "a.sock"), serve)
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "a.sock").lstat().st_mode) == 0o600
    assert answers(folder / "a.sock")
    assert sorted(os.listdir(folder)) == ["a.sock", "a.sock.lock"]
    placed.close()


def test_the_socket_is_narrow_and_listens_before_it_has_its_name(folder: Path, serve: Servers) -> None:
    def look(path: str) -> None:
        serve(path)
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
        assert answers(Path(path))
        assert not (folder / "a.sock").exists()

    place(str(folder / "a.sock"), look).close()


def test_the_directory_is_made(tmp_path: Path, serve: Servers) -> None:
    placed = place(str(tmp_path / "b" / "c" / "a.sock"), serve)
    assert answers(tmp_path / "b" / "c" / "a.sock")
    placed.close()


def test_names_that_a_url_would_read_otherwise_and_long_ones_work(tmp_path: Path, serve: Servers) -> None:
    folder = tmp_path / "a b%41?#"
    name = "s" * (107 - len(os.fsencode(folder)) - 1)
    placed = place(str(folder / name), serve)
    assert answers(folder / name)
    placed.close()
    with pytest.raises(ConfigError, match="longer than 107 bytes, which no unix socket can be; shorten --endpoint"):
        place(str(folder / f"{name}s"), serve)


def test_the_end_removes_the_socket_and_gives_the_lock_back(folder: Path, serve: Servers) -> None:
    for _ in range(3):
        placed = place(str(folder / "a.sock"), serve)
        serve.stop()
        assert (folder / "a.sock").is_socket()  # what made it was not told its name, and could not remove it
        placed.close()
        placed.close()
        assert os.listdir(folder) == ["a.sock.lock"]


def test_the_end_leaves_what_another_made(folder: Path, serve: Servers) -> None:
    placed = place(str(folder / "a.sock"), serve)
    (folder / "a.sock").unlink()
    stale(folder / "a.sock")
    placed.close()
    assert (folder / "a.sock").is_socket()


def test_the_end_bears_that_the_socket_is_gone(folder: Path, serve: Servers) -> None:
    placed = place(str(folder / "a.sock"), serve)
    (folder / "a.sock").unlink()
    placed.close()


# What stands there.


def test_a_dead_socket_is_replaced_also_one_without_its_name(folder: Path, serve: Servers) -> None:
    (folder / "a.sock.lock").touch()
    stale(folder / "a.sock")
    stale(folder / f".{(folder / 'a.sock.lock').stat().st_ino}.sock")  # killed between its making and its naming
    placed = place(str(folder / "a.sock"), serve)
    assert answers(folder / "a.sock")
    assert sorted(os.listdir(folder)) == ["a.sock", "a.sock.lock"]
    placed.close()


def test_a_live_socket_of_another_program_is_refused(folder: Path, serve: Servers) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(folder / "a.sock"))
        other.listen()
        expected = rf"another process \(pid {os.getpid()}\) listens on .*a\.sock; stop it first or choose another --end"
        with pytest.raises(ConfigError, match=expected):
            place(str(folder / "a.sock"), serve)
        assert answers(folder / "a.sock")


def test_a_second_hook_server_is_refused(folder: Path, serve: Servers) -> None:
    placed = place(str(folder / "a.sock"), serve)
    with pytest.raises(ConfigError, match=rf"another hook server \(pid {os.getpid()}\) listens on"):
        place(str(folder / "a.sock"), serve)
    assert answers(folder / "a.sock")
    placed.close()


def test_what_is_no_socket_is_not_touched(folder: Path, serve: Servers) -> None:
    (folder / "a.sock").write_text("mine")
    with pytest.raises(ConfigError, match="is no socket; remove it, or set --endpoint to another path"):
        place(str(folder / "a.sock"), serve)
    assert (folder / "a.sock").read_text() == "mine"


def test_what_comes_up_meanwhile_is_not_touched(folder: Path, serve: Servers) -> None:
    def disturbed(path: str) -> None:
        serve(path)
        (folder / "a.sock").write_text("mine")

    with pytest.raises(ConfigError, match=r"cannot listen on .*: File exists"):
        place(str(folder / "a.sock"), disturbed)
    assert (folder / "a.sock").read_text() == "mine"
    assert sorted(os.listdir(folder)) == ["a.sock", "a.sock.lock"]


@pytest.mark.parametrize("made", [True, False])
def test_a_server_that_cannot_start_leaves_nothing_and_holds_nothing(folder: Path, serve: Servers, made: bool) -> None:
    def failing(path: str) -> None:
        if made:
            serve(path)
        raise ConfigError("no")

    with pytest.raises(ConfigError, match=r"^no$"):
        place(str(folder / "a.sock"), failing)
    assert os.listdir(folder) == ["a.sock.lock"]
    place(str(folder / "a.sock"), serve).close()


def test_several_in_one_directory_do_not_meet(folder: Path, serve: Servers) -> None:
    inner: list[SocketPath] = []

    def nested(path: str) -> None:
        serve(path)
        inner.append(place(str(folder / "b.sock"), serve))

    outer = place(str(folder / "a.sock"), nested)
    assert answers(folder / "a.sock")
    assert answers(folder / "b.sock")
    for placed in (outer, *inner):
        placed.close()


def test_who_listens_is_seen_also_when_connections_wait(folder: Path) -> None:
    path = str(folder / "a.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        assert not listens(path)
        listening.listen(0)
        waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) for _ in range(3)]
        assert listens(path)
        for each in waiting:
            each.connect_ex(path)
        assert listens(path)
        for each in waiting:
            each.close()
    assert not listens(path)


@pytest.mark.parametrize("name", ["none", "file", "file/below", "x" * 200, "\ud800", "nul\0"])
def test_where_no_socket_is_nobody_listens(folder: Path, name: str) -> None:
    (folder / "file").touch()
    assert not listens(f"{folder}/{name}")


_KILLED = """
import os, signal, socket, sys
from runtimeproxy_hooks.sdk.socket_path import place
def serve(path):
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    if sys.argv[2] == "unnamed":
        os.kill(os.getpid(), signal.SIGKILL)
place(sys.argv[1], serve)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("when", ["named", "unnamed"])
def test_it_starts_after_a_kill(folder: Path, serve: Servers, when: str) -> None:
    path = folder / "a.sock"
    assert subprocess.run([sys.executable, "-c", _KILLED, str(path), when], timeout=30, check=False).returncode == -9
    assert path.is_socket() == (when == "named")
    placed = place(str(path), serve)
    assert answers(path)
    assert sorted(os.listdir(folder)) == ["a.sock", "a.sock.lock"]
    placed.close()


def test_a_socket_that_cannot_be_removed_stays_with_a_warning(
    serve: Servers, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = place(str(folder / "a.sock"), serve)

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", read_only)
        made.close()
    words = "it cannot be removed (Read-only file system); the next start tries again"
    assert caplog.messages == [f"{folder}/a.sock stays: {words}"]
    serve.stop()
    place(str(folder / "a.sock"), serve).close()  # the lock was given back, and nobody listens
