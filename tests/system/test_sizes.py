"""Long messages: 16 MiB arrive, 64 MiB too, the runtime's own limit is told in its own words.

That is fault matrix S2, promise 10.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from runtimeproxy.hookapi import api_pb2
from tests.fakes import hookanswers
from tests.fakes import runtime as fake_runtime
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime
from tests.system.clients import Client
from tests.system.fronts import CONTAINER, Caller, Front, Runtime
from tests.system.hostile import Process
from tests.system.proxy import ProxyInside, ProxyProcess

pytestmark = pytest.mark.slow

MIB = 1 << 20
LIMIT_BYTES = 16 * MIB
"""What the kubelet and its runtimes take."""
PATIENCE_SECONDS = 120.0
PASSING_TIMES = HELD_TIMES = 3
"""A message costs at most so many times its length. A held request that nobody is asked about is there once for both
its reading and its leaving; and as the parser has it (protobuf's own copy, or the text of a JSON); and as the texts of
the record."""
ASKED_TIMES = 5
"""The same request with a hook server: the record's texts and the request itself wait, while protobuf has a copy of the
hook message, writes a second one, and Python gets the third. An edit needs no more than that."""
ROOM_BYTES = 4 * MIB
"""What there is of buffers and free pieces however long a message is."""
Measured = tuple[Caller, Callable[[str, bytes, int], Awaitable[bytes]]]


@pytest.mark.parametrize("method", ["Version", "CreateContainer", "ListContainers"])
async def test_message_beyond_the_runtimes_limit_gets_the_runtimes_error(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one byte: of a request that passes, of one that is held, of an answer."""
    monkeypatch.setattr(fake_runtime, "MAX_MESSAGE_BYTES", LIMIT_BYTES)
    too_long = bytes(LIMIT_BYTES + 1)
    told = []
    async with FakeRuntime(str(tmp_path / "runtime.sock")) as runtime, ProxyInside(tmp_path) as proxy:
        runtime.state.big_list = too_long
        for socket in (runtime.socket_path, proxy.socket):
            async with Client(socket) as client:
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await client.call(method, b"" if method == "ListContainers" else too_long)
                told.append((raised.value.code(), raised.value.details()))
    direct, through = told
    assert through == direct
    assert direct[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


@asynccontextmanager
async def measured(front: Front, proxy: ProxyProcess, times: int, room: int = ROOM_BYTES) -> AsyncIterator[Measured]:
    """Run a proxy; yield a caller, and what sends a message that may cost so many times its length."""
    async with proxy, front.caller(proxy.socket) as caller:

        async def send(verb: str, request: bytes, length: int) -> bytes:
            process = Process(proxy.pid)
            before = process.start_peak()
            reply = await caller.send(verb, request, PATIENCE_SECONDS)
            assert process.peak() - before <= times * length + room
            return reply

        yield caller, send


@pytest.mark.parametrize("mib", [16, 64])
async def test_long_list_costs_at_most_three_times_its_length(
    front: Front, runtime: Runtime, tmp_path: Path, mib: int
) -> None:
    listed = runtime.long_list(200, mib * MIB - 1024)
    assert len(listed) > 0.99 * mib * MIB
    async with measured(front, front.process(tmp_path), PASSING_TIMES, room=0) as (caller, send):
        await caller.act("ping")
        assert await send("list", caller.request("list"), len(listed)) == listed


TEXT = "x" * (LIMIT_BYTES - 16384)
LONG = replace(CONTAINER, annotations={"long": TEXT})
CROWDED_BYTES = 4 * MIB
CROWDS: Mapping[str, Callable[[bytes], bytes]] = {
    "cri": lambda request: request + inside(0x12, inside(0x7A, inside(0x0A, b"\x42\x00" * (CROWDED_BYTES // 2)))),
    "docker": lambda request: longer(request, b', "Mounts": [' + b"[]," * (CROWDED_BYTES // 3) + b"[]]}"),
}
"""By front: puts into a create what becomes millions of objects. To CRI's these are limits of huge pages."""


def inside(tag: int, message: bytes) -> bytes:
    number = len(message)
    return bytes([tag, number & 127 | 128, number >> 7 & 127 | 128, number >> 14 & 127 | 128, number >> 21]) + message


def longer(request: bytes, end: bytes) -> bytes:
    head, _, body = request.partition(b"\r\n\r\n")
    body = body.rstrip().removesuffix(b"}") + end
    return re.sub(rb"(?<=Content-Length: )\d+", b"%d" % len(body), head) + b"\r\n\r\n" + body


CREATES: Mapping[str, Callable[[Front, Caller, str], bytes]] = {
    "an annotation": lambda _, caller, pod: caller.create_request(pod, LONG),
    "an env": lambda _, caller, pod: caller.create_request(pod, replace(CONTAINER, envs=(("LONG", TEXT),))),
    "an argument": lambda _, caller, pod: caller.create_request(pod, replace(CONTAINER, command=(TEXT,))),
    "millions of fields": lambda front, caller, pod: CROWDS[front.name](caller.create_request(pod)),
}
"""What of a create is 16 MiB long. Of millions of fields the bytes are read: as objects they take 25 times as much."""


@pytest.mark.parametrize("create", CREATES.values(), ids=CREATES)
async def test_long_create_costs_at_most_three_times_its_length(
    front: Front, runtime: Runtime, tmp_path: Path, create: Callable[[Front, Caller, str], bytes]
) -> None:
    async with measured(front, front.process(tmp_path), HELD_TIMES) as (caller, send):
        request = create(front, caller, await caller.run_pod())
        await send("create", request, len(request))
    assert runtime.asked("create") == [request]


CHANGE = hookanswers.reply(
    api_pb2.ContainerResourceHookResponse(
        container_resources=api_pb2.LinuxContainerResources(cpu_shares=77), container_annotations={"new": "1"}
    )
)


@pytest.mark.parametrize("answer", [hookanswers.empty(), CHANGE], ids=["unchanged", "changed"])
async def test_long_create_that_hooks_see_costs_at_most_five_times_its_length(
    front: Front, runtime: Runtime, tmp_path: Path, answer: hookanswers.Answer
) -> None:
    hooks = HookServer(str(tmp_path / "hooks.sock"), default=answer)
    proxy = front.process(tmp_path)
    proxy.register("asked.json", hooks.socket_path, ["PreCreateContainer"], timeout="20s")
    async with hooks, measured(front, proxy, ASKED_TIMES) as (caller, send):
        pod = await caller.run_pod()
        await caller.create(pod)
        request = caller.create_request(pod, LONG)
        await send("create", request, len(request))
    assert len(hooks.calls_of("PreCreateContainer")[1].message) > len(TEXT)
    assert (runtime.asked("create")[1] == request) == (answer is not CHANGE)
