"""``runtimeproxy version``: what one names in an issue.

Owns the columns of the output.
Must not know: how a version is found.
"""

import click

from runtimeproxy.cli.shared.flags import Command
from runtimeproxy.cli.shared.output import row_options, row_text
from runtimeproxy.cli.shared.versions import versions


@click.command("version", cls=Command, short_help="Print the versions of the proxy, Python and the libraries.")
@row_options
def version_command(output: str, no_headers: bool) -> None:
    """Print the versions of the proxy, Python, the kernel and the libraries; - for what is not installed or not known.

    "commit" and "date" are those of the sources. They are known in a release; "commit" also where pip installed from a
    git address.
    """
    rows = [{"name": name, "version": version} for name, version in versions().items()]
    click.echo(row_text(rows, ("name", "version"), output, no_headers))
