"""``runtimeproxy events`` and ``hook trace``: what happened, from the proxy's ring of events.

Invariant: each event that the proxy still has is printed once, in order; those that it lost are told as a gap.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

import click

from runtimeproxy.cli.shared import subjects
from runtimeproxy.cli.shared.admin_client import AdminClient, NoProxy, ProxyCommand
from runtimeproxy.cli.shared.output import INTERRUPTED, JSON, TABLE, Table, parse_since, row_options, structured_text
from runtimeproxy.cli.shared.subjects import COLUMNS, Event, number, remembered, row

CALLS = frozenset({"edited", "no_effect", "refused", "failed", "failed_open", "unhooked", "conflict", "slow"})
"""The kinds of events that are about a call."""
LAST = 10
"""How many earlier events are printed before the first one that is followed."""

_follow_option = click.option("-f", "--follow", is_flag=True, help=f"Print the last {LAST}, then more as they come.")
_since_option = click.option(
    "--since", metavar="NUMBER|DURATION", help="Only what came after the event of this number, or in the last 10m."
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
def events_command(
    proxy: AdminClient,
    follow: bool,
    since: str | None,
    kind: str | None,
    pod: str | None,
    output: str,
    no_headers: bool,
) -> int:
    """Print the events that the proxy remembers, the oldest first.

    These are calls that were edited, refused or slow, or that a hook server failed; hook servers that came, changed or
    went; the runtime lost and back. CALL is the id that the log lines of the call have. Times are UTC.
    """
    found = _Found(proxy, {"kind": kind, "pod": pod}, parse_since(since), follow)
    return _print(found, output, no_headers)


@click.command("trace", cls=ProxyCommand, short_help="Print what hook servers did to calls.")
@_follow_option
@_since_option
@_pod_option
@click.option(
    "--hook-server", metavar="NAME", help="Only what this hook server did.", shell_complete=subjects.hook_servers
)
@row_options
def trace_command(
    proxy: AdminClient,
    follow: bool,
    since: str | None,
    pod: str | None,
    hook_server: str | None,
    output: str,
    no_headers: bool,
) -> int:
    """Print the calls that hook servers changed, refused or failed, and those over a second; the oldest first.

    A call that no hook server changed is not remembered. CALL is the id that the log lines of the call have. Times are
    UTC.
    """
    found = _Found(proxy, {"pod": pod, "hookServer": hook_server}, parse_since(since), follow, CALLS)
    return _print(found, output, no_headers)


class _Found:
    """The events of one command: those that are remembered, then those that come."""

    def __init__(
        self,
        proxy: AdminClient,
        query: Mapping[str, str | None],
        since: int | datetime | None,
        follow: bool,
        kinds: frozenset[str] | None = None,
    ) -> None:
        self._proxy = proxy
        self._query = query
        self._since = since
        self._kinds = None if kinds is None else kinds | {"gap"}
        self._last = since if isinstance(since, int) else 0
        self.follow = follow

    def remembered(self) -> list[Event]:
        """Return what is printed at once."""
        events = list(remembered(self._proxy, **self._query, since=self._last))
        self._last = number(events[-1]) if events else self._last
        wanted = [event for event in events if self._is_wanted(event)]
        return wanted[-LAST:] if self.follow and self._since is None else wanted

    def coming(self) -> Iterator[Event]:
        """Yield more events as they come. Raises NoProxy at the proxy's end."""
        for event in self._proxy.follow(**self._query, since=self._last):
            if number(event) > self._last and self._is_wanted(event):
                yield event
        raise NoProxy("the proxy has ended")

    def _is_wanted(self, event: Event) -> bool:
        if self._kinds is not None and event["kind"] not in self._kinds:
            return False
        return (
            not isinstance(self._since, datetime)
            or "time" not in event
            or datetime.fromisoformat(event["time"]) >= self._since
        )


def _print(found: _Found, output: str, no_headers: bool) -> int:
    """Print events, and more as they come; return the exit code."""
    events = found.remembered()
    if not found.follow and output != TABLE:
        click.echo(structured_text(events, output))
        return 0
    table = Table(COLUMNS, no_headers)
    try:
        _print_lines(table, events, output)
        for event in found.coming() if found.follow else ():
            _print_lines(table, [event], output)
    except KeyboardInterrupt:  # the way to end following
        return INTERRUPTED
    return 0


def _print_lines(table: Table, events: Sequence[Event], output: str) -> None:
    """Print a line for each event; as YAML a document."""
    lines: Iterable[str] = table.lines([row(event) for event in events])
    if output == JSON:
        lines = (json.dumps(event) for event in events)
    elif output != TABLE:
        lines = (f"---\n{structured_text(event, output)}" for event in events)
    for line in lines:
        click.echo(line)
