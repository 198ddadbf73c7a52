"""The path of a hook server's socket: narrow permissions, and served before it has its name.

Problems with a path in general (directories, locks, foreign sockets) are tested in tests/relay/test_listener.py.
"""

import errno
import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy_hooks.sdk.socket_path import listens, place

Serve = Callable[[str], None]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that binds as gRPC does: it removes what exists at the path, before and at the end."""
    with ExitStack() as stack:

        def bind(path: str) -> None:
            Path(path).unlink(missing_ok=True)
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            stack.callback(Path(path).unlink, missing_ok=True)
            listening.bind(path)
            listening.listen()

        yield bind


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.sock"


def stale(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_socket_is_private_and_served_before_renamed(path: Path, serve: Serve, umask: int) -> None:
    def check(bound: str) -> None:
        serve(bound)
        assert stat.S_IMODE(os.lstat(bound).st_mode) == 0o600
        assert listens(bound)
        assert not path.exists()

    before = os.umask(umask)
    try:
        placed = place(str(path), check)
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert listens(str(path))
    assert sorted(os.listdir(path.parent)) == ["a.sock", "a.sock.lock"]
    placed.close()


def test_close_removes_own_socket_and_releases_lock(path: Path, serve: Serve) -> None:
    for _ in range(2):
        placed = place(str(path), serve)
        placed.close()
        placed.close()
        assert sorted(os.listdir(path.parent)) == ["a.sock.lock"]
    placed = place(str(path), serve)
    path.unlink()
    stale(path)
    placed.close()
    assert path.is_socket(), "the socket of another process was removed"


def test_socket_that_cannot_be_removed_is_logged(
    serve: Serve, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    made = place(str(path), serve)
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", read_only)
        made.close()
    stays = f"{path} stays: it cannot be removed (Read-only file system); the next start tries again"
    assert caplog.messages == [stays]
    path.unlink()
    with pytest.raises(ConfigError, match=r"cannot listen on .*: File exists"):  # the lock was released
        place(str(path), lambda bound: serve(bound) or path.touch())
    assert path.is_file(), "a file that appears meanwhile was removed"


def test_stale_socket_is_replaced_under_both_names(path: Path, serve: Serve) -> None:
    lock = path.with_name("a.sock.lock")
    lock.touch()
    stale(path)
    stale(path.with_name(f".{lock.stat().st_ino}.sock"))  # killed between creating and naming it
    with closing(place(str(path), serve)):
        assert listens(str(path))
        assert sorted(os.listdir(path.parent)) == ["a.sock", "a.sock.lock"]


def test_listener_with_full_backlog_is_found(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        assert not listens(str(path))
        listening.listen(0)
        waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) for _ in range(3)]
        for client in waiting:
            client.connect_ex(str(path))
        assert listens(str(path))
        for client in waiting:
            client.close()
    (path.parent / "file").touch()
    for name in ("a.sock", "none", "file", "x" * 200, "nul\0"):
        assert not listens(f"{path.parent}/{name}")
