"""Listening sockets: created with one owner and the configured permissions at most, or handed over by systemd.

systemd hands sockets over as LISTEN_FDS describes (sd_listen_fds(3)).
Invariants: only two sockets are ever removed: one without a listener, and at the end the one created here. A socket
accepts no connection before it has its final owner and mode. (Fault matrix P4, P5, P6, X5.)
"""

import errno
import fcntl
import grp
import logging
import os
import socket
import stat
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress

from runtimeproxy.errors import ConfigError
from runtimeproxy.files import FOLDER_FLAGS, folder_fault, identity, make_folder, peer_credentials

log = logging.getLogger(__name__)

MAX_PATH_BYTES = 107
BACKLOG = 4096
"""Most connections that wait to be accepted; the kernel lowers it to net.core.somaxconn."""

ORPHAN_SECONDS = 2.0
"""Longest wait in seconds for the children of a proxy that was killed."""
_PAUSE_SECONDS = 0.02

MAIN, ADMIN, METRICS = SOCKET_NAMES = ("runtimeproxy", "admin", "metrics")
"""The names of the sockets that systemd may hand over (FileDescriptorName=)."""
_NAME_THEM = f"give each socket unit one ListenStream=, and FileDescriptorName= one of {', '.join(SOCKET_NAMES)}"

_FIRST_FD = 3  # sd_listen_fds(3): SD_LISTEN_FDS_START
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NO_FILE = frozenset({errno.EISDIR, errno.ELOOP, errno.ENXIO})
"""Error numbers for opening a directory, a link or a socket as a lock file."""


class Listener:
    """A listening, non-blocking unix stream socket."""

    def __init__(self, sock: socket.socket, path: str, lock: int | None = None) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.path = path
        self._lock = lock
        self._file = identity(path)
        self._made = None if lock is None else self._file

    @property
    def handed_over(self) -> bool:
        """Return whether the socket was handed over by systemd."""
        return self._made is None

    def fault(self) -> str:
        """Return why clients can no longer connect to the socket; "" if they can."""
        if self.socket.fileno() < 0:
            return "the socket is closed"
        if self._file is None or identity(self.path) == self._file:
            return ""
        holder = "the proxy" if self._lock is not None else "its socket unit"
        return f"{self.path} is no longer the proxy's socket: it was removed or replaced; restart {holder}"

    def withdraw(self) -> bool:
        """Stop new connections by removing the socket if it is still the one made here. May be called again.

        Pending connections can still be accepted. Returns False, and changes nothing, if the socket was handed over:
        clients wait in it for the next process. A socket that cannot be removed stays, refuses connections and is
        logged, so that the shutdown can continue.
        """
        if self._made is not None and identity(self.path) == self._made:
            try:
                os.unlink(self.path)
            except OSError as error:
                self.socket.shutdown(socket.SHUT_RD)
                log.warning(
                    "%s stays: it cannot be removed (%s); the next start tries again", self.path, error.strerror
                )
        self._made = None
        return self._lock is not None

    def close(self) -> None:
        """Stop listening, remove the socket if it is still the one made here, release the lock. May be called again."""
        self.withdraw()
        self.socket.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def inherited(environ: MutableMapping[str, str]) -> dict[str, Listener]:
    """Return the sockets that systemd handed over to this process, by name, and remove its variables.

    A name is one of SOCKET_NAMES; a single socket with any other name is the first one. systemd owns the path, the mode
    and the removal of such sockets. Raises ConfigError for an unexpected name or descriptor.
    """
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or count in ("", "0"):
        return {}
    if count == "1" and names[0] not in SOCKET_NAMES:
        names = [MAIN]
    if count != str(len(names)):
        raise ConfigError(f"LISTEN_FDS is {count!r}, with {len(names)} names: {_NAME_THEM}")
    for name in names:
        if name not in SOCKET_NAMES or names.count(name) > 1:
            wrong = "unknown" if name not in SOCKET_NAMES else "there twice"
            raise ConfigError(f"LISTEN_FDNAMES: the name {name!r} is {wrong}: {_NAME_THEM}")
    return {name: _handed_over(_FIRST_FD + at, name) for at, name in enumerate(names)}


def _handed_over(fd: int, name: str) -> Listener:
    try:
        sock = socket.socket(fileno=fd)
    except OSError as error:
        wrong = f"file descriptor {fd} ({name}) is not a socket ({error.strerror})"
        raise ConfigError(f"LISTEN_FDS: {wrong}; check the unit") from None
    sock.set_inheritable(False)
    unix_stream = sock.family == socket.AF_UNIX and sock.type == socket.SOCK_STREAM
    if not unix_stream or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        sock.close()
        wrong = f"file descriptor {fd} ({name}) is not a listening unix stream socket"
        raise ConfigError(f"LISTEN_FDS: {wrong}; use ListenStream=/path")
    listener = Listener(sock, os.fsdecode(sock.getsockname()))
    if name == ADMIN and (mode := _mode(listener.path)) & ~0o600:
        sock.close()
        raise ConfigError(f"{listener.path} has the mode {mode:04o}: set SocketMode=0600 in the unit of {ADMIN}")
    return listener


def _mode(path: str) -> int:
    """Return the permissions of a socket; 0777 if it has no path, as any process can connect to it then."""
    try:
        return stat.S_IMODE(os.lstat(path).st_mode)
    except (OSError, ValueError):  # ValueError: an abstract address begins with NUL
        return 0o777


def listen(
    path: str,
    *,
    mode: int = 0o600,
    group: str | None = None,
    flag: str = "--koord-runtimeproxy-endpoint",
    group_flag: str = "--socket-group",
) -> Listener:
    """Listen on ``path`` with permissions ``mode`` for ``group`` (name or number, None: the process's own).

    The socket's directory is created if missing: 0700, or 0750 with the group. If the group cannot enter an existing
    directory, that is logged. ``flag`` sets the path and ``group_flag`` the group. Raises ConfigError with the remedy
    for everything that prevents listening.
    """
    number = None if group is None else group_id(group, group_flag)
    with claimed(path, flag=flag, group_id=number) as (folder, lock):
        sock = _bound(folder, os.path.basename(path), path, mode, number)
    return Listener(sock, path, lock)


@contextmanager
def claimed(
    path: str, *, flag: str, owner: str = "runtimeproxy", group_id: int | None = None
) -> Iterator[tuple[int, int]]:
    """Reserve ``path`` for a new socket; yield the open directory and the open lock file.

    Nothing exists at ``path`` then. ``owner`` names the program in the error message for a second process. The caller
    owns the lock and releases it by closing the file; if the body raises it is closed here. Raises ConfigError with the
    remedy for everything that prevents listening, also for an OSError of the body.
    """
    if not os.path.isabs(path):
        raise ConfigError(f"{path!r} is not an absolute path; set {flag} to one")
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise ConfigError(f"{path} is longer than {MAX_PATH_BYTES} bytes, which no unix socket can be; shorten {flag}")
    try:
        folder = _open_folder(os.path.dirname(path), group_id, flag)
        try:
            lock = _lock(folder, path, flag, owner)
            try:
                _clear(folder, os.path.basename(path), path, flag)
                yield folder, lock
            except BaseException:
                os.close(lock)
                raise
        finally:
            os.close(folder)
    except OSError as error:
        raise ConfigError(f"cannot listen on {path}: {error.strerror}; check its directory or set {flag}") from None


def group_id(group: str, flag: str = "--socket-group") -> int:
    """Return the number of a group, given by its name or number. Raises ConfigError, naming ``flag``, if it does not
    exist."""
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        if group.isascii() and group.isdigit():
            return int(group.lstrip("0") or "0")
        wrong = f"{flag}: there is no group {group!r}"
        raise ConfigError(f"{wrong}; name another one or its number, or create it") from None


def _open_folder(folder: str, group_id: int | None, flag: str) -> int:
    """Open the socket's directory and check that no other user can write there. It is created if missing, for this user
    alone or for the group; so are its parents, writable for this user only.
    """
    made = make_folder(folder)
    try:
        opened = os.open(folder, FOLDER_FLAGS)
    except NotADirectoryError:
        raise ConfigError(f"{folder} is a link or no directory; set {flag} to a path in a real directory") from None
    try:
        status = os.fstat(opened)
        if fault := folder_fault(status, group_id):
            wrong = f"{folder} {fault}, who could replace the socket"
            raise ConfigError(f"{wrong}: fix that, or set {flag} to another path")
        if group_id is not None and made:
            os.fchown(opened, -1, group_id)
            os.fchmod(opened, 0o750)
        elif group_id is not None and not status.st_mode & (
            stat.S_IXGRP if status.st_gid == group_id else stat.S_IXOTH
        ):  # an existing directory may belong to another user, so it is not changed
            what = f"group {group_id} cannot enter {folder}, so it cannot use the socket"
            log.warning("%s: chgrp the directory to the group and chmod it to 0750, or set --socket-group", what)
    except BaseException:
        os.close(opened)
        raise
    return opened


def _lock(folder: int, path: str, flag: str, owner: str) -> int:
    """Lock the file next to the socket and write the process id into it. The lock is held while the file is open."""
    try:
        lock = os.open(os.path.basename(path) + ".lock", _LOCK_FLAGS, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise  # no space or no permission: removing something would not help
        raise ConfigError(f"{path}.lock is not a regular file; remove it, or set {flag}") from None
    try:
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            raise ConfigError(f"{path}.lock is not a regular file; remove it, or set {flag}")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(lock, 20, 0).decode(errors="replace").strip()
        os.close(lock)
        who = f"another {owner} (pid {pid or 'unknown'})"
        has = f"listens on {path}, or still finishes calls and holds {path}.lock"
        raise ConfigError(f"{who} {has}; stop it and wait for its end, or choose another {flag}") from None
    except BaseException:
        os.close(lock)
        raise
    try:
        os.truncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        pass  # a full disk: the lock is valid all the same, the pid is only for the error message of a second process
    return lock


def _clear(folder: int, name: str, path: str, flag: str) -> None:
    """Remove an existing socket at the path if it has no listener. The child of a killed proxy may still listen for a
    moment; it ends by itself."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise ConfigError(f"{path} exists and is not a socket; remove it, or set {flag} to another path")
    until = time.monotonic() + ORPHAN_SECONDS
    while (pid := _listening(path)) is not None:
        if pid and not os.path.exists(f"/proc/{pid}") and time.monotonic() < until:
            time.sleep(_PAUSE_SECONDS)
            continue
        who = f" (pid {pid})" if pid else ""
        raise ConfigError(f"another process{who} listens on {path}; stop it first or choose another {flag}")
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _listening(path: str) -> int | None:
    """Return the id of the process that called listen(2) on a socket, 0 if that is unknown; None if nobody listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except OSError:
            return 0  # it is in use: a full backlog, or a socket of another type
        return peer_credentials(probe)[0]


def _bound(folder: int, name: str, path: str, mode: int, group_id: int | None) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Linux creates the file with the mode of the unbound socket, less the umask: so its mode is never too wide,
        # whatever the umask is. The group gets its bits only after chown.
        os.fchmod(sock.fileno(), mode & stat.S_IRWXU)
        sock.bind(path)
        try:
            if group_id is not None:
                os.chown(name, -1, group_id, dir_fd=folder, follow_symlinks=False)
            os.chmod(name, mode, dir_fd=folder)
        except OSError:
            os.unlink(name, dir_fd=folder)
            raise
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
