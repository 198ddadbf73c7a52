"""The admin server's process: ``python -m runtimeproxy.admin``, started by the daemon.

Owns the sockets and the channel that were handed over, and the process's log and signals.
Must not know: routes, answers.
Invariant: it ends when the daemon closes its end of the channel, and by nothing else that is asked of it: a signal to
the group or the unit leaves it, since a proxy that drains is still to be seen.
"""

import asyncio
import json
import os
import signal
import socket
import sys
from typing import Any

import uvloop

from runtimeproxy.admin.channel import Channel
from runtimeproxy.admin.connections import Room
from runtimeproxy.admin.server import Server
from runtimeproxy.observe import logs
from runtimeproxy.relay.listener import METRICS

YIELDING = 10
"""Niceness: where the cores are few the daemon's calls come first (nice(2))."""


def main() -> int:
    """Serve until the daemon ends; return the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.nice(YIELDING)
    handed = json.loads(sys.argv[1])
    handler = logs.configure(**handed["log"])
    try:
        uvloop.run(_serve(handed))
    finally:
        handler.close()
    return 0


async def _serve(handed: dict[str, Any]) -> None:
    channel = await Channel.over(socket.socket(fileno=handed["channel"]))
    reading = asyncio.create_task(channel.run())
    server = Server(channel, handed["daemon"])
    accepting = []
    for name, descriptor in handed["sockets"].items():
        listener = socket.socket(fileno=descriptor)
        listener.setblocking(False)
        room = Room(listener, await server.http(metrics_only=name == METRICS))
        accepting.append(asyncio.create_task(room.accept()))
    await reading


if __name__ == "__main__":
    sys.exit(main())
