"""A client of the URLs that Exec and Attach return: Kubernetes' channels over a WebSocket."""

from collections import defaultdict
from urllib.parse import urlsplit, urlunsplit

import aiohttp

SUBPROTOCOL = "v4.channel.k8s.io"
STDOUT, STDERR = 1, 2
"""Channels of exec and attach."""


async def read_channels(url: str) -> dict[int, bytes]:
    """Return the data of each channel up to the end. Raises aiohttp.ClientError if the server refuses."""
    channels: dict[int, bytes] = defaultdict(bytes)
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(urlunsplit(urlsplit(url)._replace(scheme="ws")), protocols=(SUBPROTOCOL,)) as connection,
    ):
        async for message in connection:
            if message.type is aiohttp.WSMsgType.BINARY and message.data:
                channels[message.data[0]] += message.data[1:]
    return dict(channels)
