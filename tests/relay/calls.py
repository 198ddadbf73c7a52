"""Calls of the unary client as the tests make them."""

import asyncio
from collections.abc import Awaitable

import pytest

from runtimeproxy.relay.unary import CallFailed, UnaryClient

METHOD = "/package.Service/Method"
LONG_SECONDS = 10.0
"""A deadline that no test waits for."""


async def failing(awaitable: Awaitable[bytes]) -> CallFailed:
    with pytest.raises(CallFailed) as raised:
        await awaitable
    return raised.value


def start(client: UnaryClient, seconds: float = LONG_SECONDS, message: bytes = b"") -> asyncio.Task[bytes]:
    return asyncio.create_task(client.call(METHOD, message, seconds))
