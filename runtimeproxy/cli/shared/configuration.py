"""The configuration that a command has: its flags, the environment and the file. Nothing is opened for writing."""

import os
from collections.abc import Mapping

from runtimeproxy.errors import ConfigError
from runtimeproxy.settings import config
from runtimeproxy.settings.options import DEFAULT_FILE


def command_configuration(given: Mapping[str, str | None]) -> config.Config:
    """Return the configuration of a command with these flags. Raises click.ClickException if it is wrong."""
    import click  # the packages run the rest of this file without click

    from runtimeproxy.cli.shared.flags import flags_given

    try:
        return configuration(flags_given(given), os.environ)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None


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
    except (OSError, ValueError) as error:
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        if is_missing and named is None and not os.path.islink(path):  # a link's file was meant to be there
            return None, path
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: the configuration file cannot be read: {reason}") from None
