"""Programs and commands from a user's view: outputs, exit codes, pipes, interrupts, encodings, the screen of top."""

import fcntl
import io
import json
import logging
import math
import os
import pty
import re
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NoReturn, Self

import click
import pytest
from rich.console import Console

import runtimeproxy_hooks.__main__ as hosting
from runtimeproxy import __main__ as programs
from runtimeproxy.admin.protocol import Refused
from runtimeproxy.cli.commands import top
from runtimeproxy.cli.shared.admin_client import AdminClient
from runtimeproxy.cli.shared.configuration import configuration
from runtimeproxy.cli.top.figures import HookServer, Operation, Snapshot, View, samples_of, view
from runtimeproxy.cli.top.screen import screen
from runtimeproxy.errors import BackendError, ConfigError
from runtimeproxy.observe.events import PARTS
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.settings.config import Config
from tests.cli.admin_answers import CANNED, EVENTS, POD_RECORD, STORE, UNREADY, checks, figures
from tests.cli.conftest import Run
from tests.docs import ROOT
from tests.fakes.canned_admin import END, HANG, Answer, Handler, serving

KOORD, RUN = ("koord-runtime-proxy",), ("runtimeproxy", "run")
HEAVY = ["grpc", "aiohttp", "uvloop", "google.protobuf", "yaml", "asyncio", "hpack", "rich", "prometheus_client"]
HEAVY += ["runtimeproxy.app", "runtimeproxy.cli.doctor", "runtimeproxy_hooks.tools.client"]
HEAVY.append("runtimeproxy_hooks.servers")
LIGHT = ["--version", "--help", "run --help", "hook verify --help", "hook ls --help", "status --help", "doctor --help"]
LIGHT += ["config check --help", "kubelet-args --help", "completion --help", "version --help", "events --help"]
IMPORTS = f"""
import sys
from runtimeproxy.cli import main
for line in {LIGHT}:
    sys.argv = ["runtimeproxy", *line.split()]
    main()
    print("heavy:", line, *(name for name in {HEAVY} if name in sys.modules))
"""


def test_help_and_version_import_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], cwd=ROOT, capture_output=True, text=True, check=True)
    reported = [line for line in done.stdout.splitlines() if line.startswith("heavy:")]
    assert reported == [f"heavy: {line}" for line in LIGHT]


HELP = "(runtimeproxy --help lists what there is)"
SOON, UNREAD = "--hook-timeout: 'soon' is not a duration", "the configuration file cannot be read: No such file"
WRONG = {
    "koord-runtime-proxy --hook-timout=1s": "No such option",
    "koord-runtime-proxy --hook-timeout=soon": SOON,
    "koord-runtime-proxy --socket-group=no-such": "--socket-group: there is no group 'no-such'; name another one or",
    "koord-runtime-proxy --config=/no/x.yaml": f"/no/x.yaml: {UNREAD}",
    "runtimeproxy": f"Missing command. {HELP}",
    "runtimeproxy hok ls": f"No such command 'hok'. Did you mean 'hook'? {HELP}",
    "runtimeproxy hook lss": "No such command 'lss'. Did you mean 'ls'? (runtimeproxy hook --help lists what there is)",
    "runtimeproxy hook ls -o": "Option '-o' requires an argument. (runtimeproxy hook ls --help lists what there is)",
}
OF_COMMANDS = {
    "hook call /x PreCreateContainr": "POINT: 'PreCreateContainr' is not a hook point; did you mean PreCreateCont",
    "hook call x.sock PreCreateContainer": "SERVER: 'x.sock' is not a unix socket: write /path, unix:/path or",
    "hook call /no/x.json PreCreateContainer": "/no/x.json: the registration file cannot be read: No such file",
    "hook call /x PreCreateContainer -f /no/f": "/no/f: the request cannot be read: No such file",
    "hook call /x PreCreateContainer -f -": "PreCreateContainer is about a container, and the request has",
    f"hook new docs --directory={ROOT}": f"{ROOT}/docs is there already, and nothing is written over: take",
    "hook disable '' --reason=x": "Invalid value for NAME: write the name of a hook server, as runtimeproxy hook ls",
    "kubelet-args --kube-version 1.31 --cri-dockerd --backend-runtime-mode=containerd": "--cri-dockerd is for Docker",
    "kubelet-args --kube-version 1.17": "--kube-version: '1.17' is too old: the proxy needs Kubernetes 1.18 or later",
    "kubelet-args --kube-version new": "--kube-version: 'new' is not a version: write one like 1.27 or v1.27.3",
    "kubelet-args --kube-version 1.24 --backend-runtime-mode=docker": "--kube-version: from 1.24 on the kubelet has no",
    "kubelet-args --kube-version 1.23.1+k3s1 --backend-runtime-mode=docker": "--kube-version: the dockershim of k3s",
    "kubelet-args --kube-version 1.24 --koord-runtimeproxy-endpoint=/a%b": "--koord-runtimeproxy-endpoint: '/a%b' has",
    "export --listen=localhost:9654": "--listen: 'localhost:9654' is not an address with a port",
    "export --admin-endpoint=/a.sock": "--listen: any user of the node could read the proxy's state there",
    "export --admin-endpoint=a.sock --listen=unix:/x": "--admin-endpoint: 'a.sock' is not a unix socket",
    "export --metrics-endpoint=metrics.sock": "--metrics-endpoint: 'metrics.sock' is not a unix socket",
    "export --listen=0.0.0.0:1 --tls-cert=/no --tls-key=/no --client-ca=/no": "--tls-cert: /no cannot be read",
    "kubelet-args --kube-version 1.24 --config=/no/x": f"/no/x: {UNREAD}",
    **{f"{command} --hook-timeout=soon": SOON for command in ("report x.tar.gz", "doctor", "config show")},
    "config check /no/x.yaml": f"/no/x.yaml: {UNREAD}",
    "config check ''": "FILE is empty: ",
    **{f"events --since={each}": f"--since: '{each}' is neither an event's number" for each in ("soon", "-5", "²")},
}
WRONG |= {f"runtimeproxy {command}": words for command, words in OF_COMMANDS.items()}


@pytest.mark.parametrize(("command", "words"), WRONG.items())
def test_wrong_command_line_prints_one_line_and_exits_2(run: Run, command: str, words: str) -> None:
    code, out, err = run(*shlex.split(command))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"{command.split()[0]}: error: {words}")


def raising(error: BaseException) -> Callable[..., NoReturn]:
    """Return an application that raises an error."""

    def fail(*given: object) -> NoReturn:
        raise copy(error)

    return fail


def test_failure_prints_one_line_and_exits_1(run: Run) -> None:
    """As JSON it is a log entry; at debug level the traceback of an unexpected error precedes it."""
    unexpected_line = rf"unexpected ValueError at {re.escape(__file__)}:\d+; --log-level=debug logs the traceback"
    not_loaded = "cannot be loaded: it is missing or damaged; install runtimeproxy again"
    failures: list[tuple[Exception, str]] = [
        (ConfigError("/run/x.sock: pid 7 listens there"), r"/run/x\.sock: pid 7 listens there"),
        (BackendError("two\nlines"), "two lines"),
        (PermissionError(13, "Permission denied", "/run/x"), r"\[Errno 13\] Permission denied: '/run/x'"),
        (ValueError("canary"), unexpected_line),
        (ImportError("canary", name="uvloop"), f"the library uvloop {not_loaded}"),
    ]
    for (error, line), command in product(failures, (KOORD, RUN)):
        code, out, err = run(*command, does=raising(error))
        assert (code, out) == (1, "")
        assert re.fullmatch(f"{command[0]}: error: {line}\n", err)
    for error, line in (failures[0], failures[3]):
        code, _, err = run(*KOORD, "--log-format=json", "--log-level=debug", does=raising(error))
        *earlier, last = [json.loads(entry) for entry in err.splitlines()]
        assert (code, last["level"], last["logger"]) == (1, "error", "runtimeproxy.cli.commands.run")
        assert re.fullmatch(line, last["message"])
        assert [entry["message"][:14] for entry in earlier] == ["Running failed"] * (line == unexpected_line)
        assert "canary" not in err


@pytest.mark.slow
@pytest.mark.parametrize("closed", [{0}, {2}, {0, 1, 2}], ids=str)
def test_closed_standard_files_are_opened_at_start(tmp_path: Path, closed: set[int]) -> None:
    code = "import os, sys; from runtimeproxy import app, cli;"
    code += "files = lambda: [os.readlink(f'/proc/self/fd/{fd}') for fd in range(3)];"
    code += f"app.run = lambda config: print(*files(), file=open({str(tmp_path / 'seen')!r}, 'w'));"
    code += "sys.exit(cli.koord_runtime_proxy())"
    shell = " ".join(f"{fd}>&-" if fd in closed else f"{fd}<>/dev/zero" for fd in range(3))
    command = ["bash", "-c", f'exec "$0" "$@" {shell}', sys.executable, "-c", code]
    subprocess.run(command, cwd=ROOT, timeout=60, check=True)
    seen = (tmp_path / "seen").read_text().split()
    assert seen == ["/dev/null" if fd in closed else "/dev/zero" for fd in range(3)]


def test_configuration_of_flags_variables_and_file_is_passed(run: Run, tmp_path: Path) -> None:
    def note(config: Config) -> int:
        log = logging.getLogger("runtimeproxy.x")
        log.debug("left out")
        log.info("%s %s %s", config.runtime_endpoint, config.image_endpoint, config.hook_budget_seconds)
        return 7

    flags = "--remote-runtime-service-endpoint=unix:///r", "--remote-image-service-endpoint", "/i", "--log-format=json"
    environ = {"RUNTIMEPROXY_HOOK_BUDGET": "3s", "RUNTIMEPROXY_A": "canary", "RUNTIMEPROXY_B": "canary"}
    for command in (KOORD, RUN):
        code, out, err = run(*command, *flags, does=note, **environ)
        messages = [json.loads(line)["message"] for line in err.splitlines()]
        assert (code, out, messages[2:], "canary" in err) == (7, "", ["/r /i 3.0"], False)
        assert [message.split()[0] for message in messages[:2]] == ["RUNTIMEPROXY_A", "RUNTIMEPROXY_B"]
    default, named = tmp_path / "default.yaml", tmp_path / "named.yaml"
    assert configuration({}, {}, str(default)).hook_timeout_seconds == 2
    default.write_text("hook-timeout: 5s\nlog-level: debug\n")
    assert configuration({}, {}, str(default)).hook_timeout_seconds == 5
    assert configuration({}, {}, str(default / "below-a-file")).hook_timeout_seconds == 2
    named.write_text("hook-timeout: 6s\n")
    loaded = configuration({}, {"RUNTIMEPROXY_CONFIG": str(named)}, str(default))
    assert (loaded.hook_timeout_seconds, loaded.log_level) == (6, "info")
    for content, words in ((b"\xff", "it is not UTF-8 text"), (b"hook-timeot: 1", "unknown key"), (None, UNREAD)):
        default.unlink()
        default.symlink_to("nowhere") if content is None else default.write_bytes(content)
        with pytest.raises(ConfigError, match=f"^{default}: (the configuration file cannot be read: )?{words}"):
            configuration({}, {}, str(default))


def test_other_error_has_own_line_and_exit_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        code, out, err = run("runtimeproxy", "export", f"--listen=127.0.0.1:{port}")
    line = f"runtimeproxy: error: cannot listen on 127.0.0.1 port {port}: Address already in use"
    assert (code, out, err.startswith(line), err.count("\n")) == (1, "", True, 1)
    code, _, err = run(*KOORD, does=raising(KeyboardInterrupt()))
    assert (code, err.strip()) == (130, "koord-runtime-proxy: error: interrupted")
    monkeypatch.setattr(hosting, "run", raising(KeyboardInterrupt()))
    assert programs.hooks() == 130
    monkeypatch.setattr(click.Group, "invoke", raising(ValueError("canary")))
    code, _, err = run("runtimeproxy", "hook")
    assert code == 1
    assert re.fullmatch(r"runtimeproxy: error: unexpected ValueError at .*:\d+\n", err)


PROGRAMS = [("main", "config show -o yaml"), ("main", "--help"), ("hooks", "--help"), ("hooks", "gpu --help")]


def start(program: str, arguments: str, then: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program as the archive does, in a shell that redirects its output; the exit code is the program's."""
    code = f"import sys; from runtimeproxy.__main__ import {program}; sys.exit({program}())"
    # A shell's background job ignores SIGINT, and so would the program that it starts.
    script = f'set -o pipefail; env --default-signal=INT "$0" -c "$1" {arguments} {then}'
    path = f"{environ.pop('PYTHONPATH', '')}:{ROOT}"
    environ |= {"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "LC_ALL": "C", "TERM": "xterm-256color"}
    command = ["bash", "-c", script, sys.executable, code]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize(("program", "arguments"), PROGRAMS)
def test_output_is_plain_in_pipes_and_files(program: str, arguments: str) -> None:
    done = start(program, arguments)
    assert (done.returncode, done.stdout.isascii(), "\x1b" in done.stdout, done.stderr) == (0, True, False, "")
    for unbuffered in ("", "1"):
        assert start(program, arguments, "| exec 0<&-", PYTHONUNBUFFERED=unbuffered).stderr == ""
    done = start(program, arguments, ">/dev/full")
    assert done.returncode == 1
    if program == "main":
        assert done.stderr == "runtimeproxy: error: [Errno 28] No space left on device\n"


INTERRUPTING = "import os, signal\nclass Lost:\n    def __del__(self): os.kill(os.getpid(), signal.SIGINT)\nLost()\n"
"""A module that interrupts its import where an exception is lost, as in a callback of the import system."""
INTERRUPTED = [
    ("main", "version", "logging"),
    ("main", "hook call", "difflib"),
    ("koord_runtime_proxy", "--koord-runtimeproxy-endpoint={}/p.sock", "uvloop"),
    ("hooks", "gpu --endpoint={0}/h.sock --register-dir={0}/r", "grpc"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "arguments", "module"), INTERRUPTED)
def test_interrupted_import_ends_program(tmp_path: Path, program: str, arguments: str, module: str) -> None:
    (tmp_path / f"{module}.py").write_text(INTERRUPTING)
    done = start(program, arguments.format(tmp_path), PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.fixture
def to_proxy(tmp_path: Path) -> Iterator[str]:
    """Return the flag for a proxy whose store has an odd name, and that has one event for each follower."""

    def follow_silently(handler: Handler) -> None:
        handler.part(events=[EVENTS[1]])
        if handler.params.get("follow"):
            handler.server.over.wait()
        handler.wfile.write(END)

    odd = {**STORE, "pods": [{**POD_RECORD, "id": "00", "name": "名\x1b[31m\udc80"}], "containers": []}
    with serving(tmp_path / "a", {**CANNED, "store": odd, "events": follow_silently}):
        yield f"--admin-endpoint={tmp_path}/a"


@pytest.mark.slow
def test_unprintable_name_is_escaped_and_closed_pipe_silent(to_proxy: str) -> None:
    for encoding, name in (("utf-8", "名?[31m?"), ("latin-1", r"\u540d?[31m?")):
        done = start("main", f"store ls --no-headers {to_proxy}", PYTHONIOENCODING=encoding)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.endswith(f" default/{name}\n")
    for line, code in (("hook ls", 0), ("events -f", 1)):
        assert start("main", f"{line} {to_proxy}", "| exec 0<&-").stderr == ""
        done = start("main", f"{line} {to_proxy}", "| head -n 2")
        assert (done.returncode, done.stdout.count("\n"), done.stderr) == (code, 2, "")
    command = ["env", "--default-signal=INT", sys.executable, "-m", "runtimeproxy", "events", "-f", "--no-headers"]
    command.append(to_proxy)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"plugin_added" in process.stdout.readline()
        os.kill(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=10)
    assert (process.returncode, out, errors) == (130, b"", b"")


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


SECONDS = 30.0  # to wait for an expected output
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
