"""Log lines on stderr that never block a call and never contain a value.

Invariants: a full or broken stderr drops lines, which are counted, and delays nothing. The text of an exception is
written only if the class is the project's own: others may quote their input. Lines of other libraries are cut to their
template for the same reason.
"""

import json
import logging
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.observe.events import rfc3339

OWN_LOGGER = "runtimeproxy"
LINES_WAITING = 4096
SECONDS_BETWEEN = 1.0
"""Least seconds between two lines of a kind; lines at debug level are not limited."""
UNLIMITED = {"limited": False}
"""``extra`` of a line that is not rate-limited: the last line that reports a state must not be lost."""
_MOST_KINDS = 1024
_CLOSE_SECONDS = 1.0


def configure(level: str, format: str, fd: int = 2) -> "LineHandler":
    """Log lines at ``level`` or above to ``fd`` as ``format`` ("text" or "json"), replacing an earlier configuration.
    Other libraries log only warnings and errors: their debug lines contain header values."""
    for old in _handlers():
        old.close()
    handler = LineHandler(fd, FORMATTERS[format]())
    logging.getLogger().addHandler(handler)
    set_level(level)
    return handler


def set_level(level: str) -> None:
    """Log lines at ``level`` or above from now on, with tracebacks at "debug"."""
    logging.getLogger(OWN_LOGGER).setLevel(level.upper())
    for handler in _handlers():
        handler.setLevel(level.upper())
        handler.lines.show_tracebacks = level == "debug"


def dropped() -> int:
    return sum(handler.dropped for handler in _handlers())


def _handlers() -> list["LineHandler"]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, LineHandler)]


class Limit:
    """Admits at most one line of a kind per ``SECONDS_BETWEEN``; the next one has the number of suppressed lines."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: dict[tuple[str, ...], tuple[float, int]] = {}

    def admit(self, kind: tuple[str, ...]) -> int | None:
        """Return how many lines of this kind were suppressed before this one; None if this one is suppressed too."""
        now = self._clock()
        since, suppressed = self._kinds.pop(kind, (-SECONDS_BETWEEN, 0))
        if since >= 0 and now - since < SECONDS_BETWEEN:
            self._kinds[kind] = (since, suppressed + 1)
            return None
        if len(self._kinds) >= _MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[kind] = (now, 0)
        return suppressed


class LineHandler(logging.Handler):
    """Formats in the caller's thread and writes in its own; ``dropped`` counts the lines that stderr did not accept.
    ``extra={"kind": NAME}`` divides lines of one template into kinds, for instance one per plugin. ``extra=UNLIMITED``
    exempts a line from the limit. ``extra={"call": ID}`` puts the call's id into the line."""

    def __init__(self, fd: int, lines: "Lines", limit: Limit | None = None) -> None:
        super().__init__()
        self.lines = lines
        self.setFormatter(lines)
        self.dropped = 0
        self._fd = fd
        self._limit = limit or Limit()
        self._lines: queue.Queue[bytes | None] = queue.Queue(LINES_WAITING)
        self._writer = threading.Thread(target=self._write, name="log-writer", daemon=True)
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if record.levelno > logging.DEBUG and getattr(record, "limited", True):
                suppressed = self._limit.admit((record.name, str(record.msg), str(getattr(record, "kind", ""))))
                if suppressed is None:
                    return
                record.__dict__["left_out"] = suppressed
            line = self.format(record) + "\n"
            self._lines.put_nowait(line.encode(errors="backslashreplace"))
        # A full queue, or a template that does not fit its arguments: logging's own report would show values.
        except Exception:
            self.dropped += 1

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                # The bare descriptor: a thread that hangs inside sys.stderr holds its lock when the interpreter ends.
                while line:
                    line = line[os.write(self._fd, line) :]
            except OSError:
                self.dropped += 1

    def close(self) -> None:
        """Write the queued lines, for at most a second, and remove the handler from the root logger."""
        logging.getLogger().removeHandler(self)
        with suppress(queue.Full):  # stderr accepts nothing: the thread is a daemon and ends with the process
            self._lines.put(None, timeout=_CLOSE_SECONDS)
            self._writer.join(_CLOSE_SECONDS)
        super().close()


class Lines(logging.Formatter):
    show_tracebacks = False

    def parts(self, record: logging.LogRecord) -> dict[str, Any]:
        """Another library's message is the first line of its template. The error is the exception's class and place,
        with its text if the class is the project's. The traceback begins with the oldest call."""
        own = record.name.partition(".")[0] == OWN_LOGGER
        error = record.exc_info[1] if record.exc_info else None
        frames = traceback.extract_tb(error.__traceback__) if error else []
        place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        text = f": {error}" if isinstance(error, RuntimeProxyError) else ""
        shown = frames if self.show_tracebacks else []
        return {
            "time": rfc3339(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage() if own else str(record.msg).partition("\n")[0],
            "call": str(getattr(record, "call", "")),
            "error": "" if error is None else f"{type(error).__name__}{place}{text}",
            "traceback": [f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in shown],
            "left_out": getattr(record, "left_out", 0),
        }


class TextLines(Lines):
    """``TIME LEVEL LOGGER: MESSAGE call=ID``, always on one line; a traceback follows indented."""

    def format(self, record: logging.LogRecord) -> str:
        parts = self.parts(record)
        text = _on_one_line(": ".join(filter(None, (parts["message"], parts["error"]))))
        more = f" ({parts['left_out']} more like this left out)" if parts["left_out"] else ""
        call = f" call={parts['call']}" if parts["call"] else ""
        head = f"{parts['time']} {record.levelname} {record.name}: {text}{more}{call}"
        return "\n    ".join([head, *map(_on_one_line, parts["traceback"])])


class JsonLines(Lines):
    """One JSON object a line, which always has time, level, logger and message."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps({key: value for key, value in self.parts(record).items() if value or key == "message"})


def _on_one_line(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


FORMATTERS: dict[str, type[Lines]] = {"text": TextLines, "json": JsonLines}
