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
"""The seconds that rates and latencies are of; held calls are too few for one."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_QUIT = b"q"
_KEYS = 0
_NO_KEY = b"\0"
"""What a control character of the terminal is set to if no key has it."""

_RESIZED, _END = "resized", "end"
_News = Snapshot | Exception | str


def watch(inspect: Callable[[], Snapshot], first: Snapshot, console: Console) -> None:
    """Draw frames until a key or a signal ends it; ``look`` returns the proxy's answer, and may hang."""
    asyncio.run(_watch(inspect, first, console))


async def _watch(inspect: Callable[[], Snapshot], first: Snapshot, console: Console) -> None:
    loop, news = asyncio.get_running_loop(), asyncio.Queue[_News]()

    def read_keys() -> None:
        keys = os.read(_KEYS, 1024)
        if not keys or _QUIT in keys.lower():
            news.put_nowait(_END)

    async def check_each_second() -> None:
        """Look in a thread: a proxy that hangs must not stop the keys."""
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
        looking = asyncio.create_task(check_each_second())
        news.put_nowait(first)
        while (found := await news.get()) != _END:
            if isinstance(found, Exception):
                raise found
            if isinstance(found, Snapshot):
                if found.missing:  # it has the figures of the last one
                    seen.pop()
                seen.append(found)
            live.update(screen(view(seen[0], seen[-1]), *console.size), refresh=True)
        looking.cancel()


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
