"""The CRI messages of messages.proto, compiled by grpcio-tools at import."""

from typing import Any

import grpc

_messages = grpc.protos("tests/fakes/messages.proto")


def __getattr__(name: str) -> Any:
    return getattr(_messages, name)
