"""The bench's hook server: it sets an environment variable and a cpuset, and tells at its end how often it was asked.

What is measured is the proxy's way to a hook server and back, so this one costs as little as a server can: it answers
every call of a hook point with the same frames. What a hook server in Python costs by itself is another figure.
Run: ``python -m scripts.benchmark.hooks SOCKET REGISTRATION_DIRECTORY POINT...``.
"""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import ClassVar, cast

import uvloop

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.wire import grpc, headers, http2
from tests.fakes import registration

REGISTRATION = "set-cpuset.json"
"""The file that it registers with; its name stands in no path of the proxy's log before it is read."""
NOTHING = api_pb2.ContainerResourceHookResponse()
ANSWERS = {
    "PreCreateContainer": api_pb2.ContainerResourceHookResponse(
        container_envs={"NVIDIA_VISIBLE_DEVICES": "0,1"},
        container_resources=api_pb2.LinuxContainerResources(cpuset_cpus="0-1"),
    ),
    "PreStartContainer": NOTHING,
    "PostStartContainer": NOTHING,
}
_HEADERS = headers.build([(b":status", b"200"), (b"content-type", b"application/grpc")])
_TRAILERS = headers.build([(b"grpc-status", b"0")])
_BODIES = {point: grpc.message(answer.SerializeToString()) for point, answer in ANSWERS.items()}
_POINTS = {point.encode(): point for point in ANSWERS}


class HookConnection(asyncio.Protocol):
    """One HTTP/2 connection of a client that behaves; of its requests only the hook point is read."""

    answered: ClassVar[Counter[str]] = Counter()
    """How many calls were answered on all connections, by hook point."""

    def __init__(self) -> None:
        self._frames = http2.FrameBuffer()
        self._preface = len(http2.PREFACE)
        self._asked: dict[int, str] = {}
        """The hook point of each stream that has no answer."""

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
        if kind == http2.HEADERS:
            # The proxy writes the path as it is, neither indexed nor in Huffman's code.
            self._asked[stream] = next(point for text, point in _POINTS.items() if text in payload)
        if kind != http2.DATA or not flags & http2.END_STREAM:
            return b""
        point = self._asked.pop(stream)
        HookConnection.answered[point] += 1
        return (
            http2.header_frames(stream, _HEADERS, False)
            + http2.frame(http2.DATA, 0, stream, _BODIES[point])
            + http2.header_frames(stream, _TRAILERS, True)
            + http2.window_update(0, len(payload))
        )


async def serve(socket_path: str, directory: Path, points: list[str]) -> None:
    """Register and serve until SIGTERM, then print the counts as one JSON line."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    server = await loop.create_unix_server(HookConnection, socket_path)
    registration.write(directory, REGISTRATION, registration.text(socket_path, points, "Fail"))
    await stopped.wait()
    server.close()
    os.unlink(socket_path)
    print(json.dumps(HookConnection.answered))


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
