"""``runtimeproxy doctor`` from a user's view: forms, exit codes, no secret."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from runtimeproxy.cli.doctor import clients, table
from runtimeproxy.cli.doctor.findings import Check, Finding, Verdict, failed, ok, skipped, unknown, warning
from runtimeproxy.cli.doctor.machine import Machine
from runtimeproxy.cli.shared import output
from runtimeproxy.errors import ConfigError
from tests.cli.conftest import Run
from tests.docs import DOCS
from tests.doctor.conftest import CANARY, Made

Examined = Callable[..., tuple[int, str, str]]
"""Runs doctor with these flags on checks with these findings."""


@pytest.fixture
def doctor(run: Run, monkeypatch: pytest.MonkeyPatch) -> Examined:
    examine = table.examine

    def doctor(*flags: str, **findings: tuple[Finding, ...]) -> tuple[int, str, str]:
        checks = [Check(check_id, "", lambda machine, found=found: found) for check_id, found in findings.items()]
        monkeypatch.setattr(table, "examine", partial(examine, checks=checks) if checks else examine)
        return run("runtimeproxy", "doctor", *flags)

    return doctor


def last_line(failed: int = 0, warning: str = "0 warnings", unknown: int = 0, skipped: int = 0) -> str:
    return f"runtimeproxy doctor: {failed} failed, {warning}; not checked: {unknown} unknown, {skipped} skipped\n"


def test_doctor_prints_one_line_per_finding(doctor: Examined, monkeypatch: pytest.MonkeyPatch) -> None:
    """One finding is about a file with a hostile name."""
    examined = partial(doctor, a=(ok("well"),), long=(failed("bad\x1b[2J\nname", "mend it"),))
    lines = ["CHECK   VERDICT   WHY", "a       ok        well", "long    failed    bad?[2J?name -> mend it", ""]
    assert examined() == (1, "\n".join(lines), last_line(failed=1))
    well, bad = json.loads(examined("-o", "json")[1])
    assert [well, bad] == yaml.safe_load(examined("-o", "yaml")[1])
    assert (well["verdict"], well["do"]) == ("ok", None)
    shown = {"check": "long", "verdict": "failed", "why": "bad?[2J?name", "do": "mend it"}
    assert bad == {**shown, "doc": "docs/troubleshooting.rst#doctor-long"}
    monkeypatch.setattr(output, "_remaining_columns", lambda taken: 11)
    lines = ["a      ok       well", "long   failed   bad?[2J?name", f"{'':16}-> mend it"]
    assert examined("--no-headers")[1].splitlines() == lines, "on a terminal"


@pytest.mark.parametrize(
    ("finding", "code", "warnings"), [(ok(""), 0, "0 warnings"), (warning("", "x"), 1, "1 warning")]
)
def test_unknown_and_skipped_do_not_change_exit_code(
    doctor: Examined, monkeypatch: pytest.MonkeyPatch, finding: Finding, code: int, warnings: str
) -> None:
    monkeypatch.setenv("RUNTIMEPROXY_LISTEN", CANARY)
    exit_code, _, err = doctor(a=(unknown("hidden", "x"), unknown("away", "x")), b=(skipped("no"),), c=(finding,))
    ignored, last = err.splitlines(keepends=True)
    assert (exit_code, last) == (code, last_line(0, warnings, 2, 1))
    assert ignored.startswith("warning: RUNTIMEPROXY_LISTEN is ignored")


def test_doctor_reads_flags_and_needs_no_proxy(run: Run, tmp_path: Path) -> None:
    made = Made(tmp_path)
    flags = (f"--koord-runtimeproxy-endpoint={made.ours}", f"--remote-runtime-service-endpoint={made.runtime}")
    registrations = {"RUNTIMEPROXY_HOOKSERVER_CONFIG_DIR": str(made.registrations)}
    code, out, err = run("runtimeproxy", "doctor", *flags, "-o", "json", **registrations)
    assert (code, err.count("\n")) == (1, 1)
    verdicts = {row["check"]: row["verdict"] for row in json.loads(out)}
    assert list(verdicts) == [check.id for check in table.CHECKS]
    assert (verdicts["socket"], verdicts["runtime"], verdicts["registrations"]) == ("failed", "failed", "ok")
    terms = re.findall(r"^_`doctor-([\w-]+)`\n    \w", DOCS["troubleshooting"], re.MULTILINE)
    assert terms == list(verdicts)


def test_in_use_prints_one_line_per_user(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    in_use = partial(run, "runtimeproxy", "in-use", "--koord-runtimeproxy-endpoint=/x.sock")
    connected = "kubelet (pid 4) has 1 connection to /x.sock"
    for users, exit_code, shown in ([], 0, "nobody uses /x.sock\n"), ([connected, "b\x1b"], 1, f"{connected}\nb?\n"):
        monkeypatch.setattr(clients, "users", lambda machine, users=users: iter(users))
        assert in_use("--no-headers") == (exit_code, shown, "")
        code, out, _ = in_use("-o", "json")
        assert (code, len(json.loads(out))) == (exit_code, len(users))

    def unavailable(machine: Machine) -> Iterator[str]:
        raise OSError(0, "systemctl show does not answer")

    monkeypatch.setattr(clients, "users", unavailable)
    code, out, err = in_use()
    assert (code, out, "systemctl show does not answer" in err) == (1, "", True)


ERRORS: list[tuple[Exception, Verdict, str]] = [
    (PermissionError(13, "Permission denied", "/proc/1/fd"), Verdict.UNKNOWN, "/proc/1/fd: Permission denied"),
    (OSError(), Verdict.UNKNOWN, "OSError"),
    (ConfigError("there is no group 'x'"), Verdict.WARNING, "there is no group 'x'"),
    (ValueError(CANARY), Verdict.UNKNOWN, f"unexpected ValueError at {__file__}:"),
]


def test_failing_or_hanging_check_does_not_stop_checks(tmp_path: Path) -> None:
    """Checks that make calls begin when the others have ended."""
    over, order = threading.Event(), list[str]()

    def fail(error: Exception, machine: Machine) -> Iterator[Finding]:
        yield ok("half")
        raise error

    def hang(machine: Machine) -> list[Finding]:
        order.append("hang")
        over.wait()
        return []

    def well(machine: Machine) -> list[Finding]:
        order.append("well")
        return [ok("well")]

    checks = [Check("hang", "a file", hang, calls=True), Check("b", "", well)]
    checks += [Check("fail", "", partial(fail, error)) for error, *_ in ERRORS]
    first, second, *more = [finding for _, finding in table.examine(Made(tmp_path).machine, checks, seconds=0.5)]
    over.set()
    assert (first.verdict, first.why) == (Verdict.WARNING, "no answer within 0.5 s: a file")
    assert (second, order) == (ok("well"), ["well", "hang"])
    assert [finding.verdict for finding in more] == [verdict for _, verdict, _ in ERRORS]
    assert all(finding.why.startswith(words) for finding, (*_, words) in zip(more, ERRORS, strict=True)), more
    assert CANARY not in str(more)


def test_examination_changes_no_file(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.proxy()
    made.process(40, "kubelet")
    before = {path: path.lstat().st_mtime_ns for path in made.root.parent.rglob("*")}
    list(table.examine(made.machine))
    assert {path: path.lstat().st_mtime_ns for path in made.root.parent.rglob("*")} == before
