"""The client of a hook server: what it sends and accepts; its breaker (fault matrix H10); its absence."""

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
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.plugins.client import Breaker, BreakerState, HookClient
from runtimeproxy.plugins.reach import CHECK_SECONDS, PER_ITERATION, Absence, Reach
from runtimeproxy.relay.rpc.connection import CallFailed, Kind, Shortage, TooLong, Unprocessed
from runtimeproxy.wire import http2
from tests.fakes import hookanswers
from tests.fakes.clock import virtual_time
from tests.fakes.faults import full_backlog
from tests.fakes.hookserver import HookServer
from tests.fakes.plugins import FAIL, FakePlugins
from tests.observe.events import shown_of
from tests.patience import until
from tests.relay.rpc.test_connection import Server

Patch = pytest.MonkeyPatch
Log = pytest.LogCaptureFixture
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
    made = HookClient("plugin", path, max_answer_bytes=10 << 20)
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
    server.default = hookanswers.echo()
    answer = await fetch(client)
    (call,) = server.calls
    assert call.point is POINT
    assert call.request.pod_meta == api_pb2.PodSandboxMetadata(name="pod", uid="u1", namespace="ns", attempt=2)
    assert call.request.container_meta == api_pb2.ContainerMetadata(name="container", id="c1")
    assert answer == HookAnswer(annotations={"b": "2"}, envs={"E": "3"}, resources=Resources(cpu_shares=512))
    server.default = hookanswers.huge(9 << 20)
    assert len((await fetch(client)).annotations["huge"]) == 9 << 20, "it is below the raised limit"
    error = await failing(client, HookRequest(POD, ContainerInfo(resources=Resources(cpu_quota=2**63))))
    assert error.reason is Reason.INTERNAL, "it cannot be encoded"
    assert str(2**63) not in str(error)


TOO_LONG = "the answer is longer than 7 bytes; let it answer less, or raise --hook-answer-limit"
NOT_SERVED = "the server does not serve this hook point; take it out of the registration, or update the server"
REFUSED = "the server refused every try until the time was over"
Failure = tuple[Exception, Reason, str, str]
FAILURES: list[Failure] = [
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


@pytest.mark.parametrize("row", FAILURES, ids=lambda row: str(row[0])[:40])
async def test_text_of_failed_call_is_never_logged(client: HookClient, row: Failure, monkeypatch: Patch) -> None:
    failure, *expected = row

    async def fail(*_: object) -> bytes:
        raise failure

    monkeypatch.setattr(client._unary, "call", fail)
    error = await failing(client)
    assert [error.reason, error.detail, error.peer_text] == expected
    assert "canary" not in error.logged
    assert str(error) == error.logged + (f": {error.peer_text}" if error.peer_text else "")


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


async def test_socket_others_could_replace_is_not_dialled(client: HookClient, server: HookServer, path: str) -> None:
    folder = Path(path).parent
    folder.chmod(0o777)
    error = await failing(client)
    assert error.reason is Reason.UNTRUSTED_SOCKET
    assert error.detail.startswith(f"{folder} can be written by everybody")
    assert (client.peer().socket, server.calls) == (None, [])
    folder.chmod(0o755)
    assert await fetch(client) == HookAnswer()


async def test_close_waits_for_calls_and_serves_later_ones(client: HookClient, server: HookServer) -> None:
    server.default = hookanswers.after(0.1)
    call = asyncio.create_task(fetch(client))
    await server.wait_for_calls(POINT.name)
    await client.close()
    assert await call == HookAnswer()
    assert await fetch(client) == HookAnswer()
    assert server.faults is not None
    connections = server.faults.connections
    await until(lambda: [connection.client_half_closed for connection in connections] == [True, True])


Waiting = Callable[[str], AbstractAsyncContextManager[object]]


def no_answer(path: str) -> HookServer:
    server = HookServer(path)
    server.default = hookanswers.hang()
    return server


def no_room(path: str) -> Server:
    return Server(path, {http2.MAX_CONCURRENT_STREAMS: 1})


@pytest.mark.parametrize("waiting", [no_answer, full_backlog, no_room])
async def test_abandoned_client_fails_all_calls(client: HookClient, path: str, waiting: Waiting) -> None:
    async with waiting(path):
        calls = [asyncio.create_task(failing(client)) for _ in range(3)]
        await asyncio.sleep(0.05)
        client.abandon()
        async with asyncio.timeout(LONG_SECONDS / 2):
            errors = [*[await call for call in calls], await failing(client)]
        assert {(error.reason, error.detail) for error in errors} == {(Reason.DISABLED, "it was disabled meanwhile")}


COUNTED = (Reason.DEADLINE, Reason.BROKEN_ANSWER)
CLOSING = (None, Reason.REFUSED, Reason.UNIMPLEMENTED, Reason.ERROR_STATUS, Reason.BAD_ANSWER)
NEUTRAL = tuple(reason for reason in Reason if reason not in {*COUNTED, *CLOSING})
START = 1000.0
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def attempt(breaker: Breaker, reason: Reason | None, now: float = START) -> bool:
    number = breaker.admit("a socket", now)
    if number is not None:
        breaker.end(number, reason, now)
    return number is not None


def test_openings_grow_up_to_five_minutes() -> None:
    """They begin after consecutive failures, which only an answer resets."""
    for reason, more in [*((reason, 5) for reason in CLOSING), *((reason, 1) for reason in NEUTRAL)]:
        breaker = Breaker()
        for ended in [*[Reason.DEADLINE] * 4, reason, *[Reason.BROKEN_ANSWER] * more]:
            assert breaker.state is CLOSED
            assert attempt(breaker, ended)
        assert breaker.state is OPEN
    breaker, now, waited = Breaker(), START, []
    assert [attempt(breaker, Reason.DEADLINE) for _ in range(6)] == [True] * 5 + [False]
    for _ in range(12):
        waited.append(breaker.seconds)
        now += breaker.seconds
        assert (breaker.remaining_seconds(now - 1), attempt(breaker, None, now - 1)) == (1.0, False)
        assert attempt(breaker, Reason.DEADLINE, now)
        assert not attempt(breaker, None, now)
    assert waited == [30, 60, 90, 120, 150, 180, 210, 240, 270, 300, 300, 300]
    assert attempt(breaker, None, now + 300)
    for _ in range(5):
        attempt(breaker, Reason.DEADLINE, now + 300)
    assert (breaker.seconds, breaker.remaining_seconds(now + 301), breaker.remaining_seconds(now + 999)) == (30, 29, 0)


Step = tuple[str, object, float, object]
"""Admit an attempt at a server, or end the oldest one, at a time; whether it was admitted, or the state."""
TRY, FAILED = START + 30, Reason.DEADLINE
BEGUN, ELSEWHERE = ("admit", "a socket", START, True), ("admit", "another", START, True)
TRIED, NOT_TRIED = ("admit", "a socket", TRY, True), ("admit", "a socket", TRY, False)
FAILS, OPENS = ("end", FAILED, START, CLOSED), ("end", FAILED, START, OPEN)
OPENED: list[Step] = [*[BEGUN, FAILS] * 4, BEGUN, OPENS]
EARLY, LATE = ("admit", "a socket", START + 29, False), ("end", None, START, OPEN)
NOT_ELSEWHERE, ANSWERS = ("admit", "another", START, False), ("end", None, START, CLOSED)
OVERLAPPING: dict[str, list[Step]] = {
    "one attempt at a time is a trial": [*OPENED, TRIED, NOT_TRIED, ("end", FAILED, TRY, OPEN)],
    "another follows one without a counted result": [*OPENED, TRIED, ("end", NEUTRAL[0], TRY, HALF_OPEN), TRIED],
    "an answer to the trial closes it": [*OPENED, TRIED, ("end", None, TRY, CLOSED), TRIED],
    "another server at the socket is tried immediately": [*OPENED, ELSEWHERE, NOT_ELSEWHERE, ANSWERS],
    "attempts from before the opening do not count": [*[BEGUN] * 7, *[FAILS] * 4, *[OPENS] * 3, EARLY],
    "a late answer to such an attempt does not close it": [*[BEGUN] * 6, *[FAILS] * 4, OPENS, LATE],
    "attempts at a server that was replaced do not count": [*[BEGUN] * 5, ELSEWHERE, *[FAILS] * 6],
    "failures in a row are of one server": [*[BEGUN, FAILS] * 4, *[ELSEWHERE, FAILS] * 4, ELSEWHERE, OPENS],
}


@pytest.mark.parametrize("steps", OVERLAPPING.values(), ids=OVERLAPPING)
def test_attempts_may_overlap(steps: list[Step]) -> None:
    breaker, running = Breaker(), []
    for action, what, now, expected in steps:
        if action == "admit":
            number = breaker.admit(what, now)
            assert (number is not None) is expected
            running += [] if number is None else [number]
        else:
            breaker.end(running.pop(0), what, now)  # type: ignore[arg-type]
            assert breaker.state is expected


ABSENT = "/run/a.sock: No such file or directory"


@virtual_time
async def test_absence_starts_at_first_of_two_failed_checks(caplog: Log) -> None:
    """It and its end are reported once."""
    caplog.set_level("INFO")
    loop, plugins = asyncio.get_running_loop(), FakePlugins()
    clients = {"a": plugins.add("a"), "b": plugins.add("b", policy=FAIL)}
    metrics = Metrics(loop.time, "containerd")
    reach = Reach(loop, lambda: tuple(plugins.plugins), metrics)
    reach.start()

    async def after_check(*absent: str, why: str = ABSENT) -> dict[str, Absence]:
        """Return the absences after the next check, with these plugins absent."""
        for name, client in clients.items():
            client.absent = why if name in absent else ""
        await asyncio.sleep(CHECK_SECONDS)
        return dict(reach.absences)

    assert await after_check("a") == {}
    assert await after_check("a", "b") == {"a": Absence(1.0, ABSENT)}
    assert metrics.gauges["hook_unreachable", ("a",)] == 1
    for _ in range(2):
        assert (await after_check("b", why="?"))["b"] == Absence(2.0, "?")
    assert metrics.gauges["hook_unreachable", ("a",)] == 0
    ignored, back, failing = caplog.messages
    to_do = "start it, or correct remote-endpoint (a path on the node, not one inside a pod), or remove the file"
    assert ignored == f"a.json: hook server unreachable: {ABSENT}; calls pass without it (policy Ignore): {to_do}"
    assert back == "a.json: hook server reachable after 2 s"
    assert failing == f"b.json: hook server unreachable: ?; its calls are refused (policy Fail): {to_do}"
    events = [(event["kind"], event["hookServer"], event.get("text")) for event in shown_of(metrics.events)]
    lost = [("plugin_unreachable", "a", ABSENT), ("plugin_unreachable", "b", "?")]
    assert events == [lost[0], ("plugin_reachable", "a", None), lost[1]]
    assert await after_check("a") == {}
    assert await after_check() == {}, "it was absent at one check"
    assert await after_check("a") == {}
    del plugins.plugins[0]
    assert await after_check("a", "b") == {}
    reach.stop()
    assert await after_check("b") == {}, "b was absent at one check"


@virtual_time
async def test_many_plugins_are_checked_in_batches() -> None:
    loop, plugins = asyncio.get_running_loop(), FakePlugins()
    for number in range(2 * PER_ITERATION + 1):
        plugins.add(f"{number:03}")
    metrics = Metrics(loop.time, "containerd")
    Reach(loop, lambda: tuple(plugins.plugins), metrics).start()
    for count in (PER_ITERATION, 2 * PER_ITERATION, 2 * PER_ITERATION + 1):
        assert len(metrics.gauges) == count
        await asyncio.sleep(0)
