"""What listens on a socket in place of a real server, within a test or alone as a program."""

import asyncio
import os
import signal
from abc import ABC, abstractmethod
from typing import Self


class Server(ABC):
    """Use as a context manager or with start and stop."""

    @abstractmethod
    async def start(self) -> None:
        """Listen on the socket."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop listening and drop what is open."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()


async def stay(said: str) -> None:
    """Say that it listens, with this process's id for ``{}``, and wait for SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    print(said.format(os.getpid()), flush=True)
    await stopped.wait()
