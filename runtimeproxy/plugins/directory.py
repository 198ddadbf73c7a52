"""Read the registration directory once (hook-api, "Registration files").

Invariant: only regular files are opened, links followed; a name is absent from the result only if it is gone.
"""

import os
import stat
from collections.abc import Iterable

from runtimeproxy.plugins.registration import MAX_BYTES
from runtimeproxy.plugins.registry import Content, UnreadableFile

_LOOKS = 4
"""How many times the files are read while new names keep appearing."""
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK: if a FIFO replaces the file between stat and open, opening it does not wait for a writer.
_FILE_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def counts(name: str) -> bool:
    """Return whether a file of this name is a registration."""
    return name.endswith(".json") and not name.startswith(".")


def read(directory: str, known: Iterable[str] = ()) -> dict[str, Content]:
    """Return the content of every registration file by name; a missing directory has none.

    ``known`` are names read before: each is looked up even if the listing lacks it, because a listing taken during a
    rename may lack a file that was there all the time. If new names appeared while the files were read, all are read
    again: a file that is renamed meanwhile would be missed under both names. Raises OSError if the directory cannot be
    read.
    """
    try:
        folder = os.open(directory, _DIRECTORY_FLAGS)
    except FileNotFoundError:
        return {}
    try:
        return _settled(folder, _names(folder).union(known))
    finally:
        os.close(folder)


def _names(folder: int) -> set[str]:
    return {name for name in os.listdir(folder) if counts(name)}


def _settled(folder: int, names: set[str]) -> dict[str, Content]:
    for _ in range(_LOOKS):
        contents = {name: content for name in names if (content := _content(folder, name)) is not None}
        come = _names(folder) - names
        if not come:
            break
        names |= come
    return contents


def _content(folder: int, name: str) -> Content | None:
    """Return a file's content; None if it does not exist. A dangling link exists and is unreadable."""
    try:
        return _regular(folder, name, os.stat(name, dir_fd=folder))
    except OSError as error:
        try:
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError:
            pass  # treat it as existing
        return UnreadableFile(f"{name}: cannot be read: {error.strerror}")


def _regular(folder: int, name: str, found: os.stat_result) -> Content:
    if not stat.S_ISREG(found.st_mode):
        return UnreadableFile(f"{name}: not a regular file; a registration is one small JSON file")
    file = os.open(name, _FILE_FLAGS, dir_fd=folder)
    try:
        opened = os.fstat(file)
        if not stat.S_ISREG(opened.st_mode):
            return UnreadableFile(f"{name}: not a regular file; a registration is one small JSON file")
        if opened.st_size > MAX_BYTES:
            return UnreadableFile(f"{name}: longer than {MAX_BYTES} bytes; a registration is one small JSON file")
        return _read_up_to(file, MAX_BYTES + 1)
    finally:
        os.close(file)


def _read_up_to(file: int, limit: int) -> bytes:
    """Read to the end, but at most ``limit`` bytes: the file may grow while it is read."""
    parts = []
    while limit and (part := os.read(file, limit)):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)
