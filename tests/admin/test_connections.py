"""What one client can cost the others: the bounds of number, length and silence, each against a hostile client."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from runtimeproxy.admin import connections, server
from tests.admin.site import Site, answer, echo, request, rest, told
from tests.patience import until

QUERIES = {
    "livez": told({"checks": [{"name": "loop", "state": "ok"}]}),
    "loglevel": echo,
    "metrics": told({"runtime": "n" * (4 << 20), "values": [["build_info", ["1", "3"], 1]]}),
}
HEADER = "x: " + "n" * 900


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request("/livez", "GET", b"", *[HEADER] * 8), 200),
        (request("/livez", "GET", b"", *[HEADER] * 10), 431),
        (request("/livez", "GET", b"", *[HEADER] * 1100), 431),
        (b"GET /livez HTTP/1.1\r\nx: " + b"n" * (1 << 20), 400),
        (b"GET /" + b"n" * (1 << 20), 400),
        (b"GET /livez HTTP/1.1\r\nx: " + b"n" * 8500 + b"\r\n\r\n", 400),
        (request("/loglevel", "POST", b"n" * (1 << 20)), 413),
        (request("/livez", "GET", b"n" * (1 << 20)), 200),
    ],
)
async def test_head_and_body_have_a_bound(tmp_path: Path, sent: bytes, status: int) -> None:
    async with Site(tmp_path, QUERIES) as site:
        assert answer(await site.send(sent))[0] == status
        assert (await site.ask("/livez"))[0] == 200


async def test_body_in_pieces_has_a_bound_too(tmp_path: Path) -> None:
    async with Site(tmp_path, QUERIES) as site:
        with site.connect() as client:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(client, request("/loglevel", "POST", b"", "Transfer-Encoding: chunked"))
            for _ in range(1000):
                try:
                    await loop.sock_sendall(client, b"5\r\n12345\r\n")
                except (BrokenPipeError, ConnectionResetError):
                    break
            assert answer(await rest(client))[0] == 413


STOPS = {
    "says nothing": b"",
    "in the head": b"GET /livez HT",
    "behind a field": b"GET /livez HTTP/1.1\r\nHost: x\r\n",
    "in the body": request("/loglevel", "POST", b'{"level": "debug"}')[:-5],
    "never reads": request("/metrics"),
}


@pytest.mark.parametrize("sent", STOPS.values(), ids=STOPS)
async def test_client_that_stops_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    for module, name in ((connections, "SILENT_SECONDS"), (connections, "TICK_SECONDS"), (server, "BODY_SECONDS")):
        monkeypatch.setattr(module, name, 0.05)
    async with Site(tmp_path, QUERIES) as site:
        with site.connect() as client:
            await asyncio.get_running_loop().sock_sendall(client, sent)
            await until(lambda: site.room.open)
            await until(lambda: not site.room.open)
        assert (await site.ask("/livez"))[0] == 200


async def test_client_that_goes_on_is_not_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SILENT_SECONDS", 5.0)
    monkeypatch.setattr(connections, "TICK_SECONDS", 0.001)
    async with Site(tmp_path, QUERIES) as site:
        with site.connect() as client:
            for octet in request("/livez"):
                await asyncio.get_running_loop().sock_sendall(client, bytes([octet]))
                await asyncio.sleep(0)
            assert answer(await rest(client))[0] == 200


async def silent(site: Site, stack: ExitStack, number: int) -> None:
    """Connect so often, and say nothing, or part of a head."""
    for at in range(number):
        client = stack.enter_context(site.connect())
        client.send(b"GET /" if at % 2 else b"\n")


async def leaving(site: Site, stack: ExitStack, number: int) -> None:
    """Connect so often, and go at once."""

    def connect() -> None:
        for _ in range(number):
            site.connect().close()

    await asyncio.to_thread(connect)


@pytest.mark.parametrize(("crowd", "number"), [(silent, 300), pytest.param(leaving, 10_000, marks=pytest.mark.slow)])
async def test_crowd_that_asks_nothing_keeps_nobody_out(
    tmp_path: Path, crowd: Callable[[Site, ExitStack, int], Awaitable[None]], number: int
) -> None:
    async with Site(tmp_path, QUERIES) as site:
        with ExitStack() as stack:
            await crowd(site, stack, number)
            assert (await site.ask("/livez"))[0] == 200
            assert len(site.room.open) <= connections.CONNECTIONS


async def test_hundred_requests_at_once_are_all_answered(tmp_path: Path) -> None:
    most = 0
    async with Site(tmp_path, QUERIES) as site:

        def look() -> None:
            nonlocal most
            most = max(most, len(site.room.open))
            asyncio.get_running_loop().call_soon(look)

        look()
        found = await asyncio.gather(*(site.ask("/livez") for _ in range(100)))
    assert found == [(200, "ok")] * 100
    assert most <= connections.CONNECTIONS


async def test_no_descriptor_left_pauses_accepting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PAUSE_SECONDS", 0.01)
    async with Site(tmp_path, QUERIES) as site:
        loop, left = asyncio.get_running_loop(), [2]
        accept = loop.sock_accept

        async def failing(listener: socket.socket) -> tuple[socket.socket, object]:
            if left[0]:
                left[0] -= 1
                raise OSError(24, "Too many open files")
            return await accept(listener)

        monkeypatch.setattr(loop, "sock_accept", failing)
        assert [await site.ask("/livez") for _ in range(3)] == [(200, "ok")] * 3
        assert left == [0]
