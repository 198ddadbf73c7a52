"""The Plugins Manager goes on whatever fails inside of it."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from runtimeproxy.plugins import directory, manager
from runtimeproxy.plugins.watch import Watcher
from tests.plugins.rig import PATIENCE_SECONDS, Rig


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


# ---- a directory that does not answer: a link leads into a mount whose server is gone


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    made = threading.Event()
    monkeypatch.setattr(manager, "PATIENCE_SECONDS", 0.05)
    yield made
    made.set()


def hang(gate: threading.Event, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Have the next looks wait for the gate, by what sets the watches or by what reads."""
    owner, name = {"arm": (Watcher, "arm"), "read": (directory, "read")}[step]
    real = getattr(owner, name)

    def waits(*arguments: object) -> object:
        gate.wait()
        return real(*arguments)

    monkeypatch.setattr(owner, name, waits)


@pytest.mark.parametrize("step", ["arm", "read"])
async def test_a_start_goes_on_without_a_directory_that_does_not_answer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, gate: threading.Event, step: str
) -> None:
    rig.put("a.json")
    hang(gate, monkeypatch, step)
    await rig.manager.start()
    await rig.until(lambda: f"{rig.folder} does not answer: is there a link into a mount" in caplog.text)
    assert rig.names() == []
    gate.set()
    await rig.until(lambda: rig.names() == ["a"])


@pytest.mark.parametrize("step", ["arm", "read"])
async def test_a_directory_that_does_not_answer_any_more_keeps_its_plugins_and_holds_up_no_end(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, gate: threading.Event, step: str
) -> None:
    rig.put("a.json")
    await rig.manager.start()
    hang(gate, monkeypatch, step)
    rig.put("b.json")
    await rig.until(lambda: "does not answer" in caplog.text)
    assert rig.names() == ["a"]
    async with asyncio.timeout(PATIENCE_SECONDS):
        await rig.manager.stop()
