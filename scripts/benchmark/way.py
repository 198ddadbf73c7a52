"""Count what a passing or held call goes through in the proxy: its functions, their files and calls, the sends.

The whole program is run, with a client, a runtime and a hook server outside of its thread. The way of a call begins
when the proxy reads its first byte and ends with the send that ends its answer. Only named functions in files of the
package count: generated methods of dataclasses, comprehensions and lambdas belong to the function that uses them. A
coroutine that waits counts as called again when it resumes. Runtime and hook server answer after a millisecond, so that
their PINGs wake the proxy apart from their answers. Of several equal calls the one with the fewest functions counts,
because a timer of the proxy may have fired during another.

Run: ``python -m scripts.benchmark.way [--check] [--list CALL]``; scripts/way calls it.
"""

import argparse
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import sleep, time_ns
from types import CodeType, FrameType
from typing import Any, NamedTuple

import runtimeproxy
from runtimeproxy import app
from runtimeproxy.cli.shared.configuration import configuration
from scripts.benchmark.cases import DIRECT, HELD, MODES, PROXY, SMALL
from scripts.benchmark.programs import HOOKS, Served, client, served
from scripts.demonstration.processes import DemoError
from scripts.figures import at_most, print_table
from tests.fakes import registration

PACKAGE = Path(runtimeproxy.__file__).parent
WARM_CALLS, CALLS = 3, 5
SETTLE_SECONDS = 2.0
"""After so many seconds the proxy has read the runtime's state, which it does for the hook server."""
QUIET_SECONDS = 0.03
COUNTED = (*SMALL.values(), *HELD)
"""A passing call of each mode, and the held ones."""
HOOK = NONE, CALLED = ("none", "called")
"""Whether there is a hook server."""
LIMITS = (
    *(("Version", hook, "functions", 18) for hook in HOOK),
    *(("ping", hook, "functions", 13) for hook in HOOK),
    ("CreateContainer", CALLED, "functions", 110),
    ("CreateContainer", CALLED, "files", 22),
    ("CreateContainer", CALLED, "sends", 5),
    ("create", CALLED, "functions", 160),
    ("create", CALLED, "files", 25),
    ("StartContainer", CALLED, "sends", 7),
    ("StartContainer", NONE, "functions", 60),
)
"""The upper limits of a call, with a hook server or without."""


class Way(NamedTuple):
    """The way of one call; ``named`` has the file and name of each function, in the order of the first calls."""

    call: str
    hook: str
    named: Sequence[tuple[str, str]]
    counts: Mapping[str, int]


class Recorder:
    """Records the thread's calls of the package's functions, and its sends, while ``on``; times are of time_ns."""

    def __init__(self, listens: str) -> None:
        self._listens = listens
        self.on = False
        self.calls: list[tuple[int, CodeType]] = []
        self.sends: list[tuple[int, bool]] = []
        """Time of each send, and whether it was to a client."""

    def note(self, frame: FrameType, event: str, arg: Any) -> None:
        """Record an event of sys.setprofile."""
        if not self.on:
            return
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{PACKAGE}/") and not code.co_name.startswith("<"):
            self.calls.append((time_ns(), code))
        elif event == "c_call" and arg.__name__.startswith("send"):
            sock = getattr(arg, "__self__", None)
            if isinstance(sock, socket.socket):
                self.sends.append((time_ns(), sock.getsockname() == self._listens))

    def start(self) -> None:
        """Clear the record and start recording."""
        self.calls.clear()
        self.sends.clear()
        self.on = True

    def way(self, call: str, hook: str, answered: int) -> Way:
        """Return the way of the call whose answer the client had at that time. Raises DemoError."""
        ends = [at for at, to_client in self.sends if to_client and at < answered]
        if not ends:
            raise DemoError(f"{call}: no send of the answer was seen")
        codes = [code for at, code in self.calls if at <= ends[-1]]
        named = [(os.path.relpath(code.co_filename, PACKAGE), code.co_qualname) for code in dict.fromkeys(codes)]
        sends, files = sum(at <= ends[-1] for at, _ in self.sends), {file for file, _ in named}
        counts = {"functions": len(named), "files": len(files), "calls": len(codes), "sends": sends}
        return Way(call, hook, named, counts)


def measure(mode: str, hook: str) -> list[Way]:
    """Run the proxy in this thread, which must be the main one; return the ways of a mode's calls. Raises DemoError."""
    ways: list[Way] = []
    with served(mode, (DIRECT, HOOKS) if hook == CALLED else (DIRECT,), load=["--delay=1ms"], hooked=()) as peers:
        registrations = peers.registrations(PROXY)
        registrations.mkdir(parents=True)
        if hook == CALLED:
            registration.write(registrations, "way.json", registration.text(str(peers.socket(HOOKS))))
        recorder = Recorder(str(peers.socket(PROXY)))
        flags = dict(flag.removeprefix("--").split("=", 1) for flag in peers.proxy_flags(PROXY))
        calling = threading.Thread(target=_call_all, args=(peers, hook, recorder, ways))
        sys.setprofile(recorder.note)
        try:
            calling.start()
            app.run(configuration(flags, {}, os.devnull))
        finally:
            sys.setprofile(None)
            calling.join()
    if len(ways) != sum(case.mode == mode for case in COUNTED):
        raise DemoError(f"only {len(ways)} calls in {mode} mode were counted")
    return ways


def _call_all(peers: Served, hook: str, recorder: Recorder, ways: list[Way]) -> None:
    """Make every call until it is warm, then count it; end the proxy after the last one, or at the first error."""
    path = peers.socket(PROXY)
    try:
        while not path.exists():
            sleep(QUIET_SECONDS)
        sleep(SETTLE_SECONDS)
        for case in (case for case in COUNTED if case.mode == peers.mode):
            with client(case.mode, path, case.method) as load:
                load.run(WARM_CALLS)
                counted = []
                for _ in range(CALLS):
                    sleep(QUIET_SECONDS)
                    recorder.start()
                    ended = load.run(1).ended
                    sleep(QUIET_SECONDS)
                    recorder.on = False
                    counted.append(recorder.way(case.name, hook, ended))
            ways.append(min(counted, key=lambda way: (way.counts["functions"], way.counts["calls"])))
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Return the exit code: 0 if it counted and no checked limit was missed, else 1."""
    calls = {case.name: case.mode for case in COUNTED}
    parser = argparse.ArgumentParser(prog="scripts/way", description="Count the way of calls through the proxy.")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a limit is missed")
    parser.add_argument("--list", choices=calls, metavar="CALL", help=f"list its functions: {', '.join(calls)}")
    arguments = parser.parse_args()
    modes = [calls[arguments.list]] if arguments.list else MODES
    try:
        ways = [way for mode in modes for hook in HOOK for way in measure(mode, hook)]
    except DemoError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    if arguments.list:
        for way in (way for way in ways if way.call == arguments.list):
            print(f"{way.call}, hook server {way.hook}: {len(way.named)} functions")
            print(*(f"    {file}  {name}" for file, name in way.named), sep="\n")
        return 0
    rows = [(way.call, way.hook, *map(str, way.counts.values())) for way in ways]
    print_table("The way of a call, warm", [("call", "hook server", *ways[0].counts), *rows])
    failed = False
    for call, hook, what, bound in LIMITS if arguments.check else ():
        [way] = (way for way in ways if (way.call, way.hook) == (call, hook))
        if missed := at_most(f"{call}, hook server {way.hook}: {what}", way.counts[what], bound, digits=0).missed:
            print(f"FAILED: {missed}", file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
