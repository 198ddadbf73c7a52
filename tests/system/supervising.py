"""A parent that holds the proxy's listener, as systemd does for a unit with a socket."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.system.proxy import PROGRAM

SUPERVISED = 'exec 3<&"$1"; shift; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
"""Starts a program as systemd does with a socket: the listener is file descriptor 3, the variables name the process."""


@contextmanager
def handed_over(path: Path) -> Iterator[dict[str, Any]]:
    """Listen as systemd does for a unit with a socket; yield the arguments that hand the listener over to a proxy."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(socket.SOMAXCONN)  # as systemd does: while nothing accepts, each client waits in it
        os.set_inheritable(listener.fileno(), True)
        program = ["bash", "-c", SUPERVISED, "supervisor", str(listener.fileno()), *PROGRAM]
        yield {"program": program, "pass_fds": [listener.fileno()]}
