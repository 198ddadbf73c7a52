"""A directory on tmpfs for the file of original values, and its content."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SHARED_MEMORY = "/dev/shm"


@contextmanager
def on_tmpfs() -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="runtimeproxy-test-", dir=SHARED_MEMORY)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder)


def file_of(folder: Path, socket: Path) -> Path:
    """Return the file of the proxy on a socket with the folder as --originals-dir."""
    return folder / (str(socket).strip("/").replace("/", "-") + ".original-values")


def rows(file: Path) -> dict[str, dict[str, Any]]:
    """Return the stored values: pairs by field, by id."""
    if not file.exists():
        return {}
    lines = (line[9:].split(b"\t") for line in file.read_bytes().splitlines()[1:])
    return {json.loads(any_id): json.loads(text)[1] for any_id, text in lines}
