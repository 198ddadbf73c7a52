"""The table of a soak's steps.

A step's amount is its full amount times the share; below the full amount most figures are not judged.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from scripts.benchmark import admin, cases, hooks, measure
from scripts.benchmark.cases import MODES
from scripts.figures import MIB, Figure, at_most
from scripts.soaking import (
    built,
    cluster,
    day,
    documented,
    endurance,
    fresh,
    image,
    migration,
    packaged,
    tested,
    under_load,
    versions,
)
from scripts.soaking.results import Found, Result
from scripts.soaking.tested import HYPOTHESIS, system
from tests.amounts import IDLE_SECONDS, STALL_SECONDS, Amount

ROUNDS = Amount(1, measure.ROUNDS)
PODS, CONTAINERS = 1_000, 3
RECORDS_PODS = 2_500
"""10,000 records in all, with as many containers per pod."""
READY_SECONDS, KNOWN_SECONDS = 1, 5
RECORDS_MIB = 64
BESIDE = {hooks.NAME: hooks.bench, admin.NAME: admin.bench}
"""What the bench measures besides the modes."""


class Step(NamedTuple):
    """A row: ``full`` describes the full count, ``find`` takes the share."""

    name: str
    full: str
    find: Callable[[float], Found]

    def run(self, share: float) -> Result:
        """Run a share of the step; an error of any kind becomes its result."""
        amount = self.full if share == 1 else f"{share:g} of {self.full}"
        try:
            return Result(self.name, amount, self.find(share))
        except Exception as failure:  # an unexpected failure must not keep the other steps from running
            return Result(self.name, amount, Found(), str(failure) or type(failure).__name__)


def rounds(share: float) -> tuple[int, float]:
    """Return the number of the bench's rounds, and the share of its calls that each makes."""
    number = ROUNDS.at(share)
    return number, min(ROUNDS.full * share / number, 1.0)


def bench(mode: str, share: float) -> Found:
    measured, figures = measure.bench(mode, *rounds(share))
    return Found(figures, cases.figure_table(measured))


def bench_beside(name: str, share: float) -> Found:
    table, figures = BESIDE[name](*rounds(share))
    return Found(unless_all(figures, share), table)


def memory(mode: str, share: float) -> list[Figure]:
    return unless_all(measure.resident(mode, share), share)


def unless_all(figures: list[Figure], share: float) -> list[Figure]:
    """Return the figures, unjudged unless everything was run."""
    return figures if share == 1 else [figure._replace(kept=None) for figure in figures]


def full_node(mode: str, share: float) -> list[Figure]:
    """Start on a full node (fault matrix S1), and on one with 10,000 records (promise 13)."""
    node = measure.full_node(mode, Amount(1, PODS).at(share), CONTAINERS)
    crowded = measure.full_node(mode, Amount(1, RECORDS_PODS).at(share), CONTAINERS)
    of_node, records = f"with {node.pods:,} pods and {node.containers:,} containers", crowded.pods + crowded.containers
    return [
        at_most(f"seconds from the start to the first answer, {of_node}", node.ready, READY_SECONDS, judged=share == 1),
        at_most(f"seconds to read the state once needed, {of_node}", node.complete, KNOWN_SECONDS, judged=share == 1),
        at_most(f"memory of {records:,} records", crowded.growth / MIB, RECORDS_MIB, " MiB", digits=1),
    ]


def _step(name: str, full: str, find: Callable[..., list[Figure]], *first: object) -> Step:
    return Step(name, full, lambda share: Found(find(*first, share)))


def _each(name: str, full: str, find: Callable[[str, float], list[Figure]]) -> list[Step]:
    return [_step(f"{name}-{mode}", full, find, mode) for mode in MODES]


HANGS = "2,000 hangs of each kind, 10,000 failures of each policy, 10,000 files, 1,000 swaps, 10,000 secrets"
HEADS = "tests/docker/test_boundaries.py::test_heads_that_come_byte_by_byte_disturb_nobody"
MIXED = "1,000 streams or connections, 200 execs, lists and creates of 16 MiB"
TESTED = {
    "clients": ("100,000 calls of each", system("three_clients")),
    "streams": (
        f"1 GiB, 1,000 execs, {IDLE_SECONDS.full // 60} minutes of silence",
        system("streams", "dockerd_streams"),
    ),
    "hooks": (HANGS, system("hook_failures", "plugins", "policy_exact", "secrets")),
    "metrics": ("10,000 creates for each policy, half of them with a failure or a change", system("metrics_truth")),
    "peers": ("10,000 mutations", [HEADS, *system("backends_broken", "bounds", "crowd")]),
    "cancels": ("10,000 cancels", system("cancels")),
    "restarts": (
        "100 restarts, 100 second starts, 50 kills with 200 pods, 60 s of a crash loop",
        system("restarts", "crash_loop", "engines_killed", "containerd"),
    ),
    "units": (
        "10,000 calls in each mode, and 10 minutes under the watchdog for wheel, archive and package",
        ["tests/machines/test_units.py", "tests/machines/test_watchdog.py"],
    ),
    "kills": ("200 pods, 1,000 lost creates", [*system("restart"), "tests/core/test_originals_file_rows.py"]),
}
NODE = f"{PODS:,} pods with {CONTAINERS} containers each; {RECORDS_PODS * (1 + CONTAINERS):,} records"
HOURS = f"{day.DAY_SECONDS.full // day.HOUR_SECONDS} hours of a kubelet's calls, as fast as they go"
STEPS = (
    *(
        step
        for mode in MODES
        for step in (
            _step(f"memory-{mode}", "twice 100,000 calls", memory, mode),
            Step(f"bench-{mode}", f"{ROUNDS.full} rounds", partial(bench, mode)),
        )
    ),
    *(Step(f"bench-{name}", f"{ROUNDS.full} rounds", partial(bench_beside, name)) for name in BESIDE),
    _step("stalled", f"{STALL_SECONDS.full} s without a reader", under_load.stalled),
    *_each("hung", f"{under_load.HUNG} hung hook calls", under_load.hung),
    *_each("slow", f"{under_load.SLOW} calls that the runtime does not answer", under_load.slow),
    *_each("crowd", MIXED, under_load.crowded),
    *(_step(name, full, tested.tests, arguments) for name, (full, arguments) in TESTED.items()),
    _step("blast", "each row of docs/fleets.rst, on both engines", tested.blast),
    *_each("versions", f"{versions.ROUNDS.full} upgrades and downgrades", versions.changed),
    *_each("full", NODE, full_node),
    *(Step(f"lives-{mode}", f"{endurance.LIVES.full:,} lifecycles", partial(endurance.lived, mode)) for mode in MODES),
    *_each("day", HOURS, day.played),
    _step("image", "a hook server and the exporter in containerd", image.image),
    _step("built", "two builds, an hour apart", built.built_twice),
    _step("archive", "Debian 11, 12 and 13", built.archive_runs),
    _step("package", "the lives of deb and RPM in both modes", packaged.packaged),
    _step("demo", f"{tested.DEMOS.full} runs in a row", tested.demo),
    _step("documents", "every command in README.rst and docs/", documented.documents),
    _step("cluster", "docs/kubernetes.rst, in a cluster of one node", cluster.cluster),
    _step("migration", "from koord-runtime-proxy and back", migration.migration),
    _step("fresh", "scripts/demo and scripts/test in each environment", fresh.readme),
    _step("properties", "100 times the usual examples", tested.tests, HYPOTHESIS),
)
"""First the steps that measure time, before the machine is loaded by others; then those that count."""
