"""Long messages: 16 MiB arrive, 64 MiB too, and cost a few times their length (fault matrix S2, promise 10).

And very many calls at the same time: none fails (fault matrix S3).
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.cri_front import CRI
from tests.system.docker_front import DOCKER
from tests.system.fronts import CONTAINER, Caller, Front, Runtime
from tests.system.hostile import Process
from tests.system.proxy import ProxyProcess

pytestmark = pytest.mark.slow

MIB = 1 << 20
PASSING_TIMES = HELD_TIMES = 3
"""A message costs at most so many times its length. A held request without a hook call exists once for both reading and
sending; once as parsed (protobuf's own copy, or the text of a JSON); and once as the texts of the record."""
HOOKED_TIMES = 5
"""The same request with a hook server: the record's texts and the request itself exist while protobuf has a copy of the
hook message, writes a second one, and Python gets the third. An edit needs no more than that."""
BUFFER_BYTES = 4 * MIB
"""Memory for buffers and free blocks, independent of the length of a message."""


async def sent(proxy: ProxyProcess, caller: Caller, verb: str, request: bytes, most_bytes: int) -> bytes:
    """Send a request that may cost the proxy so much memory; return the reply."""
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


def crowded(front: Front, request: bytes) -> bytes:
    """Return a create with millions of mounts, or of limits of huge pages."""
    if front is DOCKER:
        head, _, body = request.partition(b"\r\n\r\n")
        body = body.rstrip().removesuffix(b"}") + b', "Mounts": [' + b"[]," * (4 * MIB // 3) + b"[]]}"
        return re.sub(rb"(?<=Content-Length: )\d+", b"%d" % len(body), head) + b"\r\n\r\n" + body
    message = b"\x42\x00" * (2 * MIB)
    for tag in (0x0A, 0x7A, 0x12):
        size = len(message)
        message = bytes([tag, size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21]) + message
    return request + message


TEXT = "x" * (16 * MIB - 16384)
"""The limit of the kubelet and its runtimes is 16 MiB."""
CHANGE = hookanswers.reply(api_pb2.ContainerResourceHookResponse(container_annotations={"new": "1"}))
NOTE = {"annotations": {"long": TEXT}}
CREATES: Mapping[str, tuple[Any, hookanswers.Answer | None]] = {
    "an annotation": (NOTE, None),
    "an env": ({"envs": (("LONG", TEXT),)}, None),
    "millions of fields": ({}, None),
    "hooks change nothing": (NOTE, hookanswers.empty()),
    "hooks change something": (NOTE, CHANGE),
}
"""The long part of a create. Of millions of fields only the bytes are read: as objects they take 25 times as much."""


@pytest.mark.parametrize(("long", "answer"), CREATES.values(), ids=CREATES)
async def test_long_create_costs_a_few_times_its_length(
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
        request = request if long else crowded(front, request)
        most = (HELD_TIMES if answer is None else HOOKED_TIMES) * len(request) + BUFFER_BYTES
        await sent(proxy, caller, "create", request, most)
    assert (runtime.arrived("create")[-1] == request) == (answer is not CHANGE)
    assert answer is None or len(hooks.calls[1].message) > len(TEXT)


@pytest.mark.parametrize("verb", ["ping", "create"])
async def test_crowd_of_calls_is_answered(
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
