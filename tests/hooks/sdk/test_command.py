"""A hook server as a process: its flags, its file, signals, kills, and a start that fails."""

import json
import os
import re
import signal
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from tests.hooks.sdk.processes import BEGAN, LONG_SECONDS, SECRET, Process, call, eventually, request, running, status

pytestmark = pytest.mark.slow

POINTS = ["PreCreateContainer", "PostStopPodSandbox"]


FLAGS = ("--order=7", "--failure-policy=Fail", "--timeout=500ms", "--mark=x", "--unregister")
LIVES: list[tuple[signal.Signals, tuple[str, ...], str, dict[str, str], str]] = [
    (signal.SIGTERM, (), "obedient-dreamy.json", {"failure-policy": "Ignore"}, "od"),
    (signal.SIGINT, FLAGS, "07-obedient-dreamy.json", {"failure-policy": "Fail", "timeout": "500ms"}, "ox"),
]


@pytest.mark.parametrize(("number", "flags", "file", "entry", "marks"), LIVES)
async def test_server_registers_serves_and_cleans_up(
    tmp_path: Path, number: signal.Signals, flags: tuple[str, ...], file: str, entry: dict[str, str], marks: str
) -> None:
    with running(tmp_path, *flags, file=file) as server:
        assert json.loads(server.file.read_text()) == {
            "remote-endpoint": str(server.socket),
            "runtime-hooks": POINTS,
            **entry,
        }
        assert stat.S_IMODE(server.socket.lstat().st_mode) == 0o600
        assert (await call(str(server.socket), request())).envs == {"MARKS": marks}
        assert server.end(number) == 0
        assert os.listdir(server.registrations) == []
        assert not server.socket.exists()
        first, last = server.log.splitlines()
    serves = f"obedient-dreamy serves {', '.join(POINTS)} on {server.socket}, registered in {server.file}"
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO ", first)
    assert first.endswith(f" INFO runtimeproxy_hooks.sdk.command: {serves}")
    assert last.endswith(f" {number.name}: ending")


def test_hanging_call_is_abandoned_and_no_value_is_logged(tmp_path: Path) -> None:
    with running(tmp_path, "--log-level=debug", "--register-dir=") as server, ThreadPoolExecutor(1) as caller:
        status(str(server.socket), request(other=SECRET))
        waiting = caller.submit(status, str(server.socket), request("hang"))
        eventually(lambda: BEGAN in server.log)
        assert server.end(signal.SIGTERM) == 0
        assert waiting.result()[0] in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
        assert (server.socket.exists(), server.registrations.exists()) == (False, False)
        assert f" on {server.socket}, not registered\n" in server.log
        assert re.search(r" DEBUG \S+: PreCreateContainer: ns/pod/main in \d+\.\d{3} ms\n", server.log)
        assert server.log.endswith("calls that did not end in time and are abandoned: 1\n")
        assert SECRET not in server.log
        assert " asyncio: " not in server.log  # the debug lines of libraries may contain values


async def test_restart_after_kill_replaces_files(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
        assert server.socket.is_socket()
        assert server.file.exists()
    with running(tmp_path, "--order=7", file="07-obedient-dreamy.json") as server:
        assert (await call(str(server.socket), request())).envs == {"MARKS": "od"}
        assert os.listdir(server.registrations) == ["07-obedient-dreamy.json"]
        assert (
            f" WARNING runtimeproxy_hooks.sdk.registering: {tmp_path}/hookserver.d/obedient-dreamy.json " in server.log
        )
        assert server.end(signal.SIGTERM) == 0
        assert not server.socket.exists()
        assert os.listdir(server.registrations) == []


def test_file_is_rewritten_until_sigterm_and_kept_under_fail(tmp_path: Path) -> None:
    with running(tmp_path, "--failure-policy=Fail") as server:
        server.file.write_bytes(b"{}")
        eventually(lambda: f"{server.file} was changed: written again" in server.log)
        assert server.end(signal.SIGTERM) == 0
        assert json.loads(server.file.read_text())["failure-policy"] == "Fail"
        assert f"{server.file} stays, because its policy is Fail: calls are refused until" in server.log
    with running(tmp_path) as server:
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: "ending" in server.log and not server.file.exists())
        server.file.write_bytes(b"foreign")
        assert status(str(server.socket), request()) == (grpc.StatusCode.OK, "")
        assert server.process.wait(LONG_SECONDS) == 0
        assert server.file.read_bytes() == b"foreign"


def test_failed_registration_leaves_no_socket(tmp_path: Path) -> None:
    (tmp_path / "hookserver.d").write_text("no directory")
    server = Process(tmp_path)
    assert server.process.wait(LONG_SECONDS) == 1
    words = f"cannot write {tmp_path}/hookserver.d/obedient-dreamy.json: File exists"
    assert server.log == f"obedient-dreamy: error: {words}; check the directory or set --register-dir\n"
    assert not (tmp_path / "a.sock").exists()
