"""Callers of a hook server under test: the proxy's own client, and a bare one that returns the status unchanged."""

from typing import Any

import grpc

from runtimeproxy.hookapi import codec
from runtimeproxy.model.fields import ContainerInfo, HookAnswer, HookRequest, PodInfo
from runtimeproxy.model.hookpoints import BY_NAME, HookPoint
from runtimeproxy.plugins.client import HookClient
from tests.hooks.sdk.child import DO

CREATE = BY_NAME["PreCreateContainer"]
LONG_SECONDS = 20.0


def request(do: str = "", **annotations: str) -> HookRequest:
    """Return a request that has what the child's hooks must do."""
    pod = PodInfo(name="pod", namespace="ns", annotations={DO: do} | annotations)
    return HookRequest(pod, ContainerInfo(name="main"))


async def call(path: str, queried: HookRequest, point: HookPoint = CREATE) -> HookAnswer:
    """Make a call as the proxy does. Raises HookError."""
    client = HookClient("plugin", path)
    try:
        return await client.call(point, queried, LONG_SECONDS)
    finally:
        await client.close()


def bare(path: str, method: str, body: bytes, seconds: float = LONG_SECONDS) -> tuple[grpc.StatusCode, str, bytes]:
    """Return status, text and answer of one call."""
    with grpc.insecure_channel(f"unix:{path}") as channel:
        send: Any = channel.unary_unary(method)
        try:
            return grpc.StatusCode.OK, "", send(body, timeout=seconds, wait_for_ready=False)
        except grpc.RpcError as error:
            failed: Any = error
            return failed.code(), failed.details(), b""


def status(path: str, queried: HookRequest, seconds: float = LONG_SECONDS) -> tuple[grpc.StatusCode, str]:
    """Return status and text of a call at PreCreateContainer."""
    return bare(path, codec.PATHS[CREATE.name], codec.encode(CREATE, queried), seconds)[:2]
