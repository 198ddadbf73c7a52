"""What one client of the control protocol can cost the others: each bound against a hostile client."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.admin import server
from runtimeproxy.admin.protocol import REQUEST_BYTES, Part, line, request
from runtimeproxy.admin.server import CONNECTIONS, Method
from tests.admin.site import Site, next_line, parts, rest
from tests.patience import SECONDS, until

OK = {"id": 1, "end": {"schemaVersion": 1}}
NONE, ENDLESS, SILENT, THIRTY = (request(method, {}) for method in ("none", "endless", "silent", "thirty"))
PART_SIZE = 10_000
made = [0]
"""The number of parts of endless answers."""


def endless(params: Mapping[str, Any]) -> Iterator[Part]:
    while True:
        made[0] += 1
        yield {"text": "n" * PART_SIZE}


def silent(params: Mapping[str, Any]) -> Iterator[Part | None]:
    while True:
        yield None


METHODS = {"none": parts(public=True), "endless": Method(endless), "silent": Method(silent)}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with Site(tmp_path, METHODS) as site:
        yield site


@contextmanager
def maximum(measure: Callable[[], int]) -> Iterator[list[int]]:
    """Yield a list of one number, the maximum of a measure over the iterations of the event loop."""
    loop, found = asyncio.get_running_loop(), [0]

    def measure_again() -> None:
        nonlocal handle
        found[0] = max(found[0], measure())
        handle = loop.call_soon(measure_again)

    handle = loop.call_soon(measure_again)
    yield found
    handle.cancel()


class Counter:
    def __init__(self) -> None:
        self.total = self._taken = 0

    def take(self) -> int:
        """Return the count since the last call."""
        found, self._taken = self.total - self._taken, self.total
        return found


STOPS = {
    "sends nothing": b"",
    "within the next line": NONE + b"{",
    "never reads": ENDLESS,
    "never reads errors": b"\n" * REQUEST_BYTES,
}


@pytest.mark.parametrize("sent", STOPS.values(), ids=STOPS)
async def test_client_that_stops_is_closed(
    site: Site, monkeypatch: pytest.MonkeyPatch, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "SILENT_SECONDS", 0.05)
    with site.connect() as client:
        await asyncio.get_running_loop().sock_sendall(client, sent)
        await until(lambda: site.server.clients)
        await until(lambda: not site.server.clients)
    assert await site.call("none") == [OK]
    assert caplog.records == []


@pytest.mark.parametrize("sent", [ENDLESS, SILENT])
async def test_client_that_leaves_in_its_answer_is_closed(
    site: Site, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with site.connect(sent):
        await until(lambda: any(client.requested for client in site.server.clients))
    await until(lambda: not site.server.clients)
    assert caplog.records == []


async def test_client_that_sends_a_line_slowly_is_closed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SILENT_SECONDS", 0.2)
    with site.connect(NONE) as client:
        assert await next_line(client) == OK
        async with asyncio.timeout(SECONDS):
            with suppress(ConnectionError):
                while True:
                    client.send(b"{")
                    await asyncio.sleep(server.SILENT_SECONDS / 10)
        assert not site.server.clients


async def test_client_may_wait_long_for_its_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SILENT_SECONDS", 0.01)
    monkeypatch.setattr(server, "POLL_SECONDS", 0.001)

    def late(params: Mapping[str, Any]) -> Iterator[Part | None]:
        due = asyncio.get_running_loop().time() + 0.05
        for polls in count():
            if polls >= 50 and asyncio.get_running_loop().time() >= due:
                return
            yield None

    async with Site(tmp_path, {"late": Method(late)}) as site:
        assert await site.call("late") == [OK]


async def test_unread_answer_costs_no_memory(site: Site) -> None:
    made[0], before = 0, -1
    with site.connect(ENDLESS * 3):
        while before != made[0] or not before:
            before = made[0]
            for _ in range(50):
                await asyncio.sleep(0)
        assert await site.call("none") == [OK]
    assert 0 < made[0] * PART_SIZE < 1 << 20


async def test_long_request_is_refused_and_costs_no_memory(site: Site) -> None:
    with maximum(lambda: max((len(client.received) for client in site.server.clients), default=0)) as most:
        found = await site.send(b"n" * (1 << 20))
    text = f"a request has {REQUEST_BYTES} bytes at most"
    assert found == [{"id": None, "error": {"status": 400, "text": text}}]
    assert most[0] <= 2 * REQUEST_BYTES
    for size in (REQUEST_BYTES, REQUEST_BYTES + 1):
        (answer,) = await site.send(line(id="", method="none")[:-1].ljust(size) + b"\n")
        assert ("error" in answer) == (size > REQUEST_BYTES)


async def test_silent_connections_lose_their_places(site: Site) -> None:
    with ExitStack() as stack:
        used = stack.enter_context(site.connect(NONE))
        assert await next_line(used) == OK
        for number in range(3 * CONNECTIONS):
            stack.enter_context(site.connect(b"{" if number % 2 else b""))
        assert await site.call("none") == [OK]
        assert len(site.server.clients) <= CONNECTIONS
        used.send(NONE)  # a connection that was used keeps its place
        assert await next_line(used) == OK


async def test_lack_of_descriptors_pauses_accepting(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PAUSE_SECONDS", 0.01)
    errors, accept = [OSError(24, "Too many open files")] * 2, socket.socket.accept

    def failing(listener: socket.socket) -> tuple[socket.socket, object]:
        if errors:
            raise errors.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    assert [await site.call("none") for _ in range(3)] == [[OK]] * 3
    assert not errors


async def test_stop_closes_all_connections(site: Site) -> None:
    with ExitStack() as stack:
        for sent in [b"", b"{", SILENT, ENDLESS] * (CONNECTIONS // 2):
            stack.enter_context(site.connect(sent))
        await until(lambda: len(site.server.clients) == CONNECTIONS)
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


async def test_iteration_makes_one_part_of_all_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it reads one request."""
    done, making, read = Counter(), asyncio.Lock(), server._read

    def thirty(params: Mapping[str, Any]) -> Iterator[Part]:
        for _ in range(30):
            done.total += 1
            yield {}

    def counted(octets: bytes) -> tuple[Any, str, Any]:
        done.total += 1
        return read(octets)

    monkeypatch.setattr(server, "_read", counted)
    methods = {"thirty": Method(thirty, public=True)}
    async with (
        Site(tmp_path / "a", methods, making=making) as site,
        Site(tmp_path / "b", methods, making=making, public=True) as metrics,
    ):
        with maximum(done.take) as most:
            await asyncio.gather(*(each.send(NONE * 50 + THIRTY) for each in (site, metrics) for _ in range(10)))
    assert (most, done.total) == ([1], 20 * (50 + 1 + 30))
