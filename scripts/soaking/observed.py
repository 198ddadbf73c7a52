"""The proxy with one more signal, which writes the Store's ids, the number of tasks and of stalls to a file.

Otherwise it is ``runtimeproxy run``; nothing is counted or kept only for this file. Run: ``python -m
scripts.soaking.observed FILE PASS_SECONDS FLAG...``; the flags are those of ``runtimeproxy run``, the seconds those
between two lists of the runtime's state.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from runtimeproxy import app, cli
from runtimeproxy.core import sync
from runtimeproxy.settings.config import Config

SHOW = signal.SIGRTMIN
"""A signal that the proxy itself does not use."""


class Shown(app.Proxy):
    """The parts behind the listener, with the signal."""

    file: Path

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(config, loop)
        loop.add_signal_handler(SHOW, self._show)

    def _show(self) -> None:
        stalls = self.metrics.total("loop_stalls")
        shown = {"ids": sorted(self.store.ids()), "tasks": len(asyncio.all_tasks()), "stalls": stalls}
        beside = self.file.with_suffix(".new")
        beside.write_text(json.dumps(shown))
        os.replace(beside, self.file)


if __name__ == "__main__":
    _, file, pass_seconds, *flags = sys.argv
    Shown.file = Path(file)
    sync.PASS_SECONDS = float(pass_seconds)
    app.Proxy = Shown  # type: ignore[misc]
    sys.argv[1:] = flags
    sys.exit(cli.koord_runtime_proxy())
