"""Logs: one line per record, never a value, never a wait."""

import asyncio
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from runtimeproxy.admin.log_level import LogLevel
from runtimeproxy.errors import ConfigError
from runtimeproxy.observe import logs
from tests.fakes.clock import virtual_time

OURS = logging.getLogger("runtimeproxy.some.part")
FOREIGN = logging.getLogger("somelibrary")
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


class Stderr:
    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()

    def configure(self, level: str = "info", format: str = "text") -> logs.LineHandler:
        self.handler = logs.configure(level, format, self.write_end)
        return self.handler

    def written(self, level: str, format: str, log: Callable[[], None]) -> list[str]:
        """Return the lines written by ``log``; the pipe is closed then."""
        self.configure(level, format)
        log()
        return self.lines()

    def lines(self) -> list[str]:
        self.handler.close()
        os.close(self.write_end)
        with os.fdopen(self.read_end, closefd=False) as stream:
            return stream.read().splitlines()


@pytest.fixture
def stderr() -> Iterator[Stderr]:
    pipe = Stderr()
    level = logging.getLogger(logs.OWN_LOGGER).level
    yield pipe
    os.close(pipe.read_end)
    logging.getLogger(logs.OWN_LOGGER).setLevel(level)


def record(template: str, *values: object, level: int = logging.INFO) -> logging.LogRecord:
    return OURS.makeRecord(OURS.name, level, "", 0, template, values, None)


def fail_with(error: Exception) -> None:
    try:
        raise error
    except Exception:
        OURS.error("it broke", exc_info=True)


OURS_LINE = TIME + re.escape(r" INFO runtimeproxy.some.part: plugin a\ntwo\x1b[31m\udcff ä")
ERROR_LINE = r".*it broke: ConfigError at .*test_logs\.py:\d+: --x: what to do"
LINES: dict[str, tuple[Callable[[], None], str]] = {
    "time, level, logger and message": (lambda: OURS.info("plugin %s\ntwo\x1b[31m\udcff ä", "a"), OURS_LINE),
    "an error of ours with its text": (lambda: fail_with(ConfigError("--x: what to do")), ERROR_LINE),
    "no error": (lambda: OURS.error("oops", exc_info=(None, None, None)), r".* runtimeproxy\.some\.part: oops"),
    "an error without a place": (lambda: OURS.error("oops", exc_info=ValueError("canary")), ".*: oops: ValueError"),
    "a foreign template": (lambda: FOREIGN.warning("decoded %s", "canary"), ".* somelibrary: decoded %s"),
    "the call's id": (lambda: OURS.info("%s failed", "hook", extra={"call": "k1"}), r".*: hook failed call=k1"),
    "its first line": (lambda: FOREIGN.error("never retrieved\nValueError('canary')"), ".*: never retrieved"),
}


@pytest.mark.parametrize(("log", "line"), LINES.values(), ids=LINES)
def test_text_line_has_parts(stderr: Stderr, log: Callable[[], None], line: str) -> None:
    (written,) = stderr.written("info", "text", log)
    assert re.fullmatch(line, written)


LEVELS = ["debug", "info", "warning", "error"]


@pytest.mark.parametrize("level", LEVELS)
def test_lines_below_level_are_dropped(stderr: Stderr, level: str) -> None:
    """Libraries' lines below warning are dropped, too. The last line has the parts as JSON."""

    def log() -> None:
        for name in LEVELS:
            OURS.log(logging.getLevelName(name.upper()), name)
            FOREIGN.log(logging.getLevelName(name.upper()), f"foreign {name}")
        OURS.error('a "quoted" \n \x1b ä %s', "\udcff", extra={"call": "ab12-57"})

    *entries, last = [json.loads(line) for line in stderr.written(level, "json", log)]
    shown = LEVELS[LEVELS.index(level) :]
    assert [entry["message"] for entry in entries if "foreign" not in entry["message"]] == shown
    foreign = [f"foreign {name}" for name in shown if name in ("warning", "error")]
    assert [entry["message"] for entry in entries if "foreign" in entry["message"]] == foreign
    assert re.fullmatch(TIME, last.pop("time"))
    message = 'a "quoted" \n \x1b ä \udcff'
    assert last == {"level": "error", "logger": "runtimeproxy.some.part", "message": message, "call": "ab12-57"}


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize("level", ["debug", "info"])
def test_foreign_exception_is_logged_without_text(stderr: Stderr, level: str, format: str) -> None:
    """With the traceback at debug level only."""
    lines = stderr.written(level, format, lambda: fail_with(ValueError("canary")))
    assert "canary" not in "\n".join(lines)
    assert f"ValueError at {__file__}:" in lines[0]
    traceback = json.loads(lines[0]).get("traceback", []) if format == "json" else [line.strip() for line in lines[1:]]
    assert len(traceback) == (level == "debug")
    assert all(re.fullmatch(r".*test_logs\.py:\d+ in fail_with: raise error", frame) for frame in traceback)


def test_limit_admits_one_line_per_kind_and_second() -> None:
    now = 0.0
    limit = logs.Limit(lambda: now)
    assert [limit.admit((kind,)) for kind in "aaba"] == [0, None, 0, None]
    now = 0.999
    assert limit.admit(("a",)) is None
    now = 1.0
    assert limit.admit(("a",)) == 3
    now = 2.0
    assert limit.admit(("a",)) == 0
    assert {limit.admit((str(number),)) for number in range(3000)} == {0}
    assert (limit.admit(("2999",)), limit.admit(("0",))) == (None, 0), "it remembers a bounded number of kinds"


@pytest.mark.parametrize("form", [logs.TextLines, logs.JsonLines])
def test_line_counts_dropped_lines(stderr: Stderr, form: Callable[..., logging.Formatter]) -> None:
    now = 0.0
    handler = stderr.handler = logs.LineHandler(stderr.write_end, form(), logs.Limit(lambda: now))
    for number in range(5):
        handler.handle(record("hook %d failed", number))
    now = 1.5
    handler.handle(record("hook %d failed", 9))
    first, second = stderr.lines()
    assert ("hook 0 failed" in first, "left" in first, "hook 9 failed" in second) == (True, False, True)
    assert ("(4 more like this left out)" if form is logs.TextLines else '"left_out": 4') in second


def test_line_is_dropped_when_template_does_not_fit(stderr: Stderr, capfd: pytest.CaptureFixture[str]) -> None:
    handler = stderr.configure()
    handler.handle(record("%d", "canary"))
    assert (logs.dropped(), stderr.lines(), handler.dropped, capfd.readouterr().err) == (1, [], 1, "")


def test_debug_unlimited_and_other_kinds_are_not_limited(stderr: Stderr) -> None:
    def log() -> None:
        for name in ("a", "b", "b"):
            OURS.info("plugin %s", name, extra={"kind": name})
            OURS.debug("debug %s", name)
            OURS.info("it is %s", name, extra=logs.UNLIMITED)

    messages = [json.loads(line)["message"] for line in stderr.written("debug", "json", log)]
    first, second = ["plugin a", "debug a", "it is a"], ["plugin b", "debug b", "it is b"]
    assert messages == [*first, *second, "debug b", "it is b"]


def test_unread_stderr_drops_lines_without_delay(stderr: Stderr, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stderr without a reader is counted and nothing else; a second configuration replaces the first."""
    monkeypatch.setattr(logs, "_CLOSE_SECONDS", 0.05)
    pipe = Stderr()
    handler = logs.LineHandler(pipe.write_end, logs.TextLines())
    began = time.monotonic()
    for _ in range(logs.LINES_WAITING + 2000):
        handler.handle(record("x" * 1000, level=logging.DEBUG))
    handler.close()
    assert handler.dropped > 1000
    assert time.monotonic() - began < 10
    os.close(pipe.read_end)
    monkeypatch.setattr(logs, "_CLOSE_SECONDS", 10)
    handler.close()  # its writes fail now, so the thread ends and no longer uses the pipe's descriptor
    assert "log-writer" not in [thread.name for thread in threading.enumerate()]
    handler = pipe.configure()
    OURS.info("nobody reads this")
    assert len(stderr.written("info", "text", lambda: OURS.info("only once"))) == 1
    assert handler.dropped == 1
    os.close(pipe.write_end)
    assert not [handler for handler in logging.getLogger().handlers if isinstance(handler, logs.LineHandler)]


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@virtual_time
async def test_level_changes_immediately_and_is_restored(stderr: Stderr) -> None:
    stderr.configure()
    level = LogLevel(asyncio.get_running_loop(), "info", NOW.timestamp)
    level.change("error", 300.0)
    until = level.change("debug", 600.0)
    OURS.debug("shown")
    await asyncio.sleep(599)
    OURS.debug("shown too")
    await asyncio.sleep(2)
    OURS.debug("not shown")
    assert until == "2026-01-02T03:14:05.000Z"
    logs.set_level("error")
    LogLevel(asyncio.get_running_loop(), "error", NOW.timestamp).change("info", 1.0)
    await asyncio.sleep(2)
    *lines, changed, restored = [line.partition(" ")[2] for line in stderr.lines()[1:]]
    assert changed.endswith(": the log level is info until 2026-01-02T03:04:06.000Z, then error again")
    assert restored.endswith(": the log level is error again, as configured"), "at the more verbose level"
    assert lines == [
        "WARNING runtimeproxy.admin.log_level: the log level is debug until 2026-01-02T03:14:05.000Z, then info again",
        "DEBUG runtimeproxy.some.part: shown",
        "DEBUG runtimeproxy.some.part: shown too",
        "WARNING runtimeproxy.admin.log_level: the log level is info again, as configured",
    ]
