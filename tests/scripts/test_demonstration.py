"""The demo: it says OK only if every effect is true and every hook call was made, and it leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.demonstration import __main__ as demonstration
from scripts.demonstration import processes, report
from scripts.demonstration.interruption import Interruption
from scripts.demonstration.report import INSIDE, OF_A_FAKE, Effect, HookCallLine, Wording
from scripts.demonstration.scene import EXPECTED_CALLS, Part, play
from tests.engines import containerd, dockerd, leftovers

README = (Path(__file__).parents[2] / "README.rst").read_text()
CALLS = [HookCallLine(1000.5, "PreRunPodSandbox", "default/demo", "", 0.1)]
GOOD = [Effect("main", "env A", "1", "2", "2"), Effect("main", "env B", "1", "", "1")]


@pytest.mark.parametrize(
    ("effects", "expected", "verdict", "says"),
    [
        (GOOD, {"PreRunPodSandbox": 1}, True, "OK: 2 effects"),
        ([*GOOD, Effect("side", "cpu.shares", "2", "512", "2")], {}, False, "not as it should be: side cpu.shares"),
        ([*GOOD, Effect("side", "env C", "1", "", "-")], {}, False, "not as it should be: side env C"),
        (GOOD, {"PreRunPodSandbox": 2}, False, "hook calls made: PreRunPodSandbox 1 of 2"),
        (GOOD, {"PostStopContainer": 1}, False, "hook calls made: PostStopContainer 0 of 1"),
    ],
)
def test_the_verdict(
    capsys: pytest.CaptureFixture[str], effects: list[Effect], expected: dict[str, int], verdict: bool, says: str
) -> None:
    assert report.show(effects, CALLS, expected) is verdict
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(("wording", "is_inside"), [(INSIDE, True), (OF_A_FAKE, False)])
def test_only_a_real_runtimes_values_are_called_true_inside(
    capsys: pytest.CaptureFixture[str], wording: Wording, is_inside: bool
) -> None:
    report.show(GOOD, CALLS, {}, wording)
    output = capsys.readouterr().out
    assert ("true inside" in output) is is_inside
    assert ("no container really runs" in output) is not is_inside


def test_the_hook_servers_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "calls.jsonl"
    entry = {"time": 1000.5, "point": "PreRunPodSandbox", "pod": "default/demo", "container": "", "took_ms": 0.1}
    log.write_text(json.dumps(entry) + "\n")
    assert report.read_calls(log) == CALLS


def test_the_fake_runtime_is_never_a_silent_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert demonstration.why_fake(True) == "--fake was given"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "not root" in demonstration.why_fake(False)


@pytest.mark.parametrize(("mode", "runtime"), [("cri", "<sock>"), ("docker", "<docker sock>")])
def test_the_proxys_command_line_is_the_documented_one(tmp_path: Path, mode: str, runtime: str) -> None:
    _, *flags = processes.proxy_command(mode, tmp_path, runtime)
    documented = [flag for flag in flags if str(tmp_path) not in flag]
    assert " ".join([processes.COMMAND, *documented]) in {line.strip() for line in README.splitlines()}


@pytest.mark.parametrize(("listens", "says"), [(True, "bad does not listen"), (False, "exit code 3")])
def test_a_program_that_fails_is_told_with_its_output(tmp_path: Path, listens: bool, says: str) -> None:
    def run() -> None:
        with processes.program("bad", ["sh", "-c", "echo its last words; exit 3"], tmp_path) as bad:
            bad.process.wait()
            if listens:
                bad.wait_until_it_listens(tmp_path / "none.sock")

    with pytest.raises(processes.DemoError, match=rf"(?s){says}.*its last words"):
        run()


class EmptyKubelet:
    """A kubelet in whose containers no file is there."""

    def run_pod(self) -> str:
        return "pod"

    def create(self, pod_id: str, part: Part) -> str:
        return f"{pod_id}-{part.name}"

    def run(self, container_id: str, *command: str) -> tuple[int, bytes]:
        return 1, b""

    def update(self, container_id: str, resources: dict[str, int | str]) -> None:
        raise AssertionError("nothing is updated where nothing was read")

    def start(self, container_id: str) -> None: ...

    stop = remove = stop_pod = remove_pod = start


def test_a_file_that_can_not_be_read_inside_is_a_failure() -> None:
    with pytest.raises(processes.DemoError, match="cat /proc/1/environ ended with exit code 1"):
        play(EmptyKubelet())


@pytest.fixture
def interruption() -> Iterator[Interruption]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    made = Interruption()
    made.listen()
    yield made
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_at_once_and_once(interruption: Interruption, number: signal.Signals) -> None:
    interruption.check()
    with pytest.raises(SystemExit, match="interrupted"):
        signal.raise_signal(number)
    signal.raise_signal(number)  # the second one does not disturb what the first one began
    with interruption.held():
        pass
    with pytest.raises(SystemExit, match="interrupted"):
        interruption.check()


def test_a_signal_waits_for_what_must_not_be_cut_short(interruption: Interruption) -> None:
    done: list[str] = []

    def run() -> None:
        with interruption.held():
            with interruption.held():
                signal.raise_signal(signal.SIGTERM)
                done.append("inner")
            done.append("outer")
        done.append("never")

    with pytest.raises(SystemExit, match="interrupted"):
        run()
    assert done == ["inner", "outer"]


@pytest.mark.engine
def test_a_missing_engine_is_a_failure_and_no_reason_for_a_fake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], interruption: Interruption
) -> None:
    assert demonstration.why_fake(False) == ""
    monkeypatch.setattr(containerd, "BINARIES", ("no-such-containerd",))
    monkeypatch.setattr(dockerd, "PROGRAMS", ("no-such-dockerd",))
    monkeypatch.setattr(sys, "argv", ["demo"])
    assert demonstration.main() == 1
    shown = capsys.readouterr()
    for mode, program in (("CRI mode", "no-such-containerd"), ("Docker mode", "no-such-dockerd")):
        assert f"FAILED: {mode}: not found: {program}; apt-get install" in shown.err
    assert "FAKE" not in shown.out


EFFECTS, HOOK_CALLS = 16, sum(EXPECTED_CALLS.values())


class Demo:
    """The demo as a program, with a folder of its own for all that it makes."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        environment = os.environ | {"TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scripts.demonstration", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            process_group=0,
        )

    def read_until(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if text in line:
                return
        raise AssertionError(f"the demo ended without {text!r}")

    def end(self) -> tuple[int, str]:
        """Wait for the end; return exit code and output. Nothing is left: no file, no process, no mount."""
        output, _ = self.process.communicate(timeout=60)
        assert not list(self.folder.iterdir())
        assert not leftovers.processes(str(self.folder))
        assert not leftovers.mounts(self.folder)
        return self.process.returncode, output


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path, which is too long for the paths of an engine's sockets.
    with tempfile.TemporaryDirectory(prefix="rp-test-") as made:
        yield Path(made)


FAKE = pytest.param(True, id="fake")
REAL = pytest.param(False, id="real", marks=pytest.mark.engine)


@pytest.mark.slow
@pytest.mark.parametrize("fake", [FAKE, REAL])
@pytest.mark.parametrize(
    ("arguments", "titles"),
    [
        ([], ["CRI mode", "Docker mode"]),
        (["--mode", "cri"], ["CRI mode"]),
        (["--mode", "docker"], ["Docker mode"]),
    ],
    ids=["both", "cri", "docker"],
)
def test_the_demo_shows_each_mode_and_leaves_nothing(
    folder: Path, arguments: list[str], titles: list[str], fake: bool
) -> None:
    code, output = Demo(folder, *arguments, *(["--fake"] if fake else [])).end()
    assert code == 0, output
    verdict = (OF_A_FAKE if fake else INSIDE).verdict
    assert [line for line in output.splitlines() if line.endswith(" mode")] == titles
    assert output.count(f"OK: {EFFECTS} effects {verdict}, {HOOK_CALLS} hook calls were made.") == len(titles)
    assert output.count("the FAKE one of the tests") == (len(titles) if fake else 0)


@pytest.mark.parametrize("fake", [FAKE, REAL])
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["cri", "docker"])
@pytest.mark.parametrize("line", ["Runtime:", "Proxy:", "Hooks:"])
@pytest.mark.parametrize("by_terminal", [False, True], ids=["SIGTERM", "Ctrl-C"])
def test_an_interrupted_demo_leaves_nothing(folder: Path, mode: str, line: str, by_terminal: bool, fake: bool) -> None:
    demo = Demo(folder, "--mode", mode, *(["--fake"] if fake else []))
    demo.read_until(line)
    if by_terminal:
        os.killpg(demo.process.pid, signal.SIGINT)
    else:
        demo.process.terminate()
    code, output = demo.end()
    assert code == 1
    assert "FAILED: interrupted" in output
    assert "Traceback" not in output


def test_a_wrong_argument_starts_nothing(folder: Path) -> None:
    code, output = Demo(folder, "--mode", "podman").end()
    assert code == 2
    assert "--mode" in output
