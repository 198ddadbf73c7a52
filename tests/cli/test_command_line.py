"""Programs and commands from a user's view: outputs, exit codes, pipes, a full disk, interrupts, odd encodings."""

import json
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import copy
from itertools import product
from pathlib import Path
from typing import NoReturn

import click
import pytest

import runtimeproxy_hooks.__main__ as hosting
from runtimeproxy import __main__ as programs
from runtimeproxy.cli.shared.configuration import configuration
from runtimeproxy.errors import BackendError, ConfigError
from runtimeproxy.settings.config import Config
from tests.cli.admin_answers import CANNED, EVENTS, POD_RECORD, STORE
from tests.cli.conftest import Run
from tests.docs import ROOT
from tests.fakes.canned_admin import END, Handler, serving

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
"""The program, its arguments, and the module at whose import it is interrupted."""


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
