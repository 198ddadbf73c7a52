"""The Plugins Manager in a directory full of files that nobody should put there."""

import os
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.fakes import registration
from tests.plugins.rig import CREATE, Rig, long_chain


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    folder = tmp_path / "hooks.d"
    folder.mkdir()
    made = Rig(folder)
    yield made
    await made.manager.stop()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _dangling(path: Path) -> None:
    path.symlink_to("nothing")


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _holding(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content)

    return write


HOSTILE = {
    "empty": _holding(b""),
    "half": _holding(registration.text("/run/a.sock").encode()[:40]),
    "binary": _holding(bytes(range(256)) * 10),
    "huge": _holding(b"[" * (2 * 2**20)),
    "deep": _holding(b"[" * 100_000),
    "wrong": _holding(b'{"remote-endpoint": 7}'),
    "relative": _holding(b'{"remote-endpoint": "plugin.sock"}'),
    "fifo": _fifo,
    "folder": _folder,
    "dangling": _dangling,
    "device": _device,
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_the_last_good_state_stays_whatever_takes_the_files_place(
    rig: Rig, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    rig.put("a.json")
    rig.put("b.json")
    await rig.manager.start()
    HOSTILE[what](rig.folder / "bad")
    if (rig.folder / "bad").is_dir():
        (rig.folder / "a.json").unlink()
    os.rename(rig.folder / "bad", rig.folder / "a.json")
    await rig.until(lambda: rig.invalid == 1)
    assert rig.names() == ["a", "b"]
    assert [plugin.client for plugin in rig.manager.plugins_for(CREATE)] == rig.clients
    rig.put("c.json")
    await rig.until(lambda: rig.names() == ["a", "b", "c"])
    rejected = [record for record in caplog.records if "registration rejected: a.json: " in record.getMessage()]
    assert len(rejected) == 1
    assert rejected[0].getMessage().endswith("; the last good state stays")
    assert rig.recorder.counted("config_reloads", result="rejected") == 1


async def test_a_thousand_hostile_files(rig: Rig) -> None:
    rig.put("good.json")
    chance = random.Random(7)
    good = registration.text("/run/a.sock").encode()
    for number in range(1000):
        content = bytearray(good)
        for _ in range(chance.randrange(1, 5)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        (rig.folder / f"{number}.json").write_bytes(content[: chance.randrange(len(content))])
    await rig.manager.start()
    assert rig.names() == ["good"]
    assert rig.invalid == 1000


@pytest.mark.parametrize("when", ["before the start", "later"])
async def test_a_chain_of_links_without_end_is_one_bad_file(rig: Rig, when: str) -> None:
    if when == "before the start":
        long_chain(rig.folder)
    await rig.manager.start()
    if when == "later":
        long_chain(rig.folder)
    await rig.until(lambda: rig.invalid == 1)
    rig.put("a.json")
    await rig.until(lambda: rig.names() == ["a"])
