"""The programs in a container of the fake dockerd: the few commands that an exec can run.

A command's behaviour depends only on its arguments, its stdin and its container.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

from tests.fakes import inside
from tests.fakes.cri_pb2 import ContainerConfig, KeyValue, LinuxContainerResources
from tests.fakes.dockerd_records import Container
from tests.fakes.dockershim_bodies import SETTINGS

STDOUT, STDERR = 1, 2


def frame(stream: int, data: bytes) -> bytes:
    """Return bytes of stdout (1) or stderr (2) as a frame of a multiplexed stream."""
    return struct.pack(">BxxxL", stream, len(data)) + data


async def run(
    command: list[str],
    container: Container,
    read: Callable[[], Awaitable[bytes]],
    write: Callable[[int, bytes], Awaitable[None]],
) -> int:
    """Run a command, whose stdin ends with b""; return its exit code.

    ``cat`` echoes its stdin, ``sleep N`` takes N seconds. All others are those of the fake CRI runtime.
    """
    match command:
        case ["cat"]:
            while data := await read():
                await write(STDOUT, data)
            return 0
        case ["sleep", seconds]:
            await asyncio.sleep(float(seconds))
            return 0
    pairs = (entry.partition("=") for entry in container.config["Env"] or [])
    envs = [KeyValue(key=key, value=value.encode(errors="replace")) for key, _, value in pairs]
    resources = LinuxContainerResources(**{name: container.host[field] for name, field in SETTINGS.items()})
    result = inside.run(command, ContainerConfig(envs=envs), resources)
    for stream, data in ((STDOUT, result.stdout), (STDERR, result.stderr)):
        if data:
            await write(stream, data)
    return result.exit_code
