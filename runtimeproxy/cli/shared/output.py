"""Output of commands: tables, JSON and YAML, times (UTC), errors, exit codes."""

import json
import re
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.settings import imports

FAILED = 1
"""Running failed, or something was found."""
WRONG_USE = 2
"""The command line, the environment or the file is wrong, and nothing was opened."""
NO_PROXY = 3
INTERRUPTED = imports.INTERRUPTED
STATES = {"closed": "ok", "open": "breaker open", "half_open": "breaker half open"}
_SPAN = re.compile(r"([0-9]{1,6})(s|m|h)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours"}


def clock(time: str) -> str:
    """Return a time of the proxy's answers as ``MM-DD HH:MM:SS``."""
    return time[5:19].replace("T", " ")


def parse_since(text: str | None) -> int | datetime | None:
    """Return the number of an event, or the time so long ago. Raises click.UsageError for any other text."""
    if text is None or (text.isascii() and text.isdigit()):
        return None if text is None else int(text)
    span = _SPAN.fullmatch(text)
    if span is None:
        raise click.UsageError(f"--since: {text!r} is neither an event's number nor a duration like 30s, 10m or 2h")
    return datetime.now(UTC) - timedelta(**{_UNITS[span[2]]: int(span[1])})


def error_text(error: Exception) -> str:
    """Return the message about an error for the user. The text of a foreign exception may quote a value, so only its
    class and its place are shown."""
    if isinstance(error, RuntimeProxyError | OSError):
        return str(error)
    if isinstance(error, ImportError) and error.name:
        return f"the library {error.name} cannot be loaded: it is missing or damaged; install runtimeproxy again"
    last = traceback.extract_tb(error.__traceback__)[-1]
    unexpected = f"unexpected {type(error).__name__} at {last.filename}:{last.lineno}"
    return "; ".join([unexpected, *getattr(error, "__notes__", ())])


def printable(text: str, allowed: str = "") -> str:
    return "".join(letter if letter.isprintable() or letter in allowed else "?" for letter in text)


TABLE, JSON, YAML = "table", "json", "yaml"
NOT_SET = "-"
_GAP = "   "
_NARROWEST = 20
"""Least width of a table's last column on a terminal."""

_Command = Callable[..., int | None]


def output_option(*forms: str) -> Callable[[_Command], _Command]:
    """Return the decorator that adds ``-o`` with these forms, or table, JSON and YAML; the first is the default."""
    forms = forms or (TABLE, JSON, YAML)
    return click.option(
        "-o",
        "--output",
        type=click.Choice(forms),
        default=forms[0],
        metavar="|".join(forms),
        help=f"The form of the output.  [default: {forms[0]}]",
    )


def row_options(command: _Command) -> _Command:
    no_headers = click.option("--no-headers", is_flag=True, help="Print a table without its first line.")
    return output_option()(no_headers(command))


def row_text(
    rows: Sequence[Mapping[str, str | None]], columns: Sequence[str], output: str, no_headers: bool, data: Any = None
) -> str:
    """Return a table of these columns, or as JSON or YAML ``data`` or the rows; without the last line feed."""
    if output != TABLE:
        return structured_text(data or [{column: row[column] for column in columns} for row in rows], output)
    return "\n".join(Table(columns, no_headers).lines(rows))


class Table:
    """A table that may be printed in several calls: a column stays as wide as it was."""

    def __init__(self, columns: Sequence[str], no_headers: bool) -> None:
        self._columns = columns
        self._head = [] if no_headers else [[column.upper() for column in columns]]
        self._widths = [0] * (len(columns) - 1)

    def lines(self, rows: Iterable[Mapping[str, str | None]]) -> Iterator[str]:
        """Yield the lines of these rows, and the head before the first ones."""
        cells = self._head + [[_cell(row[column]) for column in self._columns] for row in rows]
        self._head = []
        for row in cells:
            self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, row[:-1], strict=True)]
        room = _remaining_columns(sum(width + len(_GAP) for width in self._widths))
        return (line for row in cells for line in _lines(row, self._widths, room))


def _cell(value: str | None) -> str:
    return NOT_SET if value is None else printable(str(value), "\n")


def _remaining_columns(used: int) -> int | None:
    """Return how many columns of the terminal remain; None if stdout is no terminal: a row is one line there."""
    return max(shutil.get_terminal_size().columns - used, _NARROWEST) if sys.stdout.isatty() else None


def _lines(row: Sequence[str], widths: Sequence[int], room: int | None) -> Iterator[str]:
    """Yield the lines of a row; all but the first have text of the last column only."""
    *first, last = row
    start = "".join(f"{cell:{width}}{_GAP}" for cell, width in zip(first, widths, strict=True))
    parts = [" ".join(last.splitlines())] if room is None else _wrapped(last, room)
    yield (start + parts[0]).rstrip()
    for part in parts[1:]:
        yield " " * len(start) + part


def _wrapped(text: str, room: int) -> list[str]:
    """Return the lines of a text, none longer than the room except for a single long word, such as a path."""
    wrapped = (textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False) for line in text.splitlines())
    return [part for parts in wrapped for part in parts] or [""]


def structured_text(value: Any, output: str) -> str:
    if output == JSON:
        return json.dumps(value, indent=2)
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes a text of several lines as a literal block."""

    def write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, write_text)
    return yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1000).rstrip("\n")
