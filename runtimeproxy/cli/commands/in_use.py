"""``runtimeproxy in-use``: tell who uses the proxy, before it is taken away.

Owns the output and the exit code.
Must not know: how it is found out; ``doctor`` is imported only when it is to run.
Invariant: exit code 0 means that everything could be looked at, and that nobody uses the proxy.
"""

import os

import click

from runtimeproxy.cli.shared.configuration import configuration
from runtimeproxy.cli.shared.exit_codes import FAILED
from runtimeproxy.cli.shared.flags import Command, flags_given, option_flags
from runtimeproxy.cli.shared.output import TABLE, row_options, row_text
from runtimeproxy.errors import ConfigError
from runtimeproxy.settings.options import FILE_OPTION, OPTIONS

_FLAGS = tuple(option for option in OPTIONS if option is FILE_OPTION or option.field == "listen_endpoint")


@click.command(
    "in-use", cls=Command, params=option_flags(_FLAGS), short_help="Tell who uses the proxy; ask before it is removed."
)
@row_options
def in_use_command(output: str, no_headers: bool, **given: str | None) -> int:
    """Print who is connected to the proxy, and which kubelet or cri-dockerd is configured to call it.

    No proxy need run. A kubelet that does not run now is found by its unit, and by the files that the unit names.
    The exit code is 1 if anybody uses the proxy; `kubelet-args` prints the way back. Run it as root, on the node.
    """
    try:
        settings = configuration(flags_given(given), os.environ)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    from runtimeproxy.doctor import machine, users  # heavy: what doctor needs

    rows = [{"user": line} for line in users.users(machine.Machine(settings))]
    if rows or output != TABLE:
        click.echo(row_text(rows, ("user",), output, no_headers))
    else:
        click.echo(f"nobody uses {settings.listen_endpoint}")
    return FAILED if rows else 0
