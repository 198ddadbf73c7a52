"""How times are written: RFC 3339 in UTC, with milliseconds.

Owns the form.
Must not know: what happened then.
Invariant: any time that a file may name can be written, also one before 1970.
"""

from datetime import UTC, datetime, timedelta

EPOCH = datetime.fromtimestamp(0, UTC)


def rfc3339(seconds: float) -> str:
    """Return a time in seconds since 1970 like ``2026-11-25T10:00:00.000Z``."""
    return (EPOCH + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
