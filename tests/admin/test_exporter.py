"""The exporter between a fake of the proxy's sockets and clients: pages, refused requests, faults and bounds."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.admin import exporter
from runtimeproxy.admin.exporter import CONNECTIONS, FOLLOWERS, HEAD_BYTES, PAGES, PUBLIC, Exporter
from runtimeproxy.admin.protocol import PART_BYTES, line
from tests.fakes.exporting import END, FIGURES, GET_METRICS, METRICS, Answer, FakeProxy, exporting, fetch, reply, sent
from tests.patience import SECONDS, until


def error(status: int, text: str) -> Answer:
    return sent(line(id=1, error={"status": status, "text": text}))


def hang_after(*octets: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.writelines(octets)
        await asyncio.Event().wait()

    return answer


def checks(*states: str) -> dict[str, Any]:
    return {"checks": [{"name": f"c{at}", "state": each, "reason": ""} for at, each in enumerate(states)]}


def error_text(answer: str) -> str:
    return str(json.loads(answer.partition("\r\n\r\n")[2])["error"])


# -- pages -----------------------------------------------------------------------------------------------------------

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
    upstream: FakeProxy, target: str, request_: tuple[str, dict[str, Any]], answer: Answer, status: str, body: str
) -> None:
    upstream.answer = answer
    async with exporting(upstream.path, everything=True) as port:
        answered = await fetch(port, f"GET {target} HTTP/1.1")
    assert upstream.requests == [request_]
    assert answered.partition(" ")[2].startswith(status)
    assert body in answered
    assert "Connection: close\r\n" in answered
    assert f"Content-Type: {TYPES.get(target.partition('?')[0], JSON)}" in answered


REFUSED = [
    *((f"GET {path} HTTP/1.1", "404") for path in ("/", "/metrics/", "//metrics", *(PAGES.keys() - {*PUBLIC}))),
    ("POST /loglevel HTTP/1.1", "404"),
    ("POST /metrics HTTP/1.1", "405"),
    ("HEAD /readyz HTTP/1.1", "405"),
    ("GET /metrics?secret=1 HTTP/1.1", "400"),
    ("GET /readyz?follow HTTP/1.1", "400"),
    *((head, "400") for head in ("secret", "secret /metrics HTTP/1.1", "GET /metrics secret")),
    (f"{GET_METRICS}\r\nsecret", "400"),
]


@pytest.mark.parametrize(("request_line", "status"), sorted(REFUSED))
async def test_refused_requests_do_not_reach_the_proxy(
    upstream: FakeProxy, request_line: str, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with exporting(upstream.path) as port:
        answered = await fetch(port, request_line)
    assert answered.split()[1] == status
    assert ("Allow: GET\r\n" in answered) == (status == "405")
    assert ("the request cannot be read" in answered) == ("secret" in request_line and "?" not in request_line)
    assert "secret" not in answered + caplog.text
    assert not upstream.requests


async def test_page_changes_nothing(upstream: FakeProxy) -> None:
    async with exporting(upstream.path, everything=True) as port:
        for path in PAGES:
            for method in ("POST", "PUT", "DELETE"):
                assert (await fetch(port, f"{method} {path} HTTP/1.1")).startswith("HTTP/1.1 405 ")
    assert not upstream.requests


# -- faults of the proxy ---------------------------------------------------------------------------------------------

CLOSED = "it closed the connection: does the proxy run"
UNREADABLE = "its answer cannot be read: is it a proxy of this version?"
LATE = "it did not answer within"
PART = line(id=1, part=METRICS)
FAULTS: dict[str, tuple[Answer, int, str]] = {
    "closes": (sent(), 502, CLOSED),
    "closes within a line": (sent(PART[:-9]), 502, CLOSED),
    "closes within the answer": (sent(PART), 502, CLOSED),
    "noise": (sent(b"\x00\xff\n"), 502, UNREADABLE),
    "a deep line": (sent(b"[" * 100_000 + b"\n"), 502, UNREADABLE),
    "a long line": (sent(b" " * 2 * PART_BYTES), 502, UNREADABLE),
    "a long answer": (sent(*[line(id=1, part={"a": "a" * (PART_BYTES // 2)})] * 33), 502, UNREADABLE),
    "another version": (sent(line(id=1, end={"schemaVersion": 2})), 502, UNREADABLE),
    "no members": (reply({}), 502, UNREADABLE),
    "members of wrong types": (reply(METRICS | {"process": []}), 502, UNREADABLE),
    "null": (reply(dict.fromkeys([*METRICS, "checks", "events"])), 502, UNREADABLE),
    "hangs": (hang_after(), 504, LATE),
    "hangs within the answer": (hang_after(PART), 504, LATE),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_fault_of_the_proxy_is_one_line(
    upstream: FakeProxy, monkeypatch: pytest.MonkeyPatch, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.answer, status, why = FAULTS[fault]
    seconds = 0.05 if status == 504 else SECONDS
    monkeypatch.setattr(Exporter._call, "__defaults__", (seconds,))
    async with exporting(upstream.path) as port:
        answered = await fetch(port, GET_METRICS)
        upstream.answer = reply()
        monkeypatch.setattr(Exporter._call, "__defaults__", (SECONDS,))
        assert FIGURES in await fetch(port, GET_METRICS)
    assert answered.startswith(f"HTTP/1.1 {status} ")
    assert error_text(answered).startswith(f"the proxy at {upstream.path}: {why}")
    assert [record.levelname for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
async def test_hanging_proxy_fails_health_checks(
    upstream: FakeProxy, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(exporter, "HEALTH_SECONDS", 0.05)
    upstream.answer = hang_after()
    async with exporting(upstream.path) as port:
        answered = await fetch(port, f"GET {path} HTTP/1.1")
    assert answered.startswith("HTTP/1.1 503 ")
    assert "[-]loop failed: the proxy did not answer within 0.05 s: its event loop hangs\n" in answered


@pytest.mark.parametrize(("exists", "why"), [(False, "No such file or directory"), (True, "Connection refused")])
async def test_failed_connection_to_the_proxy_is_reported(tmp_path: Path, exists: bool, why: str) -> None:
    path = tmp_path / "metrics.sock"
    if exists:
        with socket.socket(socket.AF_UNIX) as unused:
            unused.bind(str(path))
    async with exporting(path) as port:
        answered = await fetch(port, GET_METRICS)
    assert answered.startswith("HTTP/1.1 502 ")
    do = "does the proxy run with this endpoint, and is this user in the group of --metrics-group?"
    assert f"{why}: {do}" in answered


async def test_fault_and_recovery_are_logged_once(upstream: FakeProxy, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "runtimeproxy.admin.exporter")
    async with exporting(upstream.path) as port:
        for answer in (sent(), sent(), reply(), reply()):
            upstream.answer = answer
            await fetch(port, GET_METRICS)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


# -- events ----------------------------------------------------------------------------------------------------------


def events(*numbers: int) -> bytes:
    return line(id=1, part={"events": [{"number": number} for number in numbers]})


def numbers(answered: str) -> list[int]:
    """Return the numbers of the events in a chunked answer."""
    return [json.loads(text)["number"] for text in answered.splitlines() if text.startswith('{"number"')]


async def test_events_of_all_parts_are_lines(upstream: FakeProxy) -> None:
    upstream.answer = sent(events(), events(1, 2), line(id=1, part={}), events(3), END)
    async with exporting(upstream.path, everything=True) as port:
        answered = await fetch(port, "GET /events?since=7&limit=9&hookServer=a&kind=edited&pod=b&follow=0 HTTP/1.1")
    params = {"since": 7, "limit": 9, "hookServer": "a", "kind": "edited", "pod": "b", "follow": False}
    assert upstream.requests == [("events", params)]
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
async def test_fault_within_events_aborts_the_answer(upstream: FakeProxy, fault: str) -> None:
    upstream.answer = WITHIN_EVENTS[fault]
    async with exporting(upstream.path, everything=True) as port:
        answered = await fetch(port, "GET /events HTTP/1.1")
    assert answered.startswith("HTTP/1.1 200 ")
    assert not answered.endswith("\r\n0\r\n\r\n")


@asynccontextmanager
async def connected(port: int, sent: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect a client, which sends a text."""
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent.encode())
        yield reader, writer
        writer.close()


FOLLOW = "GET /events?follow HTTP/1.1\r\nHost: a\r\n\r\n"


async def test_follower_has_no_time_limit(upstream: FakeProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "CONNECTION_SECONDS", 0.2)

    async def late(writer: asyncio.StreamWriter) -> None:
        writer.write(events(1))
        await asyncio.sleep(2 * exporter.CONNECTION_SECONDS)
        writer.writelines([events(2), END])

    upstream.answer = late
    async with exporting(upstream.path, everything=True) as port, connected(port, FOLLOW) as (reader, _):
        assert numbers((await reader.read()).decode()) == [1, 2]


async def test_follower_that_does_not_read_is_closed(upstream: FakeProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "CONNECTION_SECONDS", 0.2)
    closed = asyncio.Event()
    part = line(id=1, part={"events": [{"number": 1, "text": "n" * (PART_BYTES // 2)}]})

    async def flood(writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while True:
                writer.write(part)
                await writer.drain()
        closed.set()

    upstream.answer = flood
    async with exporting(upstream.path, everything=True) as port, connected(port, FOLLOW):
        await closed.wait()


async def test_followers_have_a_limit_until_one_leaves(upstream: FakeProxy) -> None:
    upstream.answer = hang_after(events(1))
    async with exporting(upstream.path, everything=True) as port, AsyncExitStack() as stack:
        for _ in range(FOLLOWERS):
            reader, writer = await stack.enter_async_context(connected(port, FOLLOW))
            await reader.readuntil(b'{"number":1}\n')
        assert (await fetch(port, "GET /events?follow=true HTTP/1.1")).startswith("HTTP/1.1 503 ")
        upstream.answer = sent(events(1), END)
        assert numbers(await fetch(port, "GET /events HTTP/1.1")) == [1]
        writer.close()
        while (answered := await fetch(port, "GET /events?follow HTTP/1.1")).startswith("HTTP/1.1 503 "):
            pass
        assert numbers(answered) == [1]


# -- bounds of a connection ------------------------------------------------------------------------------------------


async def test_endless_head_ends_the_connection(upstream: FakeProxy) -> None:
    head = f"{GET_METRICS}\r\n" + "A: b\r\n" * HEAD_BYTES
    async with exporting(upstream.path) as port, connected(port, head) as (reader, _):
        with suppress(ConnectionError):  # the exporter has unread data
            assert not await reader.read()


@pytest.mark.parametrize("sent", [b"GET /store", b"GET /store HTTP/1.1\r\nHost: a\r\n\r\n"], ids=["head", "answer"])
async def test_client_that_stops_is_closed(upstream: FakeProxy, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """One sends half of a head, the other does not read an answer that is longer than all buffers."""
    monkeypatch.setattr(exporter, "CONNECTION_SECONDS", 0.2)
    upstream.answer = reply(*[{"containers": ["x" * (PART_BYTES // 2)]}] * 20)
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, listener.getsockname())
        async with Exporter(str(upstream.path), everything=True) as running:
            accepted, _ = listener.accept()
            accepted.setblocking(False)
            running.accept(accepted)
            await loop.sock_sendall(client, sent)
            await until(lambda: len(upstream.requests) == sent.count(b"Host"))
            assert running.clients
            await until(lambda: not running.clients)


async def test_client_accepted_at_the_end_is_closed(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        async with Exporter(str(tmp_path / "metrics.sock"), None) as running:
            running.accept(ours)
        await asyncio.sleep(0)
        assert ours.fileno() == -1


async def test_one_connection_too_many_is_closed(upstream: FakeProxy) -> None:
    async with exporting(upstream.path) as port, AsyncExitStack() as stack:
        for _ in range(CONNECTIONS):
            await stack.enter_async_context(connected(port, ""))
        async with connected(port, "") as (reader, _):
            assert not await reader.read()
