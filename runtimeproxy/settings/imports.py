"""Import slow modules.

Invariant: importing this module is fast.
"""

import os
import signal
from importlib import import_module
from types import ModuleType

INTERRUPTED = 128 + signal.SIGINT
"""The exit code after an interrupt, as shells report it."""


def import_or_exit(name: str) -> ModuleType:
    """Import a module; an interrupt meanwhile ends the process immediately, without output. As an exception it could
    become a traceback, or get lost in a callback of the import system, and the program would continue."""
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not in a shell's background job
    if interruptible:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        return import_module(name)
    finally:
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
