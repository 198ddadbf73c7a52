"""The outputs of the commands that call the proxy, for canned answers; docs/commands.rst shows the plain ones."""

import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from runtimeproxy.admin.protocol import Refused
from runtimeproxy.cli.commands import status
from runtimeproxy.cli.shared.output import row_text
from tests.cli import admin_answers
from tests.cli.admin_answers import CANNED, CONTAINER_RECORD, EVENTS, OF_POD, POD, POD_RECORD, STORE, checks
from tests.cli.conftest import Run
from tests.docs import DOCS
from tests.fakes.canned_admin import Server, serving

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


def words_of(lines: Sequence[str]) -> list[list[str]]:
    """Return the lines without the widths of their columns."""
    return [line.split() for line in lines]


@pytest.mark.parametrize("line", SHOWN)
def test_output_is_the_one_in_the_docs(command: Run, line: str) -> None:
    assert command(line) == (0, SHOWN[line], "")


# -- status ----------------------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize(("answer", "code", "line"), STATUSES)
def test_status_is_one_line_of_at_most_80_characters(command: Run, answer: Any, code: int, line: str) -> None:
    assert command("status", readyz=answer) == (code, f"{line}\n", "")
    assert len(line) <= status.LONGEST


# -- hook servers and the log level ----------------------------------------------------------------------------------

CHANGES: list[tuple[str, str, dict[str, object]]] = [
    ("hook disable rdt --reason 'it hangs' --for 1h", "disable", {"name": "rdt", "reason": "it hangs", "for": "1h"}),
    ("hook disable rdt --reason=x --unregistered", "disable", {"name": "rdt", "reason": "x", "unregistered": True}),
    ("hook enable rdt.json", "enable", {"name": "rdt.json"}),
    ("log-level DEBUG --for 20m", "loglevel", {"level": "debug", "for": "20m"}),
]


@pytest.mark.parametrize(("line", "method", "params"), CHANGES)
def test_change_is_requested(command: Run, server: Server, line: str, method: str, params: dict[str, object]) -> None:
    assert len(lines_of(command, line)) == 1
    assert server.requests == [(method, params)]


def test_disabling_prints_the_command_that_enables(command: Run, server: Server) -> None:
    flag = f"--admin-endpoint={server.server_address}"
    answer = {"name": "a/b c", "disabled": {"until": None}, "notes": ["it was not disabled"]}
    line = f"a/b c is disabled; back by: runtimeproxy hook enable 'a/b c' {flag}\n"
    note = "note: it was not disabled\n"
    assert command(f"hook disable 'a/b c' --reason=x {flag}", disable=answer) == (0, line, note)


# -- events ----------------------------------------------------------------------------------------------------------

EVENT_LINES = SHOWN["events"].splitlines()
TRACE_LINES = EVENT_LINES[:2] + EVENT_LINES[3:]
LATER_LINES = ["11-25 10:12:00 runtime_lost - /run/c.sock"]
LATER_LINES += ["11-25 10:12:30 refused ab12-43 CreateContainer default/web-1: refused"]
SELECTIONS = [
    ("events --no-headers --since=8", [EVENT_LINES[5]]),
    ("events --kind=failed_open", EVENT_LINES[:2] + EVENT_LINES[5:]),
    ("hook trace --pod=web-1", TRACE_LINES),
    ("hook trace --hook-server=cpuset", TRACE_LINES[:2] + TRACE_LINES[3:]),
]


@pytest.mark.parametrize(("line", "expected"), SELECTIONS)
def test_selected_events_are_lines(command: Run, line: str, expected: list[str]) -> None:
    assert words_of(lines_of(command, line)) == words_of(expected)


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"number": n, "time": "2026-11-25T10:11:00Z", "kind": "sync"} for n in range(1, count + 1)]


@pytest.mark.parametrize(("span", "seen"), [("2h", 2), ("30m", 1), ("5s", 0)])
def test_since_may_be_a_duration(command: Run, span: str, seen: int) -> None:
    times = [datetime.now(UTC) - timedelta(minutes=minutes) for minutes in (180, 60, 10)]
    events = [{"number": n, "time": time.isoformat(), "kind": "sync"} for n, time in enumerate(times, 1)]
    assert len(lines_of(command, f"events --no-headers --since={span}", events=events)) == seen


def test_following_prints_the_last_events_and_new_ones(command: Run) -> None:
    code, out, err = command("events -f")
    assert (code, err) == (3, "runtimeproxy: error: the proxy has ended\n")
    assert words_of(out.splitlines()) == words_of(EVENT_LINES + LATER_LINES)
    for since, count in (("", 10), ("--since=50", 49)):
        _, out, _ = command(f"events -f --no-headers {since}", events=numbered(99))
        assert len(out.splitlines()) == count


def test_followed_data_has_a_document_for_each_event(command: Run) -> None:
    assert len(lines_of(command, "events --no-headers", events=numbered(1_100))) == 1_100, "all pages are read"
    lines = command("hook trace -f -o json", events=EVENTS)[1].splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["gap", "edited", "edited", "failed_open", "refused"]
    documents = yaml.safe_load_all(command("events -f -o yaml")[1])
    assert [event["kind"] for event in documents] == [event["kind"] for event in EVENTS]


# -- store and explain -----------------------------------------------------------------------------------------------

CONTAINER_LINES = """\
FIELD                   SENT           SET BY
envs.GPU                added          -
envs.HOME               as requested   -
resources.cpu_shares    changed        cpuset
resources.cpuset_cpus   added          cpuset
resources.cpuset_mems   taken out      -
""".splitlines()
POD_FIELDS = ["FIELD", "annotations.team", "cgroup_parent", "labels.app", "labels.tier"]


def store(*more: dict[str, Any]) -> dict[str, Any]:
    """Return the store with more pods and containers."""
    pods = [one for one in more if "podId" not in one]
    containers = [one for one in more if "podId" in one]
    return {**STORE, "pods": [POD_RECORD, *pods], "containers": [CONTAINER_RECORD, *containers]}


def test_store_ls_has_containers_below_their_pods(command: Run) -> None:
    second = {**POD_RECORD, "id": "00aa", "name": "b", "owners": {}}
    lone = {**CONTAINER_RECORD, "id": "00bb", "podId": "00cc", "owners": {}}
    assert words_of(lines_of(command, "store ls", store=store(second, lone))) == [
        ["ID", "KIND", "ATTEMPT", "SET", "BY", "NAME"],
        [POD[:13], "pod", "-", "-", "default/web-1"],
        ["77ab000000000", "container", "1", "cpuset", "default/web-1/main"],
        ["00aa", "pod", "-", "-", "default/b"],
        ["00bb", "container", "1", "-", "?/main"],
    ]
    reported = json.loads("\n".join(lines_of(command, "store ls -o json --pod=default/web-1", store=STORE)))
    assert reported == {"pods": [POD_RECORD], "containers": [CONTAINER_RECORD]}


@pytest.mark.parametrize(
    ("text", "lines"), [("web-1", 5), ("default/web-1", 5), ("3f2a", 5), ("default/web-1/main", 6), ("77", 6)]
)
def test_store_get_shows_the_change_of_each_field(command: Run, text: str, lines: int) -> None:
    found = lines_of(command, f"store get {text}")
    assert found == CONTAINER_LINES if lines == 6 else [line.split()[0] for line in found] == POD_FIELDS


SECOND = {**POD_RECORD, "id": "3f2b" + "0" * 60}
SEVERAL = "default/web-1 (3f2a11b09c220), default/web-1 (3f2b000000000)"


def test_ambiguous_text_lists_its_meanings(command: Run) -> None:
    for line in ("store get 3f", "explain web-1"):
        error = f"runtimeproxy: error: {line.split()[-1]!r} could mean {SEVERAL}: write more of one id\n"
        assert command(line, store=store(SECOND)) == (2, "", error)
    many = [{**SECOND, "id": f"3f2b{number}"} for number in range(8)]
    assert " and 4 more: write more of one id\n" in command(line, store=store(*many))[2]
    exact = {**POD_RECORD, "id": "00", "name": "3f", "sent": [], "asked": []}
    assert len(lines_of(command, "store get 3f", store=store(exact))) == 1, "a name precedes the start of an id"


@pytest.mark.parametrize("text", ["nope", "default/web-1/nope", "bank/web-1", "99"])
def test_unknown_subject_is_reported(command: Run, text: str) -> None:
    line = f"runtimeproxy: error: the proxy knows no pod or container {text!r}: `runtimeproxy store ls` lists them\n"
    assert command(f"store get {text}") == command(f"explain {text}") == (1, "", line)


CALL = {"number": 1, "time": "2026-11-25T10:11:00Z", "kind": "failed", **OF_POD, "container": "main"}


def test_explain_leaves_out_calls_of_namesakes(command: Run) -> None:
    """A create that was refused has no id, so its name decides. Fields without effect have their words."""
    ids = [{"containerId": "foreign"}, {}, {"podId": "foreign"}, {"containerId": CONTAINER_RECORD["id"]}]
    fields = {"kind": "no_effect", "fields": [{"field": "annotations.note", "hookServer": "gpu"}], "text": "no effect"}
    events = [{**CALL, "call": f"c{at}", **more} for at, more in enumerate([*ids, {**ids[3], **fields}])]
    lines = lines_of(command, "explain 77ab", events=events)
    assert [at for at in range(4) if f" c{at} " in "\n".join(lines)] == [1, 3]
    assert lines[7].split() == ["annotations.note", "no", "effect", "gpu"]


UNKNOWN = 'Of a field "as requested" it is not known whether the kubelet requested it or a hook server set it.'
READ = {**STORE, "containers": [{**CONTAINER_RECORD, "read": True}]}
REMOVED = {**STORE, "pods": [], "containers": []}
EXPLAINED = [
    (READ, EVENTS, UNKNOWN),
    (REMOVED, [{**CALL, "kind": "refused", "call": "c9"}], "The proxy knows no such pod or container now"),
    (REMOVED, [{**CALL, "kind": "refused", "call": "c9"}], "11-25 10:11:00 refused c9"),
    (STORE, [], "No hook server changed"),
]


@pytest.mark.parametrize(("store", "events", "words"), EXPLAINED)
def test_explain_reports_what_is_not_known(command: Run, store: Any, events: Any, words: str) -> None:
    found = [" ".join(line) for line in words_of(lines_of(command, "explain web-1", store=store, events=events))]
    assert len([line for line in found if line.startswith(words)]) == 1
    assert (UNKNOWN in found) == (words == UNKNOWN)


# -- JSON, YAML and tables -------------------------------------------------------------------------------------------

OF_CONTAINER = [event for event in EVENTS if event["kind"] == "gap" or event.get("container") == "main"]
DATA: list[tuple[str, Any]] = [
    ("status", {"status": "ready", "checks": checks()["checks"]}),
    ("hook ls", CANNED["hooks"]),
    ("events", [event for event in EVENTS if "later" not in event]),
    ("explain 77ab", {"pod": POD_RECORD, "containers": [CONTAINER_RECORD], "events": OF_CONTAINER}),
]


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize(("line", "expected"), DATA)
def test_data_is_the_proxys(command: Run, line: str, expected: Any, form: str) -> None:
    found = yaml.safe_load(command(f"{line} -o {form}")[1])
    assert (found | expected if isinstance(expected, dict) else expected) == found


LINES = ["status", "hook ls", "hook trace", "events", "store ls", "store get web-1", "explain web-1", "log-level info"]


@pytest.mark.parametrize("line", LINES)
def test_80_columns_are_enough_on_a_terminal(command: Run, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert [each for each in lines_of(command, line) if len(each) > 80] == []


ROWS = [{"name": "a", "value": "1"}, {"name": "long", "value": None}]
TABLES = [
    (ROWS, ("name", "value"), False, "NAME   VALUE\na      1\nlong   -"),
    (ROWS, ("name", "value"), True, "a      1\nlong   -"),
    ([], ("name",), False, "NAME"),
    ([], ("name",), True, ""),
]


@pytest.mark.parametrize(("rows", "columns", "no_headers", "text"), TABLES)
def test_table_has_columns(rows: list[dict[str, Any]], columns: tuple[str, ...], no_headers: bool, text: str) -> None:
    assert row_text(rows, columns, "table", no_headers) == text
    assert json.loads(row_text(rows, columns[:1], "json", True)) == [{"name": row["name"]} for row in rows]


TEXT = "one /a/path/that/is/long two three\nfour"
WRAPPED = [(40, TEXT.splitlines()), (10, ["one", "/a/path/that/is/long", "two three", "four"])]


@pytest.mark.parametrize(("width", "lines"), WRAPPED)
def test_last_column_is_wrapped_on_a_terminal(monkeypatch: pytest.MonkeyPatch, width: int, lines: list[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    first, *following = row_text([{"a": "x", "text": TEXT}], ("a", "text"), "table", True).splitlines()
    assert first == f"x   {lines[0]}"
    assert following == [f"    {line}" for line in lines[1:]]
