"""The exporter between a fake of the proxy's sockets and clients: what it serves, what is refused, what ends."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.admin import exporter
from runtimeproxy.admin.exporter import CONNECTIONS, FOLLOWERS, HEAD_BYTES, PAGES, PUBLIC, Exporter
from runtimeproxy.admin.protocol import PART_BYTES, line
from tests.fakes.exporting import END, FIGURES, GET_METRICS, METRICS, Answer, FakeProxy, ask, exporting, reply, sent
from tests.patience import SECONDS, until


def error(status: int, text: str) -> Answer:
    return sent(line(id=1, error={"status": status, "text": text}))


async def hang(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def hang_in_the_answer(writer: asyncio.StreamWriter) -> None:
    writer.write(line(id=1, part=METRICS))
    await asyncio.Event().wait()


def checks(*states: str) -> dict[str, Any]:
    return {"checks": [{"name": f"c{at}", "state": each, "reason": ""} for at, each in enumerate(states)]}


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[FakeProxy]:
    async with FakeProxy(tmp_path / "proxy.sock") as fake:
        yield fake


def content(answered: str) -> str:
    return answered.partition("\r\n\r\n")[2]


PASSED: list[tuple[str, tuple[str, dict[str, Any]], Answer, str, str]] = [
    ("/metrics", ("metrics", {}), reply(), "200 OK", f"\n{FIGURES}"),
    ("/livez", ("livez", {}), reply(checks("ok")), "200 OK", "\r\n\r\nok"),
    ("/livez?verbose=1", ("livez", {}), reply(checks("ok")), "200 OK", "[+]c0 ok\nlivez check passed\n"),
    ("/readyz?verbose", ("readyz", {}), reply(checks("degraded")), "200 OK", "[~]c0 degraded\nreadyz check passed\n"),
    ("/readyz", ("readyz", {}), reply(checks("ok", "failed")), "503 ", "c0 ok\n[-]c1 failed\nreadyz check failed\n"),
    ("/version", ("version", {}), reply({"pid": 7}), "200 OK", '{"pid":7,"schemaVersion":1}\n'),
    ("/configz", ("configz", {}), reply({"options": [1]}, {"options": [2]}), "200 OK", '{"options":[1,2],'),
    ("/hooks", ("hooks", {}), reply({"hooks": []}, {"hooks": ["a"]}), "200 OK", '{"hooks":["a"],'),
    ("/store?pod=a&limit=7", ("store", {"pod": "a", "limit": 7}), reply({"next": ""}), "200 OK", '{"next":""'),
    ("/store?limit=-1", ("store", {"limit": "-1"}), error(400, "limit is not"), "400 ", '"error":"limit is not"}\n'),
    ("/hooks", ("hooks", {}), error(500, "an error in the proxy"), "500 ", '"error":"an error in the proxy"}\n'),
]


TEXT, JSON = "text/plain; charset=utf-8", "application/json"
TYPES = {"/metrics": "text/plain; version=0.0.4; charset=utf-8", "/livez": TEXT, "/readyz": TEXT}
"""The content types of pages that are not JSON."""


@pytest.mark.parametrize(
    ("target", "request_", "answer", "status", "body"), PASSED, ids=[f"{row[0]} {row[3]}" for row in PASSED]
)
async def test_page_is_the_answer_to_its_method(
    proxy: FakeProxy, target: str, request_: tuple[str, dict[str, Any]], answer: Answer, status: str, body: str
) -> None:
    proxy.answer = answer
    async with exporting(proxy.path, everything=True) as port:
        answered = await ask(port, f"GET {target} HTTP/1.1")
    assert proxy.requests == [request_]
    assert answered.partition(" ")[2].startswith(status)
    assert body in answered
    assert "Connection: close\r\n" in answered
    assert f"Content-Type: {TYPES.get(target.partition('?')[0], JSON)}" in answered


REFUSED = [
    ("GET / HTTP/1.1", "404"),
    *[(f"GET {path} HTTP/1.1", "404") for path in PAGES if path not in PUBLIC],
    ("GET /metrics/ HTTP/1.1", "404"),
    ("GET //metrics HTTP/1.1", "404"),
    ("POST /loglevel HTTP/1.1", "404"),
    ("POST /metrics HTTP/1.1", "405"),
    ("HEAD /readyz HTTP/1.1", "405"),
    ("GET /metrics?secret=1 HTTP/1.1", "400"),
    ("GET /readyz?follow HTTP/1.1", "400"),
]


@pytest.mark.parametrize(("request_line", "status"), REFUSED, ids=[row[0] for row in REFUSED])
async def test_other_requests_do_not_reach_the_proxy(proxy: FakeProxy, request_line: str, status: str) -> None:
    async with exporting(proxy.path) as port:
        answered = await ask(port, request_line)
    assert answered.split()[1] == status
    assert ("Allow: GET\r\n" in answered) == (status == "405")
    assert "secret" not in answered
    assert not proxy.requests


@pytest.mark.parametrize("path", PAGES)
async def test_page_changes_nothing(proxy: FakeProxy, path: str) -> None:
    async with exporting(proxy.path, everything=True) as port:
        for method in ("POST", "PUT", "DELETE"):
            assert (await ask(port, f"{method} {path} HTTP/1.1")).startswith("HTTP/1.1 405 ")
    assert not proxy.requests


CLOSED = "it closed the connection: does the proxy run"
UNREADABLE = "its answer cannot be read: is it a proxy of this version?"
FAULTS: dict[str, tuple[Answer, int, str]] = {
    "closes": (sent(), 502, CLOSED),
    "closes within a line": (sent(line(id=1, part=METRICS)[:-9]), 502, CLOSED),
    "closes within the answer": (sent(line(id=1, part=METRICS)), 502, CLOSED),
    "HTTP": (sent(b"HTTP/1.1 400 Bad Request\r\n\r\n"), 502, UNREADABLE),
    "noise": (sent(b"\x00\xff\n"), 502, UNREADABLE),
    "a list": (sent(b"[]\n"), 502, UNREADABLE),
    "a deep line": (sent(b"[" * 100_000 + b"\n"), 502, UNREADABLE),
    "a long line": (sent(b" " * 2 * PART_BYTES), 502, UNREADABLE),
    "a long answer": (sent(*[line(id=1, part={"a": "a" * (PART_BYTES // 2)})] * 33), 502, UNREADABLE),
    "another version": (sent(line(id=1, end={"schemaVersion": 2})), 502, UNREADABLE),
    "other members": (reply({}), 502, UNREADABLE),
    "members of other kinds": (reply(METRICS | {"process": []}), 502, UNREADABLE),
    "null": (reply(dict.fromkeys([*METRICS, "checks", "events"])), 502, UNREADABLE),
    "hangs": (hang, 504, "it did not answer within"),
    "hangs within the answer": (hang_in_the_answer, 504, "it did not answer within"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_fault_of_the_proxy_is_one_line(
    proxy: FakeProxy, monkeypatch: pytest.MonkeyPatch, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.answer, status, why = FAULTS[fault]
    if status == 504:
        monkeypatch.setattr(exporter, "UPSTREAM_SECONDS", 0.05)
    async with exporting(proxy.path) as port:
        answered = await ask(port, GET_METRICS)
        proxy.answer = reply()
        monkeypatch.setattr(exporter, "UPSTREAM_SECONDS", SECONDS)
        assert FIGURES in await ask(port, GET_METRICS)
    assert answered.startswith(f"HTTP/1.1 {status} ")
    assert json.loads(content(answered))["error"].startswith(f"the proxy at {proxy.path}: {why}")
    assert [record.levelname for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
async def test_proxy_that_hangs_is_not_well(proxy: FakeProxy, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(exporter, "HEALTH_SECONDS", 0.05)
    proxy.answer = hang
    async with exporting(proxy.path) as port:
        answered = await ask(port, f"GET {path} HTTP/1.1")
    assert answered.startswith("HTTP/1.1 503 ")
    assert "[-]loop failed: the proxy did not answer within 0.05 s: its event loop hangs\n" in answered


@pytest.mark.parametrize(("left", "why"), [(False, "No such file or directory"), (True, "Connection refused")])
async def test_socket_that_cannot_be_connected_is_reported(tmp_path: Path, left: bool, why: str) -> None:
    path = tmp_path / "metrics.sock"
    if left:
        with socket.socket(socket.AF_UNIX) as unused:
            unused.bind(str(path))
    async with exporting(path) as port:
        answered = await ask(port, GET_METRICS)
    assert answered.startswith("HTTP/1.1 502 ")
    assert why in answered
    assert "does the proxy run with this endpoint, and is this user in the group of --metrics-group?" in answered


async def test_faults_are_logged_once(proxy: FakeProxy, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "runtimeproxy.admin.exporter")
    proxy.answer = sent()
    async with exporting(proxy.path) as port:
        for _ in range(3):
            await ask(port, GET_METRICS)
        proxy.answer = reply()
        for _ in range(2):
            await ask(port, GET_METRICS)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def events(*numbers: int) -> bytes:
    return line(id=1, part={"events": [{"number": number} for number in numbers]})


def numbers(answered: str) -> list[int]:
    """Return the events' numbers in a chunked answer."""
    return [json.loads(text)["number"] for text in answered.splitlines() if text.startswith('{"number"')]


async def test_events_of_all_parts_are_lines(proxy: FakeProxy) -> None:
    proxy.answer = sent(events(), events(1, 2), line(id=1, part={}), events(3), END)
    async with exporting(proxy.path, everything=True) as port:
        answered = await ask(port, "GET /events?since=7&limit=9&hookServer=a&kind=edited&pod=b&follow=0 HTTP/1.1")
    params = {"since": 7, "limit": 9, "hookServer": "a", "kind": "edited", "pod": "b", "follow": False}
    assert proxy.requests == [("events", params)]
    assert numbers(answered) == [1, 2, 3]
    assert "Content-Type: application/x-ndjson\r\n" in answered
    assert answered.endswith("\r\n0\r\n\r\n")


WITHIN_EVENTS = {
    "closes": sent(events(1)),
    "noise": sent(events(1), b"noise\n"),
    "null": reply({"events": [{"number": 1}]}, {"events": None}),
    "error": sent(events(1), line(id=1, error={"status": 500, "text": "an error in the proxy"})),
}


@pytest.mark.parametrize("fault", WITHIN_EVENTS)
async def test_fault_within_events_aborts_the_answer(proxy: FakeProxy, fault: str) -> None:
    proxy.answer = WITHIN_EVENTS[fault]
    async with exporting(proxy.path, everything=True) as port:
        answered = await ask(port, "GET /events HTTP/1.1")
    assert answered.startswith("HTTP/1.1 200 ")
    assert not answered.endswith("\r\n0\r\n\r\n")


async def follow(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /events?follow HTTP/1.1\r\nHost: a\r\n\r\n")
    return reader, writer


async def test_follower_stays_longer_than_other_clients(proxy: FakeProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "CONNECTION_SECONDS", 0.2)

    async def later(writer: asyncio.StreamWriter) -> None:
        writer.write(events(1))
        await asyncio.sleep(2 * exporter.CONNECTION_SECONDS)
        writer.writelines([events(2), END])

    proxy.answer = later
    async with exporting(proxy.path, everything=True) as port, asyncio.timeout(SECONDS):
        reader, writer = await follow(port)
        assert numbers((await reader.read()).decode()) == [1, 2]
        writer.close()


async def test_follower_that_does_not_read_is_abandoned(proxy: FakeProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "CONNECTION_SECONDS", 0.2)
    closed = asyncio.Event()

    async def flood(writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while True:
                writer.write(events(*range(10_000)))
                await writer.drain()
        closed.set()

    proxy.answer = flood
    async with exporting(proxy.path, everything=True) as port:
        _, writer = await follow(port)
        await asyncio.wait_for(closed.wait(), SECONDS)
        writer.close()


async def test_followers_have_a_limit_until_one_leaves(proxy: FakeProxy) -> None:
    async def forever(writer: asyncio.StreamWriter) -> None:
        writer.write(events(1))
        await asyncio.Event().wait()

    proxy.answer = forever
    async with exporting(proxy.path, everything=True) as port, asyncio.timeout(SECONDS), AsyncExitStack() as stack:
        writers = []
        for _ in range(FOLLOWERS):
            reader, writer = await follow(port)
            stack.callback(writer.close)
            await reader.readuntil(b'{"number":1}\n')
            writers.append(writer)
        assert (await ask(port, "GET /events?follow=true HTTP/1.1")).startswith("HTTP/1.1 503 ")
        proxy.answer = sent(events(1), END)
        assert numbers(await ask(port, "GET /events HTTP/1.1")) == [1]
        writers[0].close()
        while (answered := await ask(port, "GET /events?follow HTTP/1.1")).startswith("HTTP/1.1 503 "):
            pass
        assert numbers(answered) == [1]


BAD_HEADS = ["secret", "secret /metrics HTTP/1.1", "GET /metrics secret", f"{GET_METRICS}\r\nsecret"]


@pytest.mark.parametrize("head", BAD_HEADS)
async def test_head_that_is_wrong_is_not_repeated(
    proxy: FakeProxy, head: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with exporting(proxy.path) as port:
        answered = await ask(port, head)
    assert answered.split()[1] == "400"
    assert json.loads(content(answered))["error"] == "the request cannot be read"
    assert "secret" not in answered + caplog.text
    assert not proxy.requests


async def test_head_without_end_ends_the_connection(proxy: FakeProxy) -> None:
    async with exporting(proxy.path) as port, asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET_METRICS.encode() + b"\r\n" + b"A: b\r\n" * HEAD_BYTES)
        with suppress(ConnectionError):  # what was sent beyond is unread
            assert not await reader.read()
        writer.close()


@pytest.mark.parametrize("sent", [b"GET /store", b"GET /store HTTP/1.1\r\nHost: a\r\n\r\n"], ids=["head", "answer"])
async def test_client_that_stops_is_abandoned(proxy: FakeProxy, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """One sends half of a head, the other reads nothing of an answer that is longer than all buffers."""
    monkeypatch.setattr(exporter, "CONNECTION_SECONDS", 0.2)
    proxy.answer = reply(*[{"containers": ["x" * (PART_BYTES // 2)]}] * 20)
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, listener.getsockname())
        async with Exporter(str(proxy.path), everything=True) as running:
            accepted, _ = listener.accept()
            accepted.setblocking(False)
            running.accept(accepted)
            await loop.sock_sendall(client, sent)
            await until(lambda: len(proxy.requests) == sent.count(b"Host"))
            assert running.clients
            await until(lambda: not running.clients)


async def test_client_accepted_at_the_end_is_closed(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        async with Exporter(str(tmp_path / "metrics.sock"), None) as running:
            running.accept(ours)
        await asyncio.sleep(0)
        assert ours.fileno() == -1


async def test_one_connection_too_many_is_closed(proxy: FakeProxy) -> None:
    async with exporting(proxy.path) as port, asyncio.timeout(SECONDS):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert not await reader.read()
        writer.close()
        for _, writer in held:
            writer.close()
