"""A standard client of gRPC, grpcio's, against the hook server: what it sends, and what it makes of the answers."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from runtimeproxy.hookapi import codec
from runtimeproxy.model import HookAnswer
from runtimeproxy_hooks.sdk import ContainerContext, Hook
from runtimeproxy_hooks.sdk.serving import THREADS, HookServer
from tests.hooks.sdk.callers import CREATE, LONG_SECONDS, request
from tests.hooks.sdk.processes import eventually

METHOD = codec.method_path(CREATE)
LIMITS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
STATUS = health_pb2.HealthCheckResponse


class Told(Hook):
    """Does what the pod's annotations say."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.entered = threading.Semaphore(0)
        self.cut_off = threading.Event()

    def pre_create_container(self, container: ContainerContext) -> Any:
        told = container.pod.annotations
        container.env["SEEN"] = told["do"]
        container.annotations["blob"] = told.get("blob", "")
        if told["do"] == "hang":
            self.entered.release()
            assert self.release.wait(LONG_SECONDS)
        return self.dream() if told["do"] == "dream" else None

    async def dream(self) -> None:
        self.entered.release()
        try:
            await asyncio.Event().wait()
        finally:
            self.cut_off.set()


@pytest.fixture
def hook() -> Iterator[Told]:
    made = Told()
    yield made
    made.release.set()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a.sock")


@pytest.fixture
def server(hook: Told, path: str) -> Iterator[HookServer]:
    made = HookServer([hook], "server")
    made.start(path)
    yield made
    hook.release.set()
    assert made.stop(LONG_SECONDS) == 0


@pytest.fixture
async def channel(server: HookServer, path: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"unix:{path}", options=LIMITS) as made:
        yield made


def ask(channel: grpc.aio.Channel, do: str = "nothing", **more: Any) -> Any:
    """Make a call at PreCreateContainer."""
    blob = more.pop("blob", "")
    unary: Any = channel.unary_unary(METHOD)
    return unary(codec.encode(CREATE, request(do, blob=blob)), **({"timeout": LONG_SECONDS} | more))


def answered(body: bytes) -> HookAnswer:
    return codec.decode(CREATE, body)


async def test_a_call_with_metadata_is_answered(channel: grpc.aio.Channel) -> None:
    metadata = (("x-request", "1"), ("x-long", "y" * 3000), ("x-bytes-bin", bytes(range(256))))
    call = ask(channel, metadata=metadata)
    assert answered(await call).envs == {"SEEN": "nothing"}
    assert (await call.code(), await call.details()) == (grpc.StatusCode.OK, "")
    assert not await call.trailing_metadata()


async def test_a_call_without_a_deadline_is_answered(channel: grpc.aio.Channel) -> None:
    assert answered(await ask(channel, timeout=None)).envs == {"SEEN": "nothing"}


async def test_ten_mebibytes_go_both_ways(channel: grpc.aio.Channel) -> None:
    blob = "x" * (10 << 20)
    for _ in range(2):
        assert answered(await ask(channel, blob=blob)).annotations == {"blob": blob}


async def test_big_messages_share_a_connection(channel: grpc.aio.Channel) -> None:
    blobs = [str(number) * (600_000 + number) for number in range(8)]
    answers = await asyncio.gather(*(ask(channel, blob=blob) for blob in blobs))
    assert [answered(body).annotations["blob"] for body in answers] == blobs


async def test_more_than_a_message_may_have_is_refused(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await ask(channel, blob="x" * (17 << 20))
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert answered(await ask(channel)).envs == {"SEEN": "nothing"}


async def test_two_hundred_calls_at_once_on_one_channel(channel: grpc.aio.Channel) -> None:
    answers = await asyncio.gather(*(ask(channel, f"{number}") for number in range(200)))
    assert [answered(body).envs["SEEN"] for body in answers] == [f"{number}" for number in range(200)]


async def test_several_channels(server: HookServer, path: str) -> None:
    async def from_anew(number: int) -> str:
        options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
        async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
            return answered(await ask(channel, f"{number}")).envs["SEEN"]

    assert await asyncio.gather(*map(from_anew, range(20))) == [f"{number}" for number in range(20)]


@pytest.mark.parametrize("way", ["the deadline", "a cancel", "a closed channel"])
async def test_whoever_waits_no_longer_has_the_method_cut_off(
    server: HookServer, hook: Told, path: str, way: str
) -> None:
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        while True:
            call = ask(channel, "dream", timeout=1.0 if way == "the deadline" else None)
            waiting = asyncio.ensure_future(call)
            if await asyncio.to_thread(hook.entered.acquire, timeout=LONG_SECONDS):
                break
        if way == "a cancel":
            call.cancel()
        if way == "a closed channel":
            await channel.close()
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
            await waiting
    assert await asyncio.to_thread(hook.cut_off.wait, LONG_SECONDS)


async def test_while_all_threads_hang_deadlines_cancels_and_health_work(
    server: HookServer, hook: Told, channel: grpc.aio.Channel
) -> None:
    hanging = [asyncio.ensure_future(ask(channel, "hang")) for _ in range(THREADS)]
    for _ in hanging:
        assert await asyncio.to_thread(hook.entered.acquire, timeout=LONG_SECONDS)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await ask(channel, "hang", timeout=0.2)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    cancelled, waiting = ask(channel, "hang"), asyncio.ensure_future(ask(channel, "last"))
    health: Any = health_pb2_grpc.HealthStub(channel)
    assert (await health.Check(health_pb2.HealthCheckRequest(), timeout=LONG_SECONDS)).status == STATUS.SERVING
    await asyncio.to_thread(eventually, lambda: len(server._threads._waiting) == 2)
    cancelled.cancel()
    await asyncio.to_thread(eventually, lambda: len(server._threads._waiting) == 1)
    hook.release.set()
    assert {answered(body).envs["SEEN"] for body in await asyncio.gather(*hanging)} == {"hang"}
    assert answered(await waiting).envs == {"SEEN": "last"}
    assert not hook.entered.acquire(blocking=False), "a call began that nobody waited for"


async def test_a_compressed_request_is_read(server: HookServer, path: str) -> None:
    async with grpc.aio.insecure_channel(f"unix:{path}", compression=grpc.Compression.Gzip) as channel:
        assert answered(await ask(channel, blob="z" * 10_000)).annotations == {"blob": "z" * 10_000}


async def test_a_request_in_another_compression_is_refused(server: HookServer, path: str) -> None:
    async with grpc.aio.insecure_channel(f"unix:{path}", compression=grpc.Compression.Deflate) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await ask(channel, blob="z" * 10_000)
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_an_unknown_method_is_said_to_be_so(channel: grpc.aio.Channel) -> None:
    unary: Any = channel.unary_unary("/runtime.v1alpha1.RuntimeHookService/Unknown")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await unary(b"", timeout=LONG_SECONDS)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_health_of_unknown_services(channel: grpc.aio.Channel) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)
    asked = health_pb2.HealthCheckRequest(service="other")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await health.Check(asked, timeout=LONG_SECONDS)
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    told = health.Watch(asked, timeout=LONG_SECONDS)
    assert (await told.read()).status == STATUS.SERVICE_UNKNOWN
    told.cancel()


@pytest.mark.parametrize("method", ["Check", "Watch"])
@pytest.mark.parametrize("body", [b"\xff", b"\x0a\x01\xff"])
async def test_a_health_request_that_cannot_be_read(channel: grpc.aio.Channel, method: str, body: bytes) -> None:
    unary: Any = channel.unary_unary(f"/grpc.health.v1.Health/{method}")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await unary(body, timeout=LONG_SECONDS)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_who_watches_is_told_of_the_end_and_let_go(tmp_path: Path) -> None:
    server, path = HookServer([Told()], "server"), str(tmp_path / "b.sock")
    server.start(path)
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel, asyncio.timeout(LONG_SECONDS):
        health: Any = health_pb2_grpc.HealthStub(channel)
        watching = [
            health.Watch(health_pb2.HealthCheckRequest(service=name)) for name in ("", codec.SERVICE, "other", "")
        ]
        first = [(await told.read()).status for told in watching]
        assert first == [STATUS.SERVING, STATUS.SERVING, STATUS.SERVICE_UNKNOWN, STATUS.SERVING]
        watching[-1].cancel()
        assert await asyncio.to_thread(server.stop, LONG_SECONDS) == 0
        for told in watching[:2]:
            assert (await told.read()).status == STATUS.NOT_SERVING
        for told in watching[:3]:
            assert await told.code() is grpc.StatusCode.UNAVAILABLE


async def test_calls_of_before_the_end_are_answered_and_new_ones_refused(tmp_path: Path) -> None:
    hook = Told()
    server, path = HookServer([hook], "server"), str(tmp_path / "b.sock")
    server.start(path)
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        waiting = asyncio.ensure_future(ask(channel, "hang"))
        assert await asyncio.to_thread(hook.entered.acquire, timeout=LONG_SECONDS)
        ending = asyncio.ensure_future(asyncio.to_thread(server.stop, LONG_SECONDS))
        await asyncio.to_thread(eventually, lambda: all(one._leaving for one in server._connections._open))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await ask(channel, wait_for_ready=False)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        hook.release.set()
        assert answered(await waiting).envs == {"SEEN": "hang"}
        assert await ending == 0
