"""What lives of containers, the day of a node and a full one cost and leave, in figures with their limits.

Owns the figures' words, and which limits are judged.
Must not know: how anything is run.
Invariant: what a proxy at rest holds is judged in every run; its memory's growth and the stalls of a day are judged
where all of it was run.
"""

from statistics import median

from scripts.benchmark.fullnode import CONTAINERS, PODS, RECORDS_CONTAINERS, RECORDS_PODS, full_node
from scripts.benchmark.limits import MIB
from scripts.benchmark.modes import MODES
from scripts.soaking import day, lives
from scripts.soaking.endurance import DESCRIPTORS, GROWTH_BYTES, Endured
from scripts.soaking.results import Figure, Found, Plot
from tests.amounts import Amount

KIB = 1 << 10
READY_SECONDS, KNOWN_SECONDS = 1.0, 5.0
"""fault matrix S1."""
RECORDS_BYTES = 64 * MIB
"""Promise 13."""
MEMORY_BELOW = "Resident memory in MiB over lifecycles; the warm-up ends at the upright line."
"""What stands below a picture."""


def lived(name: str, share: float) -> Found:
    """Live through lives of containers in the mode of this name."""
    found = lives.measure(name, share)
    each = found.endured.slope * 1_000 / KIB
    return Found(
        [
            *(Figure(f"lifecycles that ended {way}", f"{count:,}") for way, count in found.ends.items()),
            *_memory(found.endured, f"{each:.2f} KiB for each 1,000 lifecycles", share),
            *_rest(found.endured),
            Figure("times that the event loop hung", f"{found.endured.stalls}"),
        ],
        plot=Plot(
            [(sample.done, sample.bytes / MIB) for sample in (*found.endured.warm_up, *found.endured.measured)],
            found.endured.measured[0].done,
            MEMORY_BELOW,
        ),
    )


def played(name: str, share: float) -> Found:
    """Play the day of a node in the mode of this name."""
    found = day.measure(name, share)
    stalls = found.endured.stalls
    return Found(
        [
            *(Figure(f"{kind}, all answered well", f"{count:,}") for kind, count in found.calls.items()),
            *(Figure(f"{kind} that were told, all of them heard", f"{count:,}") for kind, count in found.heard.items()),
            *_memory(found.endured, f"{found.endured.slope / KIB:.2f} KiB an hour of the day", share),
            *_rest(found.endured),
            Figure("times that the event loop hung", f"{stalls}", "0", not stalls if share == 1 else None),
        ]
    )


def filled(name: str, share: float) -> Found:
    """Start on a full node in the mode of this name, and on one with 10,000 records."""
    node = full_node(MODES[name], Amount(1, PODS).at(share), CONTAINERS)
    crowded = full_node(MODES[name], Amount(1, RECORDS_PODS).at(share), RECORDS_CONTAINERS)
    of_node = f"with {node.pods:,} pods and {node.containers:,} containers"
    of_records = f"{crowded.pods + crowded.containers:,} records"
    return Found(
        [
            _seconds(f"seconds from the start to the socket, {of_node}", node.ready, READY_SECONDS, share),
            _seconds(f"seconds to read the state once it is needed, {of_node}", node.complete, KNOWN_SECONDS, share),
            Figure("CPU time of the proxy meanwhile", f"{node.busy:.2f} s"),
            Figure(
                f"a call to the runtime meanwhile, of {len(node.calls)}: median and slowest",
                f"{median(node.calls) * 1000:.1f} ms, {max(node.calls) * 1000:.1f} ms",
            ),
            Figure(
                f"memory of {of_records}",
                f"{crowded.growth / MIB:.1f} MiB",
                f"at most {RECORDS_BYTES / MIB:.0f} MiB",
                crowded.growth <= RECORDS_BYTES,
            ),
        ]
    )


def _seconds(what: str, found: float, limit: float, share: float) -> Figure:
    return Figure(what, f"{found:.2f}", f"at most {limit:.0f}", found <= limit if share == 1 else None)


def _memory(found: Endured, slope: str, share: float) -> list[Figure]:
    return [
        Figure(
            "growth of memory after the warm-up",
            f"{found.growth / MIB:.2f} MiB",
            f"at most {GROWTH_BYTES / MIB:.0f} MiB",
            found.growth <= GROWTH_BYTES if share == 1 else None,
        ),
        Figure("its slope, by least squares", slope),
        Figure("most resident memory", f"{found.most / MIB:.1f} MiB"),
    ]


def _rest(found: Endured) -> list[Figure]:
    """Compare the proxy at rest after the warm-up with that at the end."""
    before, after = found.before, found.after
    return [
        Figure(
            "open file descriptors at rest, before and after",
            f"{before.descriptors}, {after.descriptors}",
            f"{DESCRIPTORS} more or fewer",
            abs(after.descriptors - before.descriptors) <= DESCRIPTORS,
        ),
        Figure(
            "tasks at rest, before and after",
            f"{before.tasks}, {after.tasks}",
            "the same",
            before.tasks == after.tasks,
        ),
        Figure(
            f"pods and containers of {after.known} that the Store lacks or has alone",
            f"{before.differing}, {after.differing}",
            "0, 0",
            not (before.differing or after.differing),
        ),
    ]
