"""The bench's hook server: it sets an environment variable and a cpuset, and tells at its end how often.

What is measured is the proxy's way to a hook server and back, so this one costs as little as a server can: it answers
every call with the same frames. What a hook server in Python costs by itself is another figure.
Run: ``python -m scripts.benchmark.hooks SOCKET REGISTRATION_DIRECTORY``.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import cast

import uvloop

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.wire import grpc, headers, http2
from tests.fakes import registration

POINT = "PreCreateContainer"
REGISTRATION = "set-cpuset.json"
"""The file that it registers with; its name stands in no path of the proxy's log before it is read."""
ANSWER = api_pb2.ContainerResourceHookResponse(
    container_envs={"NVIDIA_VISIBLE_DEVICES": "0,1"},
    container_resources=api_pb2.LinuxContainerResources(cpuset_cpus="0-1"),
)
_HEADERS = headers.build([(b":status", b"200"), (b"content-type", b"application/grpc")])
_TRAILERS = headers.build([(b"grpc-status", b"0")])
_BODY = grpc.message(ANSWER.SerializeToString())


class HookConnection(asyncio.Protocol):
    """One HTTP/2 connection of a client that behaves; the bodies of its requests are not read."""

    answered = 0
    """How many calls were answered on all connections."""

    def __init__(self) -> None:
        self._frames = http2.FrameBuffer()
        self._preface = len(http2.PREFACE)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say first what the client waits for."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(http2.settings({}))

    def data_received(self, data: bytes) -> None:
        """Answer every request that ends in these bytes."""
        self._preface, data = max(self._preface - len(data), 0), data[self._preface :]
        out = b"".join(self._answer(*frame) for frame in self._frames.feed(data))
        if out:
            self._transport.write(out)

    def _answer(self, kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        if kind == http2.SETTINGS and not flags & http2.ACK:
            return http2.SETTINGS_ACK
        if kind == http2.PING and not flags & http2.ACK:
            return http2.frame(http2.PING, http2.ACK, 0, payload)
        if kind != http2.DATA or not flags & http2.END_STREAM:
            return b""
        HookConnection.answered += 1
        return (
            http2.header_frames(stream, _HEADERS, False)
            + http2.frame(http2.DATA, 0, stream, _BODY)
            + http2.header_frames(stream, _TRAILERS, True)
            + http2.window_update(0, len(payload))
        )


async def serve(socket_path: str, directory: Path) -> None:
    """Register and serve until SIGTERM, then print the count as one JSON line."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    server = await loop.create_unix_server(HookConnection, socket_path)
    registration.write(directory, REGISTRATION, registration.text(socket_path, [POINT], "Fail"))
    await stopped.wait()
    server.close()
    os.unlink(socket_path)
    print(json.dumps({POINT: HookConnection.answered}))


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], Path(sys.argv[2])))
