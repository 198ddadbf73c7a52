"""``runtimeproxy events`` and ``hook trace``: the events that the proxy still has, each once, in order, with gaps."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from runtimeproxy.cli.shared import subjects
from runtimeproxy.cli.shared.admin_client import AdminClient, NoProxy, ProxyCommand
from runtimeproxy.cli.shared.output import INTERRUPTED, JSON, TABLE, Table, parse_since, row_options, structured_text
from runtimeproxy.cli.shared.subjects import COLUMNS, Event, number, recent_events, row

CALL_KINDS = frozenset({"edited", "no_effect", "refused", "failed", "failed_open", "unhooked", "conflict", "slow"})
BACKLOG = 10
"""How many earlier events are printed before the new ones."""

_follow_option = click.option("-f", "--follow", is_flag=True, help=f"Print the last {BACKLOG}, then more as they come.")
_since_option = click.option(
    "--since", metavar="NUMBER|DURATION", help="Only events after the event of this number, or in the last 10m."
)
_pod_option = click.option(
    "--pod",
    metavar="POD",
    help="Only a pod's: NAME, NAMESPACE/NAME, or the start of its id.",
    shell_complete=subjects.pods,
)


@click.command("events", cls=ProxyCommand, short_help="Print what happened to calls, hook servers and the runtime.")
@_follow_option
@_since_option
@click.option("--kind", metavar="KIND", help="Only events of this kind, like refused or breaker_open.")
@_pod_option
@row_options
def events_command(proxy: AdminClient, kind: str | None, pod: str | None, **options: Any) -> int:
    """Print the events that the proxy remembers, the oldest first.

    These are calls that were edited, refused or slow, or that a hook server failed; hook servers that came, changed or
    went; the runtime lost and back. CALL is the id that the log lines of the call have. Times are UTC.
    """
    return _print(proxy, {"kind": kind, "pod": pod}, **options)


@click.command("trace", cls=ProxyCommand, short_help="Print what hook servers did to calls.")
@_follow_option
@_since_option
@_pod_option
@click.option(
    "--hook-server", metavar="NAME", help="Only what this hook server did.", shell_complete=subjects.hook_servers
)
@row_options
def trace_command(proxy: AdminClient, pod: str | None, hook_server: str | None, **options: Any) -> int:
    """Print the calls that hook servers changed, refused or failed, and those over a second; the oldest first.

    A call that no hook server changed is not remembered. CALL is the id that the log lines of the call have. Times are
    UTC.
    """
    return _print(proxy, {"pod": pod, "hookServer": hook_server}, CALL_KINDS | {"gap"}, **options)


def _print(
    proxy: AdminClient,
    query: Mapping[str, str | None],
    kinds: frozenset[str] | None = None,
    *,
    follow: bool,
    since: str | None,
    output: str,
    no_headers: bool,
) -> int:
    """Print the remembered events, and with ``follow`` new ones; return the exit code. Raises NoProxy."""
    first = parse_since(since)

    def is_selected(event: Event) -> bool:
        is_early = isinstance(first, datetime) and "time" in event and datetime.fromisoformat(event["time"]) < first
        return not is_early and (kinds is None or event["kind"] in kinds)

    last = first if isinstance(first, int) else 0
    events = recent_events(proxy, **query, since=last)
    last = number(events[-1]) if events else last
    events = [event for event in events if is_selected(event)]
    if not follow and output != TABLE:
        click.echo(structured_text(events, output))
        return 0
    table = Table(COLUMNS, no_headers)
    try:
        _print_lines(table, events[-BACKLOG:] if follow and first is None else events, output)
        if follow:
            for event in proxy.follow(**query, since=last):
                if number(event) > last and is_selected(event):
                    _print_lines(table, [event], output)
            raise NoProxy("the proxy has ended")
    except KeyboardInterrupt:  # the way to end following
        return INTERRUPTED
    return 0


def _print_lines(table: Table, events: Sequence[Event], output: str) -> None:
    lines: Iterable[str] = table.lines([row(event) for event in events])
    if output == JSON:
        lines = (json.dumps(event) for event in events)
    elif output != TABLE:
        lines = (f"---\n{structured_text(event, output)}" for event in events)
    for line in lines:
        click.echo(line)
