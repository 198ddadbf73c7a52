"""Starting the admin server: what cannot be started is told, costs nothing else, and is tried again."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtimeproxy.admin import launcher
from runtimeproxy.admin.launcher import Launcher
from tests.admin.site import request, rest, told
from tests.patience import until

pytestmark = pytest.mark.slow

QUERIES = {"livez": told({"checks": []})}


@contextlib.asynccontextmanager
async def launching(folder: Path) -> AsyncIterator[Path]:
    """Listen, and launch; yield the socket's path."""
    path = folder / "admin.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        starts = Launcher(loop, {"admin": listener}, QUERIES, log_level="info", log_format="text")
        starts.start()
        yield path
        await starts.stop()


async def ask(client: socket.socket) -> bytes:
    await asyncio.get_running_loop().sock_sendall(client, request("/livez"))
    return await rest(client)


@contextlib.contextmanager
def connected(path: Path):  # type: ignore[no-untyped-def]
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.setblocking(False)
        yield client


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "PAUSE_SECONDS", 0.02)


async def test_program_that_is_not_there_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, quick: None
) -> None:
    real = sys.executable
    monkeypatch.setattr(sys, "executable", "/no/python")
    async with launching(tmp_path) as path:
        with connected(path) as client:
            await until(lambda: len(caplog.records) >= 2)
            line = "the admin server cannot be started (No such file or directory); the next request tries again"
            assert {record.getMessage() for record in caplog.records} == {line}
            monkeypatch.setattr(sys, "executable", real)
            assert (await ask(client)).endswith(b"\r\n\r\nok")


async def test_server_that_ends_at_once_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, quick: None
) -> None:
    monkeypatch.setattr(launcher, "MODULE", "runtimeproxy.no_such_module")
    async with launching(tmp_path) as path:
        with connected(path) as client:
            await until(lambda: caplog.records)
            line = "the admin server ended (exit code 1); the next request starts it again"
            assert caplog.records[0].getMessage() == line
            monkeypatch.setattr(launcher, "MODULE", "runtimeproxy.admin")
            assert (await ask(client)).endswith(b"\r\n\r\nok")


async def test_server_that_does_not_end_with_the_channel_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "END_SECONDS", 0.02)
    (tmp_path / "stubborn.py").write_text("import time\nopen('there', 'w')\nwhile True: time.sleep(9)\n")
    monkeypatch.setattr(launcher, "MODULE", "stubborn")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    async with launching(tmp_path) as path:
        with connected(path):
            await until(lambda: (tmp_path / "there").exists())
