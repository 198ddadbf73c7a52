"""A directory on tmpfs for the file of original values, and its content."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


@contextmanager
def on_tmpfs() -> Iterator[Path]:
    with TemporaryDirectory(prefix="runtimeproxy-test-", dir="/dev/shm") as folder:
        yield Path(folder)


def rows(file: Path) -> dict[str, dict[str, Any]]:
    if not file.exists():
        return {}
    lines = (line[9:].split(b"\t") for line in file.read_bytes().splitlines()[1:])
    return {json.loads(any_id): json.loads(text)[1] for any_id, text in lines}
