"""What was there before a change: the files that are replaced or made, kept on the node until all is well.

Owns the journal's file.
Must not know: what the files are for.
Invariant: a file is in the journal before it is changed, so that a run that was cut off can be undone by the next one.
"""

import json
from collections.abc import Mapping

from .node import Node

PLACE = "/opt/runtimeproxy/undo.json"


class Journal:
    """The journal of a node, with what a run that was cut off has left in it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        found = node.text(PLACE)
        self._before: dict[str, str | None] = {} if found is None else json.loads(found)

    @property
    def open(self) -> bool:
        """Return whether a change is not done."""
        return bool(self._before)

    def change(self, files: Mapping[str, str | None]) -> None:
        """Give files these contents, None to remove one. Raises OSError."""
        changes = {place: text for place, text in files.items() if self._node.text(place) != text}
        new = {place: self._node.text(place) for place in changes if place not in self._before}
        if new:
            self._node.write(PLACE, json.dumps(self._before | new), 0o600)
            self._before |= new
        for place, text in changes.items():
            self._put(place, text)

    def undo(self) -> set[str]:
        """Give all files of the journal their old contents; return those that had others. Raises OSError."""
        changed = {place for place, text in self._before.items() if self._node.text(place) != text}
        for place in changed:
            self._put(place, self._before[place])
        self.done()
        return changed

    def done(self) -> None:
        """Forget what was there before. Raises OSError."""
        self._node.remove(PLACE)
        self._before = {}

    def _put(self, place: str, text: str | None) -> None:
        if text is None:
            self._node.remove(place)
        else:
            self._node.write(place, text)
