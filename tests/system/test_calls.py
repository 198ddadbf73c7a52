"""What a call carries besides its message: deadlines, cancels, metadata, error details, compression."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from runtimeproxy.hookapi import api_pb2
from tests.amounts import Amount
from tests.fakes import cri_pb2, hookanswers
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime, Injection
from tests.system import clients
from tests.system.clients import Client
from tests.system.fronts import Caller, Failed, Front, Runtime
from tests.system.h2client import H2Client
from tests.system.proxy import ProxyInside, until
from tests.system.shaped import FRONTS, named
from tests.system.times import judged, limit

DETAILS = b"\x08\x05\x12\x07details\x1a\x02\n\0"
METHODS = ("Version", "CreateContainer")
"""One that passes and one that is held."""
HOOK_SECONDS = 1.0
SMALL_SECONDS = 0.5
"""Less than a hook server takes here, and more than a busy machine needs between two steps of a call."""
EXPIRIES = Amount(10, 500)
EXPIRY_SECONDS = 0.2
LATE_SECONDS = 0.050


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    async with FakeRuntime(str(tmp_path / "runtime.sock")) as fake:
        yield fake


@pytest.fixture
async def proxy(tmp_path: Path, runtime: FakeRuntime) -> AsyncIterator[ProxyInside]:
    async with ProxyInside(tmp_path) as inside:
        yield inside


@pytest.fixture
async def client(proxy: ProxyInside) -> AsyncIterator[Client]:
    async with Client(proxy.socket) as connected:
        yield connected


async def request_of(method: str, client: Client) -> bytes:
    """Return a good request of the method."""
    return clients.create_request(await client.run_pod()).SerializeToString() if method == "CreateContainer" else b""


@pytest.mark.parametrize("method", METHODS)
async def test_error_details_and_trailers_arrive(client: Client, runtime: FakeRuntime, method: str) -> None:
    trailers = (("grpc-status-details-bin", DETAILS), ("x-reason", "told"))
    request = await request_of(method, client)
    runtime.inject(
        method, Injection(code=grpc.StatusCode.RESOURCE_EXHAUSTED, details="no räum", trailing_metadata=trailers)
    )
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.call(method, request)
    assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "no räum")
    assert dict(raised.value.trailing_metadata()) == dict(trailers)


@pytest.mark.parametrize("method", METHODS)
async def test_metadata_arrives_both_ways(client: Client, runtime: FakeRuntime, method: str) -> None:
    request = await request_of(method, client)
    runtime.initial_metadata = (("x-runtime", "fake"), ("x-more-bin", b"\0\xff"))
    call = client.call(
        method, request, metadata=(("x-caller", "one"), ("x-caller", "two"), ("x-trace-bin", b"\0\1\xff"))
    )
    assert set(runtime.initial_metadata) <= set(await call.initial_metadata())
    await call
    sent = [(key, value) for key, value in runtime.requests(method)[0].metadata if key.startswith("x-")]
    assert sorted(sent, key=str) == [("x-caller", "one"), ("x-caller", "two"), ("x-trace-bin", b"\0\1\xff")]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seconds", [None, 7, 120])
async def test_the_runtime_has_the_callers_deadline(
    client: Client, proxy: ProxyInside, runtime: FakeRuntime, method: str, seconds: int | None
) -> None:
    request = await request_of(method, client)
    # Not by grpcio, which rounds a timeout up before it sends it.
    async with H2Client(proxy.socket) as exact:
        await exact.call(client.path(method), request, [] if seconds is None else [("grpc-timeout", f"{seconds}S")])
    left = runtime.requests(method)[0].deadline_seconds
    assert left is None if seconds is None else left is not None and seconds - 5 < left <= seconds


@pytest.mark.slow
async def test_what_a_hook_server_takes_comes_off_the_deadline(
    client: Client, proxy: ProxyInside, runtime: FakeRuntime
) -> None:
    """Whoever gave none has none."""
    given = {None: [], 7: [("grpc-timeout", "7S")], 120: [("grpc-timeout", "120S")]}
    async with (
        HookServer(str(proxy.path / "hooks.sock"), default=hookanswers.after(HOOK_SECONDS)) as hooks,
        H2Client(proxy.socket) as exact,
    ):
        requests = [await request_of("CreateContainer", client) for _ in given]
        proxy.register("slow.json", hooks.socket_path, ["PreCreateContainer"])
        await until(lambda: proxy.recorder.counted("config_reloads", result="ok") == 1, "the plugin is registered")
        begun = time.monotonic()
        await asyncio.gather(
            *(
                exact.call(client.path("CreateContainer"), request, fields)
                for request, fields in zip(requests, given.values(), strict=True)
            )
        )
    for request, seconds in zip(requests, given, strict=True):
        (received,) = [each for each in runtime.requests("CreateContainer") if each.message == request]
        left, spent = received.deadline_seconds, received.at - begun
        if seconds is None:
            assert left is None
        else:
            assert left is not None
            assert seconds - spent - SMALL_SECONDS < left < seconds - HOOK_SECONDS + SMALL_SECONDS


@pytest.mark.slow
async def test_a_deadline_that_passes_ends_both_sides_soon(
    client: Client, proxy: ProxyInside, runtime: FakeRuntime
) -> None:
    """It is the runtime's clock that tells: this client has none.

    What the proxy adds is counted: the same call at the same moment has the runtime's and the client's lateness, too.
    """
    requests = {method: await request_of(method, client) for method in METHODS}
    for method in METHODS:
        runtime.inject(method, Injection(delay_seconds=60))

    async def expire(connection: H2Client, method: str) -> float:
        begun = time.monotonic()
        timeout = ("grpc-timeout", f"{EXPIRY_SECONDS * 1000:.0f}m")
        answer = await connection.call(client.path(method), requests[method], [timeout])
        assert answer.status == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        return time.monotonic() - begun

    async def late(method: str) -> float:
        ours, theirs = await asyncio.gather(expire(through, method), expire(direct, method))
        assert ours > EXPIRY_SECONDS - LATE_SECONDS
        return ours - theirs

    async with H2Client(proxy.socket) as through, H2Client(runtime.socket_path) as direct:
        added = [each for _ in range(EXPIRIES.now) for each in await asyncio.gather(*map(late, METHODS))]
    asked = [request for method in METHODS for request in runtime.requests(method)]
    await until(lambda: all(request.cancelled for request in asked), "the runtime's calls have ended")
    assert judged(added) < limit(added, LATE_SECONDS), added


@pytest.mark.parametrize("changed", [False, True])
async def test_a_held_call_may_be_compressed(
    client: Client, proxy: ProxyInside, runtime: FakeRuntime, changed: bool
) -> None:
    response = api_pb2.ContainerResourceHookResponse(container_envs={"NEW": "x"} if changed else {})
    async with HookServer(str(proxy.path / "hooks.sock"), default=hookanswers.reply(response)) as hooks:
        proxy.register("plugin.json", hooks.socket_path, ["PreCreateContainer"])
        await until(lambda: proxy.recorder.counted("config_reloads", result="ok") == 1, "the plugin is registered")
        config = clients.container(annotations={"long": "compressible " * 1000})
        request = clients.create_request(await client.run_pod(), config)
        await client.call("CreateContainer", request, compression=grpc.Compression.Gzip)
    assert dict(hooks.calls[0].request.container_annotations) == dict(config.annotations)
    expected = cri_pb2.CreateContainerRequest()
    expected.CopyFrom(request)
    if changed:
        expected.config.envs.add(key="NEW", value=b"x")
    assert cri_pb2.CreateContainerRequest.FromString(runtime.requests("CreateContainer")[0].message) == expected


# ---- what holds on both fronts


@pytest.fixture(params=FRONTS, ids=named)
def front(request: pytest.FixtureRequest) -> Front:
    """Return the front of each shape of a runtime in turn."""
    made: Front = request.param
    return made


@pytest.fixture
async def fake(front: Front, tmp_path: Path) -> AsyncIterator[Runtime]:
    async with front.runtime(str(tmp_path / "runtime.sock")) as made:
        yield made


@pytest.fixture
async def caller(front: Front, fake: Runtime, tmp_path: Path) -> AsyncIterator[Caller]:
    async with front.inside(tmp_path) as inside, front.caller(inside.socket) as made:
        yield made


VERBS = ("ping", "create")
"""One that passes and one that is held."""


async def asking(verb: str, caller: Caller) -> bytes:
    """Return a good request of the verb."""
    return caller.create_request(await caller.run_pod()) if verb == "create" else caller.request(verb)


@pytest.mark.parametrize("verb", VERBS)
async def test_a_cancel_reaches_the_runtime(caller: Caller, fake: Runtime, verb: str) -> None:
    request = await asking(verb, caller)
    fake.upset(verb, delay_seconds=60)
    call = asyncio.ensure_future(caller.send(verb, request))
    await until(lambda: bool(fake.asked(verb)), "the runtime has the request")
    assert call.cancel()
    await until(lambda: fake.given_up(verb), "the runtime's call has ended")


@pytest.mark.parametrize("verb", VERBS)
async def test_the_runtimes_error_arrives(caller: Caller, fake: Runtime, verb: str) -> None:
    request = await asking(verb, caller)
    fake.upset(verb, text="no räum")
    with pytest.raises(Failed) as raised:
        await caller.send(verb, request)
    assert raised.value.text == "no räum"
