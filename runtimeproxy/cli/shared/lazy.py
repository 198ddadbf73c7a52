"""Groups of commands that are loaded when they are asked for.

Owns how a group finds its commands.
Must not know: any command.
Invariant: making a group imports none of its commands.
"""

from collections.abc import Mapping

import click

from runtimeproxy.imports import import_or_exit


class LazyGroup(click.Group):
    """A group with its commands by name, each as ``MODULE:VARIABLE``."""

    PLACES: Mapping[str, str] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.PLACES)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # click suggests none of the commands that it has not loaded
            raise click.NoSuchCommand(error.command_name, possibilities=self.PLACES, ctx=ctx) from None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.PLACES:
            return None
        module, _, variable = self.PLACES[cmd_name].partition(":")
        found: click.Command = getattr(import_or_exit(module), variable)
        return found
