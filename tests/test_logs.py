"""Logs: one line a record, never a value, never a wait."""

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from runtimeproxy import logs
from runtimeproxy.errors import ConfigError

OURS = logging.getLogger("runtimeproxy.some.part")
FOREIGN = logging.getLogger("somelibrary")
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


class Stderr:
    """A pipe in stderr's place."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()

    def lines(self) -> list[str]:
        """Return what was written; the pipe ends with it."""
        os.close(self.write_end)
        with os.fdopen(self.read_end, closefd=False) as stream:
            return stream.read().splitlines()


@pytest.fixture
def stderr() -> Iterator[Stderr]:
    pipe = Stderr()
    yield pipe
    os.close(pipe.read_end)


@pytest.fixture(autouse=True)
def _leave_logging_as_it_was() -> Iterator[None]:
    level = logging.getLogger(logs.OWN_LOGGER).level
    yield
    logging.getLogger(logs.OWN_LOGGER).setLevel(level)


def written(stderr: Stderr, level: str, format: str, log: Callable[[], None]) -> list[str]:
    """Return the lines that ``log`` leaves on stderr."""
    handler = logs.configure(level, format, stderr.write_end)
    log()
    handler.close()
    return stderr.lines()


def fail_with(error: Exception) -> None:
    """Log ``error`` as it was caught."""
    try:
        raise error
    except Exception:
        OURS.error("it broke", exc_info=True)


def test_a_text_line_has_time_level_logger_and_message(stderr: Stderr) -> None:
    (line,) = written(stderr, "info", "text", lambda: OURS.info("plugin %s is %d", "a", 5))
    assert re.fullmatch(rf"{TIME} INFO runtimeproxy\.some\.part: plugin a is 5", line)


def test_a_json_line_is_an_object_with_the_same(stderr: Stderr) -> None:
    (line,) = written(stderr, "info", "json", lambda: OURS.warning('a "quoted" \n \x1b ä %s', "\udcff"))
    record = json.loads(line)
    assert re.fullmatch(TIME, record.pop("time"))
    assert record == {
        "level": "warning",
        "logger": "runtimeproxy.some.part",
        "message": 'a "quoted" \n \x1b ä \udcff',
    }


def test_a_text_message_stays_on_its_line(stderr: Stderr) -> None:
    (line,) = written(stderr, "info", "text", lambda: OURS.info("one\ntwo\x1b[31m\udcff ä"))
    assert line.endswith(r"runtimeproxy.some.part: one\ntwo\x1b[31m\udcff ä")


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("debug", ["debug", "info", "warning", "error", "foreign warning"]),
        ("info", ["info", "warning", "error", "foreign warning"]),
        ("warning", ["warning", "error", "foreign warning"]),
        ("error", ["error"]),
    ],
)
def test_levels(stderr: Stderr, level: str, expected: list[str]) -> None:
    def log() -> None:
        for each in ("debug", "info", "warning", "error"):
            OURS.log(logging.getLevelName(each.upper()), each)
        FOREIGN.debug("foreign debug")
        FOREIGN.info("foreign info")
        FOREIGN.warning("foreign warning")

    lines = written(stderr, level, "json", log)
    assert [json.loads(line)["message"] for line in lines] == expected


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize("level", ["debug", "info"])
def test_the_text_of_a_foreign_exception_is_never_written(stderr: Stderr, level: str, format: str) -> None:
    lines = written(stderr, level, format, lambda: fail_with(ValueError("canary")))
    assert "canary" not in "\n".join(lines)
    assert f"ValueError at {__file__}:" in lines[0]


def test_the_text_of_our_own_errors_is_written(stderr: Stderr) -> None:
    (line,) = written(stderr, "info", "text", lambda: fail_with(ConfigError("--x: what to do")))
    assert re.search(r"it broke: ConfigError at .*test_logs\.py:\d+: --x: what to do$", line)


def test_a_traceback_is_written_at_debug_level_only() -> None:
    text, info, as_json = Stderr(), Stderr(), Stderr()
    lines = written(text, "debug", "text", lambda: fail_with(ValueError("canary")))
    assert re.fullmatch(r"    .*test_logs\.py:\d+ in fail_with: raise error", lines[1])
    assert len(written(info, "info", "text", lambda: fail_with(ValueError("canary")))) == 1
    (line,) = written(as_json, "debug", "json", lambda: fail_with(ValueError("canary")))
    assert re.fullmatch(r".*test_logs\.py:\d+ in fail_with: raise error", json.loads(line)["traceback"][0])


@pytest.mark.parametrize("exc_info", [(None, None, None), ValueError("canary")], ids=["none", "never raised"])
def test_an_exception_without_a_place(stderr: Stderr, exc_info: object) -> None:
    (line,) = written(stderr, "debug", "text", lambda: OURS.error("oops", exc_info=exc_info))  # type: ignore[arg-type]
    assert line.endswith(": oops: ValueError" if isinstance(exc_info, ValueError) else ": oops")


def test_lines_of_foreign_libraries_are_cut_to_their_template(stderr: Stderr) -> None:
    def log() -> None:
        FOREIGN.warning("decoded header %s", "canary")
        FOREIGN.error("Task exception was never retrieved\nfuture: <Task exception=ValueError('canary')>")

    assert [line.partition("somelibrary: ")[2] for line in written(stderr, "debug", "text", log)] == [
        "decoded header %s",
        "Task exception was never retrieved",
    ]


def test_a_template_that_does_not_fit_its_arguments_is_dropped_in_silence(
    stderr: Stderr, capfd: pytest.CaptureFixture[str]
) -> None:
    handler = logs.configure("info", "text", stderr.write_end)
    handler.handle(OURS.makeRecord(OURS.name, logging.INFO, "", 0, "%d", ("canary",), None))
    handler.close()
    assert handler.dropped == 1
    assert stderr.lines() == []
    assert capfd.readouterr().err == ""


def test_one_line_a_second_of_a_kind_and_the_next_tells_how_many_were_left_out() -> None:
    now = 0.0
    limit = logs.Limit(lambda: now)
    assert [limit.admit(("a",)), limit.admit(("a",)), limit.admit(("b",)), limit.admit(("a",))] == [0, None, 0, None]
    now = 0.999
    assert limit.admit(("a",)) is None
    now = 1.0
    assert limit.admit(("a",)) == 3
    now = 2.0
    assert limit.admit(("a",)) == 0


def test_the_kinds_that_the_limit_remembers_are_bounded() -> None:
    limit = logs.Limit(lambda: 0.0)
    for number in range(3000):
        assert limit.admit((str(number),)) == 0
    assert limit.admit(("2999",)) is None
    assert limit.admit(("0",)) == 0


class Ticks:
    """A clock that moves when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("formatter", "told"), [(logs.TextLines, "(4 more like this left out)"), (logs.JsonLines, '"left_out": 4')]
)
def test_a_line_tells_how_many_like_it_were_left_out(
    stderr: Stderr, formatter: Callable[..., logging.Formatter], told: str
) -> None:
    ticks = Ticks()
    handler = logs.LineHandler(stderr.write_end, formatter(show_tracebacks=False), logs.Limit(ticks))
    for number in range(5):
        handler.handle(OURS.makeRecord(OURS.name, logging.WARNING, "", 0, "hook %d failed", (number,), None))
    ticks.now = 1.5
    handler.handle(OURS.makeRecord(OURS.name, logging.WARNING, "", 0, "hook %d failed", (9,), None))
    handler.close()
    first, second = stderr.lines()
    assert "hook 0 failed" in first
    assert "left" not in first
    assert "hook 9 failed" in second
    assert told in second


def test_a_kind_of_its_own_and_debug_lines_are_not_left_out(stderr: Stderr) -> None:
    def log() -> None:
        for name in ("a", "b", "b"):
            OURS.info("plugin %s", name, extra={"kind": name})
            OURS.debug("asked %s", name)

    messages = [json.loads(line)["message"] for line in written(stderr, "debug", "json", log)]
    assert messages == ["plugin a", "asked a", "plugin b", "asked b", "asked b"]


def test_lines_that_are_not_limited_are_all_written(stderr: Stderr) -> None:
    def log() -> None:
        for state in ("on", "off", "on"):
            OURS.info("it is %s", state, extra={"limited": False})

    lines = written(stderr, "info", "text", log)
    assert [line.rpartition(" ")[2] for line in lines] == ["on", "off", "on"]


def test_a_stderr_that_nobody_reads_costs_lines_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_CLOSE_SECONDS", 0.05)
    pipe = Stderr()
    handler = logs.LineHandler(pipe.write_end, logs.TextLines(show_tracebacks=False))
    record = OURS.makeRecord(OURS.name, logging.DEBUG, "", 0, "x" * 1000, (), None)
    began = time.monotonic()
    for _ in range(logs.LINES_WAITING + 2000):
        handler.handle(record)
    handler.close()
    assert handler.dropped > 1000
    assert time.monotonic() - began < 10
    os.close(pipe.read_end)
    monkeypatch.setattr(logs, "_CLOSE_SECONDS", 10)
    handler.close()  # its writes fail now, so the thread comes to its end and leaves the number of the pipe alone
    assert "log-writer" not in [thread.name for thread in threading.enumerate()]
    os.close(pipe.write_end)


def test_a_broken_stderr_is_counted_and_nothing_else() -> None:
    pipe = Stderr()
    os.close(pipe.read_end)
    handler = logs.configure("info", "text", pipe.write_end)
    OURS.info("nobody hears this")
    handler.close()
    os.close(pipe.write_end)
    assert handler.dropped == 1


def test_a_second_configuration_replaces_the_first() -> None:
    first, second = Stderr(), Stderr()
    logs.configure("info", "text", first.write_end)
    lines = written(second, "info", "text", lambda: OURS.info("only once"))
    assert len(lines) == 1
    assert first.lines() == []
    assert not [handler for handler in logging.getLogger().handlers if isinstance(handler, logs.LineHandler)]
