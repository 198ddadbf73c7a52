"""The asynchronous gRPC client of the system tests: it sends messages unchanged, also malformed ones."""

from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf.message import Message

from tests.engines import cri

SECONDS = 30.0
SIZES = dict.fromkeys(("grpc.max_receive_message_length", "grpc.max_send_message_length"), cri.MAX_MESSAGE_BYTES)


def path(method: str, version: str = cri.V1) -> str:
    """Return the path of a CRI method, or a path unchanged."""
    service = "ImageService" if method in cri.IMAGE_METHODS else "RuntimeService"
    return method if method.startswith("/") else f"/{version}.{service}/{method}"


class Client:
    def __init__(self, socket: Path | str, **options: Any) -> None:
        every = SIZES | {"grpc.use_local_subchannel_pool": 1} | options
        self.channel = grpc.aio.insecure_channel(f"unix:{socket}", list(every.items()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.channel.close()

    def call(self, method: str, request: Message | bytes = b"", timeout: float | None = SECONDS, **more: Any) -> Any:
        unary: Any = self.channel.unary_unary(path(method))
        return unary(request if isinstance(request, bytes) else request.SerializeToString(), timeout=timeout, **more)
