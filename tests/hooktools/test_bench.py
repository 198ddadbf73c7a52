"""The figures of ``runtimeproxy hook bench``, and the calls that they are made of."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest

from runtimeproxy.hookpoints import BY_NAME
from runtimeproxy.hooktools import request
from runtimeproxy.hooktools.asking import HookCallFailed, Server
from runtimeproxy.hooktools.bench import WARM_UP_CALLS, Figures, bench, percentile
from tests.fakes import hookanswers
from tests.fakes.hookanswers import HookCall
from tests.fakes.hookserver import HookServer

POINT = BY_NAME["PreCreateContainer"]


@pytest.mark.parametrize(
    ("count", "percent", "value"),
    [
        *((1, 50, 1), (1, 99, 1), (2, 50, 1), (2, 51, 2), (2, 100, 2), (3, 50, 2)),
        *((10, 90, 9), (10, 99, 10), (100, 99, 99), (101, 99, 100), (1000, 99, 990)),
    ],
)
def test_percentile_is_the_value_of_the_nearest_rank(count: int, percent: int, value: int) -> None:
    assert percentile(list(range(1, count + 1)), percent) == value


def test_figures_are_shown_in_milliseconds() -> None:
    figures = Figures([0.002, 0.001], 0.5, Counter({"no answer in time": 3, "INTERNAL: x": 1}))
    assert [" ".join(line.split()) for line in figures.lines] == [
        *("p50 1.000 ms", "p90 2.000 ms", "p99 2.000 ms", "longest 2.000 ms", "calls/s 4"),
        *("failures 4", "3 x no answer in time", "1 x INTERNAL: x"),
    ]


def test_no_answers_are_no_percentiles() -> None:
    lines = [line.split() for line in Figures([], 1.0, Counter({"x": 2})).lines]
    assert lines == [["calls/s", "0"], ["failures", "2"], ["2", "x", "x"]]


async def measured(server: HookServer, **more: Any) -> Figures:
    body = request.encoded(POINT, request.example())
    return await asyncio.to_thread(bench, Server(server.socket_path), POINT, body, timeout_seconds=10.0, **more)


@pytest.mark.parametrize("concurrency", [1, 7, 300])
async def test_calls_are_made_after_a_warm_up(tmp_path: Path, concurrency: int) -> None:
    async with HookServer(str(tmp_path / "hooks.sock")) as server:
        figures = await measured(server, calls=150, concurrency=concurrency)
        assert len(server.calls) == 1 + WARM_UP_CALLS + 150
    assert (len(figures.seconds), figures.failures) == (150, Counter())


async def test_calls_at_a_time_are_at_the_same_time(tmp_path: Path) -> None:
    """Each call waits until three are there: one after the other they would all be late."""
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
