"""End the demo on SIGTERM and Ctrl-C at any moment, but never a program that it started before it ends that itself.

A signal raises SystemExit once where it comes, but not within a block of ``held``.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENDINGS = (signal.SIGTERM, signal.SIGINT)
PASSED_ON = frozenset({*ENDINGS, signal.SIGHUP})
MESSAGE = "FAILED: interrupted; everything that was started is ended"


def run_apart(main: Callable[[], int]) -> int:
    """Run ``main`` in a child with a process group of its own; return its exit code, 1 if a signal ended it.

    A terminal and timeout(1) signal a whole group. An engine that got the signal, too, would end before the demo had
    removed its containers.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON | {signal.SIGCHLD})
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return main()
    # Not by handlers: a signal just before waitpid(2) would be handled only after the child has ended.
    while True:
        if signal.sigwait(PASSED_ON | {signal.SIGCHLD}) != signal.SIGCHLD:
            os.kill(child, signal.SIGTERM)
        elif (ended := os.waitpid(child, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(ended[1])
            return 1 if code < 0 else code


class Interruption:
    """Turns a signal into the end of the demo, immediately or at the end of a block that must not be cut short."""

    def __init__(self) -> None:
        self._holds = 0
        self._came = False
        self._raised = False

    def listen(self) -> None:
        """Handle the signals from now on."""
        for number in ENDINGS:
            signal.signal(number, lambda *_: self._come())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Defer a signal to the end of the block. Raises SystemExit there."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self._raise_if_due()

    def check(self) -> None:
        """Raise SystemExit if a signal came: an error on the way out may have replaced it."""
        if self._came:
            sys.exit(MESSAGE)

    def _come(self) -> None:
        self._came = True
        self._raise_if_due()

    def _raise_if_due(self) -> None:
        if self._came and not self._raised and not self._holds:
            self._raised = True  # a second signal must not cut short the ending of the programs
            sys.exit(MESSAGE)


interruption = Interruption()
"""The one of this process."""
