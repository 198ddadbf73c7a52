"""A hook that changes one field changes that field only: everything else of the request is the same bytes.

What is new stands behind them, what replaces an entry in its place.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2
from tests.fakes import cri_pb2, hookanswers
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime
from tests.system import clients
from tests.system.clients import Client
from tests.system.proxy import ProxyInside

UNKNOWN_FIELD = b"\xd2\xbb\x0f\x07unknown"  # field 31418, length-delimited
ENVS = [("B", b"1"), ("A", b"\xff\xfe not UTF-8"), ("B", b"2"), ("", b"nameless"), ("Z", b""), ("A2", b"x")]
CONFIG, ENV, ANNOTATION = 2, 6, 10


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    async with FakeRuntime(str(tmp_path / "runtime.sock")) as fake:
        yield fake


@pytest.fixture
async def proxy(tmp_path: Path, runtime: FakeRuntime, hooks: HookServer) -> AsyncIterator[ProxyInside]:
    inside = ProxyInside(tmp_path)
    inside.register("plugin.json", hooks.socket_path, policy="Fail")
    async with inside:
        yield inside


def split(message: bytes) -> list[tuple[int, bytes]]:
    """Split a message into its fields: numbers and bytes with their tags, in order."""
    fields, at = [], 0
    while at < len(message):
        tag, after = _varint(message, at)
        value, end = _varint(message, after)
        if tag & 7 == 2:
            end += value
        fields.append((tag >> 3, message[at:end]))
        at = end
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte, at = data[at], at + 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, at


def inside(message: bytes, *numbers: int) -> bytes:
    """Return the content of a field within fields, each of which is there once."""
    for number in numbers:
        (whole,) = [raw for found, raw in split(message) if found == number]
        _, after = _varint(whole, 0)
        message = whole[_varint(whole, after)[1] :]
    return message


def without(message: bytes, *numbers: int) -> list[tuple[int, bytes]]:
    """Return the fields but those with the numbers."""
    return [(number, raw) for number, raw in split(message) if number not in numbers]


def strange_request(pod_id: str) -> bytes:
    """Return a create with all that a parser would lose: order, duplicates, bytes, unknown and unset fields."""
    config = clients.container(envs=ENVS)
    config_bytes = config.SerializeToString() + UNKNOWN_FIELD
    request = cri_pb2.CreateContainerRequest(pod_sandbox_id=pod_id, sandbox_config=clients.pod())
    body = request.SerializeToString()
    return UNKNOWN_FIELD + b"\x12" + _number(len(config_bytes)) + config_bytes + body + UNKNOWN_FIELD


def _number(number: int) -> bytes:
    return bytes([number & 127 | 128, number >> 7])


async def sent_and_released(proxy: ProxyInside, runtime: FakeRuntime) -> tuple[bytes, bytes]:
    async with Client(proxy.socket) as client:
        request = strange_request(await client.run_pod())
        await client.call("CreateContainer", request)
    return request, runtime.requests("CreateContainer")[0].message


def answer(hooks: HookServer, **fields: Any) -> None:
    hooks.on("PreCreateContainer", hookanswers.reply(api_pb2.ContainerResourceHookResponse(**fields)))


ANSWERS_NOTHING = [hookanswers.empty(), hookanswers.echo(), hookanswers.koordlet()]


@pytest.mark.parametrize("nothing", ANSWERS_NOTHING, ids=["empty", "echo", "koordlet"])
async def test_no_change_is_the_same_bytes(
    proxy: ProxyInside, runtime: FakeRuntime, hooks: HookServer, nothing: hookanswers.Answer
) -> None:
    hooks.default = nothing
    request, released = await sent_and_released(proxy, runtime)
    assert released == request
    assert hooks.calls_of("PreCreateContainer")[0].request.container_envs == {
        "B": "2",
        "": "nameless",
        "Z": "",
        "A2": "x",
    }


async def test_one_env_is_changed_where_it_stands(proxy: ProxyInside, runtime: FakeRuntime, hooks: HookServer) -> None:
    answer(hooks, container_envs={"A2": "changed"})
    request, released = await sent_and_released(proxy, runtime)
    assert without(released, CONFIG) == without(request, CONFIG)
    before, after = split(inside(request, CONFIG)), split(inside(released, CONFIG))
    assert [number for number, _ in before] == [number for number, _ in after]
    differing = [new for old, new in zip(before, after, strict=True) if old != new]
    assert differing == [(ENV, b"\x32\x0d\x0a\x02A2\x12\x07changed")]


async def test_a_new_env_comes_behind_the_others(proxy: ProxyInside, runtime: FakeRuntime, hooks: HookServer) -> None:
    """What is new stands behind all that came, in a second part of the config; parsers take the two for one."""
    answer(hooks, container_envs={"NEW": "1"})
    request, released = await sent_and_released(proxy, runtime)
    assert released == request + b"\x12\x0a\x32\x08\x0a\x03NEW\x12\x011"
    expected = cri_pb2.CreateContainerRequest.FromString(request)
    expected.config.envs.add(key="NEW", value=b"1")
    assert cri_pb2.CreateContainerRequest.FromString(released) == expected


async def test_one_resource_is_changed(proxy: ProxyInside, runtime: FakeRuntime, hooks: HookServer) -> None:
    answer(hooks, container_resources=api_pb2.LinuxContainerResources(cpu_shares=77))
    request, released = await sent_and_released(proxy, runtime)
    assert released == request + b"\x12\x06\x7a\x04\x0a\x02\x18\x4d"
    expected = cri_pb2.CreateContainerRequest.FromString(request)
    expected.config.linux.resources.cpu_shares = 77
    assert cri_pb2.CreateContainerRequest.FromString(released) == expected


async def test_one_annotation_is_changed(proxy: ProxyInside, runtime: FakeRuntime, hooks: HookServer) -> None:
    answer(hooks, container_annotations={"note": "new"})
    request, released = await sent_and_released(proxy, runtime)
    assert without(released, CONFIG) == without(request, CONFIG)
    assert without(inside(released, CONFIG), ANNOTATION) == without(inside(request, CONFIG), ANNOTATION)
    (changed,) = [raw for number, raw in split(inside(released, CONFIG)) if number == ANNOTATION]
    assert changed == b"\x52\x0b\x0a\x04note\x12\x03new"


async def test_the_cgroup_parent_is_changed_in_the_pods_config(
    proxy: ProxyInside, runtime: FakeRuntime, hooks: HookServer
) -> None:
    answer(hooks, pod_cgroup_parent="/other")
    request, released = await sent_and_released(proxy, runtime)
    assert released == request + b"\x1a\x0a\x42\x08\x0a\x06/other"
    expected = cri_pb2.CreateContainerRequest.FromString(request)
    expected.sandbox_config.linux.cgroup_parent = "/other"
    assert cri_pb2.CreateContainerRequest.FromString(released) == expected


async def test_messages_that_are_not_set_stay_so(proxy: ProxyInside, runtime: FakeRuntime, hooks: HookServer) -> None:
    answer(hooks, container_envs={"NEW": "1"})
    async with Client(proxy.socket) as client:
        request = b"\x0a\x40" + (await client.run_pod()).encode() + b"\x12\x00"
        await client.call("CreateContainer", request)
    assert runtime.requests("CreateContainer")[0].message == request + b"\x12\x0a\x32\x08\x0a\x03NEW\x12\x011"
