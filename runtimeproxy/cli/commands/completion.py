"""``runtimeproxy completion``: the shell's part of completion; click has the rest.

Owns where each shell reads such a file.
Must not know: the commands; click asks them.
Invariant: the output is a script that its shell can read as it is.
"""

import click
from click.shell_completion import get_completion_class

from runtimeproxy.cli.shared.flags import Command

INSTALL = {
    "bash": "runtimeproxy completion bash >/etc/bash_completion.d/runtimeproxy",
    "zsh": 'runtimeproxy completion zsh >"${fpath[1]}/_runtimeproxy"',
    "fish": "runtimeproxy completion fish >~/.config/fish/completions/runtimeproxy.fish",
}
"""How the script of each shell is installed, for all new shells."""


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
