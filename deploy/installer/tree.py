"""The archive and its trees on the node: /opt/runtimeproxy/VERSION-DIGEST. The units run one of them.

Owns the paths of trees and units, and which tree the node runs.
Must not know: when a unit is started.
Invariant: a tree is complete or absent, its name identifies its archive, and its files never change.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from hashlib import file_digest
from pathlib import Path

from .errors import Failed, Refused
from .node import MAX_OUTPUT_LENGTH, Node

TREES = "/opt/runtimeproxy"
UNITS = "/etc/systemd/system"
SERVICE, SOCKET = "runtimeproxy.service", "runtimeproxy.socket"
EXPORTER = "runtimeproxy-export.service"
COMMAND = "/usr/local/bin/runtimeproxy"
"""The command on the PATH of a user: a link to the program of the running tree."""
PACKAGE_UNITS = (f"/usr/lib/systemd/system/{SERVICE}", f"/lib/systemd/system/{SERVICE}")
_PREFIX = re.compile(
    r"/usr/(bin(?=/(?:runtimeproxy|koord-runtime-proxy|runtimeproxy-hooks)(?![\w-]))|lib/runtimeproxy(?![\w-]))"
)
_HOME = re.compile(rf"{TREES}/([^/\s]+)-([0-9a-f]{{12}})/bin/")
_PARTIAL = ".partial"
_SPACE_FACTOR = 1.2
UNPACK_SECONDS = 300.0
"""Timeout of unpacking, which takes some seconds on a healthy disk."""


class Archive:
    """The archive in the image, whose digest must be ``sha256``. Raises Refused."""

    def __init__(self, folder: Path, sha256: str) -> None:
        archives = sorted(folder.glob("runtimeproxy_*_linux_x86_64.tar.gz"))
        if len(archives) != 1:
            raise Refused(f"the image has {len(archives)} archives in {folder} instead of one: use another image")
        self._file = archives[0]
        self.version = self._file.name.split("_")[1]
        with self._file.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        if digest != sha256:
            raise Refused(
                f"the image's {self._file.name} has the digest {digest}, and nodeInstaller.sha256 is {sha256}: "
                "compare both with checksums.txt of the release"
            )
        self.home = f"{TREES}/{self.version}-{sha256[:12]}"

    def unpack(self, node: Node) -> None:
        """Unpack the tree on the node, unless it exists. Raises Failed, OSError."""
        remove_partial(node)
        home = node.path(self.home)
        if home.is_dir():
            return
        partial = home.with_name(home.name + _PARTIAL)
        partial.mkdir(mode=0o755, parents=True)
        command = ["tar", "--extract", "--gzip", "--no-same-owner", "--strip-components=1"]
        try:
            self._check_space(partial)
            done = subprocess.run(
                [*command, f"--file={self._file}", f"--directory={partial}"],
                capture_output=True,
                text=True,
                check=False,
                timeout=UNPACK_SECONDS,
            )
            if done.returncode or not (partial / "bin/runtimeproxy").exists():
                reported = " ".join(done.stderr.split())[:MAX_OUTPUT_LENGTH] or "it has no bin/runtimeproxy"
                raise Failed(f"the archive cannot be unpacked: {reported}")
            os.sync()  # complete also after a power failure
            partial.rename(home)
        except BaseException as error:
            shutil.rmtree(partial, ignore_errors=True)
            node.remove(TREES)  # if it is empty
            if isinstance(error, subprocess.TimeoutExpired):
                why = f"the archive was not unpacked to {TREES} within {UNPACK_SECONDS:g} s"
                raise Failed(f"{why}: see whether the node's disk is stuck or overloaded") from None
            raise

    def _check_space(self, folder: Path) -> None:
        with self._file.open("rb") as file:
            file.seek(-4, os.SEEK_END)
            size = int.from_bytes(file.read(), "little")  # unpacked (RFC 1952)
        needed, free = int(_SPACE_FACTOR * size), shutil.disk_usage(folder).free
        if free < needed:
            raise Failed(f"{TREES} has {free >> 20} MiB free, and {(needed >> 20) + 1} MiB are needed: make room")


def remove_partial(node: Node) -> None:
    """Remove incomplete trees. Raises OSError."""
    for partial in node.path(TREES).glob(f"*{_PARTIAL}"):
        shutil.rmtree(partial)


def running(node: Node) -> tuple[str, str]:
    """Return the directory and the version of the tree that the node's unit runs, or "". Raises OSError."""
    match = _HOME.search(node.text(f"{UNITS}/{SERVICE}") or "")
    return (f"{TREES}/{match[1]}-{match[2]}", match[1]) if match else ("", "")


def units(node: Node, home: str) -> dict[str, str | None]:
    """Return the unit files of a tree and their drop-ins, with the paths of its programs. Raises OSError, Failed."""
    folder = node.path(f"{home}/share/systemd")
    files: dict[str, str | None] = {
        f"{UNITS}/{file.relative_to(folder)}": _PREFIX.sub(
            lambda match: home + ("/bin" if match[1] == "bin" else ""), file.read_text()
        )
        for file in sorted(folder.rglob("*"))
        if file.suffix in (".service", ".socket", ".conf") and file.is_file()
    }
    for name in (SERVICE, SOCKET):
        if f"{UNITS}/{name}" not in files:
            raise Failed(f"{home} has no {name}: it is not the tree of a release")
    return files


def unit_names(files: Iterable[str], kind: str) -> list[str]:
    """Return the names of the units of a kind, such as ".socket", without templates."""
    names = (file.removeprefix(f"{UNITS}/") for file in files)
    return sorted(name for name in names if name.endswith(kind) and "@" not in name and "/" not in name)


def link_command(node: Node, home: str) -> None:
    """Point COMMAND at a tree, or remove it if ``home`` is "". A foreign file at that path stays; if the directory
    cannot be written, the node has no such command."""
    with suppress(OSError):
        path = node.entry(COMMAND)
        if os.path.lexists(path) and not (path.is_symlink() and os.readlink(path).startswith(f"{TREES}/")):
            return
        path.unlink(missing_ok=True)
        if home:
            path.symlink_to(f"{home}/bin/runtimeproxy")


def remove_except(node: Node, *homes: str) -> None:
    """Remove all other trees, and their directory with the last one. Raises OSError."""
    keep = {Path(home).name for home in homes if home}
    for path in node.path(TREES).glob("*"):
        if path.is_dir() and path.name not in keep:
            shutil.rmtree(path)
    node.remove(TREES)


def is_newer(version: str, other: str) -> bool:
    return _numbers(version) > _numbers(other)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
