"""The journal: the previous content of files that are replaced or created, stored on the node until the work succeeds.

Owns the journal's file, and which directories are created and removed with the files.
Must not know: the purpose of the files.
Invariant: a file is in the journal before it is changed. So the next run can undo an interrupted change, and an
interrupted undo.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict

from .node import File, Node

JOURNAL_PATH = "/opt/runtimeproxy/undo.json"


class Journal:
    """The journal of a node, with the entries of an interrupted run."""

    def __init__(self, node: Node) -> None:
        self._node = node
        text = node.text(JOURNAL_PATH)
        before = {} if text is None else json.loads(text)
        self._before: dict[str, File | None] = {node_path: file and File(**file) for node_path, file in before.items()}

    @property
    def is_open(self) -> bool:
        """Return whether a change is incomplete."""
        return bool(self._before)

    def change(self, files: Mapping[str, str | None]) -> None:
        """Write files, None to remove one. A directory is created with its first file and removed with its last.
        Raises OSError."""
        changes = {node_path: text for node_path, text in files.items() if self._node.text(node_path) != text}
        folders = {folder(node_path) for node_path in changes}
        new: dict[str, File | None] = {path: None for path in folders if not self._node.path(path).exists()}
        new |= {node_path: self._node.file(node_path) for node_path in changes if node_path not in self._before}
        if new:
            before = {node_path: file and asdict(file) for node_path, file in (self._before | new).items()}
            self._node.write(JOURNAL_PATH, json.dumps(before), 0o600)
            self._before |= new
        for node_path, text in changes.items():
            if text is None:
                self._node.remove(node_path)
                self._node.remove(folder(node_path))
            else:
                self._node.write(node_path, text)

    def undo(self) -> set[str]:
        """Restore all files of the journal; return their paths. Raises OSError.

        The journal stays open until ``close``: before that, the units that read these files are not restarted.
        """
        for node_path, file in reversed(self._before.items()):  # a directory after its files
            if file is None:
                self._node.remove(node_path)
            elif self._node.file(node_path) != file:
                self._node.put(node_path, file)
        return set(self._before)

    def close(self) -> None:
        """Remove the journal. Raises OSError."""
        self._node.remove(JOURNAL_PATH)
        self._before = {}


def folder(node_path: str) -> str:
    """Return the directory of a file."""
    return node_path.rpartition("/")[0]
