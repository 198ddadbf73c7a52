"""The archive and its trees on the node: /opt/runtimeproxy/VERSION-DIGEST, of which the units run one.

Owns the places of trees and units, and which tree the node runs.
Must not know: when a unit is started.
Invariant: a tree is whole or not there, its name identifies what it was made of, and its files never change.
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
from .node import LONGEST, Node

TREES = "/opt/runtimeproxy"
UNITS = "/etc/systemd/system"
SERVICE, SOCKET = "runtimeproxy.service", "runtimeproxy.socket"
EXPORTER = "runtimeproxy-export.service"
COMMAND = "/usr/local/bin/runtimeproxy"
"""For people: a link to the program of the tree that runs."""
PACKAGE_UNITS = (f"/usr/lib/systemd/system/{SERVICE}", f"/lib/systemd/system/{SERVICE}")
_PREFIX = re.compile(
    r"/usr/(bin(?=/(?:runtimeproxy|koord-runtime-proxy|runtimeproxy-hooks)(?![\w-]))|lib/runtimeproxy(?![\w-]))"
)
_HOME = re.compile(rf"{TREES}/([^/\s]+)-([0-9a-f]{{12}})/bin/")
_PARTIAL = ".partial"
_SPARE = 1.2
UNPACK_SECONDS = 300.0
"""How long unpacking may take: some seconds, on a disk that is not stuck."""


class Archive:
    """The archive in the image, which must have a digest. Raises Refused."""

    def __init__(self, folder: Path, sha256: str) -> None:
        found = sorted(folder.glob("runtimeproxy_*_linux_x86_64.tar.gz"))
        if len(found) != 1:
            raise Refused(f"the image has {len(found)} archives in {folder}, and one is needed: take another image")
        self._file = found[0]
        self.version = self._file.name.split("_")[1]
        with self._file.open("rb") as file:
            has = file_digest(file, "sha256").hexdigest()
        if has != sha256:
            raise Refused(
                f"the image's {self._file.name} has the digest {has}, and nodeInstaller.sha256 is {sha256}: "
                "compare both with checksums.txt of the release"
            )
        self.home = f"{TREES}/{self.version}-{sha256[:12]}"

    def unpack(self, node: Node) -> None:
        """Put the tree on the node, if it is not there. Raises Failed, OSError."""
        clean(node)
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
                reported = " ".join(done.stderr.split())[:LONGEST] or "it has no bin/runtimeproxy"
                raise Failed(f"the archive cannot be unpacked: {reported}")
            os.sync()  # whole also after the node loses its power
            partial.rename(home)
        except BaseException as error:
            shutil.rmtree(partial, ignore_errors=True)
            node.remove(TREES)  # if it is empty, as on a node that had none
            if isinstance(error, subprocess.TimeoutExpired):
                why = f"the archive was not unpacked to {TREES} within {UNPACK_SECONDS:g} s"
                raise Failed(f"{why}: see whether the node's disk is stuck or overloaded") from None
            raise

    def _check_space(self, folder: Path) -> None:
        with self._file.open("rb") as file:
            file.seek(-4, os.SEEK_END)
            size = int.from_bytes(file.read(), "little")  # of what is unpacked (RFC 1952)
        needed, free = int(_SPARE * size), shutil.disk_usage(folder).free
        if free < needed:
            raise Failed(f"{TREES} has {free >> 20} MiB free, and {(needed >> 20) + 1} MiB are needed: make room")


def clean(node: Node) -> None:
    """Remove trees that are not whole. Raises OSError."""
    for left in node.path(TREES).glob(f"*{_PARTIAL}"):
        shutil.rmtree(left)


def running(node: Node) -> tuple[str, str]:
    """Return the home and the version of the tree that the node's unit runs, "" if there is none. Raises OSError."""
    found = _HOME.search(node.text(f"{UNITS}/{SERVICE}") or "")
    return (f"{TREES}/{found[1]}-{found[2]}", found[1]) if found else ("", "")


def units(node: Node, home: str) -> dict[str, str | None]:
    """Return the unit files of a tree and their drop-ins, with the tree's own programs. Raises OSError, Failed."""
    folder = node.path(f"{home}/share/systemd")
    files: dict[str, str | None] = {
        f"{UNITS}/{file.relative_to(folder)}": _PREFIX.sub(
            lambda place: home + ("/bin" if place[1] == "bin" else ""), file.read_text()
        )
        for file in sorted(folder.rglob("*"))
        if file.suffix in (".service", ".socket", ".conf") and file.is_file()
    }
    for name in (SERVICE, SOCKET):
        if f"{UNITS}/{name}" not in files:
            raise Failed(f"{home} has no {name}: it is the tree of no release")
    return files


def names(files: Iterable[str], kind: str) -> list[str]:
    """Return the names of the units of a kind, such as ".socket", whose files these are; no template is one."""
    found = (file.removeprefix(f"{UNITS}/") for file in files)
    return sorted(name for name in found if name.endswith(kind) and "@" not in name and "/" not in name)


def link(node: Node, home: str) -> None:
    """Let the command for people be that of a tree, of none if "". What somebody else put there stays, and a node whose
    directory cannot be written has no such command."""
    with suppress(OSError):
        path = node.entry(COMMAND)
        if os.path.lexists(path) and not (path.is_symlink() and os.readlink(path).startswith(f"{TREES}/")):
            return
        path.unlink(missing_ok=True)
        if home:
            path.symlink_to(f"{home}/bin/runtimeproxy")


def remove_others(node: Node, *homes: str) -> None:
    """Remove all trees but these, and their directory with the last one. Raises OSError."""
    keep = {Path(home).name for home in homes if home}
    for found in node.path(TREES).glob("*"):
        if found.is_dir() and found.name not in keep:
            shutil.rmtree(found)
    node.remove(TREES)


def is_newer(version: str, than: str) -> bool:
    """Return whether a version is newer than another one."""
    return _numbers(version) > _numbers(than)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
