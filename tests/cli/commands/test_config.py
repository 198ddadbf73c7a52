"""``runtimeproxy config`` and ``version``: outputs and exit codes; each wrong value is in tests/settings."""

import json
from configparser import ConfigParser
from functools import partial
from importlib import metadata, resources
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from runtimeproxy.settings import config
from runtimeproxy.settings.options import OPTIONS, SETTINGS
from runtimeproxy.settings.version import BUILD, LIBRARIES, VERSION
from tests.cli.conftest import Run
from tests.docs import ROOT


@pytest.fixture
def check(run: Run) -> Run:
    """Return a function that runs ``config check``."""
    return partial(run, "runtimeproxy", "config", "check")


@pytest.fixture
def show(run: Run) -> Run:
    """Return a function that runs ``config show`` as JSON."""
    return partial(run, "runtimeproxy", "config", "show", "-o", "json")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.yaml"


def test_check_prints_all_errors_and_warnings(check: Run, file: Path) -> None:
    file.write_text("hook-timeout: 3s\n")
    assert check(file) == check(RUNTIMEPROXY_CONFIG=str(file)) == (0, f"{file}: nothing is wrong\n", "")
    assert check(file, "-o", "json") == (0, "[]\n", "")
    file.write_text("hook-timeout: soon\nhook-budgt: 2s\nsocket-group: no-such\n")
    code, out, err = check(file, RUNTIMEPROXY_X="canary")
    words = [f"{file}: unknown key", f"{file}: hook-timeout: 'soon'", "--socket-group: there is", "RUNTIMEPROXY_X is"]
    assert (code, err) == (1, "")
    head, *lines = out.splitlines()
    assert head.split() == ["SEVERITY", "FINDING"]
    assert [line.split()[0] for line in lines] == ["error", "error", "error", "warning"]
    assert all(word in line for word, line in zip(words, lines, strict=True))
    assert "canary" not in out


def test_check_reports_options_unknown_to_version(check: Run, file: Path) -> None:
    file.write_text("state-dir: /s\nsocket-mode: 9\n")
    flags = ("--for-version=0.1.0", "--metrics-group=0", "--no-headers")
    code, out, err = check(file, *flags, RUNTIMEPROXY_METRICS_ENDPOINT="/m/m")
    assert (code, err) == (1, "")
    first = [" ".join(line.split()[:2]) for line in out.splitlines()]
    assert first == [
        f"error {file}:",
        "error --metrics-group",
        f"error {file}:",
        "warning RUNTIMEPROXY_METRICS_ENDPOINT",
    ]
    code, out, err = check(file, "--for-version=old")
    assert (code, out) == (2, "")
    assert err.startswith("runtimeproxy: error: --for-version: 'old' is not a version")


def test_show_prints_each_key_with_its_origin(show: Run, file: Path) -> None:
    file.write_text("hook-budget: 30s\n")
    code, out, err = show("--origin", f"--config={file}", "--log-level=debug", RUNTIMEPROXY_HOOK_TIMEOUT="3s")
    rows = {row["key"]: (row["value"], row["origin"]) for row in json.loads(out)}
    assert (code, err, list(rows)) == (0, "", [option.name for option in OPTIONS])
    reported = {"hook-budget": ("30s", "file"), "log-level": ("debug", "flag"), "hook-timeout": ("3s", "environment")}
    assert {key: rows[key] for key in reported} == reported
    assert (rows["socket-group"], rows["config"]) == ((None, "default"), (str(file), "flag"))


def test_show_warns_of_ignored_settings(show: Run) -> None:
    code, out, err = show("--backend-runtime-mode=docker", "--remote-image-service-endpoint=/x")
    warning = "warning: --remote-image-service-endpoint is ignored: Docker mode has no image endpoint\n"
    assert (code, "/x" in out, err) == (0, False, warning)


def test_default_file_changes_no_setting(run: Run) -> None:
    code, out, err = run("runtimeproxy", "config", "default")
    assert (code, err) == (0, "")
    assert config.load({}, {}, out, "x") == config.load({}, {})
    assert list(yaml.safe_load(out)) == [option.name for _, option in SETTINGS if option.default is not None]
    for _, option in SETTINGS:
        assert f"\n# {option.help}\n{'' if option.default else '#'}{option.name}: " in out


def versions(run: Run) -> dict[str, str | None]:
    code, out, err = run("runtimeproxy", "version", "-o", "json")
    assert (code, err) == (0, "")
    return {row["name"]: row["version"] for row in json.loads(out)}


def test_version_names_every_library() -> None:
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
def test_commit_is_reported_when_pip_recorded_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, installed: list[SimpleNamespace], commit: str | None
) -> None:
    monkeypatch.setattr(metadata, "distributions", lambda name: installed)
    reported = versions(run)
    assert reported["commit"] == commit
    assert "secret" not in str(reported)


def test_build_is_read_from_its_file(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / BUILD).write_text("commit: abc-dirty\ndate: 2026-01-02T03:04:05Z\n")
    monkeypatch.setattr(resources, "files", lambda package: tmp_path)
    reported = versions(run)
    assert (reported["commit"], reported["date"]) == ("abc-dirty", "2026-01-02T03:04:05Z")
    first = run("runtimeproxy", "--version")[1].splitlines()[0]
    assert first == f"runtimeproxy {VERSION} (commit abc-dirty, date 2026-01-02T03:04:05Z)"
