"""``runtimeproxy top``: draw what the proxy does, each second.

Owns the loop, the keys, the terminal's state, and what is asked.
Must not know: what is shown, and how.
Invariant: however the command ends, the terminal is as it was before; a proxy that hangs does not stop the keys.
"""

import asyncio
import os
import signal
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import click

from runtimeproxy.cli.admin_client import AdminClient, ProxyCommand
from runtimeproxy.cli.top_figures import Snapshot, is_error, samples_of, view
from runtimeproxy.errors import RuntimeProxyError

if TYPE_CHECKING:
    from rich.console import Console

SECONDS = 1.0
"""The time between two frames."""
_INTERVALS = 10
"""The seconds that rates and latencies are of; held calls are too few for one."""
_KEPT_ERRORS = 200
_EVENTS_AT_ONCE = 1000
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_QUIT = b"q"
_KEYS = 0
"""The file descriptor that keys come from."""


_NO_KEY = b"\0"
"""What a control character of the terminal is set to if no key has it."""


class _Event(Enum):
    """What happens beside an answer of the proxy."""

    RESIZED = "resized"
    END = "end"


_News = Snapshot | Exception | _Event


def top_command() -> click.Command:
    """Return the command."""
    return _top


@click.command("top", cls=ProxyCommand, short_help="Show what the proxy does, each second.")
@click.option("--once", is_flag=True, help="Print one frame and end, as without a terminal.")
def _top(proxy: AdminClient, once: bool) -> None:
    """Show what the proxy does, each second; q or Ctrl-C ends it.

    Calls a second and latencies are those of the last 10 s, in the first frame those since the proxy's start; a
    latency is estimated from the buckets of a histogram. Outcomes and failures are counted since the proxy's start;
    red ones grew within the 10 s. Errors are the latest events of a kind that is no good news.

    Without a terminal one frame is printed, without colours.
    """
    from rich.console import Console  # only this command needs it

    observer = _Observer(proxy)
    first = observer.look()
    console = Console(highlight=False, legacy_windows=False)
    if once or not (os.isatty(_KEYS) and console.is_terminal) or console.is_dumb_terminal:
        _print(first)
    else:
        asyncio.run(_watch(observer.look_again, first, console))


class _Observer:
    """What is asked of the proxy for each frame; it keeps the latest errors."""

    def __init__(self, proxy: AdminClient) -> None:
        self._proxy = proxy
        self._last = Snapshot(0.0, {})
        self._since = 0
        self._errors: deque[Mapping[str, Any]] = deque(maxlen=_KEPT_ERRORS)

    def look(self) -> Snapshot:
        """Return what the proxy says now. Raises NoProxy, and what else the client raises."""
        from prometheus_client.parser import text_string_to_metric_families

        proxy = self._proxy.again()
        samples = samples_of(text_string_to_metric_families(proxy.text("/metrics")))
        found = Snapshot(time.time(), samples, proxy.get("/hooks")["hooks"], proxy.health("/readyz"))
        if found.started != self._last.started:  # the numbers of a new process begin anew
            self._since = 0
            self._errors.clear()
        self._read_events(proxy)
        self._last = replace(found, errors=tuple(self._errors))
        return self._last

    def _read_events(self, proxy: AdminClient) -> None:
        before = -1
        while before < self._since:
            before = self._since
            for event in proxy.lines("/events", {"since": before, "limit": _EVENTS_AT_ONCE}):
                self._since = max(self._since, int(event.get("number") or event.get("to") or 0))
                if is_error(event):
                    self._errors.append(event)

    def look_again(self) -> Snapshot:
        """Return what the proxy says now, or else what it said last and why it says nothing."""
        try:
            return self.look()
        except (RuntimeProxyError, click.ClickException) as error:
            return replace(self._last, missing=str(error))


def _print(snapshot: Snapshot) -> None:
    from rich.console import Console

    from runtimeproxy.cli.top_screen import screen

    console = Console(color_system=None, force_terminal=False, highlight=False, legacy_windows=False)
    with console.capture() as captured:
        console.print(screen(view(None, snapshot), console.width))
    lines = (line.rstrip() for line in captured.get().splitlines())
    click.echo("\n".join(lines))


async def _watch(look: Callable[[], Snapshot], first: Snapshot, console: "Console") -> None:
    """Draw a frame for each look, and anew where the terminal's size changed, until a key or a signal ends it."""
    from rich.live import Live

    from runtimeproxy.cli.top_screen import screen

    loop, news = asyncio.get_running_loop(), asyncio.Queue[_News]()

    def typed() -> None:
        keys = os.read(_KEYS, 1024)
        if not keys or _QUIT in keys.lower():
            news.put_nowait(_Event.END)

    loop.add_signal_handler(signal.SIGWINCH, news.put_nowait, _Event.RESIZED)
    for number in _ENDING:
        loop.add_signal_handler(number, news.put_nowait, _Event.END)

    def tell(found: Snapshot | Exception) -> None:
        loop.call_soon_threadsafe(news.put_nowait, found)

    over = threading.Event()
    seen: deque[Snapshot] = deque(maxlen=_INTERVALS + 1)
    try:
        with _keys_unechoed(_KEYS), Live(console=console, screen=True, auto_refresh=False) as live:
            loop.add_reader(_KEYS, typed)
            threading.Thread(target=_look, args=(look, tell, over), daemon=True).start()
            came: _News = first
            while came is not _Event.END:
                if isinstance(came, Exception):
                    raise came
                if isinstance(came, Snapshot):
                    _add(seen, came)
                live.update(screen(view(seen[0], seen[-1]), *console.size), refresh=True)
                came = await news.get()
    finally:
        over.set()


def _add(seen: deque[Snapshot], found: Snapshot) -> None:
    """Add what was found; what only says that nothing came takes the place of the last."""
    if found.missing:
        seen.pop()
    seen.append(found)


def _look(look: Callable[[], Snapshot], tell: Callable[[Snapshot | Exception], None], over: threading.Event) -> None:
    """Look each second and tell what is found, or what went wrong, until it is over.

    In a thread of its own: a proxy that hangs must not stop the keys.
    """
    while not over.wait(SECONDS):
        try:
            tell(look())
        except Exception as error:
            if not over.is_set():
                tell(error)
            return


@contextmanager
def _keys_unechoed(terminal: int) -> Iterator[None]:
    """Have the terminal hand over each key at once and show none of them; Ctrl-Z is a key like others."""
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    attributes = termios.tcgetattr(terminal)
    attributes[6][termios.VSUSP] = _NO_KEY
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
