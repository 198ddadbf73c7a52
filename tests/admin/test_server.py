"""HTTP as the admin server answers it: each route's form, each error as one line, no value and no traceback."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from runtimeproxy.admin import server
from runtimeproxy.admin.channel import Part, Query, Refused
from tests.admin.site import Site, answer, echo, request, told


def raising(error: Exception) -> Query:
    def query(arguments: Mapping[str, Any]) -> Iterator[Part]:
        raise error

    return query


async def silent(arguments: Mapping[str, Any]) -> AsyncIterator[Part]:
    await asyncio.Event().wait()
    yield {}


OK, SLOW = {"name": "loop", "state": "ok"}, {"name": "plugins", "state": "degraded", "reason": "a is away"}
BAD = {"name": "runtime", "state": "failed", "reason": "it is away"}
QUERIES: dict[str, Query] = {
    "livez": told({"checks": [OK]}),
    "readyz": told({"checks": [OK, SLOW]}),
    "metrics": told({"runtime": "docker", "values": [["held_calls", [], 3]]}),
    "version": told({"version": "1"}),
    "configz": told({"options": [{"key": "a"}]}, {"options": [{"key": "b"}]}),
    "hooks": raising(Refused(404, "there is no such hook server")),
    "store": echo,
    "loglevel": echo,
    "disable": echo,
    "enable": raising(ValueError("canary")),
}
LISTED = "/livez, GET /readyz, GET /metrics, GET /version, GET /configz, GET /hooks, GET /store, GET /events, POST /log"
LONG = "n" * 600
ANSWERS: list[tuple[str, int, str]] = [
    ("GET /livez", 200, "ok"),
    ("GET /livez?verbose", 200, "[+]loop ok\nlivez check passed\n"),
    ("GET /readyz?verbose=1", 200, "[+]loop ok\n[~]plugins degraded: a is away\nreadyz check passed\n"),
    ("GET /readyz?verbose=0", 200, "ok"),
    ("GET /version", 200, '{"schemaVersion":1,"version":"1"}\n'),
    ("GET /configz", 200, '{"schemaVersion":1,"options":[{"key":"a"},{"key":"b"}]}\n'),
    ("GET /store?pod=a%2Fb&limit=7", 200, '{"schemaVersion":1,"asked":{"pod":"a/b","limit":7}}\n'),
    ("GET /hooks", 404, "there is no such hook server"),
    ("GET /nothing", 404, LISTED),
    ("GET /", 404, LISTED),
    ("GET /livez/", 404, LISTED),
    ("POST /livez", 405, "this path takes GET"),
    ("HEAD /hooks", 405, ""),
    ("DELETE /hooks/a/disable", 405, "this path takes POST"),
    ("GET /loglevel", 405, "this path takes POST"),
    ("GET /version?a=canary", 400, "unknown parameter: /version takes none"),
    ("GET /store?canary=a", 400, "unknown parameter: /store takes pod, id, limit, after"),
    ("GET /store?pod=a&pod=b", 400, "pod is there twice"),
    ("GET /store?limit=canary", 400, "limit is not a number"),
    ("GET /store?limit=-1", 400, "limit is not a number"),
    ("GET /store?limit=", 400, "limit is not a number"),
    ("GET /store?limit=1234567890123456", 400, "limit is not a number"),
    ("GET /store?limit=0", 400, "limit is not from 1 to 1000"),
    ("GET /store?limit=1001", 400, "limit is not from 1 to 1000"),
    ("GET /events?limit=0", 400, "limit is not from 1 to 4096"),
    ("GET /events?kind=canary", 400, "kind is not one of edited, no_effect, refused, failed, failed_open"),
    ("GET /store?pod=a%00", 400, "pod is not a text of at most 512 characters"),
    (f"GET /store?pod={LONG}", 400, "pod is not a text of at most 512 characters"),
    ("GET /livez?verbose=canary", 400, "verbose is not 1 or 0"),
    ('POST /loglevel {"level":"debug","for":"1m"}', 200, '"asked":{"level":"debug","for":"1m","by":"uid '),
    ('POST /hooks/a.b/disable {"reason":"it hangs"}', 200, '"asked":{"reason":"it hangs","name":"a.b","by":"uid '),
    ('POST /hooks/a/disable {"reason":"x","unregistered":"canary"}', 400, "unregistered is not true or false"),
    ('POST /hooks/a/disable {"reason":"x","unregistered":true}', 200, '"unregistered":true,"name":"a","by":"uid '),
    ("POST /loglevel", 400, "level is missing: /loglevel takes level, for"),
    ("POST /loglevel {}", 400, "level is missing"),
    ("POST /loglevel canary", 400, "the body is not a JSON object"),
    ('POST /loglevel ["canary"]', 400, "the body is not a JSON object"),
    (f"POST /loglevel {'[' * 4000}", 400, "the body is not a JSON object"),
    ('POST /loglevel {"level":1}', 400, "level is not a text of at most 512 characters"),
    ('POST /loglevel {"level":{"canary":1}}', 400, "level is not a text of at most 512 characters"),
    ('POST /loglevel {"level":"a","level":"b"}', 400, "level is there twice"),
    ('POST /loglevel {"canary":"a"}', 400, "unknown parameter: /loglevel takes level, for"),
    ('POST /loglevel?level=canary {"level":"a"}', 400, "/loglevel takes a JSON object as its body, and no query"),
    (f'POST /loglevel {{"level":"{"n" * 4096}"}}', 413, "the body is longer than 4096 bytes"),
    ("POST /hooks/a/enable", 500, "enable: an error in the proxy; see its log"),
]


@pytest.mark.parametrize(("asked", "status", "text"), ANSWERS, ids=[asked[:50] for asked, *_ in ANSWERS])
async def test_request_has_its_answer(tmp_path: Path, asked: str, status: int, text: str) -> None:
    method, target, *body = asked.split(maxsplit=2)
    async with Site(tmp_path, QUERIES) as site:
        octets = await site.send(request(target, method, "".join(body).encode()))
    found, fields, content = answer(octets)
    assert (found, text in content, fields["Connection"]) == (status, True, "close")
    assert "canary" not in octets.decode().replace(asked, "")
    if status >= 400 and method != "HEAD":
        assert fields["Content-Type"] == "application/json"
        error = json.loads(content)
        assert error.keys() == {"schemaVersion", "error"}
        assert "\n" not in error["error"]


async def test_wrong_method_is_told_the_right_one(tmp_path: Path) -> None:
    async with Site(tmp_path, QUERIES) as site:
        assert answer(await site.send(request("/hooks", "PUT")))[1]["Allow"] == "GET"


@pytest.mark.parametrize(("query", "reason"), [(told({"checks": [OK, BAD]}), "it is away"), (silent, "did not answer")])
async def test_failed_check_is_503_with_all_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: Query, reason: str
) -> None:
    monkeypatch.setattr(server, "HEALTH_SECONDS", 0.05)
    async with Site(tmp_path, {"livez": query}) as site:
        status, text = await site.ask("/livez")
    assert (status, "failed: " in text, reason in text) == (503, True, True)
    assert text.endswith("\nlivez check failed\n")


async def test_error_inside_is_one_line_and_logged_without_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "json_text", lambda answer: 1 / 0 if "version" in answer else b"{}")
    async with Site(tmp_path, QUERIES) as site:
        assert await site.ask("/version") == (500, "{}")
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == ["a request failed"]


async def test_client_that_leaves_within_its_answer_is_no_line_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def stream(request: web.Request, *_: Any) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        assert request.transport is not None
        request.transport.abort()
        await response.write(b"{}")
        return response

    monkeypatch.setattr(server, "stream", stream)
    async with Site(tmp_path, {"events": told({"events": []})}) as site:
        with suppress(ConnectionError):
            await site.send(request("/events"))
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


GARBAGE = [
    b"\0\n\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\0\x01\0\n\n",
    b"GET /\xff HTTP/1.1\r\n\r\n",
]


@pytest.mark.parametrize("octets", GARBAGE)
async def test_what_is_not_http_is_refused_without_a_traceback_or_log_line(
    tmp_path: Path, octets: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with Site(tmp_path, QUERIES) as site:
        status, _, text = answer(await site.send(octets))
        assert (status in (400, 404), "Traceback" in text) == (True, False)
        assert (await site.ask("/livez"))[0] == 200
    assert not [record for record in caplog.records if record.name.startswith("aiohttp")]


async def test_metrics_socket_answers_three_paths_only(tmp_path: Path) -> None:
    async with Site(tmp_path, QUERIES, metrics_only=True) as site:
        found = {route: (await site.ask(route))[0] for route in ("/livez", "/readyz", "/metrics")}
        assert set(found.values()) == {200}
        for target, method in (("/hooks", "GET"), ("/version", "GET"), ("/loglevel", "POST"), ("/store", "GET")):
            status, text = await site.ask(target, method)
            assert (status, json.loads(text)["error"]) == (404, "there are GET /livez, GET /readyz, GET /metrics")
