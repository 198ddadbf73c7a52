"""The bench of the hook servers: what each needs and how fast it answers, and how long RDT's group is waited for.

Owns the limits, the order, the verdicts and the tables of this mode.
Must not know: how a server is asked, how a container is started.
Invariant: every figure is the median of the rounds; what is not measured is said, with the reason.
"""

from collections.abc import Iterator, Sequence
from statistics import median

from runtimeproxy_hooks.coresched import GET, ITSELF, THREAD, sched_core
from runtimeproxy_hooks.rdt import RDT_CLASS
from scripts.benchmark import answers, report, window
from scripts.benchmark.answers import Figures, Round
from scripts.benchmark.h2load import Run
from scripts.benchmark.hookservers import HOOK_SERVERS
from scripts.benchmark.limits import MIB, Verdict
from scripts.benchmark.window import Start
from scripts.demonstration.report import print_table
from scripts.demonstration.runtimes import why_fake

NAME = "hooks"
RESIDENT_MIB = 64.0
ANSWER_MICROSECONDS = 1000.0
LEAST_STARTS = 3
HEADER = (
    *("hook server", "hook point", "idle MiB", "resident MiB", "p50 us", "p99 us"),
    *("bare p50 us", "bare p99 us", "p50 to bare"),
)
WINDOW = "RDT: a container runs before its threads are in its group"
FROM_PROGRAM = "Docker mode, from its first instruction on"
FROM_EVENT = "Docker mode, from dockerd's start event on"
IN_CRI_MODE = (
    "CRI mode, where containerd has RDT",
    f"0: runc joins the group before the first instruction, by the annotation {RDT_CLASS}",
)


def bench(rounds: int, check: bool, share: float) -> list[str]:
    """Measure and print; return the limits that were missed, none unless they are checked. Raises DemoError."""
    measured = []
    for number in range(rounds):
        print(f"{NAME}, round {number + 1}", flush=True)
        measured.append(answers.one_round(share))
    title = f"{NAME}, median of {rounds} rounds" if rounds > 1 else f"{NAME}, one round"
    print_table(f"{title}, each asked as the proxy asks, in turns with one that does nothing", figure_table(measured))
    if refusal := core_sched_refusal():
        print(f"coresched: {refusal}; its answer ends there")
    print_table(WINDOW, [("", "how long"), *window_rows(windows(share))])
    if not check:
        return []
    verdicts = list(judge(measured))
    report.show_verdicts(NAME, verdicts)
    missed = (verdict for verdict in verdicts if not verdict.kept)
    return [f"{NAME}: {verdict.name} is {verdict.median:.2f}, the limit is {verdict.limit}" for verdict in missed]


def core_sched_refusal() -> str:
    """Say why the kernel cannot do what coresched asks of it, "" if it can."""
    try:
        sched_core(GET, ITSELF, THREAD)
    except OSError as error:
        return f"this kernel or machine has no core scheduling ({error.strerror})"
    return ""


def windows(share: float) -> Sequence[Start] | str:
    """Measure the starts of containers, or say why that cannot be. Raises DemoError."""
    return why_fake(False) or window.measure(max(round(window.STARTS * share), LEAST_STARTS))


def judge(rounds: Sequence[Round]) -> Iterator[Verdict]:
    """Yield each hook server's verdicts."""
    for name in rounds[0]:
        figures = [measured[name] for measured in rounds]
        resident = [each.resident / MIB for each in figures]
        yield Verdict(f"{name}: resident MiB", median(resident), min(resident), RESIDENT_MIB)
        answer = [each.own.percentile(50) for each in figures]
        yield Verdict(f"{name}: p50 us of an answer", median(answer), min(answer), ANSWER_MICROSECONDS)


def figure_table(rounds: Sequence[Round]) -> list[tuple[str, ...]]:
    """Return a row for each hook server below the header: the medians over the rounds."""
    points = {server.name: server.point_name for server in HOOK_SERVERS}
    return [HEADER, *((name, points[name], *_row([measured[name] for measured in rounds])) for name in rounds[0])]


def _row(rounds: Sequence[Figures]) -> Iterator[str]:
    yield f"{median(each.idle for each in rounds) / MIB:.1f}"
    yield f"{median(each.resident for each in rounds) / MIB:.1f}"
    for runs in ([each.own for each in rounds], [each.bare for each in rounds]):
        for percent in (50, 99):
            yield f"{median(run.percentile(percent) for run in runs):.0f}"
    yield f"{median(each.own.percentile(50) / each.bare.percentile(50) for each in rounds):.2f}"


def window_rows(starts: Sequence[Start] | str) -> list[tuple[str, str]]:
    """Return what was found in Docker mode, or the reason why nothing was, and how it is in CRI mode."""
    if isinstance(starts, str):
        return [("Docker mode", f"not measured: {starts}"), IN_CRI_MODE]
    return [
        (FROM_PROGRAM, _spread([start.from_program for start in starts])),
        (FROM_EVENT, _spread([start.from_event for start in starts])),
        IN_CRI_MODE,
    ]


def _spread(microseconds: Sequence[int]) -> str:
    run = Run(tuple(microseconds), 0.0)
    p50, p99, longest = (f"{run.percentile(percent) / 1000:.1f} ms" for percent in (50, 99, 100))
    return f"p50 {p50}, p99 {p99}, longest {longest}, of {len(microseconds)} starts"
