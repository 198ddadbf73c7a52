"""The machine that the doctor's tests make, and patience with this one."""

from pathlib import Path

import pytest

from runtimeproxy.cli.doctor import hookservers, runtime
from tests.doctor.made import Made

PATIENCE_SECONDS = 20.0
"""Seconds that a call may take on a busy machine."""


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls take longer than on a node."""
    for module in (hookservers, runtime):
        monkeypatch.setattr(module, "CALL_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(runtime, "CHECK_SECONDS", 2 * PATIENCE_SECONDS)
