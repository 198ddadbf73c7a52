"""What hooks that look at the node have in common: its settings, its cgroups, their flags, and what is said once.

Owns where a hook has these from: its maker, or the command line; what it has logged once.
Must not know: what a hook does with them.
Invariant: without a command line there are the default settings and the usual root; one warning a trouble.
"""

import argparse
import logging
import threading
from collections.abc import Hashable
from pathlib import Path
from typing import Any, ClassVar

from ..sdk import Hook
from .cgroups import FLAG, ROOT, Cgroups
from .node import DEFAULT_FILE, Node


class NodeHook(Hook):
    """A hook with the node's settings and cgroups, where a test does not give its own."""

    reads_settings: ClassVar[bool] = True
    reads_cgroups: ClassVar[bool] = True
    """What a hook does not look at it has no flag for."""

    def __init__(self, node: Node | None = None, cgroups: Cgroups | None = None) -> None:
        self.node = node or Node(None)
        self.cgroups = cgroups or Cgroups()
        self._lock = threading.Lock()
        self._said: set[Hashable] = set()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the flags of the node's settings and of the cgroup root, which several hooks of a server share."""
        if self.reads_settings:
            said = "the node's settings, read again when they change (default: %(default)s)"
            _share(parser, "--node-config", metavar="FILE", type=_node, default=str(DEFAULT_FILE), help=said)
        if self.reads_cgroups:
            said = "where cgroups are mounted (default %(default)s)"
            _share(parser, FLAG, metavar="DIR", type=Path, default=ROOT, help=said)

    def configure(self, arguments: argparse.Namespace) -> None:
        """Take the node's settings, which are read now, and the root of the cgroups."""
        if self.reads_settings:
            self.node = arguments.node_config
            self.node.look()
        if self.reads_cgroups:
            self.cgroups = Cgroups(arguments.cgroup_root)

    def warn_once(self, trouble: Hashable, text: str, *values: object) -> None:
        """Log ``text`` with its ``values``, as ``logging`` does, the first time that ``trouble`` comes up.

        A trouble of the node would come back with every pod, in any thread.
        """
        with self._lock:
            if trouble in self._said:
                return
            self._said.add(trouble)
        logging.getLogger(type(self).__module__).warning(f"{text}; said once only", *values)


def _node(text: str) -> Node:
    return Node(Path(text))  # the parser makes one for all hooks of the server


def _share(parser: argparse.ArgumentParser, flag: str, **options: Any) -> None:
    try:
        parser.add_argument(flag, **options)
    except argparse.ArgumentError:
        pass  # another hook of the server has added it
