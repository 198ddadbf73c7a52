"""The common part of hooks that use the node: its settings, its cgroups, their flags, and warnings logged once.

Invariant: without a command line the default settings and root are used; each problem is logged once.
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
    """A hook with the node's settings and cgroups; a test may pass its own."""

    reads_settings: ClassVar[bool] = True
    reads_cgroups: ClassVar[bool] = True
    """A hook that does not use one of these has no flag for it."""

    def __init__(self, node: Node | None = None, cgroups: Cgroups | None = None) -> None:
        self.node = node or Node(None)
        self.cgroups = cgroups or Cgroups()
        self._lock = threading.Lock()
        self._warned: set[Hashable] = set()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        if self.reads_settings:
            help_text = "the node's settings, read again when they change (default: %(default)s)"
            _share(parser, "--node-config", metavar="FILE", type=_node, default=str(DEFAULT_FILE), help=help_text)
        if self.reads_cgroups:
            help_text = "where cgroups are mounted (default %(default)s)"
            _share(parser, FLAG, metavar="DIR", type=Path, default=ROOT, help=help_text)

    def configure(self, arguments: argparse.Namespace) -> None:
        if self.reads_settings:
            self.node = arguments.node_config
            self.node.inspect()
        if self.reads_cgroups:
            self.cgroups = Cgroups(arguments.cgroup_root)

    def warn_once(self, trouble: Hashable, text: str, *values: object) -> None:
        """Log ``text`` with its ``values``, as ``logging`` does, only the first time for this ``trouble``. A problem of
        the node would be logged again with every pod. May be called in any thread."""
        with self._lock:
            if trouble in self._warned:
                return
            self._warned.add(trouble)
        logging.getLogger(type(self).__module__).warning(f"{text}; logged once only", *values)


def _node(text: str) -> Node:
    return Node(Path(text))  # argparse calls this once for all hooks of the server


def _share(parser: argparse.ArgumentParser, flag: str, **options: Any) -> None:
    try:
        parser.add_argument(flag, **options)
    except argparse.ArgumentError:
        pass  # another hook of the server has added it
