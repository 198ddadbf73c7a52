"""The file that keeps the kubelet's original values beyond the end of the process (docs/architecture.rst).

Invariant: no fault of the file fails or delays a call. The file is on tmpfs: no disk is written, and a reboot removes
it together with the containers. While a socket unit's new proxy serves and the old one drains, both processes write it
in turn, each the rows that it has changed, on top of what the other one wrote.
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from zlib import crc32

from runtimeproxy.core.store import Store
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.files import Changed, NotOurs, StateError, StateFile, Version, is_in_memory
from runtimeproxy.model import originals
from runtimeproxy.model.originals import OriginalValues
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.relay.eventloop import run_in_daemon_thread

log = logging.getLogger(__name__)

FORMAT = 2
MAX_BYTES = 64 << 20
"""Largest file that is read, in bytes: ten times the size for 20,000 subjects."""
COLLECT_SECONDS = 0.01
"""Seconds during which changes are collected for one write."""
PAUSE_FACTOR = 9
"""The pause after a write, in multiples of its duration: the thread uses at most a tenth of a core."""
RETRY_SECONDS = 2.0
"""Seconds between two tries to write a file that cannot be written."""
TRIES = 50
"""How often a write is tried while another process writes."""
SUBJECTS_PER_ITERATION = 50
"""Subjects whose rows are determined in one iteration of the event loop."""

NOT_OURS, FOREIGN, BROKEN, UNUSABLE = "not_ours", "foreign", "broken", "unusable"
"""Why the file, or a part of it, cannot be used; the values are the metrics label."""


class Failed(RuntimeProxyError):
    """The file cannot be used, for ``reason``; the text holds no value."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def path_of(folder: str | None, socket_path: str) -> str | None:
    """Return the file's path for a listening socket; None if the file is turned off. ``folder`` is the value of
    --originals-dir: None means the socket's own directory, "" no file. Each socket has a file of its own."""
    if folder == "":
        return None
    if folder is None:
        return f"{socket_path}.original-values"
    return os.path.join(folder, f"{socket_path.strip('/').replace('/', '-')}.original-values")


def owner(mode: str, runtime_endpoint: str) -> str:
    """Return the text that identifies a file's proxy: boot id, mode, the runtime's path."""
    boot = ""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{boot} {mode} {os.path.realpath(runtime_endpoint)}"


class File:
    """The file, used by one thread at a time. Its methods raise Failed. A file that is damaged or belongs to another
    proxy is deleted then."""

    def __init__(self, path: str, owner: str) -> None:
        self.path = path
        self._file = StateFile(path, MAX_BYTES, durable=False)
        self._owner = owner
        self._head = _row("", f"{FORMAT} {owner}".encode())
        self._rows: dict[str, bytes] = {}
        """The rows of the file by id, as far as this process knows."""
        self._version: Version = None

    def load(self, retained: dict[str, bytes]) -> None:
        """Add the texts by id to ``retained``, as many as can be read."""
        broken = self._read(retained)
        if self._version is None:
            retained |= _read_sqlite(self.path.removesuffix(".original-values") + ".originals", f"1 {self._owner}")
            self._rows = {any_id: _row(any_id, text) for any_id, text in retained.items()}
        if broken:
            raise self._delete_broken(BROKEN, f"{broken} of its rows are broken")

    def write(self, subjects: Mapping[str, OriginalValues | None]) -> None:
        """Write the values to keep of these subjects, and delete the rows of those with None."""
        try:
            for _ in range(TRIES):
                version = self._file.version()
                if version is None:  # it was removed: all rows are written again
                    self._version = None
                elif version != self._version:
                    self._read({})
                rows = dict(self._rows)
                for any_id, retained in subjects.items():
                    rows.pop(any_id, None)
                    if retained is not None:
                        rows[any_id] = _row(any_id, originals.write(retained))
                with suppress(Changed):
                    self._version = self._file.write(b"".join([self._head, *rows.values()]), over=self._version)
                    self._rows = rows
                    return
        except StateError as error:
            raise self._failure_of(error) from None
        raise Failed(UNUSABLE, "another process keeps replacing it")

    def _read(self, retained: dict[str, bytes]) -> int:
        """Read the rows, and add their texts to ``retained``; return how many are broken."""
        try:
            content, self._version = self._file.read()
        except StateError as error:
            raise self._failure_of(error) from None
        if self._version is None:
            return 0
        self._rows = {}
        if not content:
            return 0
        head, *lines = content.splitlines(keepends=True)
        try:
            any_id, _ = _parse(head)
        except ValueError:
            raise self._delete_broken(BROKEN, "it is damaged") from None
        if any_id or head != self._head:
            raise self._delete_broken(FOREIGN, "it is of another runtime, boot or version")
        broken = 0
        for line in lines:
            try:
                any_id, retained_text = _parse(line)
            except ValueError:
                broken += 1
            else:
                self._rows[any_id], retained[any_id] = line, retained_text
        return broken

    def _failure_of(self, error: StateError) -> Failed:
        text = str(error).removeprefix(f"{self.path} ")
        return Failed(NOT_OURS if isinstance(error, NotOurs) else UNUSABLE, text)

    def _delete_broken(self, reason: str, text: str) -> Failed:
        """Delete the file."""
        with suppress(StateError):
            self._file.remove()
        self._rows, self._version = {}, None
        return Failed(reason, text)


def _row(any_id: str, text: bytes) -> bytes:
    """Return a line: checksum, id, and a text without a line feed."""
    content = json.dumps(any_id).encode() + b"\t" + text
    return b"%08x %s\n" % (crc32(content), content)


def _parse(row: bytes) -> tuple[str, bytes]:
    """Return id and text of a row. Raises ValueError."""
    content = row[9:-1]
    quoted, separator, text = content.partition(b"\t")
    if row != b"%08x %s\n" % (crc32(content), content) or not separator:
        raise ValueError("its checksum is wrong")
    return str(json.loads(quoted)), text


def _read_sqlite(path: str, owner: str) -> dict[str, bytes]:
    """Return the texts in the file of version 0.1, after an upgrade; it stays for a downgrade."""
    try:
        if not StateFile(path, MAX_BYTES, durable=False).read()[0]:
            return {}
        import sqlite3

        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)) as connection:
            connection.text_factory = bytes
            rows = {row[0].decode(errors="surrogatepass"): row for row in connection.execute("SELECT * FROM kept")}
        if rows.pop("", (b"", b""))[1] != owner.encode():
            return {}
        return {any_id: row[1] for any_id, row in rows.items() if row[2] == crc32(row[1], crc32(row[0]))}
    except Exception:  # it may contain anything, and nothing depends on it
        return {}


class Originals:
    """Keeps a Store's original values in a file; without a file it does nothing."""

    def __init__(self, file: File | None, store: Store, metrics: Metrics) -> None:
        self._file = file
        self._store = store
        self._metrics = metrics
        self._rows: set[str] = set()
        """The ids with a row in the file, also from before it failed."""
        self._changed: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_failure_logged = False
        self._pause = COLLECT_SECONDS

    async def start(self) -> None:
        """Load the values of earlier processes into the Store, and write its changes from now on."""
        if self._file is None or not self._may_be_used(self._file):
            return
        retained: dict[str, bytes] = {}
        self._store.remembers = await self._run_in_thread(partial(self._file.load, retained))
        if not self._store.remembers:
            self._changed.update(retained)
        self._store.keep(retained)
        self._rows.update(retained)
        self._store.on_change = self._mark_changed
        if retained:
            log.info("%s: loaded original values (pods and containers: %d)", self._file.path, len(retained))
        if self._changed:
            self._schedule(COLLECT_SECONDS)

    def _may_be_used(self, file: File) -> bool:
        """Return whether the file's directory is on tmpfs; the directory is created if it is missing."""
        folder = os.path.dirname(file.path)
        try:
            with suppress(FileExistsError):
                os.mkdir(folder, mode=0o700)
            if is_in_memory(folder):
                return True
        except OSError as error:
            self._report_failure(Failed(UNUSABLE, error.strerror or type(error).__name__))
            return False
        log.info("original values are lost when this process ends: %s is not on tmpfs (--originals-dir)", folder)
        return False

    async def stop(self) -> None:
        if self._file is None or self._store.on_change is None:
            return
        self._store.on_change = None
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await self._task
        if self._changed:
            await self._write(self._file)

    def _mark_changed(self, any_id: str) -> None:
        """Mark an id as changed. Its row is determined later, because a call waits for its answer now."""
        self._changed.add(any_id)
        if self._timer is None and self._task is None:
            self._schedule(COLLECT_SECONDS)

    def _schedule(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._start_write)

    def _start_write(self) -> None:
        assert self._file is not None
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._write(self._file), name="originals")
        self._task.add_done_callback(self._end_write)

    def _end_write(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self._changed and self._store.on_change is not None:
            self._schedule(RETRY_SECONDS if self._is_failure_logged else self._pause)

    async def _write(self, file: File) -> None:
        """Write what has changed; after a failure try again later with all rows that the file should have."""
        changed, self._changed = self._changed, set()
        subjects: dict[str, OriginalValues | None] = {}
        for number, any_id in enumerate(changed, 1):
            retained = self._store.original_values(any_id)
            if retained is not None or any_id in self._rows:
                subjects[any_id] = retained
            if number % SUBJECTS_PER_ITERATION == 0:
                await asyncio.sleep(0)
        if not subjects:
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        if not await self._run_in_thread(partial(file.write, subjects)):
            self._changed |= subjects.keys() | self._rows
            return
        self._pause = max(COLLECT_SECONDS, PAUSE_FACTOR * (loop.time() - began))
        self._rows.difference_update(subjects)
        self._rows.update(any_id for any_id, retained in subjects.items() if retained is not None)
        self._metrics.gauge("originals_kept", len(self._rows))
        if self._is_failure_logged:
            self._is_failure_logged = False
            log.info("%s is written again", file.path)

    async def _run_in_thread(self, work: Callable[[], None]) -> bool:
        """Run ``work`` in a thread; return whether it succeeded."""
        try:
            await run_in_daemon_thread(work)
        except Failed as error:
            self._report_failure(error)
        except Exception as error:
            why = "no thread can be started" if isinstance(error, RuntimeError) else type(error).__name__
            self._report_failure(Failed(UNUSABLE, why))
        else:
            return True
        return False

    def _report_failure(self, error: Failed) -> None:
        """Count a failure, and log the first one: before the next restart nothing else shows it."""
        self._metrics.count("originals_failures", error.reason)
        if not self._is_failure_logged and self._file is not None:
            self._is_failure_logged = True
            what = "replaced" if error.reason in (FOREIGN, BROKEN) else "not written"
            log.warning("%s: %s: it is %s; see --originals-dir", self._file.path, error, what)
