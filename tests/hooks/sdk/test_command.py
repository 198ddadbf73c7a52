"""A hook server as a process: its flags, its file, signals, kills, and what stands against a start."""

import argparse
import os
import re
import signal
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from runtimeproxy_hooks.sdk import ContainerContext, Hook, main
from runtimeproxy_hooks.sdk.command import LOOK_SECONDS
from tests.hooks.sdk import callers
from tests.hooks.sdk.callers import call, request
from tests.hooks.sdk.child import BEGAN, SECRET, Dreamy, Obedient
from tests.hooks.sdk.processes import LONG_SECONDS, Process, eventually, running

pytestmark = pytest.mark.slow

POINTS = ["PreCreateContainer", "PostStopPodSandbox"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    return path


# A life.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_server_registers_serves_and_leaves_nothing(folder: Path, number: int) -> None:
    with running(folder) as server:
        assert server.registered() == {
            "remote-endpoint": str(server.socket),
            "failure-policy": "Ignore",
            "runtime-hooks": POINTS,
        }
        assert stat.S_IMODE(server.socket.lstat().st_mode) == 0o600
        assert (await call(str(server.socket), request())).envs == {"MARKS": "od"}
        assert server.end(number) == 0
        assert os.listdir(server.registrations) == []
        assert not server.socket.exists()
        first, last = server.log.splitlines()
    assert first.endswith(
        f" INFO runtimeproxy_hooks.sdk.command: obedient-dreamy serves {', '.join(POINTS)} on {server.socket}, "
        f"registered in {server.file}"
    )
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO ", first)
    assert last.endswith(f" {signal.Signals(number).name}: ending")


async def test_flags_go_into_the_file_and_to_the_hooks(folder: Path) -> None:
    flags = ("--order=7", "--failure-policy=Fail", "--timeout=500ms", "--mark=x")
    with running(folder, *flags, file="07-obedient-dreamy.json") as server:
        assert server.registered() == {
            "remote-endpoint": str(server.socket),
            "failure-policy": "Fail",
            "runtime-hooks": POINTS,
            "timeout": "500ms",
        }
        assert (await call(str(server.socket), request())).envs == {"MARKS": "ox"}


async def test_server_serves_without_registering(folder: Path) -> None:
    with running(folder, "--register-dir=") as server:
        assert (await call(str(server.socket), request())).envs == {"MARKS": "od"}
        time.sleep(LOOK_SECONDS)
        assert not server.registrations.exists()
        assert server.log.endswith(f" on {server.socket}, not registered\n")
        assert server.end(signal.SIGTERM) == 0


def test_debug_lines_name_calls_and_no_values(folder: Path) -> None:
    with running(folder, "--log-level=debug") as server:
        for do in ("", "boom", "no action"):
            callers.status(str(server.socket), request(do, other=SECRET))
        assert re.search(r" DEBUG \S+: PreCreateContainer: ns/pod/main in \d+\.\d{3} ms\n", server.log)
        assert " obedient at PreCreateContainer: Unprintable at " in server.log
        assert "raise Unprintable(SECRET)" in server.log  # the traceback's code
        assert SECRET not in server.log
        assert " asyncio: " not in server.log  # the debug lines of libraries may hold values


# Its end, and calls.


def test_call_in_flight_ends_first(folder: Path) -> None:
    with running(folder) as server, ThreadPoolExecutor(1) as caller:
        waiting = caller.submit(callers.status, str(server.socket), request("slow"))
        eventually(lambda: BEGAN in server.log)
        assert server.end(signal.SIGTERM) == 0
        assert waiting.result() == (grpc.StatusCode.OK, "")


def test_call_that_comes_while_it_leaves_is_served(folder: Path) -> None:
    with running(folder) as server:
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: not server.file.exists())
        assert callers.status(str(server.socket), request()) == (grpc.StatusCode.OK, "")
        assert server.process.wait(LONG_SECONDS) == 0


def test_call_that_hangs_is_left_behind(folder: Path) -> None:
    with running(folder) as server, ThreadPoolExecutor(1) as caller:
        waiting = caller.submit(callers.status, str(server.socket), request("hang"))
        eventually(lambda: BEGAN in server.log)
        assert server.end(signal.SIGTERM) == 0
        assert waiting.result()[0] in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
        assert server.log.endswith("1 calls did not end in time and are left behind\n")
        assert not server.socket.exists()


async def test_next_start_takes_over_after_a_kill(folder: Path) -> None:
    with running(folder) as server:
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
        assert server.socket.is_socket()
        assert server.file.exists()
    with running(folder, "--order=7", file="07-obedient-dreamy.json") as server:
        assert (await call(str(server.socket), request())).envs == {"MARKS": "od"}
        assert os.listdir(server.registrations) == ["07-obedient-dreamy.json"]
        assert f" WARNING runtimeproxy_hooks.sdk.registering: {folder}/hookserver.d/obedient-dreamy.json " in server.log
        assert server.end(signal.SIGTERM) == 0
        assert not server.socket.exists()
        assert os.listdir(server.registrations) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_file_stays_under_fail_and_the_next_start_takes_it(folder: Path, number: int) -> None:
    fail = "--failure-policy=Fail"
    with running(folder, fail) as server:
        assert server.end(number) == 0
        assert server.registered()["failure-policy"] == "Fail"
        assert not server.socket.exists()
        [warned] = [line for line in server.log.splitlines() if " WARNING " in line]
        assert f"{server.file} stays, for its policy is Fail: calls are refused until this server is back" in warned
    with running(folder, fail, "--unregister") as server:
        assert (await call(str(server.socket), request())).envs == {"MARKS": "od"}
        assert server.end(number) == 0
        assert os.listdir(server.registrations) == []
        assert " WARNING " not in server.log


# The file.


def test_file_is_written_again_but_not_after_the_end(folder: Path) -> None:
    with running(folder) as server:
        written = server.file.read_bytes()
        server.file.unlink()
        eventually(server.file.exists)
        server.file.write_bytes(b"{}")
        eventually(lambda: server.file.read_bytes() == written)
        assert f"{server.file} had vanished: written again" in server.log
        eventually(lambda: f"{server.file} was changed: written again" in server.log)
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: "ending" in server.log)
        eventually(lambda: not server.file.exists())
        server.file.write_bytes(b"another's")
        assert server.process.wait(LONG_SECONDS) == 0
        assert server.file.read_bytes() == b"another's"


# What stands against a start.


def refused(folder: Path, *flags: str) -> tuple[int, str]:
    server = Process(folder, *flags)
    return server.process.wait(LONG_SECONDS), server.log


def test_file_that_cannot_be_written_leaves_no_socket(folder: Path) -> None:
    (folder / "hookserver.d").write_text("no directory")
    code, line = refused(folder)
    assert code == 1
    assert line == (
        f"obedient-dreamy: error: cannot write {folder}/hookserver.d/obedient-dreamy.json: File exists; "
        "check the directory or set --register-dir\n"
    )
    assert not (folder / "a.sock").exists()


def test_name_of_another_server_is_refused_and_leaves_no_socket(folder: Path) -> None:
    with running(folder) as first:
        code, line = refused(folder, f"--endpoint={folder}/b.sock")
        assert code == 1
        assert line.startswith(f"obedient-dreamy: error: {first.file} is the registration of another hook server, whi")
        assert first.registered()["remote-endpoint"] == str(first.socket)
        assert not (folder / "b.sock").exists()


# The command line, in this process: nothing of it starts a server.


class Pointless(Hook):
    """Has no method named like a hook point."""


class Clashing(Obedient):
    """Has a flag that the SDK has already."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--timeout")


class Fileless(Obedient):
    """Needs a file that is not there."""

    def configure(self, arguments: argparse.Namespace) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/nowhere")


class Fine(Hook):
    """Is fine; its name may be not."""

    def pre_create_container(self, container: ContainerContext) -> None:
        raise AssertionError("nothing is served here")


TWICE = "two hooks, or a hook and the SDK, have the same flag: argument --{0}: conflicting option string: --{0}; rename"
NO_FILE_NAME = "cannot be in a file's name; use letters, digits, '.', '_' and '-'"


@pytest.mark.parametrize(
    ("hooks", "name", "argv", "line"),
    [
        ([Dreamy()], "", ["--mark=xy"], "dreamy: error: --mark: write one letter"),
        ([Dreamy()], "", ["--nark=x"], "dreamy: error: unrecognized arguments: --nark=x; --help lists the flags"),
        ([Obedient()], "", ["--mark=x"], "obedient: error: unrecognized arguments: --mark=x; --help lists the flags"),
        ([Fileless()], "", [], "fileless: error: [Errno 2] No such file or directory: '/nowhere'"),
        ([Dreamy(), Dreamy()], "two", [], f"two: error: {TWICE.format('mark')}"),
        ([Clashing()], "", [], f"clashing: error: {TWICE.format('timeout')}"),
        ([], "", [], "error: there is no hook to serve; give main one: main(MyHook())"),
        ([Fine], "", [], "error: <class 'tests.hooks.sdk.test_command.Fine'> is no hook; give main instances of "),
        ([Pointless()], "", [], "pointless: error: Pointless has no method named like a hook point; there are pre_"),
        *(([Fine()], name, [], f"{name}: error: {name!r} {NO_FILE_NAME}") for name in ("a/b", ".a")),
    ],
)
def test_wrong_command_line_is_one_line(
    capsys: pytest.CaptureFixture[str], hooks: list[Hook], name: str, argv: list[str], line: str
) -> None:
    with pytest.raises(SystemExit) as exited:
        main(*hooks, name=name, argv=argv)
    assert exited.value.code == 2
    said, empty = capsys.readouterr().err.split("\n")
    assert not empty
    assert line in said
    assert ": error: " in said


def test_missing_grpcio_is_one_line_that_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "runtimeproxy_hooks.sdk.serving", raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(SystemExit) as exited:
        main(Obedient(), argv=["--register-dir="])
    assert exited.value.code == 1
    assert capsys.readouterr().err == (
        "obedient: error: the Python package grpc is missing, which serves gRPC; "
        "install runtimeproxy with its extra: 'runtimeproxy[hooks]'\n"
    )
