"""Base classes of fake servers on a socket, within a test or as a program."""

import asyncio
import os
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self

import grpc

MAX_MESSAGE_BYTES = 64 << 20
Accepted = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None]


class Server(ABC):
    @abstractmethod
    async def start(self) -> None: ...
    @abstractmethod
    async def stop(self) -> None: ...

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()


class Listener(Server):
    """Listens on a unix socket, with Linux' default backlog."""

    def __init__(self, socket_path: str) -> None:
        self.socket_path = socket_path
        self._listener: socket.socket | None = None

    @abstractmethod
    def accepted(self, client: socket.socket) -> None:
        """Called with a client's non-blocking socket."""

    @abstractmethod
    async def end(self) -> None:
        """Called at the end: drop every connection."""

    async def start(self) -> None:
        Path(self.socket_path).unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        self._listener.bind(self.socket_path)
        self._listener.listen(4096)
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    async def stop(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
            Path(self.socket_path).unlink(missing_ok=True)
            await self.end()

    def _accept(self, listener: socket.socket) -> None:
        # Not by asyncio's own server, for the reason given in StreamServer.stop.
        try:
            client, _ = listener.accept()
        except BlockingIOError:
            return  # the client has closed
        client.setblocking(False)
        self.accepted(client)


class StreamServer(Server):
    """Calls ``accepted`` with the streams of each connection, as asyncio.start_unix_server does."""

    def __init__(self, path: str | Path, accepted: Accepted, limit: int = 1 << 16) -> None:
        self._path, self._accepted, self._limit = path, accepted, limit

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._accepted, self._path, limit=self._limit)

    async def stop(self) -> None:
        """Stop listening; ``accepted`` has been called for every connection that was accepted.

        A close loses connections that are being accepted: they stay open until the garbage collector runs, and fail
        the test that runs then.
        """
        for listener in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listener)
        for _ in range(4):  # iterations from accept(2) in asyncio's server to the first step of a connection's task
            await asyncio.sleep(0)
        self._server.close()


async def grpc_server(path: str, handlers: grpc.GenericRpcHandler) -> grpc.aio.Server:
    options = [(f"grpc.max_{direction}_message_length", MAX_MESSAGE_BYTES) for direction in ("receive", "send")]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((handlers,))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server


async def wait_for_signal(text: str) -> None:
    """Print a text, with this process's id for ``{}``, and wait for SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    print(text.format(os.getpid()), flush=True)
    await stopped.wait()
