"""The Store's original values get into the file and back; a failure is counted, and has no other effect."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from runtimeproxy import files
from runtimeproxy.core import originals_file
from runtimeproxy.core.originals_file import Failed, File, Originals
from runtimeproxy.core.store import Store
from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Resources, Subject
from runtimeproxy.observe.metrics import Metrics
from tests.system.keeping import on_tmpfs, rows
from tests.system.proxy import until

POD = PodInfo("p1", "web", "uid", "shop", cgroup_parent="/kube")
CONTAINER = ContainerInfo("c1", "p1", "main", resources=Resources(cpu_quota=200_000))
SCALED = replace(CONTAINER, resources=Resources(cpu_quota=133_334))
QUOTAS = {"c1": {"resources.cpu_quota": [200_000, 133_334]}}
OWNER = "ours"
Log = pytest.LogCaptureFixture


def hooked(container_id: str = "c1", effective: ContainerInfo = SCALED) -> Subject:
    original = replace(CONTAINER, id=container_id)
    return Subject(PodRecord(POD, POD), ContainerRecord(original, replace(effective, id=container_id)))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(originals_file, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.1)


@pytest.fixture
def path() -> Iterator[Path]:
    with on_tmpfs() as folder:
        yield folder / "a.original-values"


class Process:
    """The part of a proxy that uses the file."""

    def __init__(self, path: Path | None, owner: str = OWNER) -> None:
        self.store = Store()
        self.metrics = Metrics(asyncio.get_running_loop().time)
        self.file = None if path is None else File(str(path), owner)
        self.originals = Originals(self.file, self.store, self.metrics)

    async def __aenter__(self) -> "Process":
        await self.originals.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.originals.stop()

    def commit(self, *ids: str) -> None:
        """Commit containers in which hooks replaced something."""
        for one in ids:
            self.store.commit(hooked(one))

    def failures(self, reason: str) -> int:
        return self.metrics.counted("originals_failures", reason=reason)

    async def failed(self, times: int = 1) -> None:
        await until(lambda: self.failures("unusable") >= times, "it fails")


async def retained(path: Path, expected: object) -> None:
    await until(lambda: rows(path) == expected, "it is kept", lambda: str(rows(path)))


async def ids_of_originals(path: Path, *ids: str) -> None:
    await until(lambda: path.exists() and rows(path).keys() == {*ids}, "all are kept", lambda: str(rows(path)))


async def test_replaced_values_are_read_by_the_next_process(path: Path) -> None:
    path = path.parent / "made" / "a"
    async with Process(path) as first:
        assert not first.store.read_pod(POD).read, "what is not kept is the kubelet's own"
        first.commit("c1")
        await asyncio.sleep(0)
        assert not path.exists(), "the answer goes first"
        await retained(path, QUOTAS)
        assert path.parent.stat().st_mode & 0o777 == 0o700
        await until(lambda: first.metrics.gauges.get(("originals_kept", ())) == 1, "it is notified")
    async with Process(path) as second:
        assert second.store.ids_of_originals() == {"c1"}
        record = second.store.read_container(SCALED)
        assert record == hooked().container
        second.store.commit(Subject(PodRecord(POD, POD), record))
        assert second.store.ids_of_originals() == set()
        await asyncio.sleep(0.05)
        assert rows(path) == QUOTAS


@pytest.mark.parametrize("content", [None, b"noise"], ids=["no file", "a broken file"])
async def test_earlier_hooks_values_are_unknown_without_a_file(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.write_bytes(content)
    async with Process(path if content is not None else None) as process:
        assert process.store.read_pod(POD).read


async def test_all_is_written_at_the_end(path: Path) -> None:
    async with Process(path) as process:
        process.commit(*(f"c{number}" for number in range(120)))
        await asyncio.sleep(originals_file.COLLECT_SECONDS)
        process.commit(*(f"c{number}" for number in range(120, 240)))
    assert len(rows(path)) == 240


ENDS = {
    "gone": lambda store: store.tombstone("c1"),
    "set back": lambda store: store.commit(hooked(effective=CONTAINER)),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("later", [False, True], ids=["same process", "next process"])
async def test_row_is_removed_with_its_subject(path: Path, end: Callable[[Store], None], later: bool) -> None:
    """Which changes of the Store are reported is tested in test_store.py."""
    async with Process(path) as process:
        process.commit("c1")
        await retained(path, QUOTAS)
        if not later:
            end(process.store)
            await retained(path, {})
    async with Process(path) as process:
        if later:
            process.store.commit(Subject(PodRecord(POD, POD), process.store.read_container(SCALED)))
            end(process.store)
            await retained(path, {})
    assert rows(path) == {}


async def test_two_processes_at_once_lose_nothing_of_each_other(path: Path) -> None:
    async with Process(path) as old:
        old.commit("c1")
        await retained(path, QUOTAS)
        async with Process(path) as new:
            new.commit("c2")
            old.commit("c3")
            await ids_of_originals(path, "c1", "c2", "c3")
        old.store.tombstone("c3")
    assert rows(path).keys() == {"c1", "c2"}
    assert not old.metrics.total("originals_failures") + new.metrics.total("originals_failures")


async def test_file_is_not_made_where_hooks_replace_nothing(path: Path) -> None:
    async with Process(path) as process:
        for number in range(3):
            process.store.commit(hooked(f"c{number}", effective=replace(CONTAINER, envs={"A": "1"})))
        process.store.tombstone("c1")
        await asyncio.sleep(0.1)
    assert list(path.parent.iterdir()) == []


NOT_IN_MEMORY = "the kubelet's own values do not outlive this process: /proc is not on tmpfs (--originals-dir)"
NO_FOLDER = "/dev/shm/no/such/a: No such file or directory: it is not written; see --originals-dir"
FOLDERS = [("/proc/a", 0, NOT_IN_MEMORY), ("/dev/shm/no/such/a", 1, NO_FOLDER)]


@pytest.mark.parametrize(("path", "failures", "notified"), FOLDERS)
async def test_unusable_directory_is_logged_once(path: str, failures: int, notified: str, caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    async with Process(Path(path)) as process:
        process.commit("c1")
        await asyncio.sleep(0.05)
    assert caplog.messages == [notified]
    assert process.failures("unusable") == process.metrics.total("originals_failures") == failures


def noise(path: Path) -> None:
    path.write_bytes(b"noise" * 4096)


USELESS: list[tuple[Callable[[Path], object], str, str, str]] = [
    (noise, OWNER, "broken", "it is damaged"),
    (lambda path: path.write_bytes(path.read_bytes()[:-1]), OWNER, "broken", "1 of its rows are broken"),
    (lambda path: None, "another's", "foreign", "it is of another runtime, boot or version"),
]


@pytest.mark.parametrize(("spoil", "owner", "reason", "what"), USELESS)
async def test_useless_file_is_logged_once_and_replaced(
    path: Path, spoil: Callable[[Path], object], owner: str, reason: str, what: str, caplog: Log
) -> None:
    async with Process(path, owner) as process:
        process.commit("c1")
    spoil(path)
    async with Process(path) as process:
        assert process.store.ids_of_originals() == set()
        assert not path.exists()
        process.commit("c2")
        await ids_of_originals(path, "c2")
    assert process.failures(reason) == 1
    assert caplog.messages == [f"{path}: {what}: it is replaced; see --originals-dir"]


async def test_good_rows_of_a_broken_file_are_written_again(path: Path) -> None:
    async with Process(path) as process:
        process.commit("c1", "c2")
    path.write_bytes(path.read_bytes().replace(b"[200000,", b"[200001,", 1))
    async with Process(path) as process:
        left = process.store.ids_of_originals()
        assert len(left) == 1
        await ids_of_originals(path, *left)
    assert process.failures("broken") == 1


async def test_failed_write_is_retried(path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Log) -> None:
    def full(*_: object, **__: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    caplog.set_level(logging.INFO)
    async with Process(path) as process:
        process.commit("c1")
        await retained(path, QUOTAS)
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", full)
            process.store.tombstone("c1")
            process.commit("c2")
            await process.failed(2)
            process.commit("c3")
        await ids_of_originals(path, "c2", "c3")
        await until(lambda: len(caplog.messages) == 2, "it is notified")
    failed = f"{path}: cannot be written (No space left on device): it is not written; see --originals-dir"
    assert caplog.messages == [failed, f"{path} is written again"]


@pytest.mark.parametrize(("spoil", "failures"), [(Path.unlink, 0), (noise, 1)])
async def test_file_damaged_in_use_is_rewritten_whole(path: Path, spoil: Callable[[Path], Any], failures: int) -> None:
    async with Process(path) as process:
        process.commit("c1", "c2")
        await ids_of_originals(path, "c1", "c2")
        spoil(path)
        process.commit("c3")
        await ids_of_originals(path, "c1", "c2", "c3")
        assert process.metrics.total("originals_failures") == failures


async def test_write_is_tried_again_without_threads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(thread: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    process = Process(path)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        await process.originals.start()
        process.commit("c1")
        await process.failed(2)
    await retained(path, QUOTAS)
    await process.originals.stop()


async def test_values_that_cannot_be_written_at_the_end_are_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise Failed("unusable", "no")

    monkeypatch.setattr(File, "write", fail)
    async with Process(path) as process:
        process.commit("c1")
        await process.failed()
    assert process.failures("unusable") == 2
    assert not path.exists()
