"""The demo's verdict: it says OK only if every effect is true and every hook call was made."""

import json
import os
from pathlib import Path

import pytest

from scripts.demonstration import __main__ as demonstration
from scripts.demonstration import processes, report
from scripts.demonstration.report import Effect, HookCallLine

CALLS = [HookCallLine(1000.5, "PreRunPodSandbox", "default/demo", "", 0.1)]
GOOD = [Effect("main", "env A", "1", "2", "2"), Effect("main", "env B", "1", "", "1")]


@pytest.mark.parametrize(
    ("effects", "expected", "verdict", "says"),
    [
        (GOOD, {"PreRunPodSandbox": 1}, True, "OK: 2 effects"),
        ([*GOOD, Effect("side", "cpu.shares", "2", "512", "2")], {}, False, "not true inside: side cpu.shares"),
        ([*GOOD, Effect("side", "env C", "1", "", "-")], {}, False, "not true inside: side env C"),
        (GOOD, {"PreRunPodSandbox": 2}, False, "hook calls made: PreRunPodSandbox 1 of 2"),
        (GOOD, {"PostStopContainer": 1}, False, "hook calls made: PostStopContainer 0 of 1"),
    ],
)
def test_the_verdict(
    capsys: pytest.CaptureFixture[str], effects: list[Effect], expected: dict[str, int], verdict: bool, says: str
) -> None:
    assert report.show(effects, CALLS, expected) is verdict
    assert says in capsys.readouterr().out


def test_the_hook_servers_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "calls.jsonl"
    entry = {"time": 1000.5, "point": "PreRunPodSandbox", "pod": "default/demo", "container": "", "took_ms": 0.1}
    log.write_text(json.dumps(entry) + "\n")
    assert report.read_calls(log) == CALLS


def test_the_fake_runtime_is_never_a_silent_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert demonstration.why_fake(True) == "--fake was given"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "not root" in demonstration.why_fake(False)


@pytest.mark.parametrize(("listens", "says"), [(True, "bad does not listen"), (False, "exit code 3")])
def test_a_program_that_fails_is_told_with_its_output(tmp_path: Path, listens: bool, says: str) -> None:
    def run() -> None:
        with processes.program("bad", ["sh", "-c", "echo its last words; exit 3"], tmp_path) as bad:
            bad.process.wait()
            if listens:
                bad.wait_until_it_listens(tmp_path / "none.sock")

    with pytest.raises(processes.DemoError, match=rf"(?s){says}.*its last words"):
        run()
