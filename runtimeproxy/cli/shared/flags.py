"""The flags of commands, made from the table of options, and groups of commands that load them when called."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from runtimeproxy.settings.imports import import_or_exit
from runtimeproxy.settings.options import LOG_FORMATS, LOG_LEVELS, MODE_OPTION, Mode, Option

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """A group with its commands by name in ``import_paths``, each as ``MODULE:VARIABLE``."""

    def __init__(self, name: str | None, import_paths: Mapping[str, str], **attributes: Any) -> None:
        super().__init__(name, no_args_is_help=False, **attributes)
        self.import_paths = import_paths

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.import_paths)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # click suggests none of the commands that it has not loaded
            raise click.NoSuchCommand(error.command_name, possibilities=self.import_paths, ctx=ctx) from None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.import_paths:
            return None
        module, _, variable = self.import_paths[cmd_name].partition(":")
        command: click.Command = getattr(import_or_exit(module), variable)
        return command


_PATHS = ("SOCKET", "DIR", "FILE")
_WORDS = {MODE_OPTION.name: tuple(mode.value for mode in Mode), "log-level": LOG_LEVELS, "log-format": LOG_FORMATS}


class Command(click.Command):
    """A command whose usage errors name its own help."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise


def option_flags(options: Iterable[Option]) -> list[click.Parameter]:
    return [
        click.Option(
            [o.flag],
            metavar=o.metavar,
            help=f"{o.help}  [default: {o.shown_default}]",
            shell_complete=partial(complete_value, o),
        )
        for o in options
    ]


def complete_value(
    option: Option, context: click.Context, parameter: click.Parameter, incomplete: str
) -> list["CompletionItem[str]"]:
    """Return what a shell offers for an option's value: its words, or that it is a path."""
    from click.shell_completion import CompletionItem

    if option.metavar in _PATHS:
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(word) for word in _WORDS.get(option.name, ()) if word.startswith(incomplete)]


def flags_given(given: Mapping[str, str | None]) -> dict[str, str]:
    return {name.replace("_", "-"): text for name, text in given.items() if text is not None}
