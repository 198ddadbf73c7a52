"""The commands of ``runtimeproxy hook`` from a user's view: both outputs, and the exit code.

What each does is in tests/hooks/tools.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from runtimeproxy.model.hookpoints import HOOK_POINTS
from tests.cli.conftest import Run
from tests.docs import ROOT
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer

CREATE = "PreCreateContainer"


@pytest.fixture
def hook(run: Run) -> Run:
    return partial(run, "runtimeproxy", "hook")


@pytest.fixture(scope="module")
def echoing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run a fake hook server that echoes in a process of its own."""
    socket = tmp_path_factory.mktemp("echo") / "x.sock"
    arguments = [sys.executable, "-m", "tests.fakes.hookserver", "--socket", str(socket), "--answer", "echo"]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert "listens on" in process.stdout.readline()
            yield socket
        finally:
            process.terminate()


UNREACHABLE = "not reachable: No such file or directory; is it running, and is this its socket?"
RULE = "resources.cpu_period: must be 0 (not set) or 1000..1000000 microseconds"


async def test_failing_server_prints_one_line_and_exits_1(hook: Run, tmp_path: Path) -> None:
    socket = tmp_path / "x.sock"
    for command, name in (("call", CREATE), ("verify", "verify"), ("bench", CREATE)):
        arguments = (command, socket, *[CREATE] * (command == "call"))
        line = f"runtimeproxy: error: {socket}: {name}: "
        assert await asyncio.to_thread(hook, *arguments) == (1, "", f"{line}{UNREACHABLE}\n")
        if command != "verify":
            async with HookServer(str(socket), default=hookanswers.BY_NAME["refuse"]()):
                printed = await asyncio.to_thread(hook, *arguments)
            assert printed == (1, "", f"{line}refused (PERMISSION_DENIED): refused by the fake hook server\n")
    async with HookServer(str(socket), default=hookanswers.koordlet(cpu_period=5)):
        code, out, err = await asyncio.to_thread(hook, "call", socket, CREATE)
    assert yaml.safe_load(out) == {"applied": {}, "dropped": {"resources": {"cpu_period": 5}}, "bad": [RULE]}
    assert (code, err) == (1, f"{line}bad answer: {RULE}\n")


@pytest.mark.parametrize("name", [*(hook_point.name for hook_point in HOOK_POINTS), CREATE.lower(), CREATE.upper()])
def test_every_hook_point_accepts_example(hook: Run, echoing: Path, name: str) -> None:
    code, out, err = hook("call", echoing, name)
    assert (code, yaml.safe_load(out), "not reported" in out, err) == (0, {"applied": {}}, False, "")
    example = hook("call", "--example")[1]
    code, out, err = hook("call", f"unix://{echoing}", name, "-f", "-", stdin=example)
    assert (code, yaml.safe_load(out), err) == (0, {"applied": {}}, "")
    assert ("# not sent at this hook point: container\n" in out) == name.endswith("PodSandbox")


def test_verify_prints_verdicts_and_sets_exit_code(hook: Run, echoing: Path) -> None:
    verify = partial(hook, "verify", echoing, "--timeout=10s", "--point=prestartcontainer")
    code, out, err = verify("-f", "-", "--restart-command=true", stdin="container: {name: main}")
    assert (code, out.splitlines()[-1], err) == (0, "15 passed, 0 failed, 0 skipped", "")
    code, out, err = verify("--restart-command=false")
    assert (code, err) == (1, "")
    assert "\nrestart            FAIL  the restart command ended with exit code 1\n" in out


async def test_bench_prints_figures_and_sets_exit_code(hook: Run, tmp_path: Path) -> None:
    fail = hookanswers.BY_NAME["fail"]()
    async with HookServer(str(tmp_path / "x.sock")) as server:
        bench = partial(asyncio.to_thread, hook, "bench", server.socket_path, "-n", "5", "--concurrency=4")
        code, out, err = await bench("--point=PostStopContainer")
        assert (code, err) == (0, "")
        first, *figures = out.splitlines()
        assert first == f"5 calls of PostStopContainer at {server.socket_path}, 4 at a time"
        assert [line.split()[0] for line in figures] == ["p50", "p90", "p99", "longest", "calls/s", "failures"]
        assert figures[-1].split() == ["failures", "0"]
        server.calls.clear()

        async def answer(call: hookanswers.HookCall) -> bytes:
            return await fail(call) if len(server.calls) > 7 else b""

        server.default = answer
        code, out, err = await bench()
    assert (code, err) == (1, "")
    assert out.splitlines()[-1] == "  4 x INTERNAL: failed as requested"
