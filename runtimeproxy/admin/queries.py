"""What the admin server can ask the daemon.

Owns the table of questions.
Must not know: HTTP, the channel.
Invariant: no answer has a value of a request.
"""

import os
import platform
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from runtimeproxy.admin.channel import Query
from runtimeproxy.admin.snapshot import series
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.version import VERSION


def table(metrics: Metrics, mode: str) -> Mapping[str, Query]:
    """Return the questions by name."""
    started = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    version: dict[str, Any] = {
        "version": VERSION,
        "python": platform.python_version(),
        "mode": mode,
        "pid": os.getpid(),
        "startedAt": started,
    }
    return {
        "metrics": lambda _: series(metrics),
        "livez": lambda _: iter([{"checks": [{"name": "loop", "state": "ok"}]}]),
        "version": lambda _: iter([version]),
    }
