"""What a hook says once: a trouble of the node would come back with every pod.

Owns what has been said.
Must not know: which hook says it, what it means.
Invariant: one warning a trouble, whichever threads meet it.
"""

import logging
import threading
from collections.abc import Hashable


class Once:
    """Warnings of one hook, written to its logger."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._said: set[Hashable] = set()

    def warn(self, trouble: Hashable, text: str, *values: object) -> None:
        """Log ``text`` with its ``values``, as ``logging`` does, the first time that ``trouble`` comes up."""
        with self._lock:
            if trouble in self._said:
                return
            self._said.add(trouble)
        self._log.warning(f"{text}; said once only", *values)
