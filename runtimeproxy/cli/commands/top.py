"""``runtimeproxy top``: show the proxy's activity, each second on a terminal, else one frame."""

import os
import time
from collections import deque
from dataclasses import replace

import click

from runtimeproxy.cli.shared.admin_client import AdminClient, ProxyCommand
from runtimeproxy.cli.shared.subjects import Event, number, recent_events
from runtimeproxy.cli.top.figures import Snapshot, is_error, samples_of, view
from runtimeproxy.errors import RuntimeProxyError

_MOST_ERRORS = 200
_KEYS = 0


@click.command("top", cls=ProxyCommand, short_help="Show the proxy's activity every second.")
@click.option("--once", is_flag=True, help="Print one frame and end, as without a terminal.")
def top_command(proxy: AdminClient, once: bool) -> None:
    """Show the proxy's activity every second; q or Ctrl-C ends it.

    Calls a second and latencies are those of the last 10 s, in the first frame those since the proxy's start; a
    latency is estimated from the buckets of a histogram. Outcomes and failures are counted since the proxy's start;
    red ones grew within the 10 s. Errors are the latest events of a kind that is no good news.

    Without a terminal one frame is printed, without colours.
    """
    from rich.console import Console  # only this command needs it

    observer = _Observer(proxy)
    first = observer.inspect()
    console = Console(highlight=False, legacy_windows=False)
    if not once and console.is_terminal and os.isatty(_KEYS) and not console.is_dumb_terminal:
        from runtimeproxy.cli.top.terminal import watch  # heavy: asyncio

        watch(observer.inspect_or_last, first, console)
        return
    from runtimeproxy.cli.top.screen import screen

    console = Console(color_system=None, force_terminal=False, highlight=False, legacy_windows=False)
    with console.capture() as captured:
        console.print(screen(view(None, first), console.width))
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


class _Observer:
    """Calls the proxy for each frame, reads each event once, and retains the latest errors."""

    def __init__(self, proxy: AdminClient) -> None:
        self._proxy = proxy
        self._last = Snapshot(0.0, {})
        self._since = 0
        self._errors: deque[Event] = deque(maxlen=_MOST_ERRORS)

    def inspect(self) -> Snapshot:
        """Raises what the client raises."""
        proxy = self._proxy.with_new_deadline()
        try:
            samples = samples_of(proxy.call("metrics"))
            snapshot = Snapshot(time.time(), samples, proxy.call("hooks")["hooks"], proxy.call("readyz")["checks"])
            if snapshot.started != self._last.started:  # a new process counts its events from 1
                self._since = 0
                self._errors.clear()
            for event in recent_events(proxy, self._since):
                self._since = number(event)
                if is_error(event):
                    self._errors.append(event)
        except (ValueError, LookupError, TypeError):
            raise RuntimeProxyError("the proxy's answer cannot be read: is it a proxy of this version?") from None
        self._last = replace(snapshot, errors=tuple(self._errors))
        return self._last

    def inspect_or_last(self) -> Snapshot:
        """Return the proxy's present answer, or its last one and the reason why there is no present one."""
        try:
            return self.inspect()
        except (RuntimeProxyError, click.ClickException) as error:
            return replace(self._last, missing=str(error))
