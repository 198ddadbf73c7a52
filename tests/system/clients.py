"""The asynchronous gRPC client of the system tests: it sends messages unchanged, also malformed ones."""

from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf.message import Message

from tests.engines import cri

SECONDS = 30.0


class Client:
    """One connection to a socket; ``version`` is the API's package name."""

    def __init__(self, socket: Path | str, version: str = cri.V1, **options: Any) -> None:
        size = cri.MAX_MESSAGE_BYTES
        every = {
            "grpc.max_receive_message_length": size,
            "grpc.max_send_message_length": size,
            "grpc.use_local_subchannel_pool": 1,
        }
        self.version = version
        self.channel = grpc.aio.insecure_channel(f"unix:{socket}", list((every | options).items()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.channel.close()

    def path(self, method: str) -> str:
        """Return the path of a CRI method, or a path unchanged."""
        if method.startswith("/"):
            return method
        service = "ImageService" if method in cri.IMAGE_METHODS else "RuntimeService"
        return f"/{self.version}.{service}/{method}"

    def call(self, method: str, request: Message | bytes = b"", timeout: float | None = SECONDS, **more: Any) -> Any:
        """Start a unary call; awaited it gives the reply's bytes."""
        unary: Any = self.channel.unary_unary(self.path(method))
        return unary(_bytes(request), timeout=timeout, **more)

    def stream(self, method: str, request: Message | bytes = b"", **more: Any) -> Any:
        """Start a server-streaming call; its ``read()`` gives a reply's bytes."""
        unary: Any = self.channel.unary_stream(self.path(method))
        return unary(_bytes(request), **more)

    def both(self, method: str, **more: Any) -> Any:
        both: Any = self.channel.stream_stream(self.path(method))
        return both(**more)


def _bytes(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()
