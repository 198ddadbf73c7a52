"""Waits with a timeout that suffices on a busy machine."""

import asyncio
import socket
from collections.abc import Callable

SECONDS = 20.0


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


async def read(sock: socket.socket, size: int = 65536) -> bytes:
    async with asyncio.timeout(SECONDS):
        return await asyncio.get_running_loop().sock_recv(sock, size)
