"""The programs: ``runtimeproxy`` (also ``python -m runtimeproxy``), ``koord-runtime-proxy``, ``runtimeproxy-hooks``.

Owns the handling of interrupts that a program does not handle, and of output without a reader. Must not know: what a
program does. Invariant: importing this module is fast.
"""

import os
import sys

from runtimeproxy.settings.imports import INTERRUPTED, import_or_exit

_FAILED = 1


def main() -> int:
    """Run ``runtimeproxy`` with the process's arguments and return its exit code."""
    return _run("runtimeproxy.cli", "main")


def koord_runtime_proxy() -> int:
    """Run ``koord-runtime-proxy`` with the process's arguments and return its exit code."""
    return _run("runtimeproxy.cli", "koord_runtime_proxy")


def hooks() -> int:
    """Run ``runtimeproxy-hooks`` with the process's arguments and return its exit code."""
    return _run("runtimeproxy_hooks.__main__", "run")


def _run(module: str, function: str) -> int:
    program = getattr(import_or_exit(module), function)
    try:
        return int(program())
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _FAILED
    finally:
        if sys.stdout is not None:  # Python has none where descriptor 1 is closed
            _write_buffered_output()


def _write_buffered_output() -> None:
    """Exit with an error if standard output accepts no more; redirect it, as Python tries again when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_FAILED)


if __name__ == "__main__":
    sys.exit(main())
