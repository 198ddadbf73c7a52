"""The registration directory: read its files, and wait until they may have changed (hook-api, "Registration files").

Invariants: only regular files are opened, links followed, so that nothing in the directory can block or fill the proxy;
a name is absent only if its file does not exist. Events are only hints: the caller renews the watches after every
return and reads the directory after that, so that no change is missed in between.
"""

import asyncio
import errno
import logging
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress

from asyncinotify import Inotify, Mask, Watch

from runtimeproxy.plugins.registration import MAX_BYTES, Content, UnreadableFile

log = logging.getLogger(__name__)

POLL_SECONDS = 10.0
SETTLE_SECONDS = 0.02
"""Pause in seconds after the first event: a file that is truncated and written again is mostly seen once."""
_MAX_READS = 4
"""Most reads of the files while new names keep appearing."""
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK: if a FIFO replaces the file between stat and open, opening it does not wait for a writer.
_FILE_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def is_registration(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(".")


def read(directory: str, previous_names: Iterable[str] = ()) -> dict[str, Content]:
    """Return the content of every registration file by name; a missing directory has none. Raises OSError.
    ``previous_names`` are always looked up: a listing during a rename may lack a file that always existed. If new names
    appeared during the read, all files are read again: a file that is renamed meanwhile would be missed under both
    names."""
    try:
        folder = os.open(directory, _DIRECTORY_FLAGS)
    except FileNotFoundError:
        return {}
    try:
        names = _names(folder).union(previous_names)
        for _ in range(_MAX_READS):
            contents = {name: content for name in names if (content := _content(folder, name)) is not None}
            new = _names(folder) - names
            if not new:
                break
            names |= new
        return contents
    finally:
        os.close(folder)


def _names(folder: int) -> set[str]:
    return {name for name in os.listdir(folder) if is_registration(name)}


def _content(folder: int, name: str) -> Content | None:
    """Return a file's content; None if it does not exist. A dangling link exists and is unreadable."""
    try:
        return _read_regular(folder, name, os.stat(name, dir_fd=folder))
    except OSError as error:
        try:
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError:
            pass  # treat it as existing
        return UnreadableFile(f"{name}: cannot be read: {error.strerror}")


def _read_regular(folder: int, name: str, status: os.stat_result) -> Content:
    small = "a registration is one small JSON file"
    if stat.S_ISREG(status.st_mode):
        file = os.open(name, _FILE_FLAGS, dir_fd=folder)
        try:
            opened = os.fstat(file)
            if opened.st_size > MAX_BYTES:
                return UnreadableFile(f"{name}: longer than {MAX_BYTES} bytes; {small}")
            if stat.S_ISREG(opened.st_mode):
                with open(file, "rb", closefd=False) as content:
                    return content.read(MAX_BYTES + 1)  # the file may grow while it is read
        finally:
            os.close(file)
    return UnreadableFile(f"{name}: not a regular file; {small}")


_MAX_DISCARDED_EVENTS = 1000
_MAX_LINKS = 40
"""Most links that are followed in a path, as in the kernel (path_resolution(7))."""
_ENTRY_EVENTS = Mask.CREATE | Mask.MOVE | Mask.DELETE | Mask.ATTRIB | Mask.DELETE_SELF | Mask.MOVE_SELF
"""The events that matter in a folder above the directory; other writes there must not wake the proxy."""
_CHANGES = _ENTRY_EVENTS | Mask.MODIFY | Mask.CLOSE_WRITE
_EVERY_NAME = ""
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP})


class Watcher:
    """Watches one directory, which need not exist."""

    def __init__(self, directory: str, poll_seconds: float = POLL_SECONDS) -> None:
        self._directory = os.path.abspath(directory)
        self._poll_seconds = poll_seconds
        self._inotify: Inotify | None = None
        self._names: dict[Watch, set[str]] = {}
        self._warned = False

    def arm(self) -> None:
        """Set the watches to the folders that the paths lead to now; may block forever if one is in a dead mount."""
        try:
            if self._inotify is None:
                self._inotify = Inotify(sync_timeout=0)
                os.set_blocking(self._inotify.fd, False)  # the library sets another flag's number
            watches: dict[Watch, set[str]] = defaultdict(set)
            for folder, name, mask in _watched_entries(self._directory):
                try:
                    watches[self._inotify.add_watch(folder, mask)].add(name)
                except OSError as error:
                    if error.errno not in _MISSING:
                        raise
            for watch in self._names.keys() - watches.keys():
                with suppress(OSError):  # the folder was removed, and its watch with it
                    self._inotify.rm_watch(watch)
            self._names = dict(watches)
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning(
                    "inotify does not work (%s): changes in %s take up to %g s; raise fs.inotify.max_user_instances or "
                    "fs.inotify.max_user_watches",
                    error.strerror,
                    self._directory,
                    self._poll_seconds,
                )

    async def changed(self) -> None:
        """Wait until the directory may have changed, at most the poll interval; the watches must be renewed then."""
        try:
            async with asyncio.timeout(self._poll_seconds):
                await self._event()
        except TimeoutError:
            pass  # the poll
        else:
            await asyncio.sleep(SETTLE_SECONDS)
            # One read of the directory covers all queued events. Later events of a busy writer may stay queued.
            for _ in range(_MAX_DISCARDED_EVENTS):
                if self._inotify is None or self._inotify.sync_get() is None:
                    break

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    async def _event(self) -> None:
        if self._inotify is None:
            await asyncio.Event().wait()
            return
        async for event in self._inotify:
            names = self._names.get(event.watch) if event.watch is not None else None
            if names is None or event.name is None or str(event.name) in names or _EVERY_NAME in names:
                return


def _watched_entries(directory: str) -> Iterator[tuple[str, str, Mask]]:
    """Yield where a change matters as (folder, name in it, event mask); in the directory itself every name matters. A
    folder precedes its entries, so that its watch sees entries that appear while the watches are set. Of two masks for
    one folder the later one holds (inotify_add_watch(2)), so the wider one is yielded later."""
    links = _links(directory)
    for path in (directory, *links):
        for hop in _hops(path):
            folder = "/"
            for name in hop.split("/")[1:]:
                yield folder, name, _ENTRY_EVENTS
                folder = os.path.join(folder, name)
    yield directory, _EVERY_NAME, _CHANGES
    for link in links:
        *_, last = _hops(link)
        yield *os.path.split(last), _CHANGES


def _hops(path: str) -> Iterator[str]:
    """Yield a path, and its form after resolving each further link: each link may be changed to point elsewhere."""
    yield path
    for _ in range(_MAX_LINKS):
        resolved = _with_first_link_resolved(path)
        if resolved is None:
            return
        path = resolved
        yield path


def _with_first_link_resolved(path: str) -> str | None:
    """Return None for a path without a link. ".." is not resolved, as a link may precede it."""
    folder, *names = "/", *path.split("/")[1:]
    for index, name in enumerate(names, start=1):
        current = os.path.join(folder, name)
        try:
            target = os.readlink(current)
        except OSError:
            folder = os.path.dirname(folder) if name == ".." else current
        else:
            parts = os.path.join(folder, target, *names[index:]).split("/")
            return "/" + "/".join(part for part in parts if part not in ("", "."))
    return None


def _links(directory: str) -> list[str]:
    with suppress(OSError), os.scandir(directory) as entries:
        return [entry.path for entry in entries if is_registration(entry.name) and entry.is_symlink()]
    return []
