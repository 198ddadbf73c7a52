"""``runtimeproxy doctor`` from a user's view: forms, exit codes, no secret."""

import json
import re
import threading
from collections.abc import Iterator
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
from tests.doctor.conftest import Made

CANARY = "canary-4711"
DOCTOR = ("runtimeproxy", "doctor")


def last_line(failed: int = 0, warning: int = 0, unknown: int = 0, skipped: int = 0) -> str:
    warnings = "1 warning" if warning == 1 else f"{warning} warnings"
    return f"runtimeproxy doctor: {failed} failed, {warnings}; not checked: {unknown} unknown, {skipped} skipped\n"


def check(check_id: str, *findings: Finding) -> Check:
    return Check(check_id, f"what {check_id} is", lambda machine: findings)


def set_checks(monkeypatch: pytest.MonkeyPatch, *checks: Check) -> None:
    def examine(machine: Machine) -> Iterator[tuple[Check, Finding]]:
        return examined(machine, checks)

    examined = table.examine
    monkeypatch.setattr(table, "examine", examine)


def test_doctor_prints_one_line_per_finding(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """One finding is about a file with a hostile name."""
    set_checks(monkeypatch, check("a", ok("well")), check("long-id", failed("bad\x1b[2J\nname", "mend it")))
    lines = ["CHECK     VERDICT   WHY", "a         ok        well", "long-id   failed    bad?[2J?name -> mend it", ""]
    assert run(*DOCTOR) == (1, "\n".join(lines), last_line(failed=1))
    well, bad = json.loads(run(*DOCTOR, "-o", "json")[1])
    assert [well, bad] == yaml.safe_load(run(*DOCTOR, "-o", "yaml")[1])
    assert (well["verdict"], well["do"]) == ("ok", None)
    shown = {"check": "long-id", "verdict": "failed", "why": "bad?[2J?name", "do": "mend it"}
    assert bad == {**shown, "doc": "docs/troubleshooting.rst#doctor-long-id"}
    monkeypatch.setattr(output, "_remaining_columns", lambda taken: 11)
    lines = ["a         ok       well", "long-id   failed   bad?[2J?name", f"{'':19}-> mend it"]
    assert run(*DOCTOR, "--no-headers")[1].splitlines() == lines, "on a terminal"


@pytest.mark.parametrize(("finding", "exit_code"), [(ok("well"), 0), (warning("slow", "x"), 1)])
def test_unknown_and_skipped_do_not_change_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, finding: Finding, exit_code: int
) -> None:
    hidden = check("a", unknown("hidden", "x"), unknown("away", "x"))
    set_checks(monkeypatch, hidden, check("b", skipped("no")), check("c", finding))
    code, _, err = run(*DOCTOR, RUNTIMEPROXY_LISTEN="canary")
    ignored, last = err.splitlines(keepends=True)
    assert (code, last) == (exit_code, last_line(warning=exit_code, unknown=2, skipped=1))
    assert ignored.startswith("warning: RUNTIMEPROXY_LISTEN is ignored")


def test_doctor_reads_flags_and_needs_no_proxy(run: Run, tmp_path: Path) -> None:
    made = Made(tmp_path)
    flags = (f"--koord-runtimeproxy-endpoint={made.ours}", f"--remote-runtime-service-endpoint={made.runtime}")
    code, out, err = run(*DOCTOR, *flags, "-o", "json", RUNTIMEPROXY_HOOKSERVER_CONFIG_DIR=str(made.registrations))
    assert (code, err.count("\n")) == (1, 1)
    verdicts = {row["check"]: row["verdict"] for row in json.loads(out)}
    assert list(verdicts) == [check.id for check in table.CHECKS]
    assert (verdicts["socket"], verdicts["runtime"], verdicts["registrations"]) == ("failed", "failed", "ok")


USERS = ["kubelet (pid 4) has 1 connection to /x.sock", "b\x1b"]
IN_USE = [([], 0, "nobody uses /x.sock\n"), (USERS, 1, f"{USERS[0]}\nb?\n")]


@pytest.mark.parametrize(("users", "exit_code", "shown"), IN_USE)
def test_in_use_prints_one_line_per_user(
    run: Run, monkeypatch: pytest.MonkeyPatch, users: list[str], exit_code: int, shown: str
) -> None:
    in_use = ("runtimeproxy", "in-use", "--koord-runtimeproxy-endpoint=/x.sock")
    monkeypatch.setattr(clients, "users", lambda machine: iter(users))
    assert run(*in_use, "--no-headers") == (exit_code, shown, "")
    code, out, _ = run(*in_use, "-o", "json")
    assert (code, len(json.loads(out))) == (exit_code, len(users))

    def unavailable(machine: Machine) -> Iterator[str]:
        raise OSError(0, "systemctl show does not answer")

    monkeypatch.setattr(clients, "users", unavailable)
    code, out, err = run(*in_use)
    assert (code, out, "systemctl show does not answer" in err) == (1, "", True)


def test_each_check_has_section_in_docs() -> None:
    terms = re.findall(r"^_`doctor-([\w-]+)`\n    \w", DOCS["troubleshooting"], re.MULTILINE)
    assert terms == [check.id for check in table.CHECKS]
    assert table.CHECKS[0].place == "docs/troubleshooting.rst#doctor-socket"


ERRORS: list[tuple[Exception, Verdict, str]] = [
    (PermissionError(13, "Permission denied", "/proc/1/fd"), Verdict.UNKNOWN, "/proc/1/fd: Permission denied"),
    (OSError(), Verdict.UNKNOWN, "OSError"),
    (ConfigError("there is no group 'x'"), Verdict.WARNING, "there is no group 'x'"),
    (ValueError(CANARY), Verdict.UNKNOWN, f"unexpected ValueError at {__file__}:"),
]


@pytest.mark.parametrize(("error", "verdict", "words"), ERRORS)
def test_raising_check_does_not_stop_checks(tmp_path: Path, error: Exception, verdict: Verdict, words: str) -> None:
    def fail(machine: Machine) -> Iterator[Finding]:
        yield ok("half")
        raise error

    def well(machine: Machine) -> list[Finding]:
        return [ok("well")]

    checks = [Check("a", "", fail), Check("b", "", well)]
    (_, first), (_, second) = table.examine(Made(tmp_path).machine, checks)
    assert (first.verdict, first.why.startswith(words), CANARY in first.why) == (verdict, True, False)
    assert second == ok("well")


def test_hanging_check_does_not_stop_checks(tmp_path: Path) -> None:
    """Checks that make calls begin when the others have ended."""
    over, order = threading.Event(), list[str]()

    def hang(machine: Machine) -> list[Finding]:
        order.append("a")
        over.wait()
        return []

    def well(machine: Machine) -> list[Finding]:
        order.append("b")
        return [ok("well")]

    checks = [Check("a", "a file", hang, calls=True), Check("b", "", well)]
    (_, first), (_, second) = table.examine(Made(tmp_path).machine, checks, seconds=0.5)
    over.set()
    assert (first.verdict, first.why) == (Verdict.WARNING, "no answer within 0.5 s: a file")
    assert (second, order) == (ok("well"), ["b", "a"])


def test_examination_changes_no_file(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.proxy()
    made.process(40, "kubelet")
    before = {path: path.lstat().st_mtime_ns for path in made.root.parent.rglob("*")}
    list(table.examine(made.machine))
    assert {path: path.lstat().st_mtime_ns for path in made.root.parent.rglob("*")} == before
