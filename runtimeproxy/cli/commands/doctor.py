"""``runtimeproxy doctor`` and ``runtimeproxy in-use``: what is wrong on the node, and who uses the proxy.

Invariants: exit code 1 of ``doctor`` means a warning or failure; unknown and skipped checks do not count. Exit code 0
of ``in-use`` means that everything could be read, and that nobody uses the proxy.
"""

from collections import Counter

import click

from runtimeproxy.cli.shared.configuration import command_configuration
from runtimeproxy.cli.shared.flags import Command, option_flags
from runtimeproxy.cli.shared.output import FAILED, TABLE, row_options, row_text
from runtimeproxy.settings.options import FILE_OPTION, OPTIONS


@click.command(
    "doctor", cls=Command, params=option_flags(OPTIONS), short_help="Check the node and report what is wrong."
)
@row_options
def doctor_command(output: str, no_headers: bool, **given: str | None) -> int:
    """Check the node around the proxy and report what is wrong, why, and what to do. Nothing is changed.

    No proxy need run. Give it the flags that the proxy runs with: they show where to look. Each check waits 2 s at
    most. A hook server is called for an invented pod. docs/troubleshooting.rst has a section on each check.

    The exit code is 1 if something is a warning or failed. What is unknown, as much is without root, and what is
    skipped, as it does not apply to this node, leave it at 0. The last line, on stderr, counts all of these.

    On a terminal the text is wrapped below its column. Elsewhere, as before grep, each finding is one line.
    """
    settings = command_configuration(given)
    for line in settings.warnings:
        click.echo(f"warning: {line}", err=True)
    from runtimeproxy.cli.doctor import table  # heavy: the clients of runtimes and hook servers

    rows = table.rows(settings)
    with_advice = [row | {"why": f"{row['why']}\n-> {row['do']}" if row["do"] else row["why"]} for row in rows]
    click.echo(row_text(with_advice, ("check", "verdict", "why"), output, no_headers, rows))
    verdicts = Counter(row["verdict"] for row in rows)
    summary = f"{verdicts['failed']} failed, {verdicts['warning']} warning{'' if verdicts['warning'] == 1 else 's'}"
    not_checked = f"{verdicts['unknown']} unknown, {verdicts['skipped']} skipped"
    click.echo(f"runtimeproxy doctor: {summary}; not checked: {not_checked}", err=True)
    return FAILED if verdicts["warning"] or verdicts["failed"] else 0


_FLAGS = tuple(option for option in OPTIONS if option is FILE_OPTION or option.field == "listen_endpoint")


@click.command(
    "in-use", cls=Command, params=option_flags(_FLAGS), short_help="Report who uses the proxy, before it is removed."
)
@row_options
def in_use_command(output: str, no_headers: bool, **given: str | None) -> int:
    """Print who is connected to the proxy, and which kubelet or cri-dockerd is configured to call it.

    No proxy need run. A kubelet that does not run now is found by its unit, and by the files that the unit names.
    The exit code is 1 if anybody uses the proxy; `kubelet-args` prints the way back. Run it as root, on the node.
    """
    settings = command_configuration(given)
    from runtimeproxy.cli.doctor import clients, machine  # heavy: what doctor needs

    rows = [{"user": line} for line in clients.users(machine.Machine(settings))]
    if rows or output != TABLE:
        click.echo(row_text(rows, ("user",), output, no_headers))
    else:
        click.echo(f"nobody uses {settings.listen_endpoint}")
    return FAILED if rows else 0
