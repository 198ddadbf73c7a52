"""Archives that are equal byte by byte if their files are.

Invariant: order, owner, times and modes are not those of the machine that packs.
"""

import gzip
import io
import os
import tarfile
from pathlib import Path
from typing import IO


def pack(folder: Path, archive: Path, top: str) -> None:
    """Write a directory's files into a .tar.gz below the name ``top``; hard links stay such.

    All times are SOURCE_DATE_EPOCH, modes 0755 or 0644, owner and group root.
    """
    buffer = io.BytesIO()
    write_tar(folder, buffer, top)
    # The name of the file and the time would otherwise be in the head of the compressed one.
    with archive.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=_epoch()) as compressed:
        compressed.write(buffer.getbuffer())


def write_tar(folder: Path, file: IO[bytes], top: str) -> None:
    """Write a directory's files as ``pack`` does into a tar that is not compressed. With "" for ``top`` they are not
    below anything, and the directory itself is left out."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = _epoch()
        entry.mode = 0o755 if entry.isdir() or entry.issym() or entry.mode & 0o100 else 0o644
        return entry

    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in [*([folder] if top else []), *sorted(folder.rglob("*"))]:
            tar.add(path, Path(top, path.relative_to(folder)), recursive=False, filter=plain)


def _epoch() -> int:
    return int(os.environ["SOURCE_DATE_EPOCH"])
