"""``runtimeproxy doctor``: run the checks and print what they found.

Owns the columns of the output and the exit code.
Must not know: what a check looks at; ``doctor`` is imported only when it is to run.
Invariant: exit code 1 means that something was found; what is unknown or skipped is no finding.
"""

import os
from collections import Counter

import click

from runtimeproxy.cli.shared.configuration import configuration
from runtimeproxy.cli.shared.exit_codes import FAILED
from runtimeproxy.cli.shared.findings import findings
from runtimeproxy.cli.shared.flags import Command, flags_given, option_flags
from runtimeproxy.cli.shared.output import TABLE, row_options, row_text
from runtimeproxy.errors import ConfigError
from runtimeproxy.settings.options import OPTIONS


@click.command(
    "doctor", cls=Command, params=option_flags(OPTIONS), short_help="Look at the node and tell what is wrong."
)
@row_options
def doctor_command(output: str, no_headers: bool, **given: str | None) -> int:
    """Look at the node around the proxy and tell what is wrong, why, and what to do. Nothing is changed.

    No proxy need run. Give it the flags that the proxy runs with: they say where to look. Each check waits 2 s at most.
    A hook server is called for an invented pod. docs/troubleshooting.rst has a section on each check.

    The exit code is 1 if something is a warning or failed. What is unknown, as much is without root, and what is
    skipped, as it does not apply to this node, leave it at 0. The last line, on stderr, counts all of these.

    On a terminal the text is wrapped below its column. Elsewhere, as before grep, each finding is one line.
    """
    try:
        settings = configuration(flags_given(given), os.environ)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    for line in settings.warnings:
        click.echo(f"warning: {line}", err=True)
    rows = findings(settings)
    if output == TABLE:
        told = [row | {"why": f"{row['why']}\n-> {row['do']}" if row["do"] else row["why"]} for row in rows]
        click.echo(row_text(told, ("check", "verdict", "why"), output, no_headers))
    else:
        click.echo(row_text(rows, ("check", "verdict", "why", "do", "doc"), output, no_headers))
    verdicts = Counter(row["verdict"] for row in rows)
    found = f"{verdicts['failed']} failed, {verdicts['warning']} warning{'' if verdicts['warning'] == 1 else 's'}"
    not_checked = f"{verdicts['unknown']} unknown, {verdicts['skipped']} skipped"
    click.echo(f"runtimeproxy doctor: {found}; not checked: {not_checked}", err=True)
    return FAILED if verdicts["warning"] or verdicts["failed"] else 0
