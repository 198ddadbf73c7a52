"""Many calls, and what they cost other calls: is any call refused or starved?

The loads are creates whose hook server hangs (promise 5, fault matrix H3), or that the runtime does not answer (fault
matrix B4); crowds of calls (fault matrix S3, promise 11); lists and creates of 16 MiB (promise 10); clients that read
nothing; and full nodes (fault matrix S1, promise 13). A call that fails raises. Compared measurements alternate, so
that other load on the machine affects both.
"""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from statistics import median, median_low
from threading import Event

from scripts.benchmark import cases
from scripts.benchmark.cases import CRI, DIRECT, DOCKER, HOOKED, PROXY
from scripts.benchmark.ends import Call, CriClient, framed
from scripts.benchmark.loads import Execs, H2load, Run
from scripts.benchmark.measure import HUGE_LIST_BYTES, ROUNDS, full_node
from scripts.benchmark.peers import EXEC, INSPECT
from scripts.benchmark.programs import HOOKS, Served, served
from scripts.demonstration.processes import DemoError
from scripts.figures import MIB, Figure, at_most
from tests.fakes import cri_pb2

NAME = "many"
LISTED = {CRI: cases.LISTED.route, DOCKER: cases.DOCKER_LISTED.route}
CREATE = {CRI: cases.CREATE.route, DOCKER: cases.DOCKER_CREATE.route}
SMALL = {CRI: cases.VERSION.route, DOCKER: cases.DOCKER_VERSION.route}
LIST_QUERY = "?all=1&filters=%7B%22label%22%3A%7B%22io.kubernetes.docker.type%3Dcontainer%22%3Atrue%7D%7D"


def prepare(
    running: Served, way: str, route: str, concurrency: int = 1, connections: int = 1, more: str = ""
) -> H2load | Execs:
    """Create what calls of a route need on a way, ``concurrency`` at a time; ``more`` makes a create's body longer."""
    client, path, body = running.client(way), running.socket(way), b""
    files = running.folder / f"{way}-{route.replace('/', '_').replace(' ', '')}-{len(more)}-{concurrency}"
    if isinstance(client, CriClient):
        message = b""
        if route == "ExecSync":
            message = cri_pb2.ExecSyncRequest(container_id=client.container(), cmd=["true"]).SerializeToString()
        elif route == CREATE[CRI]:
            request = client.create_request()
            request.config.args.append(more)
            message = request.SerializeToString()
        target = f"/runtime.v1.RuntimeService/{route}"
        return H2load(CRI, target, path, files, framed(message), concurrency, connections)
    if route == EXEC:
        return Execs(path, client.container(), concurrency)
    target, status = "/v1.41" + route.partition(" ")[2], 200
    if route == LISTED[DOCKER]:
        target += LIST_QUERY
    elif route == CREATE[DOCKER]:
        named, body = client.create_request()
        target, body, status = f"/v1.41{named}", body.replace(b'"1000"', b'"1000%b"' % more.encode()), 201
    elif "{ref}" in target:
        target = target.replace("{ref}", client.container())
    return H2load(DOCKER, target, path, files, body, concurrency, status=status)


@contextmanager
def meanwhile(call: Callable[[], object]) -> Iterator[None]:
    """Call repeatedly until the end of the block, which begins after the first answer. Raises the call's error."""
    over, answered = Event(), Event()

    def go_on() -> None:
        while not over.is_set():
            call()
            answered.set()

    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(go_on)
        while not answered.wait(0.1) and not calling.done():
            pass
        try:
            yield
        finally:
            over.set()
        calling.result()


# ---- while creates are held

TURNS = 4
PROXIES = (PROXY, HOOKED)
CALLS = {
    CRI: (
        ("small call (Version)", "Version", 25_000, 250),
        ("list of 200 (1 MiB)", "ListContainers", 10_000, 200),
        ("Status", "Status", 25_000, 250),
        ("ExecSync", "ExecSync", 15_000, 200),
    ),
    DOCKER: (
        ("ping", "GET /_ping", 25_000, 250),
        ("list of 200 (1 MiB)", "GET /containers/json", 10_000, 200),
        ("inspect", INSPECT, 25_000, 250),
        ("exec", EXEC, 10_000, 200),
    ),
}
"""The other calls of a turn, to each proxy: enough for p99 to be known within some hundredths.

The last number is that of a portion, which takes less than a second: pauses of a shared machine are longer than the
effect in question. The first call of each portion has to connect, so there must be more than a hundred of them.
"""
SLOW_SHARE = 2 / 3
HUNG, SLOW = 100, 20
HUNG_RATIO, SLOW_RATIO = 1.05, 1.10
"""Most p99 of a call while others are held, relative to that at another proxy in front of the same runtime."""
PATIENCE = 1200.0
PATIENT = (f"--hook-timeout={PATIENCE}s", f"--hook-budget={PATIENCE}s")
HOLD_SECONDS = 1.0
"""After so many seconds all creates wait."""
HEARD_SECONDS = 0.2
"""How many seconds a busy program may take to act on a signal; a create that came before would not wait."""

Hold = Callable[[], AbstractContextManager[object]]


def hung(mode: str, share: float) -> list[Figure]:
    """Measure other calls while creates wait for a hook server that hangs."""
    with served(
        mode,
        (DIRECT, *PROXIES, HOOKS),
        list_bytes=MIB,
        hooked=PROXIES,
        points=("PreCreateContainer",),
        policy="Fail",
        flags=PATIENT,
    ) as running:
        hold = partial(signalled, running.programs[HOOKS].process.pid, signal.SIGSTOP, signal.SIGCONT)
        found = others_while_held(running, HUNG, hold, share)
    what = f"p99 during {HUNG} held creates to that at another proxy"
    return [ratio(f"{name}: {what}", here, there, HUNG_RATIO, share) for name, here, there in found]


def slow(mode: str, share: float) -> list[Figure]:
    """Measure other calls while creates wait for the runtime."""
    with served(mode, (DIRECT, *PROXIES), list_bytes=MIB) as running:
        hold = partial(signalled, running.programs[DIRECT].process.pid, signal.SIGUSR1, signal.SIGUSR2)
        found = others_while_held(running, SLOW, hold, SLOW_SHARE * share)
    what = f"p99 during {SLOW} creates that the runtime does not answer to that at another proxy"
    return [ratio(f"{name}: {what}", here, there, SLOW_RATIO, share) for name, here, there in found]


def ratio(what: str, here: Run, there: Run, bound: float, share: float) -> Figure:
    """Return the ratio of p99 here to that elsewhere, compared with a limit; judged only if all calls were made."""
    found = here.percentile(99) / there.percentile(99)
    shown = f"{found:.2f} ({here.percentile(99):,} us to {there.percentile(99):,} us)"
    return Figure(what, shown, f"{bound:.2f}", found <= bound if share == 1 else None)


def others_while_held(running: Served, count: int, hold: Hold, share: float) -> list[tuple[str, Run, Run]]:
    """Make creates wait at one proxy after the other; return the other calls at that proxy and at the other one."""
    loads, clients = {}, {way: [running.client(way, PATIENCE) for _ in range(count)] for way in PROXIES}
    creates = {way: [each.prepare(CREATE[running.mode]) for each in those] for way, those in clients.items()}
    runs: dict[tuple[str, bool], Run] = {}
    for name, route, _, portion in CALLS[running.mode]:
        for way in PROXIES:
            loads[name, way] = load = prepare(running, way, route)
            running.send(way, route, load, portion)
    for turn in range(TURNS):
        here = PROXIES[turn % 2]
        with held(creates[here], hold):
            for name, route, calls, portion in CALLS[running.mode]:
                for way, part in portions(max(int(calls * share), 1), portion):
                    run = running.send(way, route, loads[name, way], part)
                    runs[name, way == here] = runs.get((name, way == here), Run()).plus(run)
    return [(name, runs[name, True], runs[name, False]) for name, *_ in CALLS[running.mode]]


def portions(calls: int, portion: int) -> Iterator[tuple[str, int]]:
    """Yield way and number of calls for each portion: as many on each way, which alternate in being the first."""
    for number, done in enumerate(range(0, calls, portion)):
        for way in PROXIES[:: (1, -1)[number % 2]]:
            yield way, min(portion, calls - done)


@contextmanager
def held(creates: Sequence[Call], hold: Hold) -> Iterator[None]:
    """Make creates wait until the end of the block. Raises DemoError if one does not, and what a create fails with."""
    with ThreadPoolExecutor(len(creates)) as pool:
        with hold():
            creating = [pool.submit(create) for create in creates]
            time.sleep(HOLD_SECONDS)
            yield
            waited = not any(future.done() for future in creating)
        for future in creating:
            future.result()
    if not waited:
        raise DemoError("the creates did not wait, so nothing was measured during them")


@contextmanager
def signalled(program: int, at_begin: int, at_end: int) -> Iterator[None]:
    """Send a program a signal, and another one at the end of the block."""
    os.kill(program, at_begin)
    try:
        time.sleep(HEARD_SECONDS)
        yield
    finally:
        os.kill(program, at_end)


# ---- crowds, and long messages

CROWD_TURNS = 5
CROWD_RATIO = 5.0
"""Most duration of a crowd's slowest call, relative to the median, however unfair the runtime itself is. A relative
limit would let a proxy pass that became many times less fair, only because a runtime alone is worse than any proxy."""
IN_CALLS = "100 connections, in calls"
"""The crowd whose waits are counted in calls.

If all calls of a crowd begin at once, the last one waits for all others: twice the median. If calls follow one another
on connections of their own, the first ones wait until all connections are made, which takes many times as long as a
call, and so does a pause by another program on the machine. There a call's wait is counted in calls that ended
meanwhile: none does during such a pause, while a starved call sees many others end.
"""
CROWDS = {
    CRI: (
        ("1,000 streams of one connection", SMALL[CRI], 20_000, 1_000, 1),
        ("100 connections of 10 streams", SMALL[CRI], 20_000, 1_000, 100),
        ("ExecSync", "ExecSync", 4_000, 200, 1),
    ),
    DOCKER: (
        ("1,000 connections at once", SMALL[DOCKER], CROWD_TURNS * 1_000, 1_000, 1),
        (IN_CALLS, SMALL[DOCKER], 20_000, 100, 1),
        ("200 execs", EXEC, 4_000, 200, 1),
    ),
}
"""The crowd, its route, the number of calls, how many at a time, and of connections if streams share them."""
SMALL_CALLS, SMALL_PORTION = 2_000, 250
SMALL_MS = 50
"""Most p99 in milliseconds of a small call during lists of 16 MiB; during creates, most that the proxy adds to calls
straight to the runtime, which like the machine is busy with such creates, too."""
BULK = "x" * ((16 << 20) - (64 << 10))
"""An argument of the container's command, which hook servers are not sent."""


def crowded(mode: str, share: float) -> list[Figure]:
    """Measure many calls at once, and small ones during lists and creates of 16 MiB."""
    with served(mode, (DIRECT, PROXY)) as running:
        figures = [crowd(running, *each, share) for each in CROWDS[mode]]
    small, calls = SMALL[mode], max(int(SMALL_CALLS * share), 1)
    with served(mode, (DIRECT, PROXY), list_bytes=HUGE_LIST_BYTES) as running:
        load, lists = (prepare(running, PROXY, route) for route in (small, LISTED[mode]))
        p99s = []
        for _ in range(CROWD_TURNS):
            with meanwhile(lambda: running.send(PROXY, LISTED[mode], lists, 2)):
                p99s.append(running.send(PROXY, small, load, calls).percentile(99) / 1000)
    what = "p99 of a small call during lists of 16 MiB"
    figures.append(at_most(what, median(p99s), SMALL_MS, " ms", digits=1, judged=share == 1))
    with served(mode, (DIRECT, *PROXIES, HOOKS)) as running:
        return figures + [during_creates(running, way, calls, share) for way in PROXIES]


def crowd(running: Served, name: str, route: str, calls: int, at_once: int, connections: int, share: float) -> Figure:
    """Make a crowd's calls directly and through the proxy; compare the slowest with the median."""
    loads = {way: prepare(running, way, route, at_once, connections) for way in (DIRECT, PROXY)}
    ratios: dict[str, list[float]] = {way: [] for way in loads}
    for _ in range(CROWD_TURNS):
        for way, load in loads.items():
            run = running.send(way, route, load, max(int(calls * share) // CROWD_TURNS, at_once))
            ratios[way].append(unfairness(run, in_calls=name == IN_CALLS))
    direct, through = median(ratios[DIRECT]), median(ratios[PROXY])
    kept = through <= CROWD_RATIO if share == 1 else None
    shown = f"{through:.1f} (directly {direct:.1f})"
    return Figure(f"{name}: the slowest to the median", shown, f"{CROWD_RATIO:.1f}", kept)


def unfairness(run: Run, *, in_calls: bool) -> float:
    """Return the ratio of the longest wait to the median."""
    waited = run.meanwhile if in_calls else run.microseconds
    return max(waited) / median_low(waited)


def during_creates(running: Served, way: str, calls: int, share: float) -> Figure:
    """Measure small calls through the proxy and directly, during creates of 16 MiB."""
    route, create = SMALL[running.mode], CREATE[running.mode]
    loads = {each: prepare(running, each, route) for each in (way, DIRECT)}
    big = prepare(running, way, create, more=BULK)
    turns: list[dict[str, int]] = []
    for _ in range(CROWD_TURNS):
        runs = dict.fromkeys(loads, Run())
        with meanwhile(lambda: running.send(way, create, big, 1)):
            for done in range(0, calls, SMALL_PORTION):
                for each, load in loads.items():
                    part = running.send(each, route, load, min(SMALL_PORTION, calls - done))
                    runs[each] = runs[each].plus(part)
        turns.append({each: run.percentile(99) for each, run in runs.items()})
    through, direct = (median(turn[each] for turn in turns) / 1000 for each in (way, DIRECT))
    what = f"p99 of a small call during creates of 16 MiB{', with a hook server' if way == HOOKED else ''}"
    shown, limit = f"{through:.1f} ms (directly {direct:.1f} ms)", f"{SMALL_MS} ms more than directly"
    return Figure(what, shown, limit, through - direct <= SMALL_MS if share == 1 else None)


# ---- clients that read nothing

CLIENTS = 100
STALL_SECONDS = 60
STALLED_TURNS = 11
STALLED_RATIO = 2.0
"""Most p99 of a ping with the clients connected, relative to that without them."""


def stalled(share: float) -> list[Figure]:
    """Measure pings, and memory, with clients connected that request an export and read nothing of it."""
    pings, route = max(int(12_000 * share), STALLED_TURNS) // STALLED_TURNS, SMALL[DOCKER]
    ratios, growth = [], 0
    with served(DOCKER, (DIRECT, PROXY)) as running:
        ping, target = prepare(running, PROXY, route), f"/v1.41/containers/{running.client(PROXY).container()}/export"
        running.send(PROXY, route, ping, pings)
        for _ in range(STALLED_TURNS):
            alone = running.send(PROXY, route, ping, pings).percentile(99)
            before = running.programs[PROXY].memory()
            with _silent(running, target):
                time.sleep(max(STALL_SECONDS * share / STALLED_TURNS, 1))
                ratios.append(running.send(PROXY, route, ping, pings).percentile(99) / alone)
                growth = max(growth, running.programs[PROXY].memory() - before)
    return [
        at_most(f"memory of each of {CLIENTS} clients that do not read", growth / CLIENTS / MIB, 1, " MiB"),
        at_most("p99 of a ping with them to alone", median(ratios), STALLED_RATIO, judged=share == 1),
    ]


@contextmanager
def _silent(running: Served, target: str) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(str(running.socket(PROXY)))
            client.sendall(f"GET {target} HTTP/1.1\r\nHost: docker\r\n\r\n".encode())
            running.sent[cases.EXPORT.route] += 1
        yield


# ---- full nodes

PODS, RECORDS_PODS, CONTAINERS = 1_000, 2_500, 3
"""A full node, and one with 10,000 records in all; each pod has so many containers."""
READY_SECONDS, KNOWN_SECONDS = 1, 5
RECORDS_MIB = 64


def full_nodes(mode: str, share: float) -> list[Figure]:
    """Start on a full node (fault matrix S1), and on one with 10,000 records (promise 13)."""
    node = full_node(mode, max(int(PODS * share), 1), CONTAINERS)
    crowded = full_node(mode, max(int(RECORDS_PODS * share), 1), CONTAINERS)
    of_node, records = f"with {node.pods:,} pods and {node.containers:,} containers", crowded.pods + crowded.containers
    return [
        at_most(f"seconds from the start to the first answer, {of_node}", node.ready, READY_SECONDS, judged=share == 1),
        at_most(f"seconds to read the state once needed, {of_node}", node.complete, KNOWN_SECONDS, judged=share == 1),
        at_most(f"memory of {records:,} records", crowded.growth / MIB, RECORDS_MIB, " MiB", digits=1),
    ]


# ---- all of it


def bench(rounds: int, share: float) -> tuple[list[Sequence[str]], list[Figure]]:
    """Measure each load once, with all its calls in ``ROUNDS`` rounds and a part of them in fewer; return the table of
    the figures, and the figures. Raises DemoError."""
    share *= rounds / ROUNDS
    figures = stalled(share)
    for mode in cases.MODES:
        for load in (hung, slow, crowded, full_nodes):
            print(f"{NAME}, {mode}, {load.__name__}", flush=True)
            figures += [figure._replace(what=f"{mode}, {figure.what}") for figure in load(mode, share)]
    return [("figure", "found"), *((figure.what, figure.found) for figure in figures)], figures
