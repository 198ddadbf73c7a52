"""The commands that call the proxy: outputs for canned answers, which docs/commands.rst shows, failures, completion."""

import errno
import gc
import json
import queue
import re
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from pathlib import Path
from textwrap import dedent
from typing import Any
from unittest.mock import Mock

import click
import pytest
import yaml
from click.shell_completion import ShellComplete

from runtimeproxy.admin.protocol import PART_BYTES, Refused
from runtimeproxy.cli.commands import status
from runtimeproxy.cli.commands.program import INSTALL
from runtimeproxy.cli.commands.table import PROGRAM, command_group
from runtimeproxy.cli.shared import admin_client, subjects
from runtimeproxy.cli.shared.admin_client import AdminClient, NoProxy, socket_path
from runtimeproxy.errors import ConfigError
from tests.cli import admin_answers
from tests.cli.admin_answers import CANNED, CONTAINER_RECORD, EVENTS, OF_POD, POD, POD_RECORD, STORE, checks
from tests.cli.conftest import Run
from tests.docs import DOCS
from tests.fakes import canned_admin
from tests.fakes.canned_admin import A_PART, END, HALF_A_LINE, HANG, Fault, Handler, Server, sending, serving

_SHOWN = re.compile(r"^    \$ runtimeproxy ([^|\n]+)\n((?:    (?!\$ ).*\n|\n(?=    (?!\$ )))*)", re.MULTILINE)
SHOWN = {command: dedent(lines) for command, lines in _SHOWN.findall(DOCS["commands"])}
"""The outputs in docs/commands.rst by command, unless it is part of a pipe."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Run a server with the canned answers, which a test may change."""
    with serving(tmp_path / "a", dict(CANNED)) as server:
        yield server


@pytest.fixture
def command(run: Run, server: Server) -> Run:
    """Return a function that runs a command with the canned answers, or these."""

    def run_command(line: str, **answers: Any) -> tuple[int, str, str]:
        server.canned = {**server.canned, **answers}
        return run("runtimeproxy", *shlex.split(line), RUNTIMEPROXY_ADMIN_ENDPOINT=str(server.server_address))

    return run_command


def lines_of(command: Run, line: str, **answers: Any) -> list[str]:
    """Return the lines of a command that succeeds."""
    code, out, err = command(line, **answers)
    assert (code, err) == (0, "")
    return out.splitlines()


def words_of(lines: Sequence[str]) -> list[str]:
    """Return the lines without the widths of their columns."""
    return [" ".join(line.split()) for line in lines]


UNREADABLE = "no answer: the answer to readyz cannot be read: is it a proxy of this version?"
STATUSES = [
    (admin_answers.DEGRADED, 1, "degraded (see runtimeproxy doctor): disabled_plugins, invalid_files: disabled..."),
    (admin_answers.UNREADY, 1, "not ready (see runtimeproxy doctor): runtime, disabled_plugins: nothing liste..."),
    (checks(runtime="failed: " + "é" * 200), 1, "not ready (see runtimeproxy doctor): runtime: " + "?" * 31 + "..."),
    (Refused(500, "the channel broke"), 1, "not ready: the channel broke"),
    ({"checks": [{"name": "loop"}]}, 3, UNREADABLE),
    ({"checks": [{"name": "loop", "state": "unheard of", "reason": ""}]}, 3, UNREADABLE),
    ({"checks": 5}, 3, UNREADABLE),
]


CHANGES: list[tuple[str, str, dict[str, object]]] = [
    ("hook disable rdt --reason 'it hangs' --for 1h", "disable", {"name": "rdt", "reason": "it hangs", "for": "1h"}),
    ("hook disable rdt --reason=x --unregistered", "disable", {"name": "rdt", "reason": "x", "unregistered": True}),
    ("hook enable rdt.json", "enable", {"name": "rdt.json"}),
    ("log-level DEBUG --for 20m", "loglevel", {"level": "debug", "for": "20m"}),
]


def test_output_matches_docs_and_change_sends_request(command: Run, server: Server) -> None:
    assert {line: command(line) for line in SHOWN} == {line: (0, output, "") for line, output in SHOWN.items()}
    for answer, code, line in STATUSES:
        assert command("status", readyz=answer) == (code, f"{line}\n", "")
        assert len(line) <= status.LONGEST
    for line, method, params in CHANGES:
        assert len(lines_of(command, line)) == 1
        assert server.requests.pop() == (method, params)
    flag = f"--admin-endpoint={server.server_address}"
    answer = {"name": "a/b c", "disabled": {"until": None}, "notes": ["it was not disabled"]}
    line = f"a/b c is disabled; back by: runtimeproxy hook enable 'a/b c' {flag}\n"
    note = "note: it was not disabled\n"
    assert command(f"hook disable 'a/b c' --reason=x {flag}", disable=answer) == (0, line, note)


def test_events_are_printed_selected_or_followed(command: Run) -> None:
    event_lines = SHOWN["events"].splitlines()
    trace_lines = event_lines[:2] + event_lines[3:]
    later_lines = ["11-25 10:12:00 runtime_lost - /run/c.sock"]
    later_lines += ["11-25 10:12:30 refused ab12-43 CreateContainer default/web-1: refused"]
    selections = [
        ("events --no-headers --since=8", [event_lines[5]]),
        ("events --kind=failed_open", event_lines[:2] + event_lines[5:]),
        ("hook trace --pod=web-1", trace_lines),
        ("hook trace --hook-server=cpuset", trace_lines[:2] + trace_lines[3:]),
    ]
    for line, expected in selections:
        assert words_of(lines_of(command, line)) == words_of(expected)
    code, out, err = command("events -f")
    assert (code, err) == (3, "runtimeproxy: error: the proxy has ended\n")
    assert words_of(out.splitlines()) == words_of(event_lines + later_lines)
    lines = command("hook trace -f -o json")[1].splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["gap", "edited", "edited", "failed_open", "refused"]
    documents = yaml.safe_load_all(command("events -f -o yaml")[1])
    assert [event["kind"] for event in documents] == [event["kind"] for event in EVENTS]
    events = [{"number": n, "time": "2026-11-25T10:11:00Z", "kind": "sync"} for n in range(1, 1_101)]
    assert len(lines_of(command, "events --no-headers", events=events)) == 1_100, "all pages are read"
    for since, count in (("", 10), ("--since=50", 49)):
        assert len(command(f"events -f --no-headers {since}", events=events[:99])[1].splitlines()) == count
    times = [datetime.now(UTC) - timedelta(minutes=minutes) for minutes in (180, 60, 10)]
    events = [{"number": n, "time": time.isoformat(), "kind": "sync"} for n, time in enumerate(times, 1)]
    for span, seen in (("2h", 2), ("30m", 1), ("5s", 0)):
        assert len(lines_of(command, f"events --no-headers --since={span}", events=events)) == seen


CONTAINER_LINES = ["FIELD SENT SET BY", "envs.GPU added -", "envs.HOME as requested -"]
CONTAINER_LINES += ["resources.cpu_shares changed cpuset", "resources.cpuset_cpus added cpuset"]
CONTAINER_LINES.append("resources.cpuset_mems taken out -")
POD_FIELDS = ["FIELD", "annotations.team", "cgroup_parent", "labels.app", "labels.tier"]


def store(*more: dict[str, Any]) -> dict[str, Any]:
    """Return the store with more pods and containers."""
    pods = [record for record in more if "podId" not in record]
    containers = [record for record in more if "podId" in record]
    return {**STORE, "pods": [POD_RECORD, *pods], "containers": [CONTAINER_RECORD, *containers]}


def test_store_lists_and_finds_records(command: Run) -> None:
    second_web = {**POD_RECORD, "id": "3f2b" + "0" * 60}
    several = "default/web-1 (3f2a11b09c220), default/web-1 (3f2b000000000)"
    second = {**POD_RECORD, "id": "00aa", "name": "b", "owners": {}}
    lone = {**CONTAINER_RECORD, "id": "00bb", "podId": "00cc", "owners": {}}
    assert words_of(lines_of(command, "store ls", store=store(second, lone))) == [
        "ID KIND ATTEMPT SET BY NAME",
        f"{POD[:13]} pod - - default/web-1",
        "77ab000000000 container 1 cpuset default/web-1/main",
        "00aa pod - - default/b",
        "00bb container 1 - ?/main",
    ]
    reported = json.loads("\n".join(lines_of(command, "store ls -o json --pod=default/web-1", store=STORE)))
    assert reported == {"pods": [POD_RECORD], "containers": [CONTAINER_RECORD]}
    for text in ("web-1", "default/web-1", "3f2a"):
        assert [line.split()[0] for line in lines_of(command, f"store get {text}")] == POD_FIELDS
    for text in ("default/web-1/main", "77"):
        assert words_of(lines_of(command, f"store get {text}")) == CONTAINER_LINES
    for text in ("nope", "default/web-1/nope", "bank/web-1", "99"):
        line = f"the proxy knows no pod or container {text!r}: `runtimeproxy store ls` lists them"
        for name in ("store get", "explain"):
            assert command(f"{name} {text}") == (1, "", f"runtimeproxy: error: {line}\n")
    for line in ("store get 3f", "explain web-1"):
        error = f"runtimeproxy: error: {line.split()[-1]!r} could mean {several}: write more of one id\n"
        assert command(line, store=store(second_web)) == (2, "", error)
    many = [{**second_web, "id": f"3f2b{number}"} for number in range(8)]
    assert " and 4 more: write more of one id\n" in command(line, store=store(*many))[2]
    exact = {**POD_RECORD, "id": "00", "name": "3f", "sent": [], "asked": []}
    assert len(lines_of(command, "store get 3f", store=store(exact))) == 1, "a name precedes the start of an id"


def test_explain_omits_foreign_calls_and_names_unknowns(command: Run) -> None:
    """A refused create has no id, so its name decides. Fields without effect have a reason."""
    of_call = {"number": 1, "time": "2026-11-25T10:11:00Z", "kind": "failed", **OF_POD, "container": "main"}
    unknown = 'Of a field "as requested" it is not known whether the kubelet requested it or a hook server set it.'
    read_again = {**STORE, "containers": [{**CONTAINER_RECORD, "read": True}]}
    removed = {**STORE, "pods": [], "containers": []}
    refused_calls = [{**of_call, "kind": "refused", "call": "c9"}]
    explained: list[tuple[Any, Any, list[str]]] = [
        (read_again, EVENTS, [unknown]),
        (removed, refused_calls, ["The proxy knows no such pod or container now", "11-25 10:11:00 refused c9"]),
        (STORE, [], ["No hook server changed"]),
    ]
    ids = [{"containerId": "foreign"}, {}, {"podId": "foreign"}, {"containerId": CONTAINER_RECORD["id"]}]
    fields = {"kind": "no_effect", "fields": [{"field": "annotations.note", "hookServer": "gpu"}], "text": "no effect"}
    events = [{**of_call, "call": f"c{at}", **more} for at, more in enumerate([*ids, {**ids[3], **fields}])]
    lines = lines_of(command, "explain 77ab", events=events)
    assert [at for at in range(4) if f" c{at} " in "\n".join(lines)] == [1, 3]
    assert lines[7].split() == ["annotations.note", "no", "effect", "gpu"]
    for store, events, words in explained:
        lines = words_of(lines_of(command, "explain web-1", store=store, events=events))
        assert [len([line for line in lines if line.startswith(word)]) for word in words] == [1] * len(words)
        assert (unknown in lines) == (unknown in words)


OF_CONTAINER = [event for event in EVENTS if event["kind"] == "gap" or event.get("container") == "main"]
DATA: list[tuple[str, Any]] = [
    ("status", {"status": "ready", "checks": checks()["checks"]}),
    ("hook ls", CANNED["hooks"]),
    ("events", [event for event in EVENTS if "later" not in event]),
    ("explain 77ab", {"pod": POD_RECORD, "containers": [CONTAINER_RECORD], "events": OF_CONTAINER}),
]


LINES = ["status", "hook ls", "hook trace", "events", "store ls", "store get web-1", "explain web-1", "log-level info"]


def test_output_is_json_yaml_or_table_of_80_columns(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for (line, expected), form in product(DATA, ("json", "yaml")):
        data = yaml.safe_load(command(f"{line} -o {form}")[1])
        assert (data | expected if isinstance(expected, dict) else expected) == data
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert [row for line in LINES for row in lines_of(command, line) if len(row) > 80] == []


FLAG, VARIABLE, FILE = {"admin-endpoint": "unix:///flag"}, {"RUNTIMEPROXY_ADMIN_ENDPOINT": "/variable"}, "/file"
PLACES: list[tuple[dict[str, str], dict[str, str], str, str]] = [
    (FLAG, VARIABLE, f"admin-endpoint: {FILE}", "/flag"),
    ({}, VARIABLE, f"admin-endpoint: {FILE}", "/variable"),
    ({}, {}, f"admin-endpoint: {FILE}", "/file"),
    ({}, {}, "", "/var/run/koord-runtimeproxy/admin.sock"),
    (FLAG, {"RUNTIMEPROXY_HOOK_BUDGET": "soon"}, "no-such-key: 1", "/flag"),
]


def test_command_finds_socket_by_proxy_configuration(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for flags, environ, text, path in PLACES:
        file.write_text(text)
        assert socket_path({**flags, "config": str(file)}, environ) == path
    code, out, err = run("runtimeproxy", "hook", "ls", f"--config={file}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.endswith("(with --admin-endpoint=SOCKET no configuration is read)\n")
    with pytest.raises(ConfigError, match="--admin-endpoint: 'x' is not a unix socket"):
        socket_path({"admin-endpoint": "x"}, {})
    with pytest.raises(NoProxy, match="the proxy has no admin endpoint: --admin-endpoint is none"):
        AdminClient(None).call("hooks")


COMMANDS = ["status", "hook trace", "hook trace -f", "hook disable rdt --reason=hangs --for=1h", "hook enable rdt"]
COMMANDS += ["events", "events -f", "store ls", "store get default/web-1", "explain default/web-1", "log-level debug"]
NOT_READ = "the answer cannot be read: is it a proxy of this version? ({})"
CLOSED_EARLY = "the proxy closed the connection within its answer: {}"
NOBODY = "start the proxy, or correct --admin-endpoint: nothing listens at {}"
Proxy = Callable[[Path], AbstractContextManager[object]]


def with_fault(fault: Fault) -> Proxy:
    return partial(serving, canned=CANNED, fault=fault)


def not_listening(path: Path) -> AbstractContextManager[object]:
    """Leave a socket without a listener, as a proxy does that was killed."""
    with canned_admin.not_accepting(path):
        return nullcontext()


def refusing(status: int) -> Proxy:
    return with_fault(lambda handler: handler.error(Refused(status, "so it is")))


def test_failing_proxy_is_reported_in_one_line(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of ``status`` is on stdout, and may be cut."""
    situations: list[tuple[Proxy, str, int]] = [
        (with_fault(sending()), "the proxy closed the connection before its answer: {}", 3),
        (with_fault(sending(HALF_A_LINE)), CLOSED_EARLY, 3),
        (with_fault(sending(A_PART)), CLOSED_EARLY, 3),
        (with_fault(canned_admin.SPEAK_HTTP), NOT_READ, 3),
        (nullcontext, NOBODY, 3),
        (not_listening, NOBODY, 3),
        *((refusing(status), "so it is", code) for status, code in ((400, 2), (403, 1), (409, 1), (500, 1), (503, 3))),
    ]
    cases = [("hook ls", *situation) for situation in situations]
    cases += [(command, with_fault(sending(A_PART)), CLOSED_EARLY, 3) for command in COMMANDS]
    cases += [(command, refusing(404), "so it is", 1) for command in COMMANDS if command != "status"]
    cases.append(("hook ls", canned_admin.not_accepting, "the proxy accepts no connection (waited 0.05 s): {}", 3))
    for at, (command, proxy, words, code) in enumerate(cases):
        path = tmp_path / str(at)
        if "waited" in words:  # the last case
            monkeypatch.setattr(admin_client, "SECONDS", 0.05)
        with proxy(path):
            exit_code, out, err = run("runtimeproxy", *shlex.split(command), f"--admin-endpoint={path}")
        line, empty = (out, err) if command == "status" else (err, out)
        assert (exit_code, line.count("\n"), empty) == (code, 1, ""), (command, words)
        shown = line.strip().removeprefix("runtimeproxy: error: ").removeprefix("no answer: ").removesuffix("...")
        assert words.format(path).startswith(shown), (command, words)
        assert not [item for item in gc.get_objects() if type(item) is admin_client._Lines and item.sock.fileno() >= 0]


def test_malformed_answer_or_failed_request_is_reported(run: Run, server: Server, monkeypatch: Any) -> None:
    for before, octets in product((b"", A_PART), (b"[]\n", b"[" * 100_000 + b"\n", b"n" * (PART_BYTES + 65536))):
        server.fault = sending(before + octets)
        for read in (lambda client: client.call("hooks"), lambda client: list(client.follow())):
            with pytest.raises(NoProxy, match="the answer cannot be read"):
                read(AdminClient(str(server.server_address)))
    monkeypatch.setattr(Handler, "handle", lambda handler: handler.error(Refused(400, "too much")))
    with pytest.raises(click.ClickException, match="too much"):
        AdminClient(str(server.server_address), 20.0).call("loglevel", level="n" * (1 << 22))
    line = "runtimeproxy: error: run as root: permission denied: /a\n"
    for number in (errno.EACCES, errno.EPERM):
        monkeypatch.setattr(socket.socket, "connect", Mock(side_effect=OSError(number, "no")))
        assert run("runtimeproxy", "hook", "ls", "--admin-endpoint=/a") == (3, "", line)


EVENT = b'{"part":{"events":[{"a":1}]}}\n'


def drip(handler: Handler) -> None:
    """Send a line that never ends, some bytes at a time."""
    while not handler.server.over.wait(0.02):
        handler.wfile.write(b"x")


LIMITS = [(drip, "hangs within its answer", 1.0, True), (HANG, "does not answer", 0.2, True)]
LIMITS += [(sending(A_PART, hang=True), "hangs within its answer", 1.0, False)]
"""Faults with the seconds to wait, which suffice on a busy machine, and whether following has that limit."""


@pytest.mark.slow  # five seconds, most of them limits
def test_following_ends_with_proxy_limit_or_interrupt(server: Server) -> None:
    for server.fault, words, seconds, follows in LIMITS:
        proxy = AdminClient(str(server.server_address), seconds)
        for found in (words, "accepts no connection"):
            with pytest.raises(NoProxy, match=found):
                proxy.call("hooks")
        with pytest.raises(NoProxy, match=words):
            list(proxy.with_new_deadline().follow()) if follows else proxy.with_new_deadline().call("hooks")
    for server.fault in (sending(EVENT, b'{"b"'), sending(EVENT), sending(EVENT, END, hang=True)):
        assert list(AdminClient(str(server.server_address)).follow()) == [{"a": 1}]
    ended: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def interrupt(handler: Handler) -> None:
        handler.part()
        handler.server.over.wait(0.05)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        ended.put(handler.server.over.wait(10))

    server.fault = interrupt
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(AdminClient(str(server.server_address)).follow())
    finally:
        signal.signal(signal.SIGINT, before)
    server.over.set()
    assert ended.get(timeout=20)  # the server's thread may be the later one


OFFERED: dict[str, set[str]] = {
    "config ": {"check", "show", "default"},
    "run --log-level d": {"debug"},
    "run --config /etc": {"/etc"},
    "config show --backend-runtime-mode D": {"Docker"},
    "hook disable ": {"cpuset", "gpu", "gpu-copy", "koordlet"},
    "hook enable ": {"rdt", "gone"},
    "hook trace --hook-server ": {"cpuset", "gpu", "gpu-copy", "koordlet", "rdt", "gone"},
    "events --pod ": {"default/web-1"},
    "store get default/web-1/": {"default/web-1/main"},
    "store get ": {"default/web-1"},
    **{f"explain {record_id[:4]}": {record_id} for record_id in (POD, CONTAINER_RECORD["id"])},
    "explain nothing-like-it": set(),
}
"""The offered words by the line up to the cursor."""


def test_completion_offers_names_and_has_script(monkeypatch: pytest.MonkeyPatch, server: Server, run: Run) -> None:
    monkeypatch.setattr(subjects, "SECONDS", 60.0)
    monkeypatch.setenv("RUNTIMEPROXY_ADMIN_ENDPOINT", str(server.server_address))
    complete = ShellComplete(command_group(), {}, PROGRAM, "").get_completions
    for line, names in OFFERED.items():
        *before, begun = line.split(" ")
        assert {item.value for item in complete(before, begun)} == names, line
    for shell in INSTALL:
        code, out, err = run("runtimeproxy", "completion", shell)
        assert (code, err) == (0, "")
        assert f"_RUNTIMEPROXY_COMPLETE={shell}_complete" in out
        assert out.splitlines()[-1] == f"# For all new shells: {INSTALL[shell]}"


BROKEN: list[Any] = [HANG, sending(HALF_A_LINE, hang=True), Refused(500, "no"), canned_admin.SPEAK_HTTP, {}]


def test_completion_is_empty_when_proxy_does_not_answer(run: Run, server: Server, capfd: Any) -> None:
    """An import takes longer than the wait, so the time is measured within the process."""
    words = {"_RUNTIMEPROXY_COMPLETE": "bash_complete", "COMP_WORDS": "runtimeproxy hook disable ", "COMP_CWORD": "3"}
    for answer in BROKEN:
        server.canned = {"hooks": answer}
        with pytest.raises(SystemExit):
            run("runtimeproxy", **words, RUNTIMEPROXY_ADMIN_ENDPOINT=str(server.server_address))
        assert capfd.readouterr() == ("\n", "")
    server.fault = HANG
    context = click.Context(click.Command("x"))
    context.params = {"admin_endpoint": str(server.server_address)}
    began = time.monotonic()
    assert subjects.hook_servers(context, click.Argument(["name"]), "") == []
    assert subjects.SECONDS <= time.monotonic() - began < admin_client.SECONDS
