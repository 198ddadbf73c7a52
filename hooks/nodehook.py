"""What hooks that look at the node have in common: its settings and its cgroups, and the flags of both.

Owns where a hook has these from: its maker, or the command line; what it has logged once.
Must not know: what a hook does with them.
Invariant: without a command line there are the default settings and the usual root.
"""

import argparse
import logging

from .cgroups import Cgroups
from .cgroups import add_flag as add_cgroup_flag
from .node import Node
from .node import add_flag as add_node_flag
from .once import Once
from .sdk import Hook


class NodeHook(Hook):
    """A hook with the node's settings and cgroups, where a test does not give its own, and ``once`` for its log."""

    def __init__(self, node: Node | None = None, cgroups: Cgroups | None = None) -> None:
        self.node = node or Node(None)
        self.cgroups = cgroups or Cgroups()
        self.once = Once(logging.getLogger(type(self).__module__))

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the flags of the node's settings and of the cgroup root."""
        add_node_flag(parser)
        add_cgroup_flag(parser)

    def configure(self, arguments: argparse.Namespace) -> None:
        """Take the node's settings, which are read now, and the root of the cgroups."""
        self.node = arguments.node_config
        self.node.look()
        self.cgroups = Cgroups(arguments.cgroup_root)
