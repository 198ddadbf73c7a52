"""The hook server's limits, seen by a client of gRPC: long messages, many calls, callers that have left, its end."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from runtimeproxy.hookapi import codec
from runtimeproxy.model import HookAnswer
from runtimeproxy_hooks.sdk import ContainerContext, Hook
from runtimeproxy_hooks.sdk.serving import THREADS, HookServer
from tests.hooks.sdk.callers import CREATE, LONG_SECONDS, request

METHOD = codec.method_path(CREATE)
LIMITS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


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


async def test_ten_mebibytes_go_both_ways(channel: grpc.aio.Channel) -> None:
    blob = "x" * (10 << 20)
    for _ in range(2):
        assert answered(await ask(channel, blob=blob)).annotations == {"blob": blob}


async def test_more_than_a_message_may_have_is_refused(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await ask(channel, blob="x" * (17 << 20))
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert answered(await ask(channel)).envs == {"SEEN": "nothing"}


async def test_two_hundred_calls_at_once_on_one_channel(channel: grpc.aio.Channel) -> None:
    answers = await asyncio.gather(*(ask(channel, f"{number}") for number in range(200)))
    assert [answered(body).envs["SEEN"] for body in answers] == [f"{number}" for number in range(200)]


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


async def test_while_all_threads_hang_deadlines_and_cancels_work(
    server: HookServer, hook: Told, channel: grpc.aio.Channel
) -> None:
    hanging = [asyncio.ensure_future(ask(channel, "hang")) for _ in range(THREADS)]
    for _ in hanging:
        assert await asyncio.to_thread(hook.entered.acquire, timeout=LONG_SECONDS)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await ask(channel, "hang", timeout=0.2)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    cancelled, waiting = ask(channel, "hang"), asyncio.ensure_future(ask(channel, "last"))
    cancelled.cancel()
    hook.release.set()
    assert {answered(body).envs["SEEN"] for body in await asyncio.gather(*hanging)} == {"hang"}
    assert answered(await waiting).envs == {"SEEN": "last"}
    assert not hook.entered.acquire(blocking=False), "a call began that nobody waited for"


async def test_calls_of_before_the_end_are_answered_and_new_ones_refused(tmp_path: Path) -> None:
    hook = Told()
    server, path = HookServer([hook], "server"), str(tmp_path / "b.sock")
    server.start(path)
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        waiting = asyncio.ensure_future(ask(channel, "hang"))
        assert await asyncio.to_thread(hook.entered.acquire, timeout=LONG_SECONDS)
        ending = asyncio.ensure_future(asyncio.to_thread(server.stop, LONG_SECONDS))
        code = grpc.StatusCode.OK
        while code is grpc.StatusCode.OK:  # until the end has begun
            late = ask(channel, wait_for_ready=False)
            code = await late.code()
        assert code in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
        hook.release.set()
        assert answered(await waiting).envs == {"SEEN": "hang"}
        assert await ending == 0
