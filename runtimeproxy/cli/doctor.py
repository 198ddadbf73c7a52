"""``runtimeproxy doctor``: run the checks and print what they found.

Owns the columns of the output and the exit code.
Must not know: what a check looks at; ``doctor`` is imported only when it is to run.
Invariant: exit code 0 means that all is ok, 1 that something was found or could not be looked at.
"""

import os

import click

from runtimeproxy.cli.output import TABLE, row_options, row_text
from runtimeproxy.cli.run import FAILED, Command, configuration, flags_given, option_flags
from runtimeproxy.errors import ConfigError
from runtimeproxy.settings.options import OPTIONS


def doctor_command() -> click.Command:
    """Return the command."""
    return _doctor


@click.command(
    "doctor", cls=Command, params=option_flags(OPTIONS), short_help="Look at the node and tell what is wrong."
)
@row_options
def _doctor(output: str, no_headers: bool, **given: str | None) -> int:
    """Look at the node around the proxy and tell what is wrong, why, and what to do. Nothing is changed.

    No proxy need run. Give it the flags that the proxy runs with: they say where to look. Each check waits 2 s at most.
    A hook server is called for an invented pod. docs/troubleshooting.rst has a section on each check. The exit code is
    1 if a check is not ok.

    On a terminal the text is wrapped below its column. Elsewhere, as before grep, each finding is one line.
    """
    try:
        settings = configuration(flags_given(given), os.environ)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    from runtimeproxy.doctor import machine, table  # heavy: the clients of runtimes and hook servers

    rows = [
        {"check": c.id, "verdict": f.verdict.value, "why": _line(f.why), "do": _line(f.do) or None, "doc": c.place}
        for c, f in table.examine(machine.Machine(settings))
    ]
    if output == TABLE:
        told = [row | {"why": f"{row['why']}\n-> {row['do']}" if row["do"] else row["why"]} for row in rows]
        click.echo(row_text(told, ("check", "verdict", "why"), output, no_headers))
    else:
        click.echo(row_text(rows, ("check", "verdict", "why", "do", "doc"), output, no_headers))
    return FAILED if any(row["verdict"] != "ok" for row in rows) else 0


def _line(text: str) -> str:
    """Return a text as one line that cannot control the terminal: the names of files are in it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
