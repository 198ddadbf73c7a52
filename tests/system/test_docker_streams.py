"""Streams through Docker mode are pipes: every byte, at once, each way, in bounded memory, to each side's own end.

That is promise 12.

One proxy serves all tests, on the socket of a daemon that each test starts anew; scripts/soak runs the full amounts.
Figures in milliseconds are taken by ``timely``, which says how a busy machine is allowed for.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest

from tests.amounts import EXECS_ON_A_FAKE, IDLE_SECONDS, KEPT_STREAM_BYTES, STALL_SECONDS, STREAM_BYTES
from tests.docker.client import request
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.dockerd_client import Raw, ask, until
from tests.fakes.dockerd_programs import frame
from tests.system.docker_lines import (
    OWN_CONNECTIONS,
    Build,
    Events,
    Lines,
    Pull,
    asked,
    exec_started,
    run_container,
    serving,
)
from tests.system.docker_streams import (
    API,
    LAST_CHUNK,
    MIB,
    SECONDS,
    Attach,
    Exec,
    open_files,
    resident_bytes,
    resized,
    timely,
)
from tests.system.proxy import ProxyProcess

pytestmark = pytest.mark.slow

LINE_SECONDS = 0.05
LINES = 20
STALLED_BYTES = MIB
SETTLE_SECONDS = 0.2
"""What a client that does not read may cost."""
CLIENTS = 102
BIG_BYTES = 8 * MIB
SMALL_LIMIT = 1024
UNREAD_LINES = 5000
LONG = b"x" * 65_536
LONG_LINES = 64
"""4 MiB to each client that follows them."""


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    with serving(tmp_path_factory.mktemp("streams")) as running:
        yield running


@pytest.fixture
def path(proxy: ProxyProcess) -> str:
    return str(proxy.socket)


@pytest.fixture
async def fake(proxy: ProxyProcess) -> AsyncIterator[FakeDockerd]:
    """A daemon behind the proxy, on which the container c1 runs."""
    async with FakeDockerd(str(proxy.runtime)) as dockerd:
        run_container(dockerd)
        yield dockerd


# ---- every byte


@pytest.mark.parametrize("upgrade", [True, False])
async def test_an_exec_carries_both_ways_at_once(path: str, fake: FakeDockerd, upgrade: bool) -> None:
    def cat() -> None:
        with Exec(path, "c1", ["cat"], stdin=True, upgrade=upgrade) as command:
            sent, came = command.both(STREAM_BYTES.now)
        assert came == sent

    await asyncio.to_thread(cat)


@pytest.mark.parametrize("upgrade", [True, False])
async def test_an_attach_carries_both_ways_at_once(path: str, fake: FakeDockerd, upgrade: bool) -> None:
    def cat() -> None:
        with Attach(path, "c1", upgrade=upgrade) as command:
            sent, came = command.both(KEPT_STREAM_BYTES.now)
        assert came == sent

    await asyncio.to_thread(cat)


async def test_an_exec_is_resized_while_it_streams(path: str, fake: FakeDockerd) -> None:
    """By somebody else: data and sizes go at the same time."""

    def cat() -> int:
        with Exec(path, "c1", ["cat"], stdin=True) as command:
            with resized(path, f"/exec/{command.id}") as widths:
                sent, came = command.both(STREAM_BYTES.now)
            assert came == sent
        return len(widths) - 1

    resizes = await asyncio.to_thread(cat)
    assert len(fake.requests("POST /exec/{ref}/resize")) == resizes > 1


@pytest.mark.parametrize("upgrade", [True, False])
async def test_execs_of_clients_that_half_close_at_once(path: str, fake: FakeDockerd, upgrade: bool) -> None:
    """As ``docker exec`` without -i and -t: no stdin, the end comes before the answer, the output later."""

    def execs() -> None:
        for _ in range(EXECS_ON_A_FAKE.now // 2):
            with Exec(path, "c1", ["source", "5"], stdin=False, upgrade=upgrade, ends=True) as command:
                assert command.output() == (bytes(5), b"")

    await asyncio.to_thread(execs)


@pytest.mark.parametrize("upgrade", [True, False])
async def test_execs_whose_stdin_ends_before_their_output_begins(path: str, fake: FakeDockerd, upgrade: bool) -> None:
    def execs() -> None:
        for number in range(EXECS_ON_A_FAKE.now // 2):
            with Exec(path, "c1", ["sink"], stdin=True, upgrade=upgrade) as command:
                command.feed(number * 1000)
                assert command.output() == (b"%d\n" % (number * 1000), b"")

    await asyncio.to_thread(execs)


# ---- at once


@pytest.mark.parametrize("kind", [Lines, Events, Pull, Build])
async def test_a_line_comes_when_it_is_said(path: str, fake: FakeDockerd, kind: type[Lines]) -> None:
    stream = kind(path, fake)
    numbers = count()

    async def one_line() -> float:
        began = time.monotonic()
        expected = stream.say(b"line-%d\n" % next(numbers))
        assert expected in await raw.chunk()
        return time.monotonic() - began

    async with await stream.open() as raw:
        for _ in range(LINES):
            await timely(LINE_SECONDS, one_line)


async def test_a_load_tells_its_progress_while_it_takes_the_archive(path: str, fake: FakeDockerd) -> None:
    """Each line answers a part of the request's body, so both must flow at once or the test never ends."""
    part = b"%x\r\n%b\r\n" % (MIB, bytes(MIB))
    async with await asked(path, "POST /images/load", "Transfer-Encoding: chunked") as raw:
        raw.send(part)
        assert b" 200 OK\r\n" in await raw.head()
        for _ in range(8):
            assert b"Loading layer" in await raw.chunk()
            raw.send(part)
        raw.send(LAST_CHUNK)
        assert b"Loaded %d bytes" % (9 * MIB) in await raw.until(LAST_CHUNK)


# ---- clients that do not read


@contextlib.asynccontextmanager
async def fresh(folder: Path) -> AsyncIterator[tuple[ProxyProcess, FakeDockerd]]:
    """Start a proxy whose memory is its own, and a daemon with the container c1."""
    folder.mkdir()
    async with FakeDockerd(str(folder / "runtime.sock")) as dockerd:
        run_container(dockerd)
        async with ProxyProcess(folder, backend_runtime_mode="Docker", log_level="info") as proxy:
            # This is the last thing that the proxy does for itself, the ping makes it do all that a call needs.
            await until(lambda: dockerd.watchers and dockerd.requests("GET /info"))
            assert (await ask(str(proxy.socket), "GET", "/_ping")).body == b"OK"
            await asyncio.sleep(SETTLE_SECONDS)
            yield proxy, dockerd


async def lines_that_nobody_reads(kind: type[Lines], folder: Path) -> int:
    """Say lines, each of them a write of its own, to a client that reads late; return by how much the proxy grew."""
    async with fresh(folder) as (proxy, fake):
        stream = kind(str(proxy.socket), fake, limit=SMALL_LIMIT)
        before = resident_bytes(proxy.pid)
        async with await stream.open() as raw:
            expected = []
            for number in range(UNREAD_LINES):
                expected.append(stream.say(b"%d\n" % number))
                await asyncio.sleep(0)
            await asyncio.sleep(STALL_SECONDS.now)
            grown = resident_bytes(proxy.pid) - before
            await read_lines(raw, expected)
        return grown


async def read_lines(raw: Raw, expected: Sequence[bytes]) -> None:
    """Read chunks until the last line has come; all of them must be there, in order."""
    got = bytearray()
    while expected[-1] not in got[-SMALL_LIMIT:]:
        got += await asyncio.wait_for(raw.reader.read(MIB), SECONDS)
    at = 0
    for line in expected:
        at = got.index(line, at) + len(line)


async def an_export_that_nobody_reads(folder: Path) -> int:
    """Export more than is kept to a client that reads late; return by how much the proxy grew."""
    async with fresh(folder) as (proxy, fake):
        fake.export_bytes = BIG_BYTES
        stream = Lines(str(proxy.socket), fake, limit=SMALL_LIMIT)
        before = resident_bytes(proxy.pid)
        async with await stream.begin(f"GET {API}/containers/c1/export") as raw:
            await asyncio.sleep(STALL_SECONDS.now)
            grown = resident_bytes(proxy.pid) - before
            left = BIG_BYTES
            while left:
                left -= len(await raw.chunk())
            assert await raw.chunk() == b""
        return grown


async def test_a_client_that_does_not_read_costs_little_memory(tmp_path: Path) -> None:
    """Lines are the hard case: it is their number that costs, not their length."""
    kinds = (Lines, Events, Pull)
    grown = await asyncio.gather(
        an_export_that_nobody_reads(tmp_path / "export"),
        *(lines_that_nobody_reads(kind, tmp_path / kind.__name__) for kind in kinds),
    )
    assert max(grown) <= STALLED_BYTES, grown


async def test_calls_go_on_beside_many_clients_that_do_not_read(tmp_path: Path) -> None:
    """A third of them exports, the others follow lines and events that are longer than what is kept."""
    async with fresh(tmp_path / "many") as (proxy, fake), contextlib.AsyncExitStack() as stack:
        fake.export_bytes = BIG_BYTES
        path = str(proxy.socket)
        before, files = resident_bytes(proxy.pid), open_files(proxy.pid)
        lines, events = (kind(path, fake, limit=SMALL_LIMIT) for kind in (Lines, Events))
        for _ in range(CLIENTS // 3):
            await stack.enter_async_context(await lines.begin(f"GET {API}/containers/c1/export"))
            await stack.enter_async_context(await lines.open())
            await stack.enter_async_context(await events.open())
        for _ in range(LONG_LINES):
            lines.say(LONG)
            events.say(LONG)
            assert (await ask(path, "GET", "/_ping")).body == b"OK"
        ended = time.monotonic() + STALL_SECONDS.now
        while time.monotonic() < ended:
            assert (await ask(path, "GET", "/_ping")).body == b"OK"
        assert resident_bytes(proxy.pid) - before <= CLIENTS * STALLED_BYTES
        await stack.aclose()
        await until(lambda: open_files(proxy.pid) <= files + OWN_CONNECTIONS)


# ---- silence


async def test_a_stream_that_was_silent_carries_the_next_byte(path: str, fake: FakeDockerd) -> None:
    """Of all kinds, each way; a request's body and a connection between two requests, too."""
    lines = [kind(path, fake) for kind in (Lines, Events, Pull)]
    async with contextlib.AsyncExitStack() as stack:
        followers = [await stack.enter_async_context(await stream.open()) for stream in lines]
        pipe = await stack.enter_async_context(await exec_started(path, "cat"))
        load = await stack.enter_async_context(await asked(path, "POST /images/load", "Content-Length: 8"))
        idle = await stack.enter_async_context(await asked(path, "GET /_ping"))
        assert (await idle.head()).startswith(b"HTTP/1.1 200 ")
        assert await idle.exactly(2) == b"OK"
        pipe.send(b"one")
        load.send(b"half")
        assert await pipe.exactly(11) == frame(1, b"one")
        assert b" 200 OK\r\n" in await load.head()
        await asyncio.sleep(IDLE_SECONDS.now)
        for stream, raw in zip(lines, followers, strict=True):
            assert stream.say(b"two\n") in await raw.chunk()
        pipe.send(b"two")
        assert await pipe.exactly(11) == frame(1, b"two")
        load.send(b"more")
        assert b"Loaded 8 bytes" in await load.chunk()
        idle.send(request("GET", "/_ping"))
        assert (await idle.head()).startswith(b"HTTP/1.1 200 ")
