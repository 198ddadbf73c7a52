"""``runtimeproxy version`` and ``runtimeproxy completion``: about the program itself."""

import click
from click.shell_completion import get_completion_class

from runtimeproxy.cli.shared.flags import Command
from runtimeproxy.cli.shared.output import row_options, row_text
from runtimeproxy.settings.version import versions


@click.command("version", cls=Command, short_help="Print the versions of the proxy, Python and the libraries.")
@row_options
def version_command(output: str, no_headers: bool) -> None:
    """Print the versions of the proxy, Python, the kernel and the libraries; - for what is not installed or not known.

    "commit" and "date" are those of the sources. They are known in a release; "commit" also where pip installed from a
    git address.
    """
    rows = [{"name": name, "version": version} for name, version in versions().items()]
    click.echo(row_text(rows, ("name", "version"), output, no_headers))


INSTALL = {
    "bash": "runtimeproxy completion bash >/etc/bash_completion.d/runtimeproxy",
    "zsh": 'runtimeproxy completion zsh >"${fpath[1]}/_runtimeproxy"',
    "fish": "runtimeproxy completion fish >~/.config/fish/completions/runtimeproxy.fish",
}


@click.command(
    "completion",
    cls=Command,
    short_help="Print the script by which a shell completes commands.",
    epilog="\b\n" + "\n".join(INSTALL.values()),
)
@click.argument("shell", type=click.Choice(list(INSTALL)), metavar="|".join(INSTALL))
def completion_command(shell: str) -> None:
    """Print the script by which a shell completes runtimeproxy's commands and flags; its last line installs it."""
    from runtimeproxy.cli.commands.table import PROGRAM, command_group

    completion = get_completion_class(shell)
    assert completion is not None
    source = completion(command_group(), {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source()
    click.echo(f"{source.rstrip()}\n\n# For all new shells: {INSTALL[shell]}")
