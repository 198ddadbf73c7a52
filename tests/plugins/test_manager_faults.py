"""The Plugins Manager goes on whatever fails inside of it."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtimeproxy.plugins import manager
from runtimeproxy.plugins.watch import Watcher
from tests.plugins.rig import Rig


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(manager, "FAULT_SECONDS", 0.01)
    folder = tmp_path / "hooks.d"
    folder.mkdir()
    made = Rig(folder)
    yield made
    await made.manager.stop()


async def test_a_fault_in_reading_does_not_end_the_following(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    await rig.manager.start()
    made, rig.clients = rig.clients, None  # type: ignore[assignment]  # the factory fails now
    rig.put("a.json")
    await rig.until(lambda: "failed inside the proxy: AttributeError" in caplog.text)
    rig.clients = made
    os.utime(rig.folder / "a.json")  # any event, or the poll, has the directory read again
    await rig.until(lambda: rig.names() == ["a"])


@pytest.mark.parametrize("step", ["arm", "changed"])
async def test_a_fault_in_watching_does_not_end_the_following(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    def fail(watcher: Watcher) -> None:
        raise RecursionError("a canary")

    rig.manager._watcher._poll_seconds = 0.02
    rig.put("a.json")
    with monkeypatch.context() as faulty:
        faulty.setattr(Watcher, step, fail)
        await rig.manager.start()
        await rig.until(lambda: "failed inside the proxy: RecursionError" in caplog.text)
        assert rig.names() == ["a"]
    rig.put("b.json")
    await rig.until(lambda: rig.names() == ["a", "b"])
    assert "canary" not in caplog.text


async def test_a_fault_in_the_first_look_does_not_end_the_start(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    made, rig.clients = rig.clients, None  # type: ignore[assignment]
    rig.put("a.json")
    await rig.manager.start()
    rig.clients = made
    os.utime(rig.folder / "a.json")
    await rig.until(lambda: rig.names() == ["a"])
    assert "failed inside the proxy: AttributeError" in caplog.text
