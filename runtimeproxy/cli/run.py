"""``runtimeproxy run``: read the configuration, set up the log, hand over to the application.

Owns the flags (derived from the table in ``options``), reading the file, and what is refused before anything is opened.
Must not know: how the proxy works; ``app`` is imported only when it is to run.
Invariant: whatever is wrong with the configuration is a click.ClickException, raised before anything is opened.
"""

import logging
import os
import traceback
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import click

from runtimeproxy.cli.exit_codes import FAILED
from runtimeproxy.errors import ConfigError, RuntimeProxyError
from runtimeproxy.observe import logs
from runtimeproxy.settings import config
from runtimeproxy.settings.options import (
    DEFAULT_FILE,
    ENVIRONMENT_PREFIX,
    LOG_FORMATS,
    LOG_LEVELS,
    MODE_OPTION,
    OPTIONS,
    SOCKET_FORMS,
    Mode,
    Option,
)

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


_EPILOG = (
    f"Each flag has an environment variable ({ENVIRONMENT_PREFIX} and its name in capitals with _) and a key of its "
    "own name in the YAML file. Flags win over the environment, the environment wins over the file. A SOCKET is spelt "
    f"{SOCKET_FORMS}; a DURATION 500ms, 2s, 1m or a number of seconds."
)

_PATHS = ("SOCKET", "DIR", "FILE")
_WORDS = {MODE_OPTION.name: tuple(mode.value for mode in Mode), "log-level": LOG_LEVELS, "log-format": LOG_FORMATS}

_logger = logging.getLogger(__name__)


class Command(click.Command):
    """A command; whatever is wrong with its flags leads to its own help."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise


def run_command() -> click.Command:
    """Return the command with one flag for each row of the table of options."""
    help_text = "Listen for the kubelet, pass its calls to the runtime, and call the registered hook servers."
    return Command(
        "run", params=option_flags(OPTIONS), callback=_run, help=help_text, short_help="Run the proxy.", epilog=_EPILOG
    )


def option_flags(options: Iterable[Option]) -> list[click.Parameter]:
    """Return a flag for each of these options."""
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
    option: Option, context: click.Context, parameter: click.Parameter, begun: str
) -> list["CompletionItem[str]"]:
    """Return what a shell offers for an option's value: its words, or that it is a path."""
    from click.shell_completion import CompletionItem

    if option.metavar in _PATHS:
        return [CompletionItem(begun, type="file")]
    return [CompletionItem(word) for word in _WORDS.get(option.name, ()) if word.startswith(begun)]


def flags_given(given: Mapping[str, str | None]) -> dict[str, str]:
    """Return the texts of the flags that were given, by the options' names."""
    return {name.replace("_", "-"): text for name, text in given.items() if text is not None}


def _run(**given: str | None) -> int:
    try:
        settings = configuration(flags_given(given), os.environ)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    handler = logs.configure(settings.log_level, settings.log_format)
    try:
        for line in settings.warnings:
            _logger.warning("%s", line, extra={"kind": line})
        from runtimeproxy import app  # heavy: the event loop, the readers, the hook protocol

        return app.run(settings)
    except Exception as error:
        if not isinstance(error, ConfigError):
            _logger.debug("Running failed", exc_info=True)
            error.add_note("--log-level=debug shows how it came there")
        if settings.log_format != "json":
            raise
        _logger.error("%s", words(error))  # stderr is read as JSON
        return FAILED
    finally:
        handler.close()


def words(error: Exception) -> str:
    """Return the message about an error for the user. The text of a foreign exception may quote a value, so only its
    class and its place are shown."""
    if isinstance(error, RuntimeProxyError | OSError):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return "; ".join(
        [f"unexpected {type(error).__name__} at {last.filename}:{last.lineno}", *getattr(error, "__notes__", ())]
    )


def configuration(
    flags: Mapping[str, str], environ: Mapping[str, str], default_file: str = DEFAULT_FILE
) -> config.Config:
    """Return the configuration, with the file that is named, or else the default file if it is there. Raises
    ConfigError for every value, key or file that is wrong, and for a group that does not exist."""
    text, path = configuration_file(flags, environ, default_file)
    settings = config.load(flags, environ, text, path, os.path.realpath)
    for flag, group in (("--socket-group", settings.socket_group), ("--metrics-group", settings.metrics_group)):
        if group is not None:
            from runtimeproxy.relay.listener import group_id

            group_id(group, flag)
    return settings


def configuration_file(
    flags: Mapping[str, str], environ: Mapping[str, str], default_file: str = DEFAULT_FILE
) -> tuple[str | None, str]:
    """Return the text and the path of the configuration file; without a text if none is named or at the default path.
    Raises ConfigError if it cannot be read."""
    named = config.file_named(flags, environ)
    path = default_file if named is None else named
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(), path
    except (FileNotFoundError, NotADirectoryError) as error:
        if named is not None or os.path.islink(path):  # a link to nowhere was put there for a file that is missing
            raise _unreadable(path, error) from None
        return None, path
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: Exception) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
    return ConfigError(f"{path}: the configuration file cannot be read: {reason}")


RUN = run_command()
