"""What was there before a change: the files that are replaced or made, kept on the node until all is well.

Owns the journal's file, and which directories come and go with the files.
Must not know: what the files are for.
Invariant: a file is in the journal before it is changed, so that a run that was cut off can be undone by the next one,
also where it was cut off on its way back.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict

from .node import File, Node

PLACE = "/opt/runtimeproxy/undo.json"


class Journal:
    """The journal of a node, with what a run that was cut off has left in it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        found = node.text(PLACE)
        before = {} if found is None else json.loads(found)
        self._before: dict[str, File | None] = {place: file and File(**file) for place, file in before.items()}

    @property
    def open(self) -> bool:
        """Return whether a change is not done."""
        return bool(self._before)

    def change(self, files: Mapping[str, str | None]) -> None:
        """Give files these contents, None to remove one; a directory comes with its first file and goes with its last.
        Raises OSError."""
        changes = {place: text for place, text in files.items() if self._node.text(place) != text}
        folders = {folder(place) for place in changes}
        new: dict[str, File | None] = {made: None for made in folders if not self._node.path(made).exists()}
        new |= {place: self._node.file(place) for place in changes if place not in self._before}
        if new:
            before = {place: file and asdict(file) for place, file in (self._before | new).items()}
            self._node.write(PLACE, json.dumps(before), 0o600)
            self._before |= new
        for place, text in changes.items():
            if text is None:
                self._node.remove(place)
                self._node.remove(folder(place))
            else:
                self._node.write(place, text)

    def undo(self) -> set[str]:
        """Bring all files of the journal back as they were; return their places. Raises OSError.

        The journal stays open until ``done``: a run that is cut off before has not restarted what reads these files.
        """
        for place, file in reversed(self._before.items()):  # a directory after its files
            if file is None:
                self._node.remove(place)
            elif self._node.file(place) != file:
                self._node.put(place, file)
        return set(self._before)

    def done(self) -> None:
        """Forget what was there before. Raises OSError."""
        self._node.remove(PLACE)
        self._before = {}


def folder(place: str) -> str:
    """Return the directory of a file."""
    return place.rpartition("/")[0]
