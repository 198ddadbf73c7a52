"""The exit codes of all commands, as docs/commands.rst lists them.

Owns the numbers.
Must not know: which command ends with which.
"""

from runtimeproxy import imports

FAILED = 1
"""Running failed, or something was found."""
WRONG_USE = 2
"""The command line, the environment or the file is wrong, and nothing was opened."""
NO_PROXY = 3
"""No proxy answers."""
INTERRUPTED = imports.INTERRUPTED
"""Ended by SIGINT, as shells tell it."""
