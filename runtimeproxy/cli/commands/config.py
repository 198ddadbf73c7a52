"""``runtimeproxy config``: check a configuration, show it with the origin of each value, print the defaults."""

import os
from functools import partial

import click

from runtimeproxy.cli.shared.configuration import command_configuration, configuration_file
from runtimeproxy.cli.shared.flags import Command, complete_value, flags_given, option_flags
from runtimeproxy.cli.shared.output import FAILED, TABLE, row_options, row_text
from runtimeproxy.errors import ConfigError
from runtimeproxy.settings import config
from runtimeproxy.settings.options import DEFAULT_FILE, ENVIRONMENT_PREFIX, FILE_OPTION, OPTIONS, SETTINGS

_DEFAULT_HEAD = f"""\
# The configuration of runtimeproxy; its place is {DEFAULT_FILE}.
# A key that is left out has the default, which is shown. A flag --KEY and an environment
# variable ({ENVIRONMENT_PREFIX} and the key in capitals with _) override this file.
"""


@click.command(
    "check",
    cls=Command,
    params=option_flags(option for option in OPTIONS if option is not FILE_OPTION),
    short_help="Find all errors of a file, the environment and flags.",
)
@click.option("--for-version", metavar="VERSION", help="Find what this earlier version does not know, too.")
@click.argument("file", metavar="[FILE]", required=False, shell_complete=partial(complete_value, FILE_OPTION))
@row_options
def _check(file: str | None, for_version: str | None, output: str, no_headers: bool, **given: str | None) -> int:
    """Print everything that is wrong with FILE, the environment variables and flags, and open nothing but FILE.

    Without FILE it is the file that the proxy would read. Give it the flags that the proxy runs with. The exit code is
    1 if there is an error, with which the proxy would not start. A warning alone is exit code 0. A FILE that cannot be
    read as text is wrong use, exit code 2. Before a downgrade, --for-version finds what has to be taken out.
    """
    if file == "":
        raise click.UsageError("FILE is empty: name one, or leave it out")
    try:
        text, path = configuration_file({} if file is None else {FILE_OPTION.name: file}, os.environ)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    from runtimeproxy.relay.listener import group_id

    flags = flags_given(given)
    all_findings = [config.check(os.environ, text, path, os.path.realpath, group_id, flags)]
    if for_version is not None:
        try:
            all_findings.append(config.unknown_to_version(for_version, flags, os.environ, text, path))
        except ConfigError as error:
            raise click.UsageError(f"--for-version: {error}") from None
    errors = [line for findings in all_findings for line in findings.errors]
    rows = [{"severity": "error", "finding": line} for line in errors]
    rows += [{"severity": "warning", "finding": line} for findings in all_findings for line in findings.warnings]
    if rows or output != TABLE:
        click.echo(row_text(rows, ("severity", "finding"), output, no_headers))
    else:
        click.echo(f"{path}: {'nothing is wrong' if text is not None else 'not there; the defaults hold'}")
    return FAILED if errors else 0


@click.command("show", cls=Command, params=option_flags(OPTIONS), short_help="Print each key with its value.")
@click.option("--origin", is_flag=True, help="Print where each value comes from: flag, environment, file or default.")
@row_options
def _show(origin: bool, output: str, no_headers: bool, **given: str | None) -> None:
    """Print the configuration that the proxy would have with these flags, this environment and its file."""
    shown = command_configuration(given)
    for line in shown.warnings:
        click.echo(f"warning: {line}", err=True)
    rows = [{"key": setting.key, "value": setting.value, "origin": setting.origin} for setting in shown.settings]
    click.echo(row_text(rows, ("key", "value", "origin") if origin else ("key", "value"), output, no_headers))


@click.command("default", cls=Command, short_help="Print a configuration file with all defaults.")
def _default() -> None:
    """Print a commented YAML file with every key and its default."""
    parts = [_DEFAULT_HEAD]
    for _, option in SETTINGS:
        is_set = option.default is not None
        value = f"{option.name}: {option.default}" if is_set else f"#{option.name}:  # {option.default_words}"
        parts.append(f"# {option.help}\n{value}\n")
    click.echo("\n".join(parts), nl=False)


config_group = click.Group(
    "config",
    commands=[_check, _show, _default],
    help="Check, show and write the configuration. No proxy need run.",
    short_help="Check, show and write the configuration.",
    no_args_is_help=False,
)
