"""``runtimeproxy report``: the file's content, the manifest's list of missing sources, and the allowed paths."""

import json
import os
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from runtimeproxy.cli.commands import report
from runtimeproxy.cli.commands.report import FOLDER, MANIFEST, SOURCES, Source
from runtimeproxy.observe.metrics import Metrics
from tests.cli.admin_answers import UNREADY, figures
from tests.cli.conftest import Run
from tests.fakes.canned_admin import Answer, serving

ADMIN = [f"{name}.json" for name in ("version", "livez", "readyz", "configz", "hooks", "store")]
ADMIN[5:5] = ["metrics.txt", "events.ndjson"]
Write = Callable[..., tuple[int, str, str]]
"""Writes a report; returns exit code, output and errors."""
JOURNAL = '#!/bin/sh\nif [ "$5" = --unit=runtimeproxy ]; then echo "a line"; fi\n'
RECORDS = [{"id": str(number)} for number in range(3)]
EVENTS = [{"number": 1, "kind": "edited"}, {"kind": "gap", "from": 2, "to": 900}, {"number": 901, "kind": "sync"}]


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[dict[str, Answer]]:
    """Yield what a proxy answers by method, at admin.sock."""
    metrics = Metrics(lambda: 0.0, "Containerd")
    metrics.gauge("held_calls", 3)
    canned: dict[str, Answer] = {
        **{"version": {"version": "1"}, "configz": {"options": []}, "hooks": {"hooks": []}},
        "store": {"pods": RECORDS, "containers": RECORDS[:1]},
        **{"livez": {"checks": []}, "readyz": UNREADY, "metrics": figures(metrics, 1000.0), "events": EVENTS},
    }
    with serving(tmp_path / "admin.sock", canned):
        yield canned


@pytest.fixture
def write(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes report.tar.gz; the machine is the test's: no engine, a journal of its own."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "journalctl").write_text(JOURNAL)
    (programs / "journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    flags = [f"--koord-runtimeproxy-endpoint={tmp_path}/p.sock", f"--admin-endpoint={tmp_path}/admin.sock"]
    flags += [f"--remote-runtime-service-endpoint={tmp_path}/r.sock", f"--hookserver-config-dir={tmp_path}/hooks.d"]

    def write(*more: str, file: str = "report.tar.gz", **environ: str) -> tuple[int, str, str]:
        return run("runtimeproxy", "report", str(tmp_path / file), *flags, *more, **environ)

    return write


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        files = {Path(entry.name): archive.extractfile(entry) for entry in archive}
        assert {name.parent for name in files} == {Path(FOLDER)}
        assert {(entry.mode, entry.uid, entry.uname) for entry in archive} == {(0o600, 0, "")}
        return {name.name: file.read().decode() for name, file in files.items() if file}


@pytest.mark.usefixtures("proxy")
def test_report_contains_every_source(write: Write, tmp_path: Path) -> None:
    path = tmp_path / "report.tar.gz"
    assert write() == (0, f"{path} has 11 of 11 sources. Look through it before you attach it.\n", "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    files = contents(path)
    assert list(files) == [MANIFEST, *(source.name for source in SOURCES)]
    assert "\nruntimeproxy_held_calls 3.0\n" in files["metrics.txt"]
    assert (json.loads(files["readyz.json"]), files["journal.txt"]) == (UNREADY, "a line\n")
    assert [json.loads(line) for line in files["events.ndjson"].splitlines()] == EVENTS
    assert json.loads(files["store.json"]) == {"pods": RECORDS, "containers": RECORDS[:1]}  # one of each a page
    assert {row["check"] for row in json.loads(files["doctor.json"])} >= {"socket", "runtime"}
    assert {"distribution", "linux", "python"} <= json.loads(files["versions.json"]).keys()
    assert files[MANIFEST].count("\ngot ") == len(SOURCES)


def test_report_lists_missing_sources_when_no_proxy_runs(write: Write, tmp_path: Path) -> None:
    """An existing file is replaced only with --force."""
    path = tmp_path / "report.tar.gz"
    path.write_text("mine")
    path.chmod(0o644)
    line = f"runtimeproxy: error: {path} is there already: name another file, or replace it with --force\n"
    assert (write(), path.read_text()) == ((2, "", line), "mine")
    code, out, err = write("--force")
    assert (code, err, stat.S_IMODE(path.stat().st_mode)) == (1, "", 0o600)
    assert f"\nnot got: {', '.join(ADMIN)}: start the proxy" in out
    files = contents(path)
    assert list(files) == [MANIFEST, "doctor.json", "versions.json", "journal.txt"]
    assert all(f"\nnot got  {name}: start the proxy" in files[MANIFEST] for name in ADMIN)


def test_failing_source_is_reported_without_value(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    never, wrong = threading.Event().wait, Mock(side_effect=ValueError("canary"))
    sources = (
        Source("a.txt", lambda node: str(never()), 0.1),
        Source("b.txt", wrong),
        Source("c.txt", lambda node: "c"),
    )
    monkeypatch.setattr(report, "SOURCES", sources)
    code, out, err = write()
    assert (code, err, "canary" in out) == (1, "", False)
    assert "has 1 of 3 sources. Look through it before you attach it.\nnot got: a.txt: no answer within 0.1 s" in out
    assert "not got: b.txt: unexpected ValueError at " in out


OTHER = JOURNAL.replace("runtimeproxy", "other")
NOT_GOT: list[tuple[str, list[str], dict[str, str], str]] = [
    ("#!/bin/sh\nexit 1\n", [], {}, "journal.txt: journalctl does not answer (CalledProcessError)"),
    (OTHER, [], {}, "journal.txt: the journal has no line of the unit runtimeproxy"),
    (OTHER, ["--unit=other"], {}, ""),
    (JOURNAL, [], {"PATH": "/nowhere"}, "journal.txt: journalctl is not there"),
    (JOURNAL, [], {"RUNTIMEPROXY_CONFIG": "/dev/null/x"}, "doctor.json: /dev/null/x: the configuration file cannot be"),
]


@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize(("journalctl", "flags", "environ", "why"), NOT_GOT)
def test_missing_journal_or_configuration_omits_one_source(
    write: Write, tmp_path: Path, journalctl: str, flags: list[str], environ: dict[str, str], why: str
) -> None:
    (tmp_path / "bin" / "journalctl").write_text(journalctl)
    code, out, _ = write(*flags, **environ)
    assert (code, out.splitlines()[1:] != [], f"not got: {why}" in out) == (int(bool(why)), bool(why), bool(why))


def test_unwritable_report_leaves_no_file(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for file, why in (("link", "a symbolic link"), ("bin", "no regular file"), ("missing/x", "no directory")):
        for flags in ([], ["--force"]):
            code, out, err = write(*flags, file=file)
            assert (code, out, err.count("\n"), f" is {why}" in err) == (2, "", 1, True)
    monkeypatch.setattr(tarfile.TarFile, "addfile", Mock(side_effect=OSError(28, "No space left on device")))
    assert write() == (1, "", "runtimeproxy: error: [Errno 28] No space left on device\n")
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "link"}
