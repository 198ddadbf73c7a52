"""The admin server's process: started by the first connection to one of its sockets, and again if it ends.

Owns the process, its end of the channel, and when the sockets are watched.
Must not know: what is asked and answered, HTTP. It imports nothing that the server needs.
Invariant: while nobody connects there is no process, and the daemon's part of one that hangs or dies is a question that
stays open. The process ends with the daemon, however that ends.
"""

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from runtimeproxy.admin.channel import Answers, Query

log = logging.getLogger(__name__)

MODULE = "runtimeproxy.admin"
PAUSE_SECONDS = 1.0
"""Least time between two starts."""
END_SECONDS = 1.0
"""How long the process may take to end behind the channel before it is killed."""
LOOK_SECONDS = 0.01
"""Pause between two looks at whether it has ended."""


class Launcher:
    """Starts the admin server for listening sockets, by their name there (admin, metrics)."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: Mapping[str, socket.socket],
        queries: Mapping[str, Query],
        *,
        log_level: str,
        log_format: str,
    ) -> None:
        self._loop = loop
        self._sockets = sockets
        self._queries = queries
        self._log = {"level": log_level, "format": log_format}
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Wait for the first connection."""
        for sock in self._sockets.values():
            self._loop.add_reader(sock, self._launch)

    def _unwatch(self) -> None:
        for sock in self._sockets.values():
            self._loop.remove_reader(sock)

    def _launch(self) -> None:
        self._unwatch()
        self._running = self._loop.create_task(self._run())

    async def _run(self) -> None:
        """Run one process from its start to its end; watch the sockets again after a pause."""
        began = self._loop.time()
        try:
            process, channel = self._process()
        except OSError as error:
            log.error("the admin server cannot be started (%s); the next request tries again", error.strerror)
        else:
            await self._attend(process, channel)
            log.warning("the admin server ended (exit code %d); the next request starts it again", process.returncode)
        await asyncio.sleep(began + PAUSE_SECONDS - self._loop.time())
        self.start()

    def _process(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Start the process; return it with the daemon's end of its channel. Raises OSError.

        Popen forks without a copy of the memory (vfork): the loop waits for half a millisecond, and for the event
        loop's own subprocess_exec ten times as long.
        """
        ours, theirs = socket.socketpair()
        sockets = {name: sock.fileno() for name, sock in self._sockets.items()}
        handed = {"channel": theirs.fileno(), "sockets": sockets, "daemon": os.getpid(), "log": self._log}
        # As isolated as this process: what PYTHONPATH names is not run with the rights of a daemon that ignores it.
        command = [sys.executable, "-I" if sys.flags.isolated else "-P", "-m", MODULE, json.dumps(handed)]
        passed = [theirs.fileno(), *sockets.values()]
        try:
            with theirs:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=passed)
            return process, ours
        except OSError:
            ours.close()
            raise

    async def _attend(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        """Answer the process's questions until its end of the channel is closed, or until this is cancelled, which
        closes the other one; then the process ends."""
        try:
            await Answers(self._queries).serve(channel)
        finally:
            late = self._loop.time() + END_SECONDS
            while process.poll() is None and self._loop.time() < late:
                await asyncio.sleep(LOOK_SECONDS)
            process.kill()
            process.wait()

    async def stop(self) -> None:
        """End the process and watch the sockets no longer."""
        self._unwatch()
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running
