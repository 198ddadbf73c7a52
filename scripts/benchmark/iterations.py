"""The proxy with a callback in each iteration of its event loop, which measures how long iterations take.

Otherwise it is ``runtimeproxy run``. As there is always a callback the loop never rests: the process takes a whole
core, and its latency means nothing. An iteration's CPU time is the loop's thread's, so that other programs on the
machine do not count; garbage collection is counted apart. The time by the clock contains both. SHOW prints one JSON
line: its number, and the microseconds of the longest iteration since the last line (or since the proxy began to serve).

Run: ``python -m scripts.benchmark.iterations FLAG...``; the flags are those of ``runtimeproxy run``.
"""

import gc
import json
import signal
import sys
from time import monotonic_ns, thread_time_ns

from runtimeproxy import app, cli

SHOW = signal.SIGRTMIN
"""A signal that the proxy itself does not use."""


class MeasuredProxy(app.Proxy):
    """The proxy's parts, with the callback and the signal."""

    _shown = 0

    async def start(self) -> None:
        await super().start()
        self._loop.add_signal_handler(SHOW, self._show)
        gc.callbacks.append(self._collection)
        self._clear()
        self._loop.call_soon(self._iteration)

    def _clear(self) -> None:
        self._longest = {"wall": 0, "cpu": 0, "garbage": 0}
        self._collected = 0
        self._wall, self._cpu = monotonic_ns(), thread_time_ns()

    def _collection(self, phase: str, info: object) -> None:
        """Add a garbage collection's time to that of the iteration (documentation of module gc, callbacks)."""
        self._collected += thread_time_ns() if phase == "stop" else -thread_time_ns()

    def _iteration(self) -> None:
        wall, cpu, collected = monotonic_ns(), thread_time_ns(), self._collected
        self._collected = 0  # nothing is allocated before, so no collection comes between
        durations = {"wall": wall - self._wall, "cpu": cpu - self._cpu - collected, "garbage": collected}
        for name, nanoseconds in durations.items():
            self._longest[name] = max(self._longest[name], nanoseconds // 1000)
        self._wall, self._cpu = wall, cpu
        self._loop.call_soon(self._iteration)

    def _show(self) -> None:
        self._shown += 1
        print(json.dumps({"number": self._shown, **self._longest}), flush=True)
        self._clear()


if __name__ == "__main__":
    app.Proxy = MeasuredProxy  # type: ignore[misc]
    sys.exit(cli.koord_runtime_proxy())
