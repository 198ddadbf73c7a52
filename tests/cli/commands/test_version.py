"""``runtimeproxy version``: what it names."""

import json
from configparser import ConfigParser
from importlib import metadata, resources
from pathlib import Path
from types import SimpleNamespace

import pytest

from runtimeproxy.settings.version import BUILD, LIBRARIES, VERSION
from tests.cli.conftest import Run
from tests.docs import ROOT


def versions(run: Run) -> dict[str, str | None]:
    code, out, err = run("runtimeproxy", "version", "-o", "json")
    assert (code, err) == (0, "")
    return {row["name"]: row["version"] for row in json.loads(out)}


def test_every_library_that_the_proxy_needs_is_named() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    needed = [line.split(">=")[0] for line in setup["options"]["install_requires"].split()]
    assert sorted([*needed, "grpcio"]) == list(LIBRARIES)


def distribution(noted: str | None) -> SimpleNamespace:
    return SimpleNamespace(version="1", read_text={"direct_url.json": noted}.get)


URL = '{"url": "file:///secret", "dir_info": {}}'
COMMIT = '{"url": "https://secret@x", "vcs_info": {"commit_id": "abc"}}'
NOTED = [([], None), ([distribution(None)], None), ([distribution(URL)], None), ([distribution(COMMIT)], "abc")]


@pytest.mark.parametrize(("installed", "commit"), NOTED)
def test_commit_is_reported_where_pip_noted_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, installed: list[SimpleNamespace], commit: str | None
) -> None:
    monkeypatch.setattr(metadata, "distributions", lambda name: installed)
    reported = versions(run)
    assert reported["commit"] == commit
    assert "secret" not in str(reported)


def test_build_is_reported_as_its_file_says(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / BUILD).write_text("commit: abc-dirty\ndate: 2026-01-02T03:04:05Z\n")
    monkeypatch.setattr(resources, "files", lambda package: tmp_path)
    reported = versions(run)
    assert (reported["commit"], reported["date"]) == ("abc-dirty", "2026-01-02T03:04:05Z")
    first = run("runtimeproxy", "--version")[1].splitlines()[0]
    assert first == f"runtimeproxy {VERSION} (commit abc-dirty, date 2026-01-02T03:04:05Z)"
