"""Long messages: 16 MiB arrive, 64 MiB too, and cost a few times their length (fault matrix S2, promise 10)."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.docker_front import DOCKER
from tests.system.fronts import CONTAINER, Caller, Front, Runtime
from tests.system.hostile import Process
from tests.system.proxy import ProxyProcess

pytestmark = pytest.mark.slow

MIB = 1 << 20
LIMIT_BYTES = 16 * MIB
"""The limit of the kubelet and its runtimes."""
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


def crowded_cri(request: bytes) -> bytes:
    """Return a create with millions of limits of huge pages."""
    message = b"\x42\x00" * (2 * MIB)
    for tag in (0x0A, 0x7A, 0x12):
        size = len(message)
        message = bytes([tag, size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21]) + message
    return request + message


def crowded_docker(request: bytes) -> bytes:
    """Return a create with millions of mounts."""
    head, _, body = request.partition(b"\r\n\r\n")
    body = body.rstrip().removesuffix(b"}") + b', "Mounts": [' + b"[]," * (4 * MIB // 3) + b"[]]}"
    return re.sub(rb"(?<=Content-Length: )\d+", b"%d" % len(body), head) + b"\r\n\r\n" + body


TEXT = "x" * (LIMIT_BYTES - 16384)
CHANGE = hookanswers.reply(
    api_pb2.ContainerResourceHookResponse(
        container_resources=api_pb2.LinuxContainerResources(cpu_shares=77), container_annotations={"new": "1"}
    )
)
CREATES: Mapping[str, tuple[Any, hookanswers.Answer | None]] = {
    "an annotation": ({"annotations": {"long": TEXT}}, None),
    "an env": ({"envs": (("LONG", TEXT),)}, None),
    "an argument": ({"command": (TEXT,)}, None),
    "millions of fields": ({}, None),
    "hooks change nothing": ({"annotations": {"long": TEXT}}, hookanswers.empty()),
    "hooks change something": ({"annotations": {"long": TEXT}}, CHANGE),
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
        if not long:
            request = (crowded_docker if front is DOCKER else crowded_cri)(request)
        most = (HELD_TIMES if answer is None else HOOKED_TIMES) * len(request) + BUFFER_BYTES
        await sent(proxy, caller, "create", request, most)
    assert (runtime.arrived("create")[-1] == request) == (answer is not CHANGE)
    assert answer is None or len(hooks.calls[1].message) > len(TEXT)
