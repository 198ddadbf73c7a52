"""The file that keeps the kubelet's original values beyond the end of the process (docs/architecture.rst).

Invariant: no fault of the file fails or delays a call: it is written some milliseconds after an answer, in a thread. It
is on tmpfs, so no disk is written and a reboot removes it together with the containers.

Two processes use the file at the same time while a socket unit's new proxy serves and the old one drains. Each writes
the rows that it has changed. The new process knows what was written before it started; the next start reads everything.
If the new process creates the file again, the old one finds that its own was replaced and continues with the new file.
"""

import asyncio
import ctypes
import logging
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from zlib import crc32

from runtimeproxy.core.store import Store
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.eventloop import run_in_daemon_thread
from runtimeproxy.model import originals as form
from runtimeproxy.model.originals import OriginalValues
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.relay.listener import folder_fault

if TYPE_CHECKING:
    import sqlite3

log = logging.getLogger(__name__)

FORMAT = 1
COLLECT_SECONDS = 0.01
"""How many seconds changes are collected for one transaction."""
RETRY_SECONDS = 2.0
BUSY_SECONDS = 1.0
"""How many seconds a transaction waits for another process's lock."""
CACHE_KIB = 256
SUBJECTS_AT_ONCE = 50
"""How many subjects' rows are determined before the event loop gets control."""

NOT_OURS, FOREIGN, BROKEN, UNUSABLE = "not_ours", "foreign", "broken", "unusable"
"""Why the file, or a part of it, cannot be used; the values are the metric's label."""
_MADE_ANEW = frozenset({FOREIGN, BROKEN})

_IN_MEMORY = frozenset({0x01021994, 0x858458F6})
"""tmpfs and ramfs (statfs(2), linux/magic.h)."""
_MAKE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BROKEN_CODES = frozenset({1, 11, 20, 24, 26})
"""SQLITE_ERROR (there is no such table), _CORRUPT, _MISMATCH, _FORMAT, _NOTADB."""
_ELSEWHERE_CODES = frozenset({5, 6, 7, 13, 14})
"""SQLITE_BUSY, _LOCKED, _NOMEM, _FULL, _CANTOPEN: they do not mean that the file is damaged."""
_MOVED = 1032
"""SQLITE_READONLY_DBMOVED: another process has created the file anew."""

_PRAGMAS = ("auto_vacuum=FULL", "synchronous=OFF", "temp_store=MEMORY", f"cache_size=-{CACHE_KIB}")
_TABLE = "CREATE TABLE kept (id BLOB PRIMARY KEY, text BLOB, sum INTEGER) WITHOUT ROWID"
_OWNER, _ROWS = "SELECT id, text, sum FROM kept WHERE id = x''", "SELECT id, text, sum FROM kept WHERE id <> x''"
_SET, _DROP = "INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", "DELETE FROM kept WHERE id = ?"

_Row = tuple[bytes, bytes, int]
"""Id, text and the checksum of both: sqlite itself may not notice a row that was cut short. The row with the empty id
identifies the proxy that the file belongs to."""


class Failed(RuntimeProxyError):
    """The file cannot be used, for ``reason``; the text holds no value."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def path_of(folder: str | None, socket_path: str) -> str | None:
    """Return the file's path for a listening socket, None if the file is turned off. ``folder`` is the value of
    --originals-dir: None means the socket's own directory, "" no file."""
    if folder == "":
        return None
    if folder is None:
        return f"{socket_path}.originals"
    return os.path.join(folder, f"{socket_path.strip('/').replace('/', '-')}.originals")


def is_in_memory(folder: str) -> bool:
    """Return whether a directory is on tmpfs or ramfs (statfs(2)). Raises OSError."""
    found = ctypes.create_string_buffer(512)
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(folder), found):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return ctypes.c_uint32.from_buffer(found).value in _IN_MEMORY  # f_type comes first


def owner(mode: str, runtime_endpoint: str) -> str:
    """Return the text that identifies a file's proxy: the format's version, boot id, mode, the runtime's path."""
    boot = ""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{FORMAT} {boot} {mode} {os.path.realpath(runtime_endpoint)}"


class File:
    """The file, used by one thread at a time; it is created, and sqlite imported, only when there is something to keep.
    Its methods raise Failed; a file that is damaged or belongs to another proxy is deleted then."""

    def __init__(self, path: str, owner: str) -> None:
        self.path = path
        self._owner = _row("", owner.encode())
        self._connection: sqlite3.Connection | None = None

    def load(self, kept: dict[str, bytes]) -> None:
        """Add the kept texts by id to ``kept``, as many as can be read."""
        broken = 0
        try:
            if self._is_there():
                connection = self._opened()
                for row in connection.execute(_ROWS):
                    with suppress(ValueError, TypeError, AttributeError):  # its columns may hold anything
                        any_id = row[0].decode(errors="surrogatepass")
                        if row == _row(any_id, row[1]):
                            kept[any_id] = row[1]
                            continue
                    broken += 1
                if connection.execute("PRAGMA quick_check(1)").fetchone() != (b"ok",):
                    raise Failed(BROKEN, "it is damaged")
            if broken:
                raise Failed(BROKEN, f"{broken} of its rows are broken")
        except Exception as error:
            raise self._failure(error, BROKEN) from None

    def write(self, subjects: Mapping[str, OriginalValues | None]) -> None:
        """Write the values of these subjects, and delete the rows of those with None."""
        rows = (_row(any_id, form.write(kept)) for any_id, kept in subjects.items() if kept is not None)
        gone = ((_id(any_id),) for any_id, kept in subjects.items() if kept is None)
        try:
            connection = self._opened()
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(_DROP, gone)
                connection.executemany(_SET, rows)
        except Exception as error:
            raise self._failure(error, UNUSABLE) from None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _failure(self, error: Exception, otherwise: str) -> Failed:
        """Return the Failed for an error; close the file, and delete it if it has to be created again."""
        with suppress(Exception):
            self.close()
        failed = _meaning(error, otherwise)
        if failed.reason in _MADE_ANEW:
            for part in ("", "-journal", "-wal", "-shm"):
                with suppress(OSError):
                    os.unlink(self.path + part)
        return failed

    def _is_there(self) -> bool:
        """Return whether the file exists and is not empty. Raises Failed if another user could have made it."""
        folder = os.path.dirname(self.path)
        if fault := folder_fault(os.stat(folder), None):
            raise Failed(NOT_OURS, f"{folder} {fault}")
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink > 1:
            raise Failed(NOT_OURS, "it is not a regular file of the proxy's own user")
        if stat.S_IMODE(found.st_mode) != 0o600:
            os.chmod(self.path, 0o600)
        return found.st_size > 0

    def _opened(self) -> "sqlite3.Connection":
        """Return the database; create the file if it is missing or empty."""
        if self._connection is not None:
            return self._connection
        import sqlite3  # a megabyte, and most nodes never have anything to keep

        if not self._is_there():
            with suppress(FileExistsError):
                os.close(os.open(self.path, _MAKE, 0o600))
        connection = self._connection = sqlite3.connect(
            self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.text_factory = bytes
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            if connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
                connection.execute(_TABLE)
                connection.execute(_SET, self._owner)
        if connection.execute(_OWNER).fetchone() != self._owner:
            raise Failed(FOREIGN, "it is of another runtime, boot or version")
        return connection


def _id(any_id: str) -> bytes:
    return any_id.encode(errors="surrogatepass")


def _row(any_id: str, text: bytes) -> _Row:
    return _id(any_id), text, crc32(text, crc32(_id(any_id)))


def _meaning(error: Exception, otherwise: str) -> Failed:
    """Return the Failed of an error; the text of a foreign exception may hold values and is left out."""
    if isinstance(error, Failed):
        return error
    code, name = getattr(error, "sqlite_errorcode", 0), getattr(error, "sqlite_errorname", type(error).__name__)
    if isinstance(error, OSError | ImportError):
        return Failed(UNUSABLE, getattr(error, "strerror", None) or name)
    if code == _MOVED or code & 0xFF in _ELSEWHERE_CODES:
        return Failed(UNUSABLE, name)
    return Failed(BROKEN if code & 0xFF in _BROKEN_CODES else otherwise, name)


class Originals:
    """Keeps a Store's original values in a file; without a file it does nothing."""

    def __init__(self, file: File | None, store: Store, metrics: Metrics) -> None:
        self._file = file
        self._store = store
        self._metrics = metrics
        self._rows: set[str] = set()
        """The ids that have a row in the file, or had one before the file failed."""
        self._changed: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._complained = False

    async def start(self) -> None:
        """Load what earlier processes have kept into the Store, and write its changes from now on."""
        if self._file is None or not self._may_be_used(self._file):
            return
        kept: dict[str, bytes] = {}
        self._store.remembers = await self._done(partial(self._file.load, kept))
        if not self._store.remembers:
            self._changed.update(kept)
        self._store.keep(kept)
        self._rows.update(kept)
        self._store.on_change = self._note
        if kept:
            log.info("%s: loaded original values (pods and containers: %d)", self._file.path, len(kept))
        if self._changed:
            self._later(COLLECT_SECONDS)

    def _may_be_used(self, file: File) -> bool:
        """Return whether the file's directory is on tmpfs; the directory is created if it is missing."""
        folder = os.path.dirname(file.path)
        try:
            with suppress(FileExistsError):
                os.mkdir(folder, mode=0o700)
            if is_in_memory(folder):
                return True
        except OSError as error:
            self._failed(_meaning(error, UNUSABLE))
            return False
        log.info("the kubelet's own values do not outlive this process: %s is not on tmpfs (--originals-dir)", folder)
        return False

    async def stop(self) -> None:
        """Write the changes that are pending, and close the file."""
        if self._file is None or self._store.on_change is None:
            return
        self._store.on_change = None
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await self._task
        if self._changed:
            await self._write(self._file)
        await self._done(self._file.close)

    def _note(self, any_id: str) -> None:
        """Mark an id as changed; what to keep of it is determined later, because a call waits for its answer now."""
        self._changed.add(any_id)
        if self._timer is None and self._task is None:
            self._later(COLLECT_SECONDS)

    def _later(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._begin)

    def _begin(self) -> None:
        assert self._file is not None
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._write(self._file), name="originals")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self._changed and self._store.on_change is not None:
            self._later(RETRY_SECONDS if self._complained else COLLECT_SECONDS)

    async def _write(self, file: File) -> None:
        """Write what has changed; after a failure try again later with all rows that the file should have."""
        changed, self._changed = self._changed, set()
        subjects: dict[str, OriginalValues | None] = {}
        for number, any_id in enumerate(changed, 1):
            kept = self._store.original_values(any_id)
            if kept is not None or any_id in self._rows:
                subjects[any_id] = kept
            if number % SUBJECTS_AT_ONCE == 0:
                await asyncio.sleep(0)
        if not subjects:
            return
        if not await self._done(partial(file.write, subjects)):
            self._changed |= subjects.keys() | self._rows
            return
        self._rows.difference_update(subjects)
        self._rows.update(any_id for any_id, kept in subjects.items() if kept is not None)
        self._metrics.gauge("originals_kept", len(self._rows))
        if self._complained:
            self._complained = False
            log.info("%s is written again", file.path)

    async def _done(self, work: Callable[[], None]) -> bool:
        """Run ``work`` on the file in a thread; return whether it succeeded."""
        try:
            await run_in_daemon_thread(work)
        except Failed as error:
            self._failed(error)
        except RuntimeError:
            self._failed(Failed(UNUSABLE, "no thread can be started"))
        else:
            return True
        return False

    def _failed(self, error: Failed) -> None:
        """Count a failure, and log the first one: before the next restart nothing else shows it."""
        self._metrics.count("originals_failures", error.reason)
        if not self._complained and self._file is not None:
            self._complained = True
            what = "made anew" if error.reason in _MADE_ANEW else "not written"
            log.warning("%s: %s: it is %s; see --originals-dir", self._file.path, error, what)
