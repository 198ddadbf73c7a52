"""The way of a held call through the proxy, counted: its functions, their files and calls, the sends.

Owns the recording, the table, the limits of what is counted.
Must not know: what a function does.
Invariant: what is counted is the whole program as it is run, with a client, a runtime and a hook server outside of its
thread; a call that was answered before it was counted is no measurement and raises.

A call's way begins with its first byte that the proxy reads and ends with the send that ends its answer; what is done
for it behind that, until nothing comes any more, is counted apart. What counts is a function that stands in a file of
the package with a name of its own: what a dataclass makes, a comprehension and a lambda belong to the one that uses
them. One that waits is called again when it goes on. Runtime and hook server send their PING first and the answer a
millisecond later, so that each wakes the proxy by itself, as Go's do. Of calls that are made alike the one with the
fewest functions counts: a timer of the proxy's own may have come between another's.
Run: ``python -m scripts.benchmark.way [--check] [--list CALL]``; scripts/way calls it.
"""

import argparse
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns, sleep
from types import CodeType, FrameType
from typing import Any

import runtimeproxy
from runtimeproxy import app
from runtimeproxy.cli.run import configuration
from scripts.benchmark.cases import CRI, DOCKER, HELD, Case
from scripts.benchmark.kubelet import CLIENTS, Call, Client
from scripts.demonstration.processes import DemoError, program
from scripts.demonstration.report import print_table
from tests.fakes import registration

PACKAGE = Path(runtimeproxy.__file__).parent
WARM_CALLS = 3
CALLS = 5
SETTLE_SECONDS = 2.0
"""By then the proxy has read the runtime's state, for the sake of the hook server."""
ANSWER_SECONDS = 0.001
QUIET_SECONDS = 0.03
MODES = (CRI, DOCKER)
HEADER = ("call", "hook server", "functions", "files", "calls", "sends", "functions after it", "sends after it")


@dataclass(frozen=True, slots=True)
class Way:
    """What one call went through; a function is its file and its name in there, in the order of the first calls."""

    call: str
    hooked: bool
    functions: tuple[tuple[str, str], ...]
    calls: int
    sends: int
    functions_after: int
    """What is called behind the answer and was not called before it."""
    sends_after: int

    @property
    def files(self) -> int:
        """Return how many files the functions are in."""
        return len({file for file, _ in self.functions})

    @property
    def row(self) -> tuple[str, ...]:
        """Return the row below ``HEADER``."""
        counts = (len(self.functions), self.files, self.calls, self.sends, self.functions_after, self.sends_after)
        return (self.call, "asked" if self.hooked else "none", *map(str, counts))


@dataclass(frozen=True, slots=True)
class Limit:
    """What a way may have at most."""

    call: str
    hooked: bool
    what: str
    bound: int

    def missed(self, ways: Sequence[Way]) -> str | None:
        """Say what was missed, None if nothing was."""
        way = next(way for way in ways if (way.call, way.hooked) == (self.call, self.hooked))
        found = len(way.functions) if self.what == "functions" else getattr(way, self.what)
        asked = "hooked" if self.hooked else "without a hook server"
        return f"{self.call}, {asked}: {found} {self.what}, the limit is {self.bound}" if found > self.bound else None


LIMITS = (
    Limit("CreateContainer", True, "functions", 150),
    Limit("CreateContainer", True, "files", 25),
    Limit("CreateContainer", True, "sends", 5),
    Limit("StartContainer", True, "sends", 7),
    Limit("StartContainer", False, "functions", 60),
)


def held(mode: str) -> list[Case]:
    """Return the held calls of a mode."""
    return [case for case in HELD if case.mode == mode]


class Recorder:
    """Notes the thread's calls of the package's functions, and its sends, while ``on``; times are of monotonic_ns."""

    def __init__(self, listens: str) -> None:
        self._listens = listens
        self.on = False
        self.calls: list[tuple[int, CodeType]] = []
        self.sends: list[tuple[int, bool]] = []
        """True: to a client."""

    def note(self, frame: FrameType, event: str, arg: Any) -> None:
        """Take an event of sys.setprofile."""
        if not self.on:
            return
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{PACKAGE}/") and not code.co_name.startswith("<"):
            self.calls.append((monotonic_ns(), code))
        elif event == "c_call" and arg.__name__.startswith("send"):
            sock = getattr(arg, "__self__", None)
            if isinstance(sock, socket.socket):
                self.sends.append((monotonic_ns(), sock.getsockname() == self._listens))

    def start(self) -> None:
        """Forget what was noted, and note from now on."""
        self.calls.clear()
        self.sends.clear()
        self.on = True

    def way(self, call: str, hooked: bool, answered: int) -> Way:
        """Return the way of the call whose answer the client had at that time. Raises DemoError."""
        ends = [at for at, to_client in self.sends if to_client and at < answered]
        if not ends:
            raise DemoError(f"{call}: no send of the answer was seen")
        end = ends[-1]
        before = [code for at, code in self.calls if at <= end]
        functions = dict.fromkeys(before)
        return Way(
            call=call,
            hooked=hooked,
            functions=tuple((str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname) for code in functions),
            calls=len(before),
            sends=sum(at <= end for at, _ in self.sends),
            functions_after=len({code for at, code in self.calls if at > end} - functions.keys()),
            sends_after=sum(at > end for at, _ in self.sends),
        )


def measure(mode: str, hooked: bool) -> list[Way]:
    """Run the proxy in this thread, which must be the main one, and count the ways of a mode. Raises DemoError."""
    ways: list[Way] = []
    with tempfile.TemporaryDirectory(prefix="rp-way-") as made, _peers(Path(made), mode, hooked):
        folder = Path(made)
        recorder = Recorder(str(folder / "proxy.sock"))
        config = configuration(
            {
                "backend-runtime-mode": "Docker" if mode == DOCKER else "Containerd",
                "remote-runtime-service-endpoint": str(folder / "runtime.sock"),
                "koord-runtimeproxy-endpoint": str(folder / "proxy.sock"),
                "hookserver-config-dir": str(folder / "hookserver.d"),
                "admin-endpoint": str(folder / "admin.sock"),
            },
            {},
            os.devnull,
        )
        client = threading.Thread(target=_call_all, args=(folder, mode, hooked, recorder, ways))
        sys.setprofile(recorder.note)
        try:
            client.start()
            app.run(config)
        finally:
            sys.setprofile(None)
            client.join()
    if len(ways) != len(held(mode)):
        raise DemoError(f"of {len(held(mode))} calls in {mode} mode {len(ways)} were counted")
    return ways


@contextmanager
def _peers(folder: Path, mode: str, hooked: bool) -> Iterator[None]:
    """Run what the proxy talks with; the registration is there before the proxy is."""
    directory = folder / "hookserver.d"
    directory.mkdir()
    with ExitStack() as stack:
        for name, kind in {"runtime": mode, "hook": "hook"}.items():
            path = folder / f"{name}.sock"
            command = [sys.executable, "-m", "scripts.benchmark.peers", kind, str(path), str(ANSWER_SECONDS)]
            stack.enter_context(program(name, command, folder)).wait_until_it_listens(path)
        if hooked:
            registration.write(directory, "way.json", registration.text(str(folder / "hook.sock")))
        yield


def _call_all(folder: Path, mode: str, hooked: bool, recorder: Recorder, ways: list[Way]) -> None:
    """Make every call until it is warm, then count it; end the proxy behind the last one, or at the first error."""
    path = folder / "proxy.sock"
    try:
        while not path.exists():
            sleep(QUIET_SECONDS)
        sleep(SETTLE_SECONDS)
        for case in held(mode):
            with closing(CLIENTS[mode](path)) as client:
                call = client.prepare(case.route)
                for _ in range(WARM_CALLS):
                    call()
                counted = [_counted(client, call, case.name, hooked, recorder) for _ in range(CALLS)]
            ways.append(min(counted, key=lambda way: (len(way.functions), way.calls)))
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def _counted(client: Client, call: Call, name: str, hooked: bool, recorder: Recorder) -> Way:
    client.settle(QUIET_SECONDS)
    recorder.start()
    call()
    client.settle(QUIET_SECONDS)
    recorder.on = False
    return recorder.way(name, hooked, client.answered)


def main() -> int:
    """Return the exit code: 0 if it counted and no checked limit was missed, else 1."""
    calls = [case.name for case in HELD]
    parser = argparse.ArgumentParser(prog="scripts/way", description="Count the way of held calls through the proxy.")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a limit is missed")
    parser.add_argument("--list", choices=calls, metavar="CALL", help=f"list its functions: {', '.join(calls)}")
    arguments = parser.parse_args()
    modes = [mode for mode in MODES if arguments.list in (None, *(case.name for case in held(mode)))]
    try:
        ways = [way for mode in modes for hooked in (False, True) for way in measure(mode, hooked)]
    except DemoError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    if arguments.list:
        show_functions([way for way in ways if way.call == arguments.list])
        return 0
    print_table("The way of a held call, warm", [HEADER, *(way.row for way in ways)])
    missed = [text for limit in LIMITS if (text := limit.missed(ways))] if arguments.check else []
    for text in missed:
        print(f"FAILED: {text}", file=sys.stderr)
    return 1 if missed else 0


def show_functions(ways: Sequence[Way]) -> None:
    """Print each way's functions in the order of their first calls."""
    for way in ways:
        print(f"{way.call}, {'hook server asked' if way.hooked else 'no hook server'}: {len(way.functions)} functions")
        for file, name in way.functions:
            print(f"    {file}  {name}")


if __name__ == "__main__":
    sys.exit(main())
