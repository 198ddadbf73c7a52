"""The proxy with a callback in each iteration of its event loop, which measures how long iterations take.

Otherwise it is ``runtimeproxy run``. As there is always a callback the loop never rests: the process takes a whole
core, and its latency means nothing. An iteration's time is the CPU time of the loop's thread without garbage
collection, so that other programs on the machine do not count. SHOW prints a line with its number, and the microseconds
of the longest iteration since the last line (or since the proxy began to serve).

Run: ``python -m scripts.benchmark.iterations FLAG...``; the flags are those of ``runtimeproxy run``.
"""

import gc
import signal
import sys
from time import thread_time_ns

from runtimeproxy import app, cli

SHOW = signal.SIGRTMIN
"""A signal that the proxy itself does not use."""


class MeasuredProxy(app.Proxy):
    """The proxy's parts, with the callback and the signal."""

    _shown = _longest = 0

    async def start(self) -> None:
        await super().start()
        self._loop.add_signal_handler(SHOW, self._show)
        gc.callbacks.append(self._collection)
        self._began = thread_time_ns()
        self._loop.call_soon(self._iteration)

    def _collection(self, phase: str, info: object) -> None:
        """Leave a garbage collection out of the iteration's time (documentation of module gc, callbacks)."""
        self._began += thread_time_ns() if phase == "stop" else -thread_time_ns()

    def _iteration(self) -> None:
        now = thread_time_ns()
        self._longest = max(self._longest, now - self._began)
        self._began = now
        self._loop.call_soon(self._iteration)

    def _show(self) -> None:
        self._shown += 1
        print(f"longest iteration {self._shown}: {self._longest // 1000}", flush=True)
        self._longest, self._began = 0, thread_time_ns()


if __name__ == "__main__":
    app.Proxy = MeasuredProxy  # type: ignore[misc]
    sys.exit(cli.koord_runtime_proxy())
