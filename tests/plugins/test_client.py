"""The client of a hook server: what it tells, what it takes, and the reason of every failure."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from runtimeproxy.errors import HookError, Reason
from runtimeproxy.hookapi import api_pb2
from runtimeproxy.hookpoints import BY_NAME, HOOK_POINTS, HookPoint, SubjectKind
from runtimeproxy.model import ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources
from runtimeproxy.plugins.client import HookClient
from runtimeproxy.wire import http2
from tests.fakes import hookanswers
from tests.fakes.descriptors import no_descriptors
from tests.fakes.hookserver import HookServer
from tests.relay.peers import Peer

POD = PodInfo(id="p1", name="pod", uid="u1", namespace="ns", attempt=2, labels={"l": "1"}, annotations={"a": "1"})
CONTAINER = ContainerInfo(
    id="c1", pod_id="p1", name="container", annotations={"b": "2"}, resources=Resources(cpu_shares=512), envs={"E": "3"}
)
POINT = BY_NAME["PreCreateContainer"]
LONG_SECONDS = 10.0


def request(point: HookPoint) -> HookRequest:
    return HookRequest(POD, CONTAINER if point.subject is SubjectKind.CONTAINER else None)


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


async def failing(client: HookClient, seconds: float = LONG_SECONDS) -> HookError:
    with pytest.raises(HookError) as raised:
        await client.call(POINT, request(POINT), seconds)
    assert (raised.value.plugin, raised.value.hook) == ("plugin", POINT.name)
    return raised.value


@pytest.mark.parametrize("point", HOOK_POINTS, ids=lambda point: point.name)
async def test_every_hook_point_is_told_and_answers(client: HookClient, server: HookServer, point: HookPoint) -> None:
    server.default = hookanswers.echo()
    answer = await client.call(point, request(point), LONG_SECONDS)
    (call,) = server.calls
    assert call.point is point
    assert call.request.pod_meta == api_pb2.PodSandboxMetadata(name="pod", uid="u1", namespace="ns", attempt=2)
    if point.subject is SubjectKind.POD:
        assert answer == HookAnswer(labels={"l": "1"}, annotations={"a": "1"})
    else:
        assert call.request.container_meta == api_pb2.ContainerMetadata(name="container", id="c1")
        assert answer == HookAnswer(annotations={"b": "2"}, envs={"E": "3"}, resources=Resources(cpu_shares=512))


async def test_an_empty_answer(client: HookClient, server: HookServer) -> None:
    assert await client.call(POINT, request(POINT), LONG_SECONDS) == HookAnswer()


async def test_nobody_there(client: HookClient, path: str) -> None:
    error = await failing(client)
    assert error.reason is Reason.UNREACHABLE
    assert error.detail == f"{path}: No such file or directory"


async def test_a_want_of_descriptors_is_our_own_failure(client: HookClient, server: HookServer) -> None:
    with no_descriptors():
        error = await failing(client, 0.05)
    assert error.reason is Reason.INTERNAL
    assert error.detail == "the proxy itself lacks what it needs: Too many open files"
    assert (await client.call(POINT, request(POINT), LONG_SECONDS)) == HookAnswer()


async def test_a_hook_server_that_hangs(client: HookClient, server: HookServer) -> None:
    server.default = hookanswers.hang()
    assert (await failing(client, 0.1)).reason is Reason.DEADLINE
    server.default = hookanswers.empty()
    assert await client.call(POINT, request(POINT), LONG_SECONDS) == HookAnswer()


async def test_a_hook_server_whose_own_work_is_late_answers_all_the_same(
    client: HookClient, server: HookServer
) -> None:
    """It may say so at once, of one pod: only what takes the time of the call is a hang."""
    server.default = hookanswers.status(grpc.StatusCode.DEADLINE_EXCEEDED, "SECRET=canary")
    error = await failing(client)
    assert (error.reason, error.detail) == (Reason.ERROR_STATUS, "gRPC status 4")
    assert "canary" not in error.logged
    server.default = hookanswers.after(0.15, server.default)
    assert (await failing(client, 0.25)).reason is Reason.DEADLINE


@pytest.mark.parametrize("by", ["reset", "goaway"])
async def test_a_hook_server_that_sends_every_call_back_costs_the_time_of_one_that_hangs(path: str, by: str) -> None:
    async with Peer(path) as peer:
        client = HookClient("plugin", path)
        asked = asyncio.ensure_future(failing(client, 0.2))
        connection = await peer.connection()
        times = 0
        while not asked.done():
            try:
                async with asyncio.timeout(0.3):
                    stream = await connection.request()
                    times += 1
                    if by == "reset":
                        connection.send(http2.rst_stream(stream, http2.REFUSED_STREAM))
                    else:
                        connection.send(http2.goaway(0, 0))
                        connection = await peer.connection()
            except (TimeoutError, EOFError):
                break
        assert (await asked).reason is Reason.DEADLINE
        assert 2 < times < 10, "each pause is twice as long as the one before"
        await client.close()


async def test_a_refusal_comes_with_its_text(client: HookClient, server: HookServer) -> None:
    server.default = hookanswers.status(grpc.StatusCode.PERMISSION_DENIED, "not on this node")
    error = await failing(client)
    assert (error.reason, error.detail, error.said) == (Reason.REFUSED, "", "not on this node")


async def test_the_text_of_another_error_status_is_for_the_caller_only(client: HookClient, server: HookServer) -> None:
    server.default = hookanswers.status(grpc.StatusCode.INTERNAL, "could not handle env SECRET=canary")
    error = await failing(client)
    assert (error.reason, error.detail) == (Reason.ERROR_STATUS, "gRPC status 13")
    assert str(error).endswith(": error_status: gRPC status 13: could not handle env SECRET=canary")
    assert error.logged.endswith(": error_status: gRPC status 13")


async def test_the_text_of_an_error_status_has_a_length(client: HookClient, server: HookServer) -> None:
    server.default = hookanswers.status(grpc.StatusCode.UNKNOWN, "x" * 5000)
    assert (await failing(client)).said == "x" * 2048


async def test_a_method_that_the_hook_server_lacks(client: HookClient, server: HookServer) -> None:
    server.default = hookanswers.status(grpc.StatusCode.UNIMPLEMENTED, "env SECRET=canary")
    error = await failing(client)
    assert error.reason is Reason.UNIMPLEMENTED
    assert error.detail.startswith("the server does not serve this hook point; take it out of the registration, or")
    assert "canary" not in str(error)


async def test_a_socket_that_others_could_replace_is_not_dialled(
    client: HookClient, server: HookServer, path: str
) -> None:
    folder = Path(path).parent
    folder.chmod(0o777)
    error = await failing(client)
    assert error.reason is Reason.UNTRUSTED_SOCKET
    assert error.detail == (
        f"{folder} can be written by everybody, who could replace the socket: chown it to root and chmod it to 0755"
    )
    assert (client.peer().socket, server.calls) == (None, [])
    folder.chmod(0o755)
    assert await client.call(POINT, request(POINT), LONG_SECONDS) == HookAnswer()


async def test_who_is_at_the_socket(client: HookClient, path: str) -> None:
    assert client.peer().socket is None
    async with HookServer(path):
        there = client.peer()
        await client.call(POINT, request(POINT), LONG_SECONDS)
        assert client.peer() == there
    assert there.socket is not None


async def test_a_message_that_is_none(client: HookClient, server: HookServer) -> None:
    server.default = hookanswers.garbage()
    assert (await failing(client)).reason is Reason.BAD_ANSWER


async def test_an_answer_that_is_too_long(client: HookClient, server: HookServer) -> None:
    server.default = hookanswers.huge()
    error = await failing(client)
    advice = "the answer is longer than 4194304 bytes; let it answer less, or raise --hook-answer-limit"
    assert (error.reason, error.detail) == (Reason.BAD_ANSWER, advice)


async def test_a_longer_answer_is_taken_where_that_is_allowed(server: HookServer, path: str) -> None:
    server.default = hookanswers.huge(9 << 20)
    client = HookClient("plugin", path, max_answer_bytes=10 << 20)
    try:
        answer = await client.call(POINT, request(POINT), LONG_SECONDS)
        assert len(answer.annotations["huge"]) == 9 << 20
    finally:
        await client.close()


async def test_a_hook_server_that_crashes_in_its_answer(client: HookClient, server: HookServer) -> None:
    server.default = server.crash_mid_answer()
    assert (await failing(client)).reason is Reason.BROKEN_ANSWER


async def test_a_request_that_does_not_fit_into_the_message(client: HookClient, server: HookServer) -> None:
    odd = HookRequest(POD, ContainerInfo(resources=Resources(cpu_quota=2**63)))
    with pytest.raises(HookError) as raised:
        await client.call(POINT, odd, LONG_SECONDS)
    assert raised.value.reason is Reason.INTERNAL
    assert str(2**63) not in str(raised.value)


async def test_close_lets_calls_in_flight_end_and_serves_late_callers(client: HookClient, server: HookServer) -> None:
    server.default = hookanswers.after(0.1)
    call = asyncio.create_task(client.call(POINT, request(POINT), LONG_SECONDS))
    await server.wait_for_calls(POINT.name)
    await client.close()
    assert await call == HookAnswer()
    assert await client.call(POINT, request(POINT), LONG_SECONDS) == HookAnswer()
    assert server.faults is not None
    assert len(server.faults.connections) == 2
    async with asyncio.timeout(20):
        while not all(connection.client_half_closed for connection in server.faults.connections):
            await asyncio.sleep(0.01)
