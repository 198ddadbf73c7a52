"""The bench's hook server: it sets an environment variable and a cpuset, and tells at its end how often.

On grpc.aio; a call of it takes about as long as one of grpcio's threaded server, 130 to 150 us on two cores.
Run: ``python -m scripts.benchmark.hooks SOCKET REGISTRATION_DIRECTORY``.
"""

import asyncio
import json
import signal
import sys
from pathlib import Path

import uvloop

from runtimeproxy.hookapi import api_pb2
from tests.fakes import hookanswers, registration
from tests.fakes.hookanswers import HookCall
from tests.fakes.hookserver import HookServer

POINT = "PreCreateContainer"
REGISTRATION = "set-cpuset.json"
"""The file that it registers with; its name stands in no path of the proxy's log before it is read."""
ANSWER = api_pb2.ContainerResourceHookResponse(
    container_envs={"NVIDIA_VISIBLE_DEVICES": "0,1"},
    container_resources=api_pb2.LinuxContainerResources(cpuset_cpus="0-1"),
)


class CountingHookServer(HookServer):
    """A hook server that counts its answers."""

    answered = 0

    async def answer(self, call: HookCall) -> bytes:
        """Answer and count."""
        message = await super().answer(call)
        self.answered += 1
        return message


async def serve(socket_path: str, directory: Path) -> None:
    """Register and serve until SIGTERM, then print the count as one JSON line."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with CountingHookServer(socket_path, default=hookanswers.reply(ANSWER), keep_calls=False) as server:
        registration.write(directory, REGISTRATION, registration.text(socket_path, [POINT], "Fail"))
        await stopped.wait()
    print(json.dumps({POINT: server.answered}))


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], Path(sys.argv[2])))
