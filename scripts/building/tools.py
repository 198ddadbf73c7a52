"""What every artefact needs: programs that may fail, the commit's time, and archives that are equal byte by byte.

Invariant: order, owner, times and modes in an archive are not those of the machine that packs.
"""

import gzip
import io
import os
import subprocess
import tarfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO


class BuildError(Exception):
    """A build cannot continue: what, why, what to do."""


def run(command: Sequence[str | Path], folder: Path | None = None) -> str:
    """Run a program to its end and return its output. Raises BuildError with the end of it."""
    try:
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise BuildError(f"{error.filename} is not installed: run scripts/install release") from error
    if done.returncode:
        shown, text = " ".join(map(str, command[:4])), (done.stderr or done.stdout).decode(errors="replace")
        raise BuildError(f"{shown} ... ended with {done.returncode}: {text.strip()[-2000:]}")
    return done.stdout.decode()


def write(file: Path, text: str) -> None:
    """Write a file, whose directory is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def epoch() -> int:
    """Return the commit's time."""
    return int(os.environ["SOURCE_DATE_EPOCH"])


def iso_time() -> str:
    return datetime.fromtimestamp(epoch(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pack(folder: Path, archive: Path, top: str) -> None:
    """Write a directory's files into a .tar.gz below the name ``top``; hard links stay such.

    All times are the commit's, modes 0755 or 0644, owner and group root.
    """
    buffer = io.BytesIO()
    write_tar(folder, buffer, top)
    # The name of the file and the time would otherwise be in the head of the compressed one.
    with archive.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=epoch()) as compressed:
        compressed.write(buffer.getbuffer())


def write_tar(folder: Path, file: IO[bytes], top: str) -> None:
    """Write a directory's files as ``pack`` does into a tar that is not compressed. With "" for ``top`` they are not
    below anything, and the directory itself is left out."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = epoch()
        entry.mode = 0o755 if entry.isdir() or entry.issym() or entry.mode & 0o100 else 0o644
        return entry

    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in [*([folder] if top else []), *sorted(folder.rglob("*"))]:
            tar.add(path, Path(top, path.relative_to(folder)), recursive=False, filter=plain)
