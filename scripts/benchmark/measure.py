"""A round: every case on each of its ways, in turns, so that what else the machine does meets all of them alike.

Owns the order of the calls, and the figures of one case on one way.
Must not know: limits, how figures are shown.
Invariant: the ways of a case take turns in portions; their order turns too.
"""

from dataclasses import dataclass
from pathlib import Path

from scripts.benchmark import cases, h2load, programs
from scripts.benchmark.cases import CASES, CREATE, DIRECT, Case
from scripts.benchmark.h2load import Run
from scripts.benchmark.programs import Served
from tests.engines.cri import CriClient
from tests.fakes import cri_pb2

PORTIONS = 5
WARM_UP_CALLS = 50


@dataclass(frozen=True, slots=True)
class Figures:
    """One case on one way: microseconds, and those of the proxy's or the pipe's CPU (None for the direct way)."""

    p50: float
    p99: float
    calls_per_second: float
    cpu: float | None


Round = dict[tuple[Case, str], Figures]
"""The figures of a round by case and way."""


def one_round(share: float) -> Round:
    """Start everything anew and measure every case; ``share`` of each case's calls is made. Raises DemoError."""
    with programs.served(programs.EVERY_PROGRAM) as served:
        return {(case, way): figures for case in CASES for way, figures in _case(served, case, share).items()}


def _case(served: Served, case: Case, share: float) -> dict[str, Figures]:
    bodies = {way: write_body(served, case, way) for way in case.ways}
    runs = dict.fromkeys(case.ways, Run((), 0.0))
    cpu = dict.fromkeys(case.ways, 0)
    portion = max(int(case.calls * share / PORTIONS), 1)
    for way in case.ways:
        send(served, case, way, bodies[way], WARM_UP_CALLS)
    for turn in range(PORTIONS):
        first = turn % len(case.ways)
        for way in case.ways[first:] + case.ways[:first]:
            before = served.cpu_nanoseconds(way)
            runs[way] += send(served, case, way, bodies[way], portion)
            cpu[way] += served.cpu_nanoseconds(way) - before
    return {way: _figures(way, runs[way], cpu[way]) for way in case.ways}


def _figures(way: str, run: Run, cpu_nanoseconds: int) -> Figures:
    cpu = None if way == DIRECT else cpu_nanoseconds / 1000 / len(run.microseconds)
    return Figures(run.percentile(50), run.percentile(99), run.calls_per_second, cpu)


def send(served: Served, case: Case, way: str, body: Path, calls: int) -> Run:
    """Make calls on a way, and note how many."""
    served.sent[way, case.method] += calls
    return h2load.run(case, served.socket(way), body, calls)


def write_body(served: Served, case: Case, way: str) -> Path:
    """Write the request of a case on a way into a file. A create gets a pod of its own, made on the same way."""
    body = served.client / f"{case.method}-{way}.body"
    if case is CREATE:
        config = cases.pod()
        with CriClient(str(served.socket(way))) as client:
            made = client.call("RunPodSandbox", cri_pb2.RunPodSandboxRequest(config=config))
        body.write_bytes(cases.framed(cases.create(made.pod_sandbox_id, config)))
    else:
        body.write_bytes(cases.framed(cri_pb2.VersionRequest()))
    return body
