"""Finding a hook server, asking it once, the texts of failures; and asking it often, for ``hook bench``."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.model.hookpoints import BY_NAME
from runtimeproxy.relay.rpc.connection import CallFailed, Kind
from runtimeproxy_hooks.tools import client as hook_client
from runtimeproxy_hooks.tools import request
from runtimeproxy_hooks.tools.client import WARM_UP_CALLS, Figures, HookCallFailed, Server, bench, percentile
from tests.fakes import hookanswers
from tests.fakes.hookanswers import HookCall
from tests.fakes.hookserver import HookServer

POINT = BY_NAME["PreCreateContainer"]
BODY = request.encoded(POINT, request.example())


NAMED: list[tuple[dict[str, object], Server]] = [
    ({}, Server("/run/x.sock", 2.0, frozenset())),
    ({"timeout": "500ms"}, Server("/run/x.sock", 0.5, frozenset())),
    ({"runtime-hooks": ["PreStartContainer"]}, Server("/run/x.sock", 2.0, frozenset({"PreStartContainer"}))),
]


@pytest.mark.parametrize(("more", "server"), NAMED)
def test_server_is_named_by_its_file_or_its_socket(tmp_path: Path, more: dict[str, object], server: Server) -> None:
    file = tmp_path / "10-x.json"
    file.write_text(json.dumps({"remote-endpoint": "unix:///run/x.sock", **more}))
    assert hook_client.find(str(file)) == server
    assert hook_client.find("unix:///run/x.sock") == Server("/run/x.sock")


UNNAMED = [
    ("x.sock", "SERVER: 'x.sock' is not a unix socket"),
    ("{}/x.json", "{}/x.json: remote-endpoint is missing"),
    ("{}/y.json", "{}/y.json: the registration file cannot be read: No such file"),
]


@pytest.mark.parametrize(("text", "words"), UNNAMED)
def test_text_that_names_no_server_is_told(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ConfigError) as caught:
        hook_client.find(text.format(tmp_path))
    assert str(caught.value).startswith(words.format(tmp_path))


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (CallFailed(14, "/run/a: b.sock: Connection refused", Kind.UNREACHABLE), "not reachable: Connection refused"),
        (CallFailed(14, "the peer took no more", Kind.UNREACHABLE), "not reachable: the peer took no more"),
        (CallFailed(4, "no answer in time", Kind.DEADLINE), "no answer in time"),
        (CallFailed(13, "cut", Kind.BROKEN), "broken answer: cut"),
        (CallFailed(7, "not here", Kind.STATUS), "refused (PERMISSION_DENIED): not here"),
        (CallFailed(7, "", Kind.STATUS), "refused (PERMISSION_DENIED): without a text"),
        (CallFailed(12, "whatever", Kind.STATUS), "this hook point is not served (UNIMPLEMENTED)"),
        (CallFailed(2, "{text} \x1b[31mred\nline\x07", Kind.STATUS), "UNKNOWN: {text}  [31mred line"),
    ],
)
def test_failure_has_words_that_are_safe_to_print(failure: CallFailed, words: str) -> None:
    assert hook_client.words(failure) == words


async def test_answer_that_is_no_message_is_a_broken_one(tmp_path: Path) -> None:
    path = str(tmp_path / "hooks.sock")
    async with HookServer(path, default=hookanswers.garbage()), hook_client.connection(path) as client:
        with pytest.raises(CallFailed) as caught:
            await hook_client.call_point(client, POINT, BODY, 10.0)
    assert (caught.value.kind, caught.value.code) == (Kind.BROKEN, 13)


RANKS = [(1, 99, 1), (2, 50, 1), (2, 51, 2), (2, 100, 2), (10, 90, 9), (10, 99, 10), (100, 99, 99), (101, 99, 100)]


@pytest.mark.parametrize(("count", "percent", "value"), RANKS)
def test_percentile_is_the_value_of_the_nearest_rank(count: int, percent: int, value: int) -> None:
    assert percentile(list(range(1, count + 1)), percent) == value


def test_figures_are_shown_in_milliseconds() -> None:
    figures = Figures([0.002, 0.001], 0.5, Counter({"no answer in time": 3, "INTERNAL: x": 1}))
    assert [" ".join(line.split()) for line in figures.lines] == [
        *("p50 1.000 ms", "p90 2.000 ms", "p99 2.000 ms", "longest 2.000 ms", "calls/s 4"),
        *("failures 4", "3 x no answer in time", "1 x INTERNAL: x"),
    ]
    assert [line.split() for line in Figures([], 1.0).lines] == [["calls/s", "0"], ["failures", "0"]]


async def measured(server: HookServer, **more: Any) -> Figures:
    return await asyncio.to_thread(bench, Server(server.socket_path), POINT, BODY, timeout_seconds=10.0, **more)


@pytest.mark.parametrize("concurrency", [1, 7, 300])
async def test_calls_are_made_after_a_warm_up(tmp_path: Path, concurrency: int) -> None:
    async with HookServer(str(tmp_path / "hooks.sock")) as server:
        figures = await measured(server, calls=150, concurrency=concurrency)
        assert len(server.calls) == 1 + WARM_UP_CALLS + 150
    assert (len(figures.seconds), figures.failures) == (150, Counter())


async def test_calls_at_a_time_are_at_the_same_time(tmp_path: Path) -> None:
    """Each call waits until three have come: one after the other they would all be late."""
    async with HookServer(str(tmp_path / "hooks.sock")) as server:
        barrier = asyncio.Barrier(3)

        async def answer(call: HookCall) -> bytes:
            if len(server.calls) > 1:
                await barrier.wait()
            return b""

        server.default = answer
        figures = await measured(server, calls=3, concurrency=3)
    assert (len(figures.seconds), figures.failures) == (3, Counter())


async def test_failures_are_counted_by_their_reason(tmp_path: Path) -> None:
    async with HookServer(str(tmp_path / "hooks.sock")) as server:
        fail = hookanswers.status(grpc.StatusCode.INTERNAL, "odd")

        async def answer(call: HookCall) -> bytes:
            return await fail(call) if len(server.calls) % 2 == 0 else b""

        server.default = answer
        figures = await measured(server, calls=10, concurrency=1)
    assert (len(figures.seconds), figures.failures) == (5, Counter({"INTERNAL: odd": 5}))


async def test_server_that_fails_at_once_is_not_measured(tmp_path: Path) -> None:
    async with HookServer(str(tmp_path / "hooks.sock"), default=hookanswers.BY_NAME["refuse"]()) as server:
        with pytest.raises(HookCallFailed, match="PreCreateContainer: refused"):
            await measured(server, calls=10, concurrency=1)
        assert len(server.calls) == 1
