"""What one client of the control protocol can cost the others: each bound against a hostile client."""

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.admin import server
from runtimeproxy.admin.protocol import REQUEST_BYTES, Part, line, request
from runtimeproxy.admin.server import CONNECTIONS, Method
from runtimeproxy.observe.events import EventKind
from tests.admin.proxy import Proxy
from tests.admin.site import Site, next_line, parts, rest
from tests.patience import SECONDS, until

OK = [{"id": 1, "end": {"schemaVersion": 1}}]
PART_SIZE = 10_000


class Endless:
    """A method whose answer has no end; ``made`` counts its parts."""

    def __init__(self) -> None:
        self.made = 0

    def parts(self, params: Mapping[str, Any]) -> Iterator[Part]:
        while True:
            self.made += 1
            yield {"text": "n" * PART_SIZE}


def silent_method(params: Mapping[str, Any]) -> Iterator[Part | None]:
    while True:
        yield None


ENDLESS = Endless()
METHODS = {"none": parts(public=True), "endless": Method(ENDLESS.parts), "silent": Method(silent_method)}


@contextmanager
def each_iteration(look: Callable[[], object]) -> Iterator[None]:
    """Call a function in each iteration of the event loop."""
    loop, running = asyncio.get_running_loop(), [True]

    def again() -> None:
        if running[0]:
            look()
            loop.call_soon(again)

    again()
    yield
    running[0] = False


# -- clients that stop, send too much or do not read -----------------------------------------------------------------

STOPS = {
    "sends nothing": b"",
    "within a line": request("none", {})[:-5],
    "after an answer": request("none", {}),
    "within the next line": request("none", {}) + b"{",
    "never reads": request("endless", {}),
    "never reads errors": b"\n" * REQUEST_BYTES,
}


@pytest.mark.parametrize("sent", STOPS.values(), ids=STOPS)
async def test_client_that_stops_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "SILENT_SECONDS", 0.05)
    async with Site(tmp_path, METHODS) as site:
        with site.connect() as client:
            await asyncio.get_running_loop().sock_sendall(client, sent)
            await site.ended()
        assert await site.call("none") == OK
    assert caplog.records == []


async def test_client_that_goes_on_is_not_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SILENT_SECONDS", SECONDS)
    async with Site(tmp_path, METHODS) as site:
        with site.connect() as client:
            for octet in request("none", {}):
                await asyncio.get_running_loop().sock_sendall(client, bytes([octet]))
                await asyncio.sleep(0)
            assert await next_line(client, bytearray()) == OK[0]


async def test_client_that_sends_a_line_slowly_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SILENT_SECONDS", 0.2)
    async with Site(tmp_path, METHODS) as site, asyncio.timeout(SECONDS):
        with site.connect() as client:
            client.send(request("none", {}))
            assert await next_line(client, bytearray()) == OK[0]
            with suppress(ConnectionError):
                while True:
                    client.send(b"{")
                    await asyncio.sleep(server.SILENT_SECONDS / 10)
            assert not site.server.clients


async def test_client_that_waits_for_its_answer_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SILENT_SECONDS", 0.01)
    monkeypatch.setattr(server, "POLL_SECONDS", 0.001)
    polls = 0

    def late(params: Mapping[str, Any]) -> Iterator[Part | None]:
        nonlocal polls
        began = asyncio.get_running_loop().time()
        while polls < 50 or asyncio.get_running_loop().time() < began + 0.05:
            polls += 1
            yield None

    async with Site(tmp_path, {"late": Method(late)}) as site:
        assert await site.call("late") == OK


async def test_answer_that_is_not_read_costs_no_memory(tmp_path: Path) -> None:
    ENDLESS.made = 0
    async with Site(tmp_path, METHODS) as site:
        with site.connect() as client:
            client.send(request("endless", {}) * 3)
            made = -1
            while made != ENDLESS.made or not made:
                made = ENDLESS.made
                for _ in range(50):
                    await asyncio.sleep(0)
            assert await site.call("none") == OK
    assert 0 < ENDLESS.made * PART_SIZE < 1 << 20


@pytest.mark.parametrize("newline", [b"", b"\n"])
async def test_long_request_is_refused_and_costs_no_memory(tmp_path: Path, newline: bytes) -> None:
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, *(len(client.received) for client in site.server.clients), 0)

    text = f"a request has {REQUEST_BYTES} bytes at most"
    async with Site(tmp_path, METHODS) as site:
        with each_iteration(look):
            found = await site.send(b"n" * (1 << 20) + newline)
        assert found == [{"id": None, "error": {"status": 400, "text": text}}]
        assert await site.call("none") == OK
    assert most <= 2 * REQUEST_BYTES


@pytest.mark.parametrize(("size", "refused"), [(REQUEST_BYTES, False), (REQUEST_BYTES + 1, True)])
async def test_request_has_a_longest_line(tmp_path: Path, size: int, refused: bool) -> None:
    octets = line(id="", method="none")[:-1]
    octets += b" " * (size - len(octets)) + b"\n"
    async with Site(tmp_path, METHODS) as site:
        (found,) = await site.send(octets)
    assert ("error" in found) is refused


async def test_client_that_leaves_in_its_answer_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for method in ("endless", "silent"):
        (folder := tmp_path / method).mkdir()
        async with Site(folder, METHODS) as site:
            with site.connect() as client:
                client.send(request(method, {}))
                await until(lambda: any(client.requested for client in site.server.clients))
            await until(lambda: not site.server.clients)
    assert caplog.records == []


# -- many clients ----------------------------------------------------------------------------------------------------


async def test_hundred_clients_at_one_time_are_answered(tmp_path: Path) -> None:
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, len(site.server.clients))

    async with Site(tmp_path, METHODS) as site:
        with each_iteration(look):
            found = await asyncio.gather(*(site.call("none") for _ in range(100)))
    assert found == [OK] * 100
    assert 1 < most <= CONNECTIONS


async def test_silent_connections_lose_their_places(tmp_path: Path) -> None:
    async with Site(tmp_path, METHODS) as site:
        with ExitStack() as stack:
            used = stack.enter_context(site.connect())
            used.send(request("none", {}))
            assert await next_line(used, bytearray()) == OK[0]
            for number in range(3 * CONNECTIONS):
                client = stack.enter_context(site.connect())
                client.send(b"{" if number % 2 else b"")
            assert await site.call("none") == OK
            assert len(site.server.clients) <= CONNECTIONS
            used.send(request("none", {}))  # a connection that was used keeps its place
            assert await next_line(used, bytearray()) == OK[0]


async def test_silent_connections_stay_while_places_are_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.0)
    async with Site(tmp_path, METHODS) as site:
        with ExitStack() as stack:
            clients = [stack.enter_context(site.connect()) for _ in range(CONNECTIONS - 2)]
            await until(lambda: len(site.server.clients) == CONNECTIONS - 2)
            assert await site.call("none") == OK
            clients[0].send(request("none", {}))
            assert await next_line(clients[0], bytearray()) == OK[0]


async def test_client_waits_while_all_places_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Site(tmp_path, METHODS) as site:
        with ExitStack() as stack:
            clients = [stack.enter_context(site.connect()) for _ in range(CONNECTIONS)]
            for client in clients:
                client.send(request("none", {}))
                await next_line(client, bytearray())
            monkeypatch.setattr(server, "REQUEST_SECONDS", 0.0)
            late = asyncio.create_task(site.call("none"))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not late.done()
            clients[0].close()
            assert await late == OK


async def test_no_descriptor_left_pauses_accepting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PAUSE_SECONDS", 0.01)
    left, accept = [2], socket.socket.accept

    def failing(listener: socket.socket) -> tuple[socket.socket, object]:
        if left[0]:
            left[0] -= 1
            raise OSError(24, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    async with Site(tmp_path, METHODS) as site:
        assert [await site.call("none") for _ in range(3)] == [OK] * 3
    assert left == [0]


@pytest.mark.parametrize("count", [0, 1, CONNECTIONS, 2 * CONNECTIONS])
async def test_stop_closes_all_connections(tmp_path: Path, count: int) -> None:
    async with Site(tmp_path, METHODS) as site:
        with ExitStack() as stack:
            clients = [stack.enter_context(site.connect()) for _ in range(count)]
            for number, client in enumerate(clients):
                client.send((b"", b"{", request("silent", {}), request("endless", {}))[number % 4])
            await until(lambda: len(site.server.clients) == min(count, CONNECTIONS))
            await site.server.stop()
            assert not site.server.clients


@pytest.mark.parametrize("iterations", range(6))
async def test_stop_closes_a_connection_just_accepted(tmp_path: Path, iterations: int) -> None:
    async with Site(tmp_path, METHODS) as site:
        await asyncio.sleep(0)
        client = site.connect()
        for _ in range(iterations):
            await asyncio.sleep(0)
    with client:
        assert await rest(client) == []


# -- the event loop --------------------------------------------------------------------------------------------------


async def test_iteration_makes_one_part_of_all_clients(tmp_path: Path) -> None:
    made, worst, total = 0, 0, 0

    def thirty(params: Mapping[str, Any]) -> Iterator[Part]:
        nonlocal made, total
        for _ in range(30):
            made += 1
            total += 1
            yield {}

    def look() -> None:
        nonlocal made, worst
        worst, made = max(worst, made), 0

    making = asyncio.Lock()
    for name in "ab":
        (tmp_path / name).mkdir()
    async with (
        Site(tmp_path / "a", {"thirty": Method(thirty)}, making=making) as site,
        Site(tmp_path / "b", {"thirty": Method(thirty, public=True)}, making=making, public=True) as metrics,
    ):
        with each_iteration(look):
            await asyncio.gather(*(each.call("thirty") for each in (site, metrics) for _ in range(10)))
    assert (worst, total) == (1, 600)


async def test_iteration_reads_one_request_of_all_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, worst, read = 0, 0, server._read

    def counted(octets: bytes) -> tuple[Any, str, Any]:
        nonlocal made
        made += 1
        return read(octets)

    def look() -> None:
        nonlocal made, worst
        worst, made = max(worst, made), 0

    monkeypatch.setattr(server, "_read", counted)
    async with Site(tmp_path, METHODS) as site:
        with each_iteration(look):
            found = await asyncio.gather(*(site.send(b"\n" * 200) for _ in range(10)))
    assert [len(each) for each in found] == [200] * 10
    assert worst == 1


async def test_follower_that_does_not_read_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(server, "SILENT_SECONDS", 0.05)
    proxy = Proxy()
    async with Site(tmp_path, proxy.methods) as site:
        with site.connect() as follower:
            follower.send(request("events", {"follow": True}))
            await until(lambda: site.server.clients)
            while site.server.clients:
                proxy.metrics.events.add(EventKind.RUNTIME_LOST, text="n" * 100)
                await asyncio.sleep(0)
