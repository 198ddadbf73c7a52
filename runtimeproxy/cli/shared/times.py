"""Times as commands print and read them.

Owns the short form of a time, and the texts of ``--since``.
Must not know: what happened then.
Invariant: a time is UTC wherever it is printed.
"""

import re
from datetime import UTC, datetime, timedelta

import click

_SPAN = re.compile(r"([0-9]{1,6})(s|m|h)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours"}


def clock(time: str) -> str:
    """Return a time of the proxy's answers as ``MM-DD HH:MM:SS``."""
    return time[5:19].replace("T", " ")


def since(text: str | None) -> int | datetime | None:
    """Return the number of an event, or the time so long ago. Raises click.UsageError for any other text."""
    if text is None or (text.isascii() and text.isdigit()):
        return None if text is None else int(text)
    span = _SPAN.fullmatch(text)
    if span is None:
        raise click.UsageError(f"--since: {text!r} is neither an event's number nor a duration like 30s, 10m or 2h")
    return datetime.now(UTC) - timedelta(**{_UNITS[span[2]]: int(span[1])})
