"""What a fleet costs: the figures of docs/fleets.rst, from what was measured on one node and one Prometheus.

Owns the size of the fleet, the assumptions, and the arithmetic.
Must not know: how anything was measured.
Invariant: each figure is a product of measured ones and of assumptions that the page names.
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runtimeproxy.observe.metric_table import HOOK_SERVER, HOOK_SERVER_SERIES, HOOK_SERVERS, ROWS, Kind

MEASURED = Path("scripts/fleets/measured.json")
SCRAPE = Path("deploy/prometheus/scrape.yaml")
NODES = 10_000
PARALLEL = (1, 10, 50, 100, 200)
"""How many nodes are worked at at the same time."""
NETWORK_MBIT = 100
POD_SECONDS = 15.0
"""For the end of an installer's pod, the start of the next one, and its checks before it changes anything."""
WATCH_SECONDS = 60.0
"""deploy/installer/kubelet.py watches a kubelet for so long behind its restart."""
GIB = 1 << 30


def measured() -> Any:
    """Return what was measured last."""
    return json.loads(MEASURED.read_text())


def scrape_seconds() -> int:
    """Return how often deploy/ has each node scraped, in seconds."""
    found = re.search(r"scrape_interval: (\d+)s", SCRAPE.read_text())
    assert found is not None
    return int(found[1])


def most_of_hook_servers() -> int:
    """Return the most series that hook servers add to a node, from the table of metrics."""
    names = HOOK_SERVERS + 1  # and those that are counted together
    rows = [row for row in ROWS if row.labels[:1] == (HOOK_SERVER,)]
    gauges = sum(row.kind is Kind.GAUGE for row in rows)
    histograms = sum(len(row.buckets) + 3 for row in rows if row.kind is Kind.HISTOGRAM)  # infinity, sum, count
    return HOOK_SERVER_SERIES + names * (gauges + histograms)


def node_rows(found: Any) -> Iterator[list[str]]:
    """Yield what was measured: what, how much, and how."""
    prometheus, pages = found["prometheus"], "its share of pages (PSS)"
    yield ["day and machine", found["day"], found["machine"]]
    yield ["series of a node", f"{found['series of a node']}", "a real scrape: three hook servers at all hook points"]
    yield [
        "bytes of a scrape",
        f"{found['bytes of a scrape']:,}",
        f"the same; {found['bytes of a scrape, gzip']:,} if it were compressed, which it is not",
    ]
    for name in ("proxy", "exporter"):
        memory, cpu = found["MiB of memory"][name], found["CPU ms of a scrape"][name]
        yield [f"the {name}", f"{memory} MiB, {cpu} ms a scrape", f"{pages}; the scheduler's count over 40 scrapes"]
    yield [
        "a restart",
        f"{found['seconds of a restart']} s",
        "SIGTERM to the first answer, the listener held; median of 5",
    ]
    yield [
        "the package",
        f"{found['MiB of the package']} MiB, {found['seconds to unpack']} s",
        "its file, and ``dpkg-deb --extract``",
    ]
    yield [
        "a series in Prometheus",
        f"{prometheus['resident bytes of a series']:,} bytes",
        "Debian's 2.42: the growth of its memory from {} to {} synthetic nodes that serve that scrape, each counter "
        "higher each time, over 125 scrapes, with all rules of ``deploy/``; ".format(*prometheus["nodes"])
        + f"{prometheus['live bytes of a series']:,} of it are live behind a collection",
    ]
    yield [
        "a sample in Prometheus",
        f"{prometheus['CPU microseconds of a sample']} µs of CPU",
        "the same, rules included",
    ]


def fleet_rows(found: Any) -> Iterator[list[str]]:
    """Yield what the fleet costs."""
    every, series = scrape_seconds(), NODES * found["series of a node"]
    prometheus, cpu, memory = found["prometheus"], found["CPU ms of a scrape"], found["MiB of memory"]
    samples = series / every
    most = NODES * most_of_hook_servers()
    yield ["series", f"{series / 1e6:.1f} million; hook servers may add {most / 1e6:.1f} million at the very most"]
    yield [
        f"scrapes each {every} s",
        f"{samples:,.0f} samples, {NODES * found['bytes of a scrape'] / every / 1e6:.0f} MB a second",
    ]
    yield [
        "Prometheus",
        f"{series * prometheus['resident bytes of a series'] / GIB:.0f} GiB of memory, "
        f"{samples * prometheus['CPU microseconds of a sample'] / 1e6:.1f} cores",
    ]
    yield [
        "proxies",
        f"{NODES * memory['proxy'] / 1024:,.0f} GiB of memory in all; "
        f"{NODES * cpu['proxy'] / every / 1000:.1f} cores in all for being scraped",
    ]
    yield [
        "exporters",
        f"{NODES * memory['exporter'] / 1024:,.0f} GiB of memory in all; "
        f"{NODES * cpu['exporter'] / every / 1000:.1f} cores in all",
    ]


def hours_rows(found: Any) -> Iterator[list[str]]:
    """Yield the hours of a roll-out at each parallelism: of an upgrade, and of the first installation."""
    upgrade = sum(seconds for _, seconds in upgrade_seconds(found))
    for parallel in PARALLEL:
        turns = math.ceil(NODES / parallel)
        yield [f"{parallel}", *(f"{turns * each / 3600:.1f}" for each in (upgrade, upgrade + WATCH_SECONDS))]


def seconds_rows(found: Any) -> Iterator[list[str]]:
    """Yield what a node takes its time for."""
    for what, seconds in upgrade_seconds(found):
        yield [what, f"{seconds:.1f}"]
    yield ["at the first installation, the kubelet's restart and the watch behind it", f"{WATCH_SECONDS:.1f}"]


def upgrade_seconds(found: Any) -> list[tuple[str, float]]:
    """Return the steps of a node's upgrade with their seconds."""
    download = found["MiB of the package"] * (1 << 20) * 8 / (NETWORK_MBIT * 1e6)
    return [
        ("the installer's pod ends, the next one starts and checks (assumed)", POD_SECONDS),
        (f"the download, at {NETWORK_MBIT} Mbit/s (assumed)", download),
        ("unpack (measured)", found["seconds to unpack"]),
        ("restart the proxy (measured)", found["seconds of a restart"]),
    ]
