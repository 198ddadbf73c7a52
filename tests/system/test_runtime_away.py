"""Without a runtime the proxy listens and says so, and serves when one comes (relay-rules A12, fault matrix B2)."""

import asyncio
import time
from itertools import count
from pathlib import Path

import pytest

from tests.amounts import Amount
from tests.system.fronts import Front
from tests.system.proxy import ProxyProcess, answers, until
from tests.system.times import in_time, judged, limit

pytestmark = pytest.mark.slow

DIAL_SECONDS = 0.050


async def test_proxy_listens_within_a_second_without_a_runtime(front: Front, tmp_path: Path) -> None:
    proxy = front.process(tmp_path)
    took = [await seconds_to_listen(proxy, number) for number in range(1, Amount(3, 100).now + 1)]
    assert judged(took) < limit(took, 1.0), took


async def seconds_to_listen(proxy: ProxyProcess, number: int) -> float:
    """Start a proxy, for the first time or once more, and end it; return the seconds until somebody could connect."""
    begun = time.monotonic()
    proxy.launch()
    try:
        await until(lambda: proxy.ended or answers(proxy.socket), "somebody can connect")
        took = time.monotonic() - begun
        await asyncio.to_thread(proxy.wait_until_it_listens, number)
        await asyncio.to_thread(proxy.stop)
    finally:
        if not proxy.ended:
            proxy.kill()
    return took


async def test_first_answer_comes_within_100_ms_of_the_runtimes_start(front: Front, tmp_path: Path) -> None:
    folders = (tmp_path / str(number) for number in count())

    async def first_answer() -> list[float]:
        async with front.process(next(folders)) as proxy:
            away = f"container runtime at {proxy.runtime} is not reachable"
            await until(lambda: away in proxy.output(), "that nobody is there is told before any client", proxy.output)
            dialling = asyncio.create_task(dial_until_answered(front, proxy.socket))
            await asyncio.sleep(4 * DIAL_SECONDS)
            assert not dialling.done()
            async with front.runtime(str(proxy.runtime)):
                await until(lambda: answers(proxy.runtime), "the runtime listens")
                begun = time.monotonic()
                return [await asyncio.wait_for(dialling, 20) - begun]

    await in_time(0.100, Amount(1, 100), first_answer)


async def dial_until_answered(front: Front, socket: Path) -> float:
    """Ask on a new connection again and again; return when there was an answer."""
    while True:
        next_dial = time.monotonic() + DIAL_SECONDS
        try:
            async with front.sent(socket) as answer:
                await answer
            return time.monotonic()
        except ConnectionError:
            await asyncio.sleep(next_dial - time.monotonic())
