"""The checks of scripts/check find what they should find."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from runtimeproxy.observe.metric_table import ROWS
from runtimeproxy.settings.options import OPTIONS
from scripts.checks import audit, citations, configuration, metrics
from scripts.checks.pure import lacking, own_tests, pure_modules
from scripts.checks.sizes import too_long

ROOT = Path(__file__).parents[2]


def function(lines: int) -> str:
    """Return a function of so many lines below its docstring."""
    return 'def f():\n    """Say\n\n    much.\n    """\n' + "    x = 1\n" * (lines - 1)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (function(60), []),
        (function(61), ["f has 61 lines, 60 at most"]),
        ("async " + function(62), ["f has 62 lines, 60 at most"]),
        ("class A:\n" + "".join(f"    {line}\n" for line in function(61).splitlines()), ["f has 61 lines, 60 at most"]),
        ("x = 1\n" * 600, []),
        ("x = 1\n" * 601, ["601 lines, 600 at most"]),
    ],
)
def test_files_and_functions_that_are_too_long(tmp_path: Path, text: str, found: list[str]) -> None:
    path = tmp_path / "some.py"
    path.write_text(text)
    assert [line.partition(": ")[2] for line in too_long(path)] == found


def test_the_pure_files_are_those_of_the_contract_and_are_there() -> None:
    modules = pure_modules((ROOT / "setup.cfg").read_text())
    assert {"runtimeproxy.settings.config", "runtimeproxy.model.merge", "runtimeproxy.wire.http2"} <= set(modules)
    assert [m for m in modules if not (ROOT / f"{m.replace('.', '/')}.py").exists()] == []


@pytest.mark.parametrize(
    ("generator", "table"), [(metrics, ROWS), (configuration, OPTIONS)], ids=["metrics", "options"]
)
def test_page_is_made_from_its_table_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generator: ModuleType, table: Any
) -> None:
    assert (ROOT / generator.PAGE).read_text() == generator.page(table)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    ends = []
    for arguments, text in (["--check"], None), ([], None), (["--check"], None), (["--check"], "changed"):
        monkeypatch.setattr("sys.argv", ["generator", *arguments])
        if text is not None:
            (tmp_path / generator.PAGE).write_text(text)
        ends.append(generator.main())
    assert ends == [1, 0, 0, 1]


def test_pure_file_has_tests_of_its_own() -> None:
    assert own_tests("runtimeproxy.wire.json") == [Path("tests/wire/test_json.py")]
    assert [path.stem for path in own_tests("runtimeproxy.core.call")] == ["test_call", "test_call_memory"]
    assert lacking("runtimeproxy.nowhere") == "runtimeproxy.nowhere: there are no tests of its own"


@pytest.mark.slow
def test_tests_that_leave_a_branch_out_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runtimeproxy").mkdir()
    (tmp_path / "runtimeproxy" / "half.py").write_text("def f(x):\n    if x:\n        return 1\n    return 2\n")
    (tmp_path / "tests").mkdir()
    tests = tmp_path / "tests" / "test_half.py"
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nasyncio_default_fixture_loop_scope = function\n")
    tests.write_text("from runtimeproxy.half import f\n\n\ndef test_f():\n    assert f(1) == 1\n")
    monkeypatch.chdir(tmp_path)
    assert "runtimeproxy.half: its tests fail or do not cover it" in lacking("runtimeproxy.half")
    tests.write_text(tests.read_text() + "    assert f(0) == 2\n")
    assert lacking("runtimeproxy.half") == ""


RULES = "Relay rules\n===========\n\n**A1 Header tables** are empty.\n\n**C3 An answer** is asked for.\n"
FAULTS = """Fault matrix and promises
=========================

**B1 The runtime is killed.** Calls fail. ``tests/test_a.py``, ``tests/test_b.py``.

====  ======
2     The policy is exact
====  ======
"""


def test_rules_are_found_in_their_documents() -> None:
    assert list(citations.rules_of(RULES)) == [("relay-rules", "A1"), ("relay-rules", "C3")]
    assert list(citations.rules_of(FAULTS)) == [("fault matrix", "B1"), ("promise", "2")]
    headings = "The hook protocol\n=================\n\nOn the wire\n-----------\n"
    assert list(citations.rules_of(headings)) == [("hook-api", "On the wire")]


@pytest.mark.parametrize(
    ("text", "cited"),
    [
        ("see relay-rules A4", [("relay-rules", "A4")]),
        ("(relay-rules A9 to A11, C1)", [("relay-rules", number) for number in ("A9", "A10", "A11", "C1")]),
        ("fault\nmatrix H1 and H4", [("fault matrix", "H1"), ("fault matrix", "H4")]),
        ("Promises 6, 15 and 19.", [("promise", "6"), ("promise", "15"), ("promise", "19")]),
        ('(hook-api, "Registration files")', [("hook-api", "Registration files")]),
        ("a promise of 3 ms, hook-api and the matrix", []),
    ],
)
def test_citations_are_found_in_texts(text: str, cited: list[tuple[str, str]]) -> None:
    assert list(citations.citations(text)) == cited


def test_rules_without_tests_and_citations_without_rules_are_told() -> None:
    rules = {("relay-rules", "A1"), ("relay-rules", "C3")}
    cited = {Path("tests/test_a.py"): {("relay-rules", "A1")}, Path("runtimeproxy/b.py"): {("relay-rules", "C4")}}
    assert [line.partition(":")[0] for line in citations.unknown(rules, cited)] == ["runtimeproxy/b.py"]
    assert ["C3" in line for line in citations.unshown(rules, cited)] == [True]
    [line] = citations.misnamed(FAULTS, {Path("tests/test_a.py"): {("fault matrix", "B1")}})
    assert "B1 names tests/test_b.py" in line


SOUND = {"name": "a", "version": "1", "vulns": []}
WEAK = {**SOUND, "vulns": [{"id": "PYSEC-1", "fix_versions": ["2", "3"]}, {"id": "PYSEC-2", "fix_versions": []}]}
UNASKED = {"name": "b", "skip_reason": "not reached"}
NOT_CHECKED = "NOT CHECKED: {}. Check them where the service of advisories can be reached, before this is released"


@pytest.mark.parametrize(
    ("rows", "findings"),
    [
        ([SOUND], []),
        ([WEAK], ["a 1: PYSEC-1, mended in 2, 3", "a 1: PYSEC-2, mended in no version"]),
        ([SOUND, UNASKED], [NOT_CHECKED.format("1 of 2 libraries: not reached")]),
        ([], [NOT_CHECKED.format("1 of 0 libraries: none was named")]),
    ],
)
def test_library_that_could_not_be_asked_about_is_a_finding(rows: list[dict[str, object]], findings: list[str]) -> None:
    assert audit.told(rows) == findings
