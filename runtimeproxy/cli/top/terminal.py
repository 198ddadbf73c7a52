"""``runtimeproxy top`` on a terminal: a frame each second. However it ends, the terminal is as it was before."""

import asyncio
import os
import signal
import termios
import tty
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from runtimeproxy.cli.top.figures import Snapshot, view
from runtimeproxy.cli.top.screen import screen
from runtimeproxy.relay.eventloop import run_in_daemon_thread

SECONDS = 1.0
_INTERVALS = 10
"""Seconds over which rates and latencies are computed; one second has too few held calls."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_QUIT = b"q"
_KEYS = 0
_NO_KEY = b"\0"
"""The value of a control character of the terminal that no key has."""

_RESIZED, _END = "resized", "end"
_News = Snapshot | Exception | str


def watch(inspect: Callable[[], Snapshot], first: Snapshot, console: Console) -> None:
    """Draw frames until a key or a signal ends it; ``inspect`` returns the proxy's answer, and may hang."""
    asyncio.run(_watch(inspect, first, console))


async def _watch(inspect: Callable[[], Snapshot], first: Snapshot, console: Console) -> None:
    loop, news = asyncio.get_running_loop(), asyncio.Queue[_News]()

    def read_keys() -> None:
        keys = os.read(_KEYS, 1024)
        if not keys or _QUIT in keys.lower():
            news.put_nowait(_END)

    async def poll_each_second() -> None:
        """Poll in a thread: a proxy that hangs must not stop the keys."""
        try:
            while True:
                await asyncio.sleep(SECONDS)
                news.put_nowait(await run_in_daemon_thread(inspect))
        except Exception as error:
            news.put_nowait(error)

    loop.add_signal_handler(signal.SIGWINCH, news.put_nowait, _RESIZED)
    for number in _ENDING:
        loop.add_signal_handler(number, news.put_nowait, _END)
    seen: deque[Snapshot] = deque(maxlen=_INTERVALS + 1)
    with _keys_unechoed(_KEYS), Live(console=console, screen=True, auto_refresh=False) as live:
        loop.add_reader(_KEYS, read_keys)
        poller = asyncio.create_task(poll_each_second())
        news.put_nowait(first)
        while (event := await news.get()) != _END:
            if isinstance(event, Exception):
                raise event
            if isinstance(event, Snapshot):
                if event.missing:  # it has the figures of the last one
                    seen.pop()
                seen.append(event)
            live.update(screen(view(seen[0], seen[-1]), *console.size), refresh=True)
        poller.cancel()


@contextmanager
def _keys_unechoed(terminal: int) -> Iterator[None]:
    """Have the terminal hand over each key immediately and show none of them; Ctrl-Z is a key like others."""
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    attributes = termios.tcgetattr(terminal)
    attributes[6][termios.VSUSP] = _NO_KEY
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
