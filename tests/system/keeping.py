"""A directory on tmpfs for the file of original values, and its content as sqlite3's own shell reads it."""

import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

SHARED_MEMORY = "/dev/shm"


@contextmanager
def on_tmpfs() -> Iterator[Path]:
    """Yield a directory for this user alone."""
    folder = tempfile.mkdtemp(prefix="runtimeproxy-test-", dir=SHARED_MEMORY)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder)


def file_of(folder: Path, socket: Path) -> Path:
    """Return the file of a proxy that listens on a socket, if --originals-dir names the folder."""
    return folder / (str(socket).strip("/").replace("/", "-") + ".originals")


def rows(file: Path) -> dict[str, dict[str, Any]]:
    """Return the kept values: pairs of values by field, by id."""
    if not file.exists() or not file.stat().st_size:
        return {}
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=10)) as connection:
        if connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
            return {}
        found = connection.execute("SELECT id, text FROM kept").fetchall()
    return {any_id.decode(): json.loads(text)[1] for any_id, text in found if any_id}


def mode_of(file: Path) -> int:
    return os.stat(file).st_mode & 0o777


def scale(response: Any) -> None:
    """Scale a quota as koordlet does where CPUs are 1.5 times as fast."""
    quota = response.container_resources.cpu_quota
    if quota > 0:
        response.container_resources.cpu_quota = -(-quota * 2 // 3)
