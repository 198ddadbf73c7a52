"""Groups of commands that are loaded when they are asked for.

Owns how a group finds its commands.
Must not know: any command.
Invariant: making a group imports none of its commands.
"""

from collections.abc import Callable, Mapping

import click

Loader = Callable[[], click.Command]
"""Imports a command and returns it."""


class LazyGroup(click.Group):
    """A group with its commands by name."""

    LOADERS: Mapping[str, Loader] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.LOADERS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self.LOADERS[cmd_name]() if cmd_name in self.LOADERS else None
