"""Long messages, many calls, idle connections, cancelled calls, and peers that break HTTP/2.

All data arrives and costs a few times its length (fault matrix S2, S3, S8 and B4, promises 10 and 12). Hook server and
runtime notice a cancel immediately, and no resource leaks (fault matrix S4, promise 9). The memory of hostile peers
is bounded, others are unaffected (fault matrix X1, promise 18). Elsewhere: ends, tunnels, and clients that do not read
(tests/relay/test_connection.py, test_dockerd_clients), each bound (tests/cri/test_bounds.py).
"""

import asyncio
import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.wire.http2 import FrameBuffer
from tests.amounts import SHARE_VARIABLE, Amount
from tests.cri import peer
from tests.cri.peer import CREATE, VERSION, Credit, Data, block, raw_headers
from tests.docker import client as docker_client
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.fronts import CONTAINER, CRI, METHODS, ROUTES, Caller, Client, Front, Runtime
from tests.system.proxy import WAIT_SECONDS, Process, ProxyInside, ProxyProcess, until

pytestmark = pytest.mark.slow

MIB = 1 << 20
PASSING_TIMES = HELD_TIMES = 3
"""Maximum memory of a message, relative to its length. A held request without a hook call exists three times:
for reading and sending, parsed (protobuf's own copy, or the text of a JSON), and as the record's texts."""
HOOKED_TIMES = 5
"""The same with a hook server: in addition to the record's texts and the request there are three hook messages: two
of protobuf and one of Python. An edit needs no more."""
BUFFER_BYTES = 4 * MIB
"""Memory for buffers and free blocks, independent of the length of a message."""


async def sent(proxy: ProxyProcess, caller: Caller, verb: str, request: bytes, most_bytes: int) -> bytes:
    process = Process(proxy.pid)
    before = process.start_peak()
    reply = await caller.send(verb, request, seconds=120)
    assert process.peak() - before <= most_bytes
    return reply


@pytest.mark.parametrize("mib", [16, 64])
async def test_long_list_costs_at_most_three_times_its_length(
    front: Front, runtime: Runtime, tmp_path: Path, mib: int
) -> None:
    listed = runtime.long_list(200, mib * MIB - 1024)
    assert len(listed) > 0.99 * mib * MIB
    async with front.process(tmp_path) as proxy, front.caller(proxy.socket) as caller:
        await caller.act("ping")
        assert await sent(proxy, caller, "list", caller.request("list"), PASSING_TIMES * len(listed)) == listed


TEXT = "x" * (16 * MIB - 16384)
"""The limit of the kubelet and its runtimes is 16 MiB."""
CHANGE = hookanswers.reply(api_pb2.ContainerResourceHookResponse(container_annotations={"new": "1"}))
NOTE = {"annotations": {"long": TEXT}}
CREATES: Mapping[str, tuple[Any, hookanswers.Answer | None]] = {
    "an annotation": (NOTE, None),
    "an env": ({"envs": (("LONG", TEXT),)}, None),
    "hooks change nothing": (NOTE, hookanswers.empty()),
    "hooks change something": (NOTE, CHANGE),
}


@pytest.mark.parametrize(("long", "answer"), CREATES.values(), ids=CREATES)
async def test_long_create_costs_few_times_its_length(
    front: Front, runtime: Runtime, tmp_path: Path, long: Any, answer: hookanswers.Answer | None
) -> None:
    proxy, hooks = front.process(tmp_path), HookServer(str(tmp_path / "hooks.sock"), default=answer)
    if answer is not None:
        proxy.register("hooks.json", hooks.socket_path, ["PreCreateContainer"], timeout="20s")
    async with hooks, proxy, front.caller(proxy.socket) as caller:
        pod = await caller.run_pod()
        if answer is not None:
            await caller.create(pod)
        request = caller.create_request(pod, replace(CONTAINER, **long))
        most = (HELD_TIMES if answer is None else HOOKED_TIMES) * len(request) + BUFFER_BYTES
        await sent(proxy, caller, "create", request, most)
    assert (runtime.arrived("create")[-1] == request) == (answer is not CHANGE)
    assert answer is None or len(hooks.calls[1].message) > len(TEXT)


@pytest.mark.parametrize("verb", ["ping", "create"])
async def test_many_concurrent_calls_are_answered(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, verb: str
) -> None:
    """1,000 streams of one connection, or in Docker mode 200 connections; a create calls a hook server."""
    count = 1_000 if front is CRI else 200
    proxy = front.process(tmp_path, log_level="info", hook_budget="60s")
    proxy.register("hooks.json", hooks.socket_path, policy="Fail", timeout="60s")
    async with proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        runtime.set_fault(verb, delay_seconds=1.0)  # by then the runtime has all calls
        calls = (caller.act("ping") if verb == "ping" else caller.create(pod_id) for _ in range(count))
        answers = await asyncio.gather(*calls)
        assert len(set(answers)) == (1 if verb == "ping" else count)
        assert len(runtime.arrived(verb)) >= count
    assert "broke the protocol" not in proxy.output()


DAY_SECONDS = 24 * 3600


async def test_calls_streams_and_idle_connections_outlive_day(
    front: Front, tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer that restarts itself fires every hour."""
    real, passed, due = time.monotonic, 0.0, list[bool]()
    monkeypatch.setattr(time, "monotonic", lambda: real() + passed)
    monkeypatch.setattr(docker_client, "PATIENCE_SECONDS", 2 * DAY_SECONDS)
    inside: Any = front.inside(tmp_path)
    async with inside as proxy, front.caller(proxy.socket) as caller, front.caller(proxy.socket) as idle:
        await idle.act("ping")
        stream = await caller.open_stream()
        await stream.write(b"one")
        assert await stream.read() == b"one"
        pod_id = await caller.run_pod()
        for verb in ("list", "create"):
            runtime.set_fault(verb, delay_seconds=DAY_SECONDS)
        requests = {"list": caller.request("list"), "create": caller.create_request(pod_id)}
        calls = [asyncio.ensure_future(caller.send(*request, 2 * DAY_SECONDS)) for request in requests.items()]
        await until(lambda: all(runtime.arrived(verb) for verb in requests), "the calls have arrived")
        connections = set(proxy.app.front.connections)
        assert len(connections) >= 2
        asyncio.get_running_loop().call_later(DAY_SECONDS, due.append, True)
        for _ in range(25):
            passed += 3600
            await asyncio.sleep(0.02)  # of real time, for what is due in an hour
        assert due, "the loop has another clock"
        await asyncio.gather(*calls)
        await stream.write(b"two")
        assert await stream.read() == b"two"
        await idle.act("ping")
        assert proxy.app.front.connections == connections


# ---- clients that cancel at random moments

CANCELS = Amount(100, 10_000)
SOAKED = SHARE_VARIABLE in os.environ
ARRIVES_SECONDS = 0.050 if SOAKED else 0.250
RELEASE_SECONDS = 4.0 if SOAKED else WAIT_SECONDS
"""The runtime is listed a second after a create without an answer, and at most once a second."""
OWN_CONNECTIONS = 10
"""Maximum of the proxy's own connections to the runtime; both ends are in this process."""
COUNT = 20
RUNS = {"cri": "started_at", "docker": "running"}
"""The attribute of a fake runtime's container that shows whether it runs."""
PAUSE_SECONDS = 0.012
POINTS = ("PreCreateContainer", "PreStartContainer", "PostStartContainer")


async def any_time(call: hookanswers.HookCall) -> bytes:
    await asyncio.sleep(random.uniform(0, PAUSE_SECONDS))
    return b""


def counts() -> dict[str, int]:
    return {"tasks": len(asyncio.all_tasks()), "files": len(os.listdir("/proc/self/fd"))}


def unreleased(front: Front, proxy: ProxyInside, runtime: Runtime, before: dict[str, int]) -> dict[str, object]:
    proxy_front: Any = proxy.app.front
    lifecycle, readers = proxy.app.lifecycle, [connection.reader for connection in proxy_front.connections]
    retained = {
        "held bytes": proxy_front.budget.count,
        "tasks of calls": len(proxy_front.tasks),
        "held calls": lifecycle.holds()[0],
        "open calls": lifecycle.open_calls.subjects(),
        "streams": [stream for reader in readers if front is CRI for stream in (*reader.streams, *reader.open_streams)],
        "only in the Store or at the runtime": proxy.store.ids() ^ {*runtime.pod_ids(), *runtime.container_ids()},
        **{name: max(count - before[name] - 2 * OWN_CONNECTIONS, 0) for name, count in counts().items()},
        "connections": len(proxy_front.connections) - 1,
    }
    return {name: value for name, value in retained.items() if value}


Moment = Callable[[], Awaitable[object]]


async def cancelled(front: Front, socket: Path, caller: Caller, verb: str, subject_id: str, moment: Moment) -> float:
    """Cancel a call at a moment: on the shared connection of CRI, or with its connection; return when."""
    request = caller.create_request(subject_id) if verb == "create" else caller.request(verb, subject_id)
    alone: Any = nullcontext(caller) if front is CRI else front.caller(socket)
    async with alone as kubelet:
        of_its_own = random.random() < 0.5
        sending = front.exchange(socket, verb, request) if of_its_own else kubelet.send(verb, request)
        call = asyncio.ensure_future(sending)
        await moment()
        call.cancel()
        at = time.monotonic()
        await asyncio.gather(call, return_exceptions=True)
        return at


@pytest.fixture
async def node(front: Front, tmp_path: Path, runtime: Runtime) -> AsyncIterator[tuple[ProxyInside, HookServer, Caller]]:
    random.seed(front.name)
    inside = front.inside(tmp_path, hook_budget="60s")
    async with HookServer(str(tmp_path / "hooks.sock"), default=any_time) as hooks:
        inside.register("plugin.json", hooks.socket_path, POINTS, timeout="60s")
        async with inside as proxy, front.caller(proxy.socket) as caller:
            yield proxy, hooks, caller


async def test_cancel_arrives_at_hook_server_or_runtime(front: Front, runtime: Runtime, node: Any) -> None:
    """A call without the hook server's answer does not reach the runtime."""
    proxy, hooks, caller = node
    delays: dict[str, list[float]] = {"hook server": [], "runtime": []}
    pod_id = await caller.run_pod()

    def received() -> list[Any]:
        return list(runtime.requests((METHODS if front is CRI else ROUTES)["create"]))

    for _ in range(CANCELS.now // 10):
        count = len(received())
        hooks.calls.clear()
        hooks.default = hookanswers.hang()
        moment = partial(hooks.wait_for_calls, POINTS[0])
        at = await cancelled(front, proxy.socket, caller, "create", pod_id, moment)
        await until(lambda: hooks.calls[0].cancelled, "the hook server sees it")
        delays["hook server"].append(time.monotonic() - at)
        assert len(received()) == count
        hooks.default = any_time
        runtime.set_fault("create", delay_seconds=60)
        moment = partial(until, lambda: len(received()) > count, "the runtime has the request")  # noqa: B023
        at = await cancelled(front, proxy.socket, caller, "create", pod_id, moment)
        request = received()[-1]
        await until(lambda: request.cancelled or getattr(request, "client_ended", False), "the runtime sees it")  # noqa: B023
        delays["runtime"].append(time.monotonic() - at)
        runtime.set_fault("create")
    for side, seconds in delays.items():
        figure = statistics.quantiles(seconds, n=100)[98] if SOAKED else statistics.median(seconds)
        assert figure <= ARRIVES_SECONDS, f"{side}: {figure} s, the slowest took {sorted(seconds)[-5:]} s"


async def test_all_resources_are_released_after_cancels(front: Front, runtime: Runtime, node: Any) -> None:
    proxy, hooks, caller = node
    await until(lambda: proxy.metrics.counted("syncs", result="complete") > 0, "the state is known")
    before = counts()

    def each_once_if_it_runs() -> bool:
        started = sorted(call.request.container_meta.id for call in hooks.calls_of("PostStartContainer"))
        of_runtime = [(one, runtime.state.containers[one]) for one in ids]
        return started == sorted(one for one, state in of_runtime if getattr(state, RUNS[front.name]))

    for _ in range(0, CANCELS.now, 2 * COUNT):
        pod_id = await caller.run_pod()
        ids = [await caller.create(pod_id) for _ in range(COUNT)]
        hooks.calls.clear()
        verbs = {"create": [pod_id] * COUNT, "start": ids, "list": [""] * (COUNT // 3)}
        calls = []
        for verb, subjects in verbs.items():
            runtime.set_fault(verb, delay_seconds=PAUSE_SECONDS / 2)
            moments = [partial(asyncio.sleep, random.uniform(0, 2 * PAUSE_SECONDS)) for _ in subjects]
            calls += [cancelled(front, proxy.socket, caller, verb, *one) for one in zip(subjects, moments, strict=True)]
        await asyncio.gather(*calls)
        end = time.monotonic() + RELEASE_SECONDS
        while retained := unreleased(front, proxy, runtime, before):
            assert time.monotonic() < end, f"not released: {retained}"
            await asyncio.sleep(0.01)
        # The outcome of a start whose answer is lost is queried later.
        await until(each_once_if_it_runs, "each container's start has had its Post hook once, if it runs")
        assert not [call for call in hooks.calls_of("PostStartContainer") if call.cancelled]
        for verb in verbs:
            runtime.set_fault(verb)
        for container_id in runtime.container_ids():
            await caller.act("remove", container_id)
        for verb in ("stop_pod", "remove_pod"):
            await caller.act(verb, pod_id)
    for fault in ("connections_broken", "hook_breaker_openings"):
        assert not proxy.metrics.total(fault), fault


# ---- peers that break HTTP/2

FRAMES = Amount(30_000, 100_000)
"""More than every bound of a client."""
GROWTH_BYTES = 16 << 20
VERSION_BLOCK, CREATE_BLOCK = block(VERSION), block(CREATE)
BIG_FIELD = b"\x40\x01k\x7f\xa1\x1e" + b"v" * 4_000
"""Enters the dynamic table as its 62nd entry."""
FRAGMENT = peer.continuation(101, b"\x00\x01a\x01b" * 20, end_headers=False)
"""Of a header block that never ends."""
GREETING = peer.Settings().wire() + peer.Ack().wire()
PART_BYTES = 1 << 16
PING, CREDIT = 0x6, 0x8
Frames = Callable[[int], Iterator[bytes]]


async def answer_each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve each request of a connection with an empty message."""
    frames = FrameBuffer(1 << 24)
    with suppress(OSError, asyncio.IncompleteReadError):  # the proxy ended it
        await reader.readexactly(len(peer.PREFACE))
        writer.write(GREETING)
        while data := await reader.read(PART_BYTES):
            received = list(frames.feed(data))
            for kind, flags, stream, payload in received:
                if kind in (peer.DATA, peer.HEADERS) and flags & peer.END_STREAM:
                    answer = peer.Headers(stream, peer.REPLY), peer.Data(stream, peer.grpc(b""))
                    end = peer.Headers(stream, peer.TRAILERS, end=True)
                    writer.write(b"".join(frame.wire() for frame in (*answer, end)))
                elif kind == CREDIT and stream and payload == bytes(4):  # reset (RFC 9113, 6.9)
                    writer.write(peer.Reset(stream, 1).wire())
                elif kind == PING and not flags & peer.ACK:
                    writer.write(peer.Ping(bytes(8), ack=True).wire())
            if length := sum(len(payload) for kind, _, _, payload in received if kind == peer.DATA):
                writer.write(peer.Credit(0, length).wire())
            await writer.drain()
    writer.close()


async def attack(path: Path, parts: Iterable[bytes]) -> None:
    """Connect, exchange SETTINGS and read all; send until the connection ends."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(peer.PREFACE + GREETING)
    await reader.read(1)  # the runtime's SETTINGS, or the end
    reading = asyncio.ensure_future(reader.read())
    with suppress(OSError):
        for part in parts:
            if reading.done():
                break
            writer.write(part)
            await writer.drain()
    await asyncio.sleep(0.2)
    writer.transport.abort()
    await asyncio.gather(reading, return_exceptions=True)


def joined(frames: Iterable[bytes]) -> Iterator[bytes]:
    data = bytearray()
    for frame in frames:
        data += frame
        if len(data) >= PART_BYTES:
            yield bytes(data)
            data.clear()
    yield bytes(data)


def repeated(frame: bytes, first: bytes = b"") -> Frames:
    return lambda count: chain([first], repeat(frame, count))


def on_streams(frames: Callable[[int], bytes]) -> Frames:
    return lambda count: map(frames, range(101, 101 + 2 * count, 2))


def bomb(count: int) -> Iterator[bytes]:
    yield raw_headers(99, VERSION_BLOCK + BIG_FIELD)
    yield from on_streams(lambda stream: raw_headers(stream, b"\xbe" * 16_000))(count)


ATTACKS: dict[str, Frames] = {
    "oversize frame": lambda _: iter([((1 << 24) - 1).to_bytes(3, "big") + b"\xee\x00" + bytes(4)]),
    "no HTTP/2": lambda _: iter([b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(1 << 16)]),
    "HPACK bomb": bomb,
    "CONTINUATION": repeated(FRAGMENT, raw_headers(101, VERSION_BLOCK, end_headers=False)),
    "open streams": on_streams(lambda stream: raw_headers(stream, VERSION_BLOCK)),
    "DATA above every window": repeated(Data(1, bytes(16_384)).wire(), raw_headers(1, VERSION_BLOCK)),
    "rapid reset": on_streams(lambda sid: raw_headers(sid, VERSION_BLOCK) + peer.Reset(sid, 8).wire()),
    "rapid reset of held calls": on_streams(lambda sid: raw_headers(sid, CREATE_BLOCK) + peer.Reset(sid, 8).wire()),
    "MadeYouReset": on_streams(lambda sid: raw_headers(sid, VERSION_BLOCK) + Credit(sid, 0).wire()),
    "empty DATA": repeated(Data(1, b"").wire(), raw_headers(1, VERSION_BLOCK)),
    "PING": repeated(peer.Ping(bytes(8)).wire()),
    "SETTINGS": repeated(peer.Settings(((4, 1), (4, 2))).wire()),
    "WINDOW_UPDATE": repeated(Credit(0, 1).wire()),
    "unknown frames": repeated(peer.Raw(0xEE, 0, 0).wire()),
    "GOAWAY": repeated(peer.GoAway(0).wire()),
}
"""The frames of a client: they pass, or its connection ends; none of them is stored."""


@pytest.mark.parametrize("name", ATTACKS)
async def test_attack_costs_little_and_fails_no_other_call(name: str, tmp_path: Path) -> None:
    over = asyncio.Event()

    async def call_until_over() -> None:
        while not over.is_set():
            await another.call("Version")

    async with (
        await asyncio.start_unix_server(answer_each, str(tmp_path / "runtime.sock")),
        ProxyProcess(tmp_path, log_level="info") as proxy,
        Client(proxy.socket) as another,
    ):
        await another.call("Version")
        calling = asyncio.create_task(call_until_over())
        process = Process(proxy.pid)
        descriptors, memory = process.descriptors(), process.start_peak()
        await attack(proxy.socket, joined(ATTACKS[name](FRAMES.now)))
        await until(lambda: process.descriptors() <= descriptors + 1, "its descriptors are closed")
        assert process.peak() - memory <= GROWTH_BYTES
        over.set()
        await calling
        await another.call("Version")
    assert proxy.output().count("broke the protocol") <= 1
