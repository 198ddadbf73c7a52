"""``runtimeproxy top``: the parts at each size, how it ends, and that no text controls the terminal."""

import fcntl
import io
import math
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from rich.console import Console

from runtimeproxy.admin.protocol import Refused
from runtimeproxy.cli.commands import top
from runtimeproxy.cli.shared.admin_client import AdminClient
from runtimeproxy.cli.top.figures import HookServer, Operation, Snapshot, View, samples_of, view
from runtimeproxy.cli.top.screen import screen
from runtimeproxy.observe.events import PARTS
from runtimeproxy.observe.metrics import Metrics
from tests.cli.admin_answers import UNREADY, checks, figures
from tests.cli.conftest import Run
from tests.docs import ROOT
from tests.fakes.canned_admin import HANG, Answer, serving

OUTCOMES = {"agreed": 0, "failed": 0, "refused": 0, "unsettled": 0, "ended": 0}
LATENCIES = dict.fromkeys(PARTS, (None, None))
EMPTY = View(*("0.9.0", "containerd", 20.0, None, True, [], 0, 0.0, 0.0, 0, 0, 0, [], LATENCIES, [], []))
OPERATION = Operation("CreateContainer", 1.25, {**OUTCOMES, "agreed": 5, "refused": 2}, frozenset({"refused"}))
SERVER = HookServer("koordlet", "closed", "Ignore", 2.0, (0.002, 0.5), 3, last_error="PreStartContainer deadline")


def full(operations: int, servers: int, errors: int) -> View:
    row = ("16:01:02", "refused", "PreCreateContainer", "ns/pod/c", "gpu")
    return replace(
        EMPTY,
        operations=[replace(OPERATION, name=f"Operation{at}") for at in range(operations)],
        hook_servers=[replace(SERVER, name=f"server{at}") for at in range(servers)],
        errors=[(*row, f"error{at}") for at in range(errors)],
    )


def lines(view: View, width: int = 80, height: int | None = 24) -> list[str]:
    """Return the frame's lines; colours are left out."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(screen(view, width, height))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_frame_fits_terminal_by_dropping_parts() -> None:
    """Omitted rows are counted, and bad hook servers stay."""
    view = replace(full(8, 30, 50), ready=False, notes=["[-]runtime failed: " + "x" * 200] * 9, held=1, missing="away")
    for width, height in ((80, 24), (80, 12), (119, 30), (155, 24), (156, 24), (200, 50)):
        frame = lines(view, width, height)
        assert max(map(len, frame)) <= width
        assert len(frame) <= max(height, 20)  # the terminal cuts a frame of less than 20 lines
    view = full(12, 30, 5)
    frame = lines(replace(view, hook_servers=[*view.hook_servers, replace(SERVER, name="bad", state="open")]))
    assert "\n".join(frame).count("and ") == 2
    assert any(line.startswith("bad ") for line in frame)
    low, *wide = ["\n".join(lines(view, width, None)) for width in (80, 140, 160, 200)]
    assert all(name in low for name in ("Operation11", "server29", "error4"))
    assert ["LAST ERROR" in text for text in (low, *wide)] == [False, True, False, True]
    assert ["SUBJECT" in text for text in (low, *wide)] == [False, True, True, True]


def test_names_cannot_control_terminal() -> None:
    evil = "\x1b[2J\n[red]x"
    server = replace(SERVER, name=evil, last_error=evil, state=evil, policy=evil)
    parts: dict[str, Any] = {"hook_servers": [server], "errors": [(evil,) * 6]}
    parts["operations"] = [replace(OPERATION, name=evil)]
    frame = lines(replace(EMPTY, notes=[evil], missing=evil, **parts), 200)
    assert len([line for line in frame if "?[2J?[red]x" in line]) == 4  # the operation is next to the hook server
    assert not any("\x1b" in line for line in frame)


START = 1000.0


def snapshot(recorded: Metrics, seconds: float, started: float | None = START, **more: Any) -> Snapshot:
    """Return what a proxy with these metrics answers so many seconds after its start."""
    return Snapshot(START + seconds, samples_of(figures(recorded, started)), **more)


@pytest.fixture
def recorded() -> Metrics:
    return Metrics(lambda: 0.0, "Containerd")


TIME = "2026-11-25T16:01:02.123Z"
REFUSED = {"number": 7, "time": TIME, "kind": "refused", "operation": "CreateContainer", "hook": "PreCreateContainer"}
REFUSED |= {"namespace": "a", "pod": "b", "container": "c", "hookServer": "gpu", "reason": "refused", "text": "no GPU"}
SLOW = {"time": TIME, "kind": "slow", "operation": "StopContainer", "containerId": "0" * 64}
LOST = {"kind": "runtime_lost", "reason": "unavailable"}


def test_view_has_figures_of_interval_and_rows_of_events(recorded: Metrics) -> None:
    first = snapshot(recorded, 90)
    recorded.count("calls", "CreateContainer", "refused")
    recorded.count("calls_passed", "Version")
    recorded.observe("call_duration_seconds", 1.0, "CreateContainer", "own")
    earlier = snapshot(recorded, 100)
    for outcome in ("agreed", "agreed", "failed", "ended"):
        recorded.count("calls", "CreateContainer", outcome)
        recorded.observe("call_duration_seconds", 0.004, "CreateContainer", "own")
    recorded.count("calls", "StopContainer", "agreed")
    recorded.count("calls_passed", "Version")
    recorded.count("calls_passed", "Status")
    later = snapshot(recorded, 104)
    shown = view(earlier, later)
    assert (shown.interval, shown.uptime, shown.passing) == (4.0, 104.0, 0.5)
    created = OUTCOMES | {"agreed": 2, "failed": 1, "refused": 1, "ended": 1}
    assert shown.operations == [
        Operation("CreateContainer", 1.0, created, frozenset({"failed"})),
        Operation("StopContainer", 0.25, OUTCOMES | {"agreed": 1}),
    ]
    assert shown.parts["own"] == (pytest.approx(0.0035), pytest.approx(0.00497))
    shown = view(None, later)
    assert (shown.interval, shown.passing, shown.operations[0].worse) == (None, 3 / 104, frozenset())
    assert [operation.rate for operation in shown.operations] == [5 / 104, 1 / 104]
    restarted = snapshot(recorded, 110, started=START + 2)
    assert [view(earlier, other).interval for other in (restarted, first)] == [None, None], "the clock may go back"
    shown = view(None, snapshot(recorded, 9, started=None))
    assert (shown.uptime, shown.passing) == (None, None)
    rows = [view(None, snapshot(recorded, 1, errors=[event])).errors for event in (REFUSED, SLOW, LOST)]
    assert rows == [
        [("16:01:02", "refused", "PreCreateContainer", "a/b/c", "gpu", "no GPU")],
        [("16:01:02", "slow", "StopContainer", "0" * 12, "", "")],
        [("", "runtime_lost", "", "", "", "unavailable")],
    ]
    recorded.count("hook_failures", "a", "PreStartContainer", "deadline")
    earlier = snapshot(recorded, 10)
    for name in ("a", "a", "b"):
        recorded.count("hook_calls", name, "PreStartContainer", "ok")
        recorded.observe("hook_call_duration_seconds", 20.0, name)
    recorded.count("hook_failures", "b", "PreStartContainer", "deadline")
    reported = {"time": "2026-11-25T16:00:00Z", "hook": "PreStartContainer", "reason": "deadline"}
    hook: dict[str, Any] = {"state": "closed", "policy": "Ignore", "lastError": None}
    hooks = [hook | {"name": name} for name in ("a", "b", "new")]
    hooks[1] |= {"state": "open", "policy": "Fail", "lastError": reported}
    above = (math.inf, math.inf)
    assert view(earlier, snapshot(recorded, 12, hooks=hooks)).hook_servers == [
        HookServer("a", "closed", "Ignore", 1.0, above, 1),
        HookServer("b", "open", "Fail", 0.5, above, 1, worse=True, last_error="PreStartContainer deadline"),
        HookServer("new", "closed", "Ignore", 0.0, (None, None), 0),
    ]


def answer_to_metrics(started: float = 1000.0, failed: int = 0) -> dict[str, Any]:
    recorded = Metrics(lambda: 0.0, "Containerd")
    recorded.gauge("build_info", 1, "0.9.0", "3.11.2")
    gauges = {"held_calls": 3, "held_oldest_seconds": 4, "connections_open": 5, "store_pods": 6, "store_containers": 7}
    for name, value in gauges.items():
        recorded.gauge(name, value)
    for outcome in ["agreed", *["failed"] * failed]:
        recorded.count("calls", "CreateContainer", outcome)
    return figures(recorded, started)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[dict[str, Answer]]:
    """Yield what a proxy answers by method, at admin.sock."""
    hook = {"name": "gpu", "state": "closed", "policy": "Fail", "lastError": None}
    canned: dict[str, Answer] = {"metrics": answer_to_metrics(), "hooks": {"hooks": [hook]}, "events": []}
    canned["readyz"] = checks()
    with serving(tmp_path / "admin.sock", canned):
        yield canned


def test_top_prints_plain_frame_or_error_when_piped(run: Run, proxy: dict[str, Answer], tmp_path: Path) -> None:
    unreadable: list[tuple[str, Answer]] = [*((method, {}) for method in ("metrics", "hooks", "readyz"))]
    unreadable += [("metrics", {**answer_to_metrics(), "values": [["unheard_of", [], 1]]})]
    top = partial(run, "runtimeproxy", "top", f"--admin-endpoint={tmp_path}/admin.sock")
    proxy["readyz"] = UNREADY
    for flags in ((), ("--once",)):
        code, out, err = top(*flags)
        assert (code, err) == (0, "")
        words = ["runtimeproxy 0.9.0 Containerd   not ready", "[-]runtime failed: nothing listens", "since its start"]
        words += ["held 3, oldest 4 s", "connections 5", "pods 6", "containers 7"]
        assert [word for word in words if word not in out] == []
        assert re.search(r"^CreateContainer +0\.0 +1 +- ", out, re.MULTILINE)
        assert re.search(r"^gpu +ok +Fail ", out, re.MULTILINE)
        assert "\x1b" not in out
        assert max(map(len, out.splitlines())) <= 80
    line = "runtimeproxy: error: the proxy's answer cannot be read: is it a proxy of this version?\n"
    for method, answer in unreadable:
        before, proxy[method] = proxy[method], answer
        assert top() == (1, "", line)
        proxy[method] = before


def test_events_are_read_once_and_again_after_restart(proxy: dict[str, Answer], tmp_path: Path) -> None:
    observer = top._Observer(AdminClient(f"{tmp_path}/admin.sock"))
    proxy["events"] = [{"number": 1, "kind": "refused"}, {"number": 2, "kind": "edited"}]
    assert [event["number"] for event in observer.inspect().errors] == [1]
    proxy["events"] = [{"kind": "gap", "from": 3, "to": 4}, *({"number": n, "kind": "slow"} for n in range(5, 1500))]
    assert len(observer.inspect().errors) == top._MOST_ERRORS
    assert [event["number"] for event in observer.inspect().errors][-1] == 1499
    proxy["metrics"] = answer_to_metrics(started=2000.0)
    proxy["events"] = [{"number": 1, "kind": "stall"}]
    last = observer.inspect()
    assert [event["kind"] for event in last.errors] == ["stall"]
    proxy["hooks"] = Refused(500, "it is broken")
    after = observer.inspect_or_last()
    assert (after.samples, after.missing) == (last.samples, "it is broken")


SECONDS = 30.0
"""How long a test waits for an expected output."""
ESCAPES, ALTERNATE, MAIN = r"\x1b\[[0-9;?]*[a-zA-Z]", "\x1b[?1049h", "\x1b[?1049l"


class Terminal:
    """A program on a terminal of its own, as its only one."""

    def __init__(self, path: Path) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(80, 24)
        self.before = termios.tcgetattr(self.slave)
        self.read = ""
        environ = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "runtimeproxy", "top", f"--admin-endpoint={path}/admin.sock"]
        files: Any = dict.fromkeys(("stdin", "stdout", "stderr"), self.slave)
        self.process = subprocess.Popen(["setsid", "--ctty", *command], **files, env=environ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def until(self, text: str) -> str:
        """Return the output up to a text, without escapes and older output; the following output is buffered."""
        deadline = time.monotonic() + SECONDS
        while text not in self.read:
            if not select.select([self.master], [], [], deadline - time.monotonic())[0]:
                pytest.fail(f"{text!r} did not come; the last output is {self.read[-2000:]!r}")
            self.read += os.read(self.master, 65536).decode(errors="replace")
        before, _, self.read = self.read.partition(text)
        return re.sub(ESCAPES, "", before)

    def end(self, by: str | signal.Signals) -> int:
        """Type a key or send a signal; return the program's exit code once it has restored the terminal."""
        if isinstance(by, str):
            os.write(self.master, by.encode())
        else:
            self.process.send_signal(by)
        self.until(MAIN)
        code = self.process.wait(SECONDS)
        assert termios.tcgetattr(self.slave) == self.before
        return code


@pytest.mark.slow
@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize("end", ["q", "\x03", signal.SIGTERM, signal.SIGHUP])
def test_terminal_is_restored_at_every_end(tmp_path: Path, end: str | signal.Signals) -> None:
    with Terminal(tmp_path) as shown:
        shown.until(ALTERNATE)
        shown.until("ERRORS, UTC")
        assert shown.end(end) == 0
        assert "Traceback" not in shown.read


@pytest.mark.slow
def test_frames_follow_proxy_and_terminal_size(proxy: dict[str, Answer], tmp_path: Path) -> None:
    """Keys are handled while the proxy hangs, too."""
    with Terminal(tmp_path) as shown:
        shown.until("since its start")
        proxy["metrics"] = answer_to_metrics(failed=42)
        shown.until("42")
        shown.resize(140, 30)
        shown.until("LAST ERROR")
        shown.resize(80, 24)
        assert "LAST ERROR" not in shown.until("ERRORS, UTC").rpartition("HOOK SERVER")[2]
        proxy["hooks"] = Refused(500, "it is broken")
        shown.until("it is broken")
        proxy["metrics"] = HANG
        shown.until("no answer")
        assert shown.end("q") == 0
