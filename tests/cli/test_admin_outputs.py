"""What the commands that call the proxy print of its answers."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtimeproxy.admin.protocol import Refused
from runtimeproxy.cli.commands import status
from runtimeproxy.cli.shared.output import row_text, structured_text
from tests.cli.admin_answers import (
    CANNED,
    CONTAINER_RECORD,
    DEGRADED,
    EVENTS,
    OF_POD,
    POD,
    POD_RECORD,
    STORE,
    UNREADY,
    checks,
)
from tests.cli.conftest import Run
from tests.docs import ROOT
from tests.fakes.canned_admin import Handler, Server, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Run a server with the canned answers, which a test may change."""
    with serving(tmp_path / "a", dict(CANNED)) as server:
        yield server


def ask(run: Run, server: Server, command: str, **answers: Any) -> tuple[int, str, str]:
    server.canned = {**server.canned, **answers}
    return run("runtimeproxy", *shlex.split(command), f"--admin-endpoint={server.server_address}")


def printed(run: Run, server: Server, command: str, **answers: Any) -> list[str]:
    """Return the lines of a command that goes well."""
    code, out, err = ask(run, server, command, **answers)
    assert (code, err) == (0, "")
    return out.splitlines()


# -- status ------------------------------------------------------------------------------------------------------------

UNREADABLE = "no answer: the answer to readyz cannot be read: is it a proxy of this version?"
STATUSES = [
    (CANNED["readyz"], 0, "ready: 11 checks passed"),
    (DEGRADED, 1, "degraded (see runtimeproxy doctor): disabled_plugins, invalid_files: disabled..."),
    (UNREADY, 1, "not ready (see runtimeproxy doctor): runtime, disabled_plugins: nothing liste..."),
    (checks(runtime="failed: " + "é" * 200), 1, "not ready (see runtimeproxy doctor): runtime: " + "?" * 31 + "..."),
    (Refused(500, "the channel broke"), 1, "not ready: the channel broke"),
    ({}, 3, UNREADABLE),
    ({"checks": [{"name": "loop"}]}, 3, UNREADABLE),
    ({"checks": [{"name": "loop", "state": "unheard of", "reason": ""}]}, 3, UNREADABLE),
    ({"checks": 5}, 3, UNREADABLE),
]


@pytest.mark.parametrize(("answer", "code", "line"), STATUSES)
def test_status_is_one_line_of_at_most_80_characters(
    run: Run, server: Server, answer: Any, code: int, line: str
) -> None:
    assert ask(run, server, "status", readyz=answer) == (code, f"{line}\n", "")
    assert len(line) <= status.LONGEST


def test_status_as_data_has_all_checks(run: Run, server: Server) -> None:
    code, out, _ = ask(run, server, "status -o json", readyz=UNREADY)
    printed = json.loads(out)
    assert (code, printed["status"], printed["text"][:8]) == (1, "not ready", "runtime,")
    assert printed["checks"] == UNREADY["checks"]


# -- hook servers ------------------------------------------------------------------------------------------------------

LS = """\
#   NAME       POLICY   STATE          P50      P99    DETAIL
1   cpuset     Fail     ok             0.41ms   21ms   deadline at 11-25 10:11:12; PreCreateContainer, \
PreStartContainer
2   gpu        Ignore   breaker open   -        -      PreCreateContainer
3   gpu-copy   Ignore   ok             -        -      same socket as gpu
4   koordlet   Ignore   unreachable    -        -      since 11-25 10:09:30: /run/k.sock: No such file or directory; \
PreCreateContainer
5   rdt        Fail     disabled       0.41ms   21ms   it hangs (until 11-25 11:20:00); PreCreateContainer, \
PreStartContainer
-   bad.json   -        invalid        -        -      remote-endpoint is missing
-   gone       -        disabled       -        -      not registered
"""


def test_hook_ls_has_a_row_for_each_hook_server_file_and_mask(run: Run, server: Server) -> None:
    assert printed(run, server, "hook ls") == LS.splitlines()
    assert printed(run, server, "hook ls --no-headers")[0].startswith("1")
    assert json.loads("\n".join(printed(run, server, "hook ls -o json"))) == CANNED["hooks"]


DISABLED = "rdt is disabled until 2026-11-25T11:20:00.000Z; sooner by: runtimeproxy hook enable rdt{flag}"
SWITCHED = [
    ("hook disable rdt --reason=hangs", "disable", {"name": "rdt", "reason": "hangs"}, DISABLED),
    (
        "hook disable rdt --reason 'it hangs' --for 1h",
        "disable",
        {"name": "rdt", "reason": "it hangs", "for": "1h"},
        DISABLED,
    ),
    (
        "hook disable rdt.json --reason=hangs --unregistered",
        "disable",
        {"name": "rdt.json", "reason": "hangs", "unregistered": True},
        DISABLED,
    ),
    ("hook enable rdt.json", "enable", {"name": "rdt.json"}, "rdt is enabled"),
    (
        "log-level DEBUG --for 20m",
        "loglevel",
        {"level": "debug", "for": "20m"},
        "the log level is debug until 2026-11-25T10:30:00.000Z, then as configured",
    ),
]


@pytest.mark.parametrize(("command", "method", "params", "line"), SWITCHED)
def test_change_is_requested_and_printed(
    run: Run, server: Server, command: str, method: str, params: dict[str, object], line: str
) -> None:
    assert printed(run, server, command) == [line.format(flag=f" --admin-endpoint={server.server_address}")]
    assert server.requests == [(method, params)]


def test_disabling_without_an_end_prints_how_to_enable(run: Run, server: Server) -> None:
    answer = {"name": "a/b c", "disabled": {"until": None}}
    line = f"a/b c is disabled; back by: runtimeproxy hook enable 'a/b c' --admin-endpoint={server.server_address}"
    assert printed(run, server, "hook disable 'a/b c' --reason=x", disable=answer) == [line]


def test_what_the_proxy_adds_to_a_change_is_reported(run: Run, server: Server) -> None:
    answer = {"name": "x", "notes": ["it was not disabled"]}
    assert ask(run, server, "hook enable x", enable=answer) == (0, "x is enabled\n", "note: it was not disabled\n")


# -- events ------------------------------------------------------------------------------------------------------------

EDITED = "CreateContainer default/web-1/main: cpuset set resources.cpu_shares, resources.cpuset_cpus; gpu set envs.GPU"
EVENT_LINES = f"""\
TIME             KIND           CALL   DETAIL
-                gap            -      events 1 to 5 are no longer there
11-25 10:11:00   plugin_added   -      cpuset
11-25 10:11:09   edited         ab12-40 RunPodSandbox default/web-1: gpu set labels.tier (201.4ms, hooks 1.0ms)
11-25 10:11:10   edited         ab12-41 {EDITED} (52.4ms, hooks 2.0ms)
11-25 10:11:12   failed_open    ab12-42 CreateContainer default/web-1/side: cpuset at PreCreateContainer: deadline
""".splitlines()
TRACE_LINES = EVENT_LINES[:2] + EVENT_LINES[3:]
LATER = ["11-25 10:12:00   runtime_lost   -      /run/c.sock"]
LATER += ["11-25 10:12:30   refused        ab12-43 CreateContainer default/web-1: refused"]
WANTED = [
    ("events", EVENT_LINES, {}),
    ("events --no-headers", [EVENT_LINES[5]], {"since": "8"}),
    ("events", EVENT_LINES[:2] + EVENT_LINES[5:], {"kind": "failed_open"}),
    ("hook trace", TRACE_LINES, {}),
    ("hook trace", TRACE_LINES, {"pod": "web-1"}),
    ("hook trace", TRACE_LINES[:2] + TRACE_LINES[3:], {"hook-server": "cpuset"}),
]


def flags(query: dict[str, str]) -> str:
    return " ".join(f"--{name}={value}" for name, value in query.items())


def squeezed(lines: Sequence[str]) -> list[list[str]]:
    return [line.split() for line in lines]


@pytest.mark.parametrize(("command", "lines", "query"), WANTED)
def test_events_that_are_remembered_are_lines(
    run: Run, server: Server, command: str, lines: list[str], query: dict[str, str]
) -> None:
    assert squeezed(printed(run, server, f"{command} {flags(query)}")) == squeezed(lines)


def test_all_pages_of_events_are_read(run: Run, server: Server) -> None:
    many = [{"number": n, "time": "2026-11-25T10:11:00Z", "kind": "sync"} for n in range(1, 2502)]
    assert len(printed(run, server, "events --no-headers", events=many)) == 2501


@pytest.mark.parametrize(("span", "seen"), [("2h", 2), ("30m", 1), ("5s", 0)])
def test_since_may_be_a_duration(run: Run, server: Server, span: str, seen: int) -> None:
    times = [datetime.now(UTC) - timedelta(minutes=minutes) for minutes in (180, 60, 10)]
    events = [{"number": n, "time": time.isoformat(), "kind": "sync"} for n, time in enumerate(times, 1)]
    assert len(printed(run, server, f"events --no-headers --since={span}", events=events)) == seen


def test_events_as_data_are_the_proxys(run: Run, server: Server) -> None:
    reported = [event for event in EVENTS if "later" not in event]
    assert json.loads("\n".join(printed(run, server, "events -o json"))) == reported
    assert yaml.safe_load("\n".join(printed(run, server, "events -o yaml"))) == reported


def test_following_prints_the_last_ones_and_those_to_come(run: Run, server: Server) -> None:
    code, out, err = ask(run, server, "events -f")
    assert (code, err) == (3, "runtimeproxy: error: the proxy has ended\n")
    assert squeezed(out.splitlines()) == squeezed(EVENT_LINES + LATER)
    many = [{"number": n, "time": "2026-11-25T10:11:00Z", "kind": "sync"} for n in range(1, 100)]
    assert len(ask(run, server, "events -f --no-headers", events=many)[1].splitlines()) == 10
    assert len(ask(run, server, "events -f --no-headers --since=50", events=many)[1].splitlines()) == 49


def test_followed_data_has_a_document_for_each_event(run: Run, server: Server) -> None:
    lines = ask(run, server, "hook trace -f -o json")[1].splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["gap", "edited", "edited", "failed_open", "refused"]
    documents = yaml.safe_load_all(ask(run, server, "events -f -o yaml")[1])
    assert [event["kind"] for event in documents] == [event["kind"] for event in EVENTS]


# -- store and explain -------------------------------------------------------------------------------------------------

STORE_LINES = f"""\
ID              KIND        ATTEMPT   SET BY   NAME
{POD[:13]}   pod         -         -        default/web-1
77ab000000000   container   1         cpuset   default/web-1/main
""".splitlines()
POD_LINES = """\
FIELD              SENT           SET BY
annotations.team   as requested   -
cgroup_parent      as requested   -
labels.app         as requested   -
labels.tier        added          -
""".splitlines()
CONTAINER_LINES = """\
FIELD                   SENT           SET BY
envs.GPU                added          -
envs.HOME               as requested   -
resources.cpu_shares    changed        cpuset
resources.cpuset_cpus   added          cpuset
resources.cpuset_mems   taken out      -
""".splitlines()


def store(*others: dict[str, Any]) -> dict[str, Any]:
    """Return the store with more pods and containers."""
    pods = [one for one in others if "podId" not in one]
    containers = [one for one in others if "podId" in one]
    return {**STORE, "pods": [POD_RECORD, *pods], "containers": [CONTAINER_RECORD, *containers]}


def test_store_ls_has_containers_below_their_pods(run: Run, server: Server) -> None:
    assert printed(run, server, "store ls") == STORE_LINES
    reported = json.loads("\n".join(printed(run, server, "store ls -o json --pod=default/web-1")))
    assert reported == {"pods": [POD_RECORD], "containers": [CONTAINER_RECORD]}
    other = {**POD_RECORD, "id": "00aa", "name": "b", "owners": {}}
    lone = {**CONTAINER_RECORD, "id": "00bb", "podId": "00cc", "owners": {}}
    lines = squeezed(printed(run, server, "store ls --no-headers", store=store(other, lone)))
    assert [line[-1] for line in lines] == ["default/web-1", "default/web-1/main", "default/b", "?/main"]


SET_BY_GPU = "envs.GPU                added          gpu"
"""How explain shows it, which knows of the call."""
FOUND = [
    ("web-1", POD_LINES),
    ("default/web-1", POD_LINES),
    ("3f2a", POD_LINES),
    (POD, POD_LINES),
    ("default/web-1/main", CONTAINER_LINES),
    ("77", CONTAINER_LINES),
]


@pytest.mark.parametrize(("text", "lines"), FOUND)
def test_store_get_shows_what_became_of_each_field(run: Run, server: Server, text: str, lines: list[str]) -> None:
    assert printed(run, server, f"store get {text}") == lines


def test_exact_name_is_taken_before_the_start_of_an_id(run: Run, server: Server) -> None:
    named = {**POD_RECORD, "id": "00", "name": "3f", "sent": [], "asked": []}
    assert len(printed(run, server, "store get 3f", store=store(named))) == 1


OTHER = {**POD_RECORD, "id": "3f2b" + "0" * 60}
SEVERAL = "default/web-1 (3f2a11b09c220), default/web-1 (3f2b000000000)"


@pytest.mark.parametrize("text", ["3f", "web-1"])
@pytest.mark.parametrize("command", ["store get", "explain"])
def test_text_that_could_mean_several_lists_them(run: Run, server: Server, command: str, text: str) -> None:
    line = f"runtimeproxy: error: {text!r} could mean {SEVERAL}: write more of one id\n"
    assert ask(run, server, f"{command} {text}", store=store(OTHER)) == (2, "", line)


def test_list_of_what_a_text_could_mean_is_cut(run: Run, server: Server) -> None:
    others = [{**OTHER, "id": f"3f2b{number}"} for number in range(8)]
    assert " and 4 more: write more of one id\n" in ask(run, server, "explain 3f", store=store(*others))[2]


@pytest.mark.parametrize("text", ["nope", "default/nope", "default/web-1/nope", "other/web-1", "99"])
@pytest.mark.parametrize("command", ["store get", "explain"])
def test_unknown_subject_is_reported(run: Run, server: Server, command: str, text: str) -> None:
    line = f"runtimeproxy: error: the proxy knows no pod or container {text!r}: `runtimeproxy store ls` lists them\n"
    assert ask(run, server, f"{command} {text}") == (1, "", line)


def test_explain_reports_fields_calls_and_what_is_unknown(run: Run, server: Server) -> None:
    lines = printed(run, server, "explain web-1")
    assert lines[0] == f"Pod default/web-1, id {POD[:13]}"
    assert squeezed(lines[1:6]) == squeezed([*POD_LINES[:-1], "labels.tier added gpu"])
    explained = [line.replace("envs.GPU                added          -", SET_BY_GPU) for line in CONTAINER_LINES]
    assert lines[6:13] == ["Container default/web-1/main, id 77ab000000000", *explained]
    calls = [line.split()[3] for line in lines[lines.index("") + 3 : -2]]
    assert calls == ["ab12-40", "ab12-41", "ab12-42"]
    assert lines[-1] == "The proxy started at 2026-11-25T10:00:00.000Z. What happened before is unknown."


def test_explain_reports_fields_without_effect(run: Run, server: Server) -> None:
    fields = [{"field": "annotations.note", "hookServer": "gpu"}]
    event = {"number": 1, "time": "2026-11-25T10:11:00Z", "kind": "no_effect", **OF_POD, "container": "main"}
    of_this = {
        **event,
        "fields": fields,
        "text": "sent, no effect in containerd",
        "containerId": CONTAINER_RECORD["id"],
    }
    of_others = {**of_this, "containerId": "other", "text": "never shown"}
    lines = printed(run, server, "explain 77ab", events=[of_this, of_others])
    assert lines[7].split() == ["annotations.note", "sent,", "no", "effect", "in", "containerd", "gpu"]
    assert not any("never shown" in line for line in lines)


def test_explain_reports_what_is_unknown_of_a_read_record(run: Run, server: Server) -> None:
    unknown = 'Of a field "as requested" it is not known whether the kubelet requested it or a hook server set it.'
    assert unknown not in printed(run, server, "explain web-1")
    reported = {**STORE, "containers": [{**CONTAINER_RECORD, "read": True}]}
    assert printed(run, server, "explain web-1", store=reported).count(unknown) == 1


def test_explain_leaves_out_calls_of_others_of_that_name(run: Run, server: Server) -> None:
    """A create that was refused has no id, so its name decides."""
    ids = {
        "c1": {"containerId": "other"},
        "c2": {},
        "c3": {"podId": "other"},
        "c4": {"containerId": CONTAINER_RECORD["id"]},
    }
    call = {"number": 1, "time": "2026-11-25T10:11:00Z", "kind": "failed", **OF_POD, "container": "main"}
    lines = printed(run, server, "explain 77ab", events=[{**call, "call": name, **more} for name, more in ids.items()])
    assert [name for name in ids if any(f" {name} " in line for line in lines)] == ["c2", "c4"]


def test_explain_of_a_pod_that_is_gone_has_what_is_remembered(run: Run, server: Server) -> None:
    gone = [{"number": 1, "time": "2026-11-25T10:11:00Z", "kind": "refused", "call": "c9", **OF_POD}]
    empty = {**STORE, "pods": [], "containers": []}
    lines = printed(run, server, "explain web-1", store=empty, events=gone)
    assert lines[0].startswith("The proxy knows no such pod or container now")
    assert lines[3].split()[:4] == ["11-25", "10:11:00", "refused", "c9"]
    unchanged = printed(run, server, "explain web-1", store=STORE, events=[])
    assert any(line.startswith("No hook server changed") for line in unchanged)


def test_explain_as_data_has_all_of_it(run: Run, server: Server) -> None:
    reported = json.loads("\n".join(printed(run, server, "explain 77ab -o json")))
    assert (reported["pod"], reported["containers"]) == (POD_RECORD, [CONTAINER_RECORD])
    assert [event["kind"] for event in reported["events"]] == ["gap", "edited"]
    assert reported["unknownBefore"] == "2026-11-25T10:00:00.000Z"


ASKED = ["status", "hook ls", "hook trace", "events", "store ls", "store get web-1", "explain web-1", "log-level info"]


@pytest.mark.parametrize("command", ASKED)
def test_80_columns_are_enough_on_a_terminal(
    run: Run, server: Server, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    lines = printed(run, server, command)
    assert [line for line in lines if len(line) > 80] == []


# -- as they are used --------------------------------------------------------------------------------------------------


@pytest.fixture
def environ(server: Server) -> dict[str, str]:
    """Return the environment of a shell in the C locale."""
    names = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
    return names | {"RUNTIMEPROXY_ADMIN_ENDPOINT": str(server.server_address)}


def shell(script: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    script = f'set -o pipefail; p() {{ {sys.executable} -m runtimeproxy "$@"; }}; {script}'
    return subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["hook ls", "events -f"])
def test_pipe_that_is_closed_early_is_no_traceback(environ: dict[str, str], command: str) -> None:
    assert shell(f"p {command} | exec 0<&-", environ).stderr == ""
    assert shell(f"p {command} | head -n 1", environ).stdout.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("encoding", "name"), [("utf-8", "名?[31m?"), ("latin-1", r"\u540d?[31m?")])
def test_name_that_cannot_be_written_is_escaped(
    server: Server, environ: dict[str, str], encoding: str, name: str
) -> None:
    server.canned = {**server.canned, "store": store({**POD_RECORD, "id": "00", "name": "名\x1b[31m\udc80"})}
    done = shell("p store ls", {**environ, "PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (0, "")
    assert f"default/{name}\n" in done.stdout


def follow_silently(handler: Handler) -> None:
    """Send one event, and a follower nothing more."""
    handler.part(events=[EVENTS[1]])
    if handler.params.get("follow"):
        handler.server.over.wait()
    handler.end()


@pytest.mark.slow
def test_following_ends_with_who_reads_it(tmp_path: Path, environ: dict[str, str]) -> None:
    with serving(tmp_path / "b", {}, follow_silently):
        done = shell("p events -f | head -n 2", {**environ, "RUNTIMEPROXY_ADMIN_ENDPOINT": str(tmp_path / "b")})
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (1, 2, "")


@pytest.mark.slow
def test_interrupt_ends_following_without_a_word(tmp_path: Path, environ: dict[str, str]) -> None:
    with serving(tmp_path / "b", {}, follow_silently):
        environ["RUNTIMEPROXY_ADMIN_ENDPOINT"] = str(tmp_path / "b")
        # A shell's background job ignores SIGINT, and so would what it starts.
        command = ["env", "--default-signal=INT", sys.executable, "-m", "runtimeproxy", "events", "-f", "--no-headers"]
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert b"plugin_added" in process.stdout.readline()
            os.kill(process.pid, signal.SIGINT)
            assert (process.stdout.read(), process.wait(10)) == (b"", 130)
            assert process.stderr is not None
            assert process.stderr.read() == b""


ROWS = [{"name": "a", "value": "1"}, {"name": "long", "value": None}]
TABLES = [
    (ROWS, ("name", "value"), False, "NAME   VALUE\na      1\nlong   -"),
    (ROWS, ("name", "value"), True, "a      1\nlong   -"),
    (ROWS, ("value",), False, "VALUE\n1\n-"),
    ([], ("name",), False, "NAME"),
    ([], ("name",), True, ""),
]


@pytest.mark.parametrize(("rows", "columns", "no_headers", "text"), TABLES)
def test_table(rows: list[dict[str, str | None]], columns: tuple[str, ...], no_headers: bool, text: str) -> None:
    assert row_text(rows, columns, "table", no_headers) == text


def test_text_of_several_lines_is_a_literal_block() -> None:
    assert structured_text({"a": "1\n2\n"}, "yaml") == "a: |\n  1\n  2"


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_rows_as_data_have_the_requested_columns(output: str, read: object) -> None:
    assert callable(read)
    assert read(row_text(ROWS, ("name", "value"), output, False)) == ROWS
    assert read(row_text(ROWS, ("value",), output, True)) == [{"value": "1"}, {"value": None}]


TEXT = "one /a/path/that/is/long two three\nfour"
WRAPPED = [(40, TEXT.splitlines()), (10, ["one", "/a/path/that/is/long", "two three", "four"])]


@pytest.mark.parametrize(("width", "lines"), WRAPPED)
def test_on_a_terminal_the_last_column_is_wrapped_below_itself(
    monkeypatch: pytest.MonkeyPatch, width: int, lines: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    first, *others = row_text([{"a": "x", "text": TEXT}], ("a", "text"), "table", True).splitlines()
    assert first == f"x   {lines[0]}"
    assert others == [f"    {line}" for line in lines[1:]]
