"""The bench of the admin socket: limits are judged by the rounds' median, clients that get no answer are counted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from scripts.benchmark import admin, cases, turns
from scripts.benchmark.admin import ALONE, CONDITIONS, CROWD, EACH, ELSEWHERE, ONE, Longest, Part, Round
from scripts.benchmark.cases import DIRECT, HOOKED
from scripts.benchmark.clients import METRICS, Clients
from scripts.benchmark.loads import Run
from scripts.benchmark.programs import HOOKS, served
from scripts.figures import MIB
from tests.fakes.server import StreamServer

SMALL, CREATE = cases.VERSION, cases.CREATE
KEPT = Longest(5.0, 1.0, 9.0)
LONG = Longest(25.0, 2.1, 0.0)


def part(p99: int = 100, cpu: float = 50.0) -> Part:
    """Return 50 calls."""
    return Part(Run([10] * 49 + [p99], 0.5), proxy=round(cpu * 1000 * 50), clients=10**8)


def a_round() -> Round:
    """Return a round that keeps all limits."""
    found = {(case, condition): part() for case in (SMALL, CREATE) for condition in CONDITIONS}
    turns = dict.fromkeys((ALONE, ONE, CROWD, EACH), KEPT)
    return Round([found], 20.0, turns, 0.3, 0.1, 40 * MIB)


def with_part(case: cases.Case, condition: admin.Condition, changed: Part) -> Round:
    return a_round()._replace(found=[{**a_round().found[0], (case, condition): changed}])


def with_turns(condition: admin.Condition) -> Round:
    return a_round()._replace(turns={**a_round().turns, condition: LONG})


MISSES = [
    (a_round(), []),
    (with_part(SMALL, CROWD, part(109)), []),
    (with_part(SMALL, CROWD, part(110)), ["cri, Version: p99, 100 clients to nobody"]),
    (with_part(CREATE, CROWD, part(110)), ["cri, CreateContainer: p99, 100 clients to nobody"]),
    (with_part(SMALL, ELSEWHERE, part(500)), []),
    (with_part(SMALL, ONE, part(cpu=53.1)), ["cri, Version: CPU of a call, 1 scraper more than nobody"]),
    (with_turns(CROWD), ["cri, longest turn's CPU, 100 clients"]),
    (with_turns(EACH), ["cri, longest turn's CPU, each request"]),
    (a_round()._replace(start=0.41), ["cri, start to first answer, with both sockets"]),
    (a_round()._replace(command=0.16), ["cri, first command after a start"]),
    (a_round()._replace(resident=61 * MIB), ["cri, resident with 1,000 containers and 4,096 events"]),
]


@pytest.mark.parametrize(("measured", "missed"), MISSES)
def test_missed_limit_of_the_admin_socket_is_named(measured: Round, missed: list[str]) -> None:
    assert [figure.what for figure in admin.judge(cases.CRI, [measured]) if figure.kept is False] == missed


def test_median_of_the_rounds_decides_and_the_control_is_told() -> None:
    rounds = [with_part(SMALL, CROWD, part(p99)) for p99 in (104, 300, 106)]
    found = admin.judge(cases.CRI, rounds)[0]
    assert (found.found, found.kept) == ("1.06 (where they ask another proxy 1.00)", True)


def test_table_has_a_row_for_each_call_and_condition() -> None:
    rows = admin.figure_table([a_round()])
    assert len(rows) == 2 * len(CONDITIONS)
    assert rows[0] == ("Version", "nobody asks", "10", "100", "50.0", "20")


END = b'{"id":1,"end":{"schemaVersion":1}}\n'
SCRAPED = [
    (b'{"id":1,"part":{}}\n' + END, 0),
    (END[:-1], 1),
    (b"", 1),
    (b"HTTP/1.1 200 OK\r\n", 1),
    (b'{"id":1,"error":{"status":503,"text":"later"}}\n', 1),
]


@asynccontextmanager
async def answered_with(path: Path, answer: bytes) -> AsyncIterator[Clients]:
    """Return clients of a server that gives everybody the same answer and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        writer.close()

    async with StreamServer(path, serve):
        yield Clients(str(path))


@pytest.mark.parametrize(("answer", "failed"), SCRAPED)
async def test_scrape_without_a_whole_answer_is_counted(tmp_path: Path, answer: bytes, failed: int) -> None:
    first = asyncio.Event()
    async with answered_with(tmp_path / "admin.sock", answer) as clients:
        scraping = asyncio.create_task(clients.scrape(0.0, first.set, METRICS))
        await first.wait()
        scraping.cancel()
    assert (len(clients.took), clients.failed) == (1, failed)


async def test_end_of_a_stream_is_counted_as_failed(tmp_path: Path) -> None:
    events = b'{"id":1,"part":{"events":[{"number":1},{"number":2}]}}\n'
    async with answered_with(tmp_path / "admin.sock", events) as clients:
        await clients.follow(lambda: None)
    assert (clients.events, clients.failed) == (2, 1)


@pytest.mark.slow
def test_longest_turns_of_a_real_proxy_are_found() -> None:
    with served(cases.CRI, (DIRECT, HOOKED, HOOKS), module=(turns.__name__,)) as running:
        longest = admin.longest_turns(running, 0.002)
    # The clocks are read one behind the other, and shown in whole microseconds.
    assert all(0 < found.cpu <= found.wall + 0.01 for found in longest.values())
    assert set(longest) == {ALONE, ONE, CROWD, EACH}


@pytest.mark.slow
def test_first_command_after_a_start_is_answered() -> None:
    with served(cases.CRI, (DIRECT,)) as running:
        assert min(admin.start_and_command(running, "start")) > 0
