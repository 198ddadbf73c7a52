"""A client of the URLs that Exec, Attach and PortForward give: Kubernetes' channels over a WebSocket.

What is returned is what came by the end, or by the first time that ``until`` is in it.
"""

import asyncio
from collections import defaultdict
from urllib.parse import urlsplit, urlunsplit

import aiohttp

SUBPROTOCOL = "v4.channel.k8s.io"
STDOUT, STDERR, ERROR = 1, 2, 3
"""Channels of exec and attach."""
DATA = 0
"""Channel of the first forwarded port; it opens with the port's number in two bytes."""


async def read_channels(url: str, until: tuple[int, bytes] | None = None, send: bytes = b"") -> dict[int, bytes]:
    """Return what came on each channel; ``send`` goes to channel 0 first, ``until`` names channel and bytes to stop at.

    Raises aiohttp.ClientError if the server refuses.
    """
    channels: dict[int, bytes] = defaultdict(bytes)
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(urlunsplit(urlsplit(url)._replace(scheme="ws")), protocols=(SUBPROTOCOL,)) as connection,
    ):
        if send:
            await connection.send_bytes(bytes([DATA]) + send)
        async for message in connection:
            if message.type is aiohttp.WSMsgType.BINARY and message.data:
                channels[message.data[0]] += message.data[1:]
            if until is not None and until[1] in channels[until[0]]:
                break
    return dict(channels)


async def upper_case_server() -> tuple[asyncio.Server, int]:
    """Serve the upper case of what comes on a port of the loopback."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read(100)).upper())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]
