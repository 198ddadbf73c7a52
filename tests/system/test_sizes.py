"""Long messages: 16 MiB arrive, 64 MiB too, the runtime's own limit is told in its own words.

That is fault matrix S2, promise 10.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from runtimeproxy.hookapi import api_pb2
from tests.fakes import hookanswers
from tests.fakes import runtime as fake_runtime
from tests.fakes.dockershim_bodies import Container
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime
from tests.system import clients
from tests.system.clients import Client
from tests.system.fronts import CONTAINER, Front, Runtime
from tests.system.hostile import Process
from tests.system.proxy import ProxyInside

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


@pytest.mark.parametrize("method", ["Version", "CreateContainer"])
async def test_a_request_of_16_mib_arrives(tmp_path: Path, method: str) -> None:
    async with (
        FakeRuntime(str(tmp_path / "runtime.sock")) as runtime,
        ProxyInside(tmp_path) as proxy,
        Client(proxy.socket) as client,
    ):
        created = clients.create_request(await client.run_pod()).SerializeToString()
        short = created if method == "CreateContainer" else b""
        filler = b"\xd2\xbb\x0f" + _varint(LIMIT_BYTES - len(short) - 7)
        request = short + filler + b"x" * (LIMIT_BYTES - len(short) - len(filler))
        await client.call(method, request)
        assert runtime.requests(method)[0].message == request


def _varint(number: int) -> bytes:
    return bytes([number & 127 | 128, number >> 7 & 127 | 128, number >> 14 & 127 | 128, number >> 21])


@pytest.mark.parametrize("method", ["Version", "CreateContainer", "ListContainers"])
async def test_what_is_too_long_for_the_runtime_ends_with_the_runtimes_own_error(
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


@pytest.fixture
async def fake(front: Front, tmp_path: Path) -> AsyncIterator[Runtime]:
    async with front.runtime(str(tmp_path / "runtime.sock")) as made:
        yield made


@pytest.mark.parametrize("mib", [16, 64])
async def test_a_long_list_arrives_and_costs_at_most_three_times_its_length(
    front: Front, fake: Runtime, tmp_path: Path, mib: int
) -> None:
    listed = fake.long_list(200, mib * MIB - 1024)
    assert len(listed) > 0.99 * mib * MIB
    async with front.process(tmp_path) as proxy, front.caller(proxy.socket) as caller:
        await caller.act("ping")
        process = Process(proxy.pid)
        before = process.start_peak()
        assert await caller.send("list", caller.request("list"), PATIENCE_SECONDS) == listed
        assert process.peak() - before <= PASSING_TIMES * len(listed)


TEXT = "x" * (LIMIT_BYTES - 16384)
LONG = {
    "an annotation": replace(CONTAINER, annotations={"long": TEXT}),
    "an env": replace(CONTAINER, envs=(("LONG", TEXT),)),
    "an argument": replace(CONTAINER, command=(TEXT,)),
}


@pytest.mark.parametrize("container", LONG.values(), ids=LONG.keys())
async def test_a_create_of_16_mib_arrives_and_costs_at_most_three_times_its_length(
    front: Front, fake: Runtime, tmp_path: Path, container: Container
) -> None:
    async with front.process(tmp_path) as proxy, front.caller(proxy.socket) as caller:
        request = caller.create_request(await caller.run_pod(), container)
        process = Process(proxy.pid)
        before = process.start_peak()
        await caller.send("create", request, PATIENCE_SECONDS)
        assert process.peak() - before <= HELD_TIMES * len(request) + ROOM_BYTES
    assert fake.asked("create") == [request]


CROWDED_BYTES = 4 * MIB
CROWDS: Mapping[str, Callable[[bytes], bytes]] = {
    "cri": lambda request: request + _inside(0x12, _inside(0x7A, _inside(0x0A, b"\x42\x00" * (CROWDED_BYTES // 2)))),
    "docker": lambda request: _longer(request, b', "Mounts": [' + b"[]," * (CROWDED_BYTES // 3) + b"[]]}"),
}
"""By front: puts into a create what becomes millions of objects. To CRI's these are limits of huge pages."""


def _inside(tag: int, message: bytes) -> bytes:
    return bytes([tag]) + _varint(len(message)) + message


def _longer(request: bytes, end: bytes) -> bytes:
    head, _, body = request.partition(b"\r\n\r\n")
    body = body.rstrip().removesuffix(b"}") + end
    return re.sub(rb"(?<=Content-Length: )\d+", b"%d" % len(body), head) + b"\r\n\r\n" + body


async def test_a_create_of_millions_of_fields_passes_unread_and_costs_no_more(
    front: Front, fake: Runtime, tmp_path: Path
) -> None:
    """What is read of it are its bytes: the objects that it would become take 25 times as much."""
    async with front.process(tmp_path) as proxy, front.caller(proxy.socket) as caller:
        request = CROWDS[front.name](caller.create_request(await caller.run_pod()))
        process = Process(proxy.pid)
        before = process.start_peak()
        await caller.send("create", request, PATIENCE_SECONDS)
        assert process.peak() - before <= HELD_TIMES * len(request) + ROOM_BYTES
    assert fake.asked("create") == [request]


CHANGE = hookanswers.reply(
    api_pb2.ContainerResourceHookResponse(
        container_resources=api_pb2.LinuxContainerResources(cpu_shares=77), container_annotations={"new": "1"}
    )
)


@pytest.mark.parametrize("answer", [hookanswers.empty(), CHANGE], ids=["unchanged", "changed"])
async def test_a_create_of_16_mib_that_a_hook_server_is_asked_about_costs_at_most_five_times_its_length(
    front: Front, fake: Runtime, tmp_path: Path, answer: hookanswers.Answer
) -> None:
    hooks = HookServer(str(tmp_path / "hooks.sock"), default=answer)
    proxy = front.process(tmp_path)
    proxy.register("asked.json", hooks.socket_path, ["PreCreateContainer"], timeout="20s")
    async with hooks, proxy, front.caller(proxy.socket) as caller:
        pod = await caller.run_pod()
        await caller.create(pod)
        request = caller.create_request(pod, LONG["an annotation"])
        process = Process(proxy.pid)
        before = process.start_peak()
        await caller.send("create", request, PATIENCE_SECONDS)
        assert process.peak() - before <= ASKED_TIMES * len(request) + ROOM_BYTES
    assert len(hooks.calls_of("PreCreateContainer")[1].message) > len(TEXT)
    assert (fake.asked("create")[1] == request) == (answer is not CHANGE)
