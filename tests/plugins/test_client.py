"""The client of a hook server: what it sends, what it accepts, and the reason of every failure."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import grpc
import pytest

from runtimeproxy.errors import HookError, Reason, WireError
from runtimeproxy.hookapi import api_pb2
from runtimeproxy.model.fields import ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources
from runtimeproxy.model.hookpoints import BY_NAME
from runtimeproxy.plugins.client import HookClient
from runtimeproxy.relay.rpc.connection import CallFailed, Kind, Shortage, TooLong, Unprocessed
from runtimeproxy.wire import http2
from tests.fakes import hookanswers
from tests.fakes.faults import full_backlog
from tests.fakes.hookserver import HookServer
from tests.patience import until
from tests.relay.rpc.test_connection import Server

POD = PodInfo(id="p1", name="pod", uid="u1", namespace="ns", attempt=2, labels={"l": "1"}, annotations={"a": "1"})
CONTAINER = ContainerInfo(
    id="c1", pod_id="p1", name="container", annotations={"b": "2"}, resources=Resources(cpu_shares=512), envs={"E": "3"}
)
REQUEST = HookRequest(POD, CONTAINER)
POINT = BY_NAME["PreCreateContainer"]
LONG_SECONDS = 10.0
Status = grpc.StatusCode


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "hook.sock")


@pytest.fixture
async def client(path: str) -> AsyncIterator[HookClient]:
    made = HookClient("plugin", path)
    yield made
    await made.close()


@pytest.fixture
async def server(path: str) -> AsyncIterator[HookServer]:
    async with HookServer(path, faulty=True) as made:
        yield made


async def fetch(client: HookClient, request: HookRequest = REQUEST, seconds: float = LONG_SECONDS) -> HookAnswer:
    return await client.call(POINT, request, seconds)


async def failing(client: HookClient, request: HookRequest = REQUEST, seconds: float = LONG_SECONDS) -> HookError:
    with pytest.raises(HookError) as raised:
        await fetch(client, request, seconds)
    assert (raised.value.plugin, raised.value.hook) == ("plugin", POINT.name)
    return raised.value


async def test_hook_server_receives_request_and_answers(client: HookClient, server: HookServer) -> None:
    """The requests of the other points are tested in tests/hookapi."""
    server.default = hookanswers.echo()
    answer = await fetch(client)
    (call,) = server.calls
    assert call.point is POINT
    assert call.request.pod_meta == api_pb2.PodSandboxMetadata(name="pod", uid="u1", namespace="ns", attempt=2)
    assert call.request.container_meta == api_pb2.ContainerMetadata(name="container", id="c1")
    assert answer == HookAnswer(annotations={"b": "2"}, envs={"E": "3"}, resources=Resources(cpu_shares=512))


TOO_LONG = "the answer is longer than 7 bytes; let it answer less, or raise --hook-answer-limit"
NOT_SERVED = "the server does not serve this hook point; take it out of the registration, or update the server"
REFUSED = "the server refused every try until the time was over"
FAILURES: list[tuple[Exception, Reason, str, str]] = [
    (CallFailed(7, "not here", Kind.STATUS), Reason.REFUSED, "", "not here"),
    (CallFailed(13, "SECRET=canary", Kind.STATUS), Reason.ERROR_STATUS, "gRPC status 13", "SECRET=canary"),
    (CallFailed(12, "SECRET=canary", Kind.STATUS), Reason.UNIMPLEMENTED, NOT_SERVED, ""),
    (CallFailed(4, "its own work", Kind.DEADLINE), Reason.ERROR_STATUS, "gRPC status 4", "its own work"),
    (CallFailed(13, "the connection broke", Kind.BROKEN), Reason.BROKEN_ANSWER, "the connection broke", ""),
    (CallFailed(14, "no such file", Kind.UNREACHABLE), Reason.UNREACHABLE, "no such file", ""),
    (Shortage("too many files"), Reason.INTERNAL, "the proxy itself lacks what it needs: too many files", ""),
    (TooLong(7), Reason.BAD_ANSWER, TOO_LONG, ""),
    (Unprocessed(), Reason.DEADLINE, REFUSED, ""),
    (WireError("no message"), Reason.BAD_ANSWER, "no message", ""),
]


@pytest.mark.parametrize(("failure", "reason", "detail", "peer_text"), FAILURES, ids=lambda value: str(value)[:40])
async def test_failed_call_has_reason_and_its_text_is_never_logged(
    client: HookClient, failure: Exception, reason: Reason, detail: str, peer_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> bytes:
        raise failure

    monkeypatch.setattr(client._unary, "call", fail)
    error = await failing(client)
    assert (error.reason, error.detail, error.peer_text) == (reason, detail, peer_text)
    assert "canary" not in error.logged
    assert str(error) == error.logged + (f": {peer_text}" if peer_text else "")


@pytest.mark.parametrize(
    "late", [hookanswers.hang(), hookanswers.after(0.15, hookanswers.status(Status.DEADLINE_EXCEEDED))]
)
async def test_late_answer_is_deadline(client: HookClient, server: HookServer, late: hookanswers.Answer) -> None:
    """An early DEADLINE_EXCEEDED is an answer: the server's own work for one pod was late."""
    server.default = late
    assert (await failing(client, seconds=0.25)).reason is Reason.DEADLINE
    server.default = hookanswers.garbage()
    assert (await failing(client)).reason is Reason.BAD_ANSWER
    server.default = server.crash_mid_answer()
    assert (await failing(client)).reason is Reason.BROKEN_ANSWER
    server.default = hookanswers.empty()
    assert await fetch(client) == HookAnswer()


async def test_unencodable_request_is_internal_failure(client: HookClient, server: HookServer) -> None:
    odd = HookRequest(POD, ContainerInfo(resources=Resources(cpu_quota=2**63)))
    error = await failing(client, odd)
    assert error.reason is Reason.INTERNAL
    assert str(2**63) not in str(error)


async def test_socket_others_could_replace_is_not_dialled(client: HookClient, server: HookServer, path: str) -> None:
    folder = Path(path).parent
    folder.chmod(0o777)
    error = await failing(client)
    assert error.reason is Reason.UNTRUSTED_SOCKET
    assert error.detail.startswith(f"{folder} can be written by everybody")
    assert (client.peer().socket, server.calls) == (None, [])
    folder.chmod(0o755)
    assert await fetch(client) == HookAnswer()


async def test_longer_answer_is_accepted_below_raised_limit(server: HookServer, path: str) -> None:
    server.default = hookanswers.huge(9 << 20)
    client = HookClient("plugin", path, max_answer_bytes=10 << 20)
    assert len((await fetch(client)).annotations["huge"]) == 9 << 20
    await client.close()


async def test_close_waits_for_calls_and_serves_later_ones(client: HookClient, server: HookServer) -> None:
    server.default = hookanswers.after(0.1)
    call = asyncio.create_task(fetch(client))
    await server.wait_for_calls(POINT.name)
    await client.close()
    assert await call == HookAnswer()
    assert await fetch(client) == HookAnswer()
    assert server.faults is not None
    connections = server.faults.connections
    assert len(connections) == 2
    await until(lambda: all(connection.client_half_closed for connection in connections))


def no_answer(path: str) -> HookServer:
    """Accept all calls, and answer none."""
    server = HookServer(path)
    server.default = hookanswers.hang()
    return server


def no_room(path: str) -> Server:
    """Accept one call at a time, and answer none."""
    return Server(path, {http2.MAX_CONCURRENT_STREAMS: 1})


@pytest.mark.parametrize("waiting", [no_answer, full_backlog, no_room])
async def test_abandoned_client_fails_present_and_later_calls(
    client: HookClient, path: str, waiting: Callable[[str], AbstractAsyncContextManager[object]]
) -> None:
    async with waiting(path):
        calls = [asyncio.create_task(failing(client)) for _ in range(3)]
        await asyncio.sleep(0.05)
        client.abandon()
        async with asyncio.timeout(LONG_SECONDS / 2):
            errors = [*[await call for call in calls], await failing(client)]
        assert {(error.reason, error.detail) for error in errors} == {(Reason.DISABLED, "it was disabled meanwhile")}
