"""Three implementations of HTTP/2 make 10,000 calls each, in scripts/soak 100,000: grpcio, Python's h2, h2load."""

import asyncio
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.amounts import CALLS_OF_A_CLIENT
from tests.fakes.runtime import FakeRuntime
from tests.system.clients import Client
from tests.system.h2client import H2Client
from tests.system.proxy import ProxyProcess

CALLS = CALLS_OF_A_CLIENT.now
AT_A_TIME = 20
SECONDS = 120 + CALLS / 500
METHOD = "/runtime.v1.RuntimeService/Version"

pytestmark = pytest.mark.slow


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[Path]:
    """Yield the socket of a proxy; check at the end that its runtime got each call once."""
    async with FakeRuntime(str(tmp_path / "runtime.sock"), keep_received=0) as runtime:
        async with ProxyProcess(tmp_path) as proxy:
            yield proxy.socket
        assert runtime.counts == {METHOD: CALLS}


async def all_calls(call: Callable[[], Awaitable[int]]) -> Counter[int]:
    """Make the calls, some at a time; return their number by grpc-status."""
    statuses: Counter[int] = Counter()

    async def worker(numbers: Iterator[int]) -> None:
        for _ in numbers:
            statuses[await call()] += 1

    numbers = iter(range(CALLS))
    await asyncio.gather(*(worker(numbers) for _ in range(AT_A_TIME)))
    return statuses


async def test_grpcio(path: Path) -> None:
    async with Client(path) as client:

        async def call() -> int:
            made = client.call(METHOD)
            await made
            return int((await made.code()).value[0])

        assert await all_calls(call) == {0: CALLS}


async def test_h2(path: Path) -> None:
    async with H2Client(path) as client:

        async def call() -> int:
            return (await client.call(METHOD, b"")).status

        assert await all_calls(call) == {0: CALLS}


@pytest.mark.tool("h2load")
async def test_h2load(tmp_path: Path, path: Path) -> None:
    """It shows the HTTP status only; that the runtime got each call is checked in any case."""
    body = tmp_path / "body"
    body.write_bytes(bytes(5))
    headers = ["--header=content-type: application/grpc", "--header=te: trailers"]
    size = [f"--requests={CALLS}", "--clients=1", f"--max-concurrent-streams={AT_A_TIME}", f"--data={body}"]
    command = ["h2load", *size, *headers, f"--base-uri=unix:{path}", f"http://localhost{METHOD}"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=SECONDS)
    assert f"{CALLS} succeeded, 0 failed" in done.stdout, done.stdout + done.stderr
