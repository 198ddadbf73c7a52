"""Write docs/metrics.rst from the table of metrics, or check that it is what would be written.

Run: ``python -m scripts.checks.metrics [--check]``; scripts/genmetrics calls it.
"""

import sys
import textwrap
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from runtimeproxy.observe.metric_table import HOOK_SERVER_SERIES, HOOK_SERVERS, OTHER, ROWS, SECONDS, Metric
from scripts.checks.generated import parser, write_or_compare

PAGE = Path("docs/metrics.rst")
WIDTH = 120
HEAD = f"""\
Metrics
=======

.. scripts/genmetrics writes this page from runtimeproxy/observe/metric_table.py.

``runtimeproxy export`` serves them at ``/metrics`` (``docs/operation.rst``), and SIGUSR1 logs them, one line each. Both
are Prometheus' text format. Names begin with ``runtimeproxy_``; counters end with ``_total``, and times are in seconds.
``runtime`` is the proxy's mode and the same in the whole process. ``hook_server`` is the registration file's name
without ``.json``: the first {HOOK_SERVERS} names of a process's life. All others together are ``{OTHER}``, and so is
what would make more than {HOOK_SERVER_SERIES:,} counters of hook servers. The gauges of a plugin that is gone vanish.
No label is a value of a request.

The buckets of all histograms end at {", ".join(f"{bound:g}" for bound in SECONDS)} seconds and infinity.
"""


def main() -> int:
    """Write the page, or with ``--check`` compare it; return the exit code."""
    command = "scripts/genmetrics"
    check = parser(command, f"Write {PAGE} from the table.").parse_args().check
    return write_or_compare(command, {PAGE: page(ROWS)}, check=check)


def page(rows: tuple[Metric, ...]) -> str:
    """Return the text of the page."""
    return "\n".join([HEAD, *chain.from_iterable(map(_entry, rows))]).rstrip("\n") + "\n"


def _entry(row: Metric) -> Iterator[str]:
    labels = f"; {', '.join(row.labels)}" if row.labels else ""
    yield f"``{row.shown}`` ({row.kind.value}{labels})"
    yield from textwrap.wrap(row.help, WIDTH, initial_indent="    ", subsequent_indent="    ")


if __name__ == "__main__":
    sys.exit(main())
