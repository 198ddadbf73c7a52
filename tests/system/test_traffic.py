"""Long messages, many calls, and idle connections: all data arrives, and costs a few times its length.

Fault matrix S2, S3, S8 and B4, promises 10 and 12. Elsewhere: ends, tunnels, and clients that do not read
(tests/relay/test_connection.py, test_dockerd_clients).
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2
from tests.docker import client as docker_client
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.cri_front import CRI
from tests.system.fronts import CONTAINER, Caller, Front, Runtime
from tests.system.hostile import Process
from tests.system.proxy import ProxyProcess, until

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
    """Send a request and check its memory in the proxy; return the reply."""
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
"""The long part of a create, and the hook server's answer."""


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
