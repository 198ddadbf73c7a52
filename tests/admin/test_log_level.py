"""A log level for a time: in force immediately, restored by itself, reported in the log, and without values."""

import asyncio
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from runtimeproxy.admin.log_level import LogLevel
from runtimeproxy.observe import logs
from runtimeproxy.observe.logs import UNLIMITED
from tests.fakes.clock import virtual_time

pytestmark = virtual_time

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LOG = logging.getLogger("runtimeproxy.some.part")
CANARY = "canary-4711"


@dataclass
class Log:
    """A log at info, which ends when ``lines`` is called."""

    read_end: int
    write_end: int
    handler: logging.Handler

    def level(self, configured: str = "info") -> LogLevel:
        logs.set_level(configured)
        return LogLevel(asyncio.get_running_loop(), configured, NOW.timestamp)

    def lines(self) -> list[str]:
        """Return the lines without their times."""
        self.handler.close()
        os.close(self.write_end)
        with os.fdopen(self.read_end) as stream:
            return [line.partition(" ")[2] for line in stream.read().splitlines()]


@pytest.fixture
def written() -> Iterator[Log]:
    level = logging.getLogger(logs.OWN_LOGGER).level
    read_end, write_end = os.pipe()
    yield Log(read_end, write_end, logs.configure("info", "text", write_end))
    logging.getLogger(logs.OWN_LOGGER).setLevel(level)


async def test_level_changes_immediately_and_is_restored(written: Log) -> None:
    level = written.level()
    level.change("error", 300.0)
    until = level.change("debug", 600.0)
    LOG.debug("shown")
    await asyncio.sleep(599)
    LOG.debug("shown too")
    await asyncio.sleep(2)
    LOG.debug("not shown")
    assert until == "2026-01-02T03:14:05.000Z"
    assert written.lines()[1:] == [
        "WARNING runtimeproxy.admin.log_level: the log level is debug until 2026-01-02T03:14:05.000Z, then info again",
        "DEBUG runtimeproxy.some.part: shown",
        "DEBUG runtimeproxy.some.part: shown too",
        "WARNING runtimeproxy.admin.log_level: the log level is info again, as configured",
    ]


async def test_change_is_reported_at_the_level_that_shows_more(written: Log) -> None:
    level = written.level("error")
    level.change("info", 1.0)
    await asyncio.sleep(2)
    assert [line.partition(": ")[2] for line in written.lines()] == [
        "the log level is info until 2026-01-02T03:04:06.000Z, then error again",
        "the log level is error again, as configured",
    ]


async def test_tracebacks_are_shown_at_debug_without_values(written: Log) -> None:
    level = written.level()
    for name in ("debug", "info"):
        level.change(name, 600.0)
        try:
            raise KeyError(CANARY)
        except KeyError:
            LOG.warning("failed at %s", name, exc_info=True, extra=UNLIMITED)
    text = "\n".join(written.lines())
    assert text.count(" in test_tracebacks_are_shown_at_debug_without_values: raise KeyError(") == 1
    assert "failed at info: KeyError at " in text
    assert CANARY not in text
