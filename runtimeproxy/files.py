"""Checks of the owners of files, directories and sockets, and files that retain state across restarts."""

import ctypes
import fcntl
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runtimeproxy.errors import RuntimeProxyError

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LOCK_SECONDS = 1.0
"""Seconds that a write waits for the lock of another process."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_IN_MEMORY = frozenset({0x01021994, 0x858458F6})
"""tmpfs and ramfs (statfs(2), linux/magic.h)."""
_PEER_CREDENTIALS = struct.Struct("3i")

Version = tuple[int, int, int] | None
"""Device, inode and time of change of a file; None if there is no file."""


class StateError(RuntimeProxyError):
    """A state file cannot be used: one line that names it."""


class NotOurs(StateError):
    """Another user could have written the file: it must not be used."""


class Changed(StateError):
    """Another process has replaced the file."""


class StateFile:
    """The file at a path, with mode 0600; the first write creates it and its directory. A write is atomic, and survives
    a crash of the machine if ``durable``. No method blocks for longer than the file system does, and LOCK_SECONDS."""

    def __init__(self, path: str, max_bytes: int, *, durable: bool) -> None:
        self.path = path
        self._folder, self._name = os.path.split(path)
        self._max_bytes = max_bytes
        self._durable = durable

    def version(self) -> Version:
        """Raises StateError."""
        with self._failing("cannot be read"), suppress(FileNotFoundError):
            return _version(os.lstat(self.path))
        return None

    def read(self) -> tuple[bytes, Version]:
        """Return content and version; no content if there is no file. Raises StateError."""
        with self._failing("cannot be read"), suppress(FileNotFoundError), self._opened() as folder:
            file = os.open(self._name, _READ, dir_fd=folder)
            try:
                status = os.fstat(file)
                fault = folder_fault(status, None) if stat.S_ISREG(status.st_mode) else "is not a regular file"
                if fault or status.st_nlink > 1:
                    raise NotOurs(fault or "has a second name")
                if status.st_size > self._max_bytes:
                    raise StateError(f"is longer than {self._max_bytes} bytes")
                with open(file, "rb", closefd=False) as content:
                    return content.read(self._max_bytes), _version(status)
            finally:
                os.close(file)
        return b"", None

    def write(self, content: bytes, *, over: Version | bool = True) -> Version:
        """Replace the file, or only its version ``over``; return the new version. Raises Changed if it has another
        version, StateError if the content cannot be written."""
        with self._failing("cannot be written"):
            make_folder(self._folder)
            with self._opened() as folder, self._locked(folder):
                if over is not True and self.version() != over:
                    raise Changed("was replaced by another process")
                new = f".{self._name}.new"
                with suppress(FileNotFoundError):
                    os.unlink(new, dir_fd=folder)  # of a process that was killed, or of a full disk
                with open(os.open(new, _MAKE, 0o600, dir_fd=folder), "wb") as file:
                    os.fchmod(file.fileno(), 0o600)  # whatever the umask is
                    file.write(content)
                    file.flush()
                    if self._durable:
                        os.fsync(file.fileno())
                os.rename(new, self._name, src_dir_fd=folder, dst_dir_fd=folder)
                if self._durable:
                    os.fsync(folder)
                return _version(os.stat(self._name, dir_fd=folder, follow_symlinks=False))

    def remove(self) -> None:
        """Raises StateError, but not for a missing file."""
        with self._failing("cannot be removed"), suppress(FileNotFoundError):
            os.unlink(self.path)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the directory. Raises NotOurs if another user can write there."""
        folder = os.open(self._folder, FOLDER_FLAGS)
        try:
            if fault := folder_fault(os.fstat(folder), None):
                raise NotOurs(f"is in a directory that {fault}")
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def _locked(self, folder: int) -> Iterator[None]:
        """Hold the lock of the file. Raises BlockingIOError if another process holds it for LOCK_SECONDS."""
        lock = os.open(f".{self._name}.lock", _LOCK, 0o600, dir_fd=folder)
        try:
            until = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= until:
                        raise
                    time.sleep(0.01)
            yield
        finally:
            os.close(lock)

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except StateError as error:
            raise type(error)(f"{self.path} {error}") from None
        except OSError as error:
            raise StateError(f"{self.path} {what} ({error.strerror})") from None


def _version(status: os.stat_result) -> Version:
    return status.st_dev, status.st_ino, status.st_mtime_ns


def make_folder(folder: str) -> bool:
    """Create a missing directory for this user alone, and missing parents that only this user can write; return whether
    it was missing. Raises OSError."""
    for parent in reversed(Path(folder).parents):
        parent.mkdir(mode=0o755, exist_ok=True)
    try:
        os.mkdir(folder, mode=0o700)
    except FileExistsError:
        return False
    return True


def folder_fault(status: os.stat_result, group_id: int | None) -> str:
    """Return which other user or group can write to a directory or file; "" if none."""
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to user {status.st_uid}"
    if status.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    if status.st_mode & stat.S_IWGRP and status.st_gid not in (0, group_id):
        return f"can be written by group {status.st_gid}"
    return ""


def is_in_memory(folder: str) -> bool:
    """Return whether a directory is on tmpfs or ramfs (statfs(2)). Raises OSError."""
    buffer = ctypes.create_string_buffer(512)
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(folder), buffer):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return ctypes.c_uint32.from_buffer(buffer).value in _IN_MEMORY  # f_type comes first


def identity(path: str) -> tuple[int, int] | None:
    """Return device and inode of the file at a path, without following links; None if there is none."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):  # ValueError: an abstract address begins with NUL
        return None
    return status.st_dev, status.st_ino


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Return process, user and group that called listen(2) or connect(2) at the other end (unix(7))."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    pid, user, group = _PEER_CREDENTIALS.unpack(credentials)
    return pid, user, group
