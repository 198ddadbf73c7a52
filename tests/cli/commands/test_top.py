"""``runtimeproxy top`` on a terminal and without one: what it shows, what ends it, what it leaves."""

import fcntl
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.admin.protocol import Refused
from runtimeproxy.cli.commands import top
from runtimeproxy.cli.shared.admin_client import AdminClient
from runtimeproxy.observe.metrics import Metrics
from tests.cli.admin_answers import UNREADY, checks, figures
from tests.cli.conftest import Run
from tests.docs import ROOT
from tests.fakes.canned_admin import HANG, Answer, serving

SECONDS = 30.0
"""How long a test waits for what must come."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
ALTERNATE, MAIN = "\x1b[?1049h", "\x1b[?1049l"


def metrics(started: float = 1000.0, failed: int = 0) -> dict[str, Any]:
    """Return an answer to metrics."""
    found = Metrics(lambda: 0.0, "Containerd")
    found.gauge("build_info", 1, "0.9.0", "3.11.2")
    gauges = {"held_calls": 3, "held_oldest_seconds": 4, "connections_open": 5, "store_pods": 6, "store_containers": 7}
    for name, value in gauges.items():
        found.gauge(name, value)
    found.count("calls", "CreateContainer", "agreed")
    for _ in range(failed):
        found.count("calls", "CreateContainer", "failed")
    return figures(found, started)


BROKEN = Refused(500, "it is broken")


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[dict[str, Answer]]:
    """Yield what a proxy answers by method, at admin.sock."""
    hook = {"name": "gpu", "state": "closed", "policy": "Fail", "lastError": None}
    canned: dict[str, Answer] = {"metrics": metrics(), "hooks": {"hooks": [hook]}, "readyz": checks(), "events": []}
    with serving(tmp_path / "admin.sock", canned):
        yield canned


@pytest.mark.parametrize("flags", [(), ("--once",)])
def test_without_a_terminal_one_plain_frame_is_printed(
    run: Run, proxy: dict[str, Answer], tmp_path: Path, flags: tuple[str, ...]
) -> None:
    proxy["readyz"] = UNREADY
    code, out, err = run("runtimeproxy", "top", *flags, f"--admin-endpoint={tmp_path}/admin.sock")
    assert (code, err) == (0, "")
    assert "runtimeproxy 0.9.0 Containerd   not ready" in out
    assert "[-]runtime failed: nothing listens" in out
    assert "since its start" in out
    assert all(text in out for text in ("held 3, oldest 4 s", "connections 5", "pods 6", "containers 7")), out
    assert re.search(r"^CreateContainer +0\.0 +1 +- ", out, re.MULTILINE)
    assert re.search(r"^gpu +ok +Fail ", out, re.MULTILINE)
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_events_are_read_on_and_again_after_a_restart(proxy: dict[str, Answer], tmp_path: Path) -> None:
    observer = top._Observer(AdminClient(f"{tmp_path}/admin.sock"))
    proxy["events"] = [{"number": 1, "kind": "refused"}, {"number": 2, "kind": "edited"}]
    assert [event["number"] for event in observer.inspect().errors] == [1]
    proxy["events"] = [{"kind": "gap", "from": 3, "to": 4}, *({"number": n, "kind": "slow"} for n in range(5, 1500))]
    assert len(observer.inspect().errors) == top._KEPT_ERRORS
    assert [event["number"] for event in observer.inspect().errors][-1] == 1499
    proxy["metrics"] = metrics(started=2000.0)
    proxy["events"] = [{"number": 1, "kind": "stall"}]
    last = observer.inspect()
    assert [event["kind"] for event in last.errors] == ["stall"]
    proxy["hooks"] = BROKEN
    after = observer.check_again_later()
    assert (after.samples, after.missing) == (last.samples, "it is broken")


UNREADABLE: list[tuple[str, Answer]] = [*((method, {}) for method in ("metrics", "hooks", "readyz"))]
UNREADABLE += [("metrics", {**metrics(), "values": [["unheard_of", [], 1]]})]


@pytest.mark.parametrize(("method", "answer"), UNREADABLE)
def test_answer_of_another_version_is_reported(
    run: Run, proxy: dict[str, Answer], tmp_path: Path, method: str, answer: Answer
) -> None:
    proxy[method] = answer
    code, out, err = run("runtimeproxy", "top", f"--admin-endpoint={tmp_path}/admin.sock")
    assert (code, out) == (1, "")
    assert err == "runtimeproxy: error: the proxy's answer cannot be read: is it a proxy of this version?\n"


class Terminal:
    """A program on a terminal of its own, as its only one."""

    def __init__(self, path: Path) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(80, 24)
        self.before = termios.tcgetattr(self.slave)
        self.read = ""
        environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            ["setsid", "--ctty", sys.executable, "-m", "runtimeproxy", "top", f"--admin-endpoint={path}/admin.sock"],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env={**environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)},
        )

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def until(self, text: str) -> str:
        """Return what was written up to a text, without the escapes' and older output; what follows is kept."""
        deadline = time.monotonic() + SECONDS
        while text not in self.read:
            if not select.select([self.master], [], [], deadline - time.monotonic())[0]:
                pytest.fail(f"{text!r} did not come; the last output is {self.read[-2000:]!r}")
            self.read += os.read(self.master, 65536).decode(errors="replace")
        before, _, self.read = self.read.partition(text)
        return _ESCAPES.sub("", before)

    def ended(self) -> int:
        """Return the exit code of the program, when it has left the terminal as it was."""
        self.until(MAIN)
        code = self.process.wait(SECONDS)
        assert termios.tcgetattr(self.slave) == self.before
        return code


@contextmanager
def terminal(path: Path) -> Iterator[Terminal]:
    opened = Terminal(path)
    try:
        yield opened
    finally:
        opened.process.kill()
        opened.process.wait()
        os.close(opened.master)
        os.close(opened.slave)


ENDS: dict[str, Callable[[Terminal], object]] = {
    "q": lambda shown: shown.type("q"),
    "Ctrl-C": lambda shown: shown.type("\x03"),
    "SIGTERM": lambda shown: os.kill(shown.process.pid, signal.SIGTERM),
    "SIGHUP": lambda shown: os.kill(shown.process.pid, signal.SIGHUP),
}


@pytest.mark.slow
@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize("end", ENDS)
def test_terminal_is_as_it_was_however_it_ends(tmp_path: Path, end: str) -> None:
    with terminal(tmp_path) as shown:
        shown.until(ALTERNATE)
        shown.until("ERRORS, UTC")
        ENDS[end](shown)
        assert shown.ended() == 0
        assert "Traceback" not in shown.read


@pytest.mark.slow
def test_frames_follow_the_proxy_and_the_size(proxy: dict[str, Answer], tmp_path: Path) -> None:
    """Keys are taken while the proxy hangs, too."""
    with terminal(tmp_path) as shown:
        shown.until("since its start")
        proxy["metrics"] = metrics(failed=42)
        shown.until("42")
        shown.resize(140, 30)
        shown.until("LAST ERROR")
        shown.resize(80, 24)
        assert "LAST ERROR" not in shown.until("ERRORS, UTC").rpartition("HOOK SERVER")[2]
        proxy["hooks"] = BROKEN
        shown.until("it is broken")
        proxy["metrics"] = HANG
        shown.until("no answer")
        shown.type("q")
        assert shown.ended() == 0
