"""The demo: it says OK only if every effect is true and every hook call was made, and it leaves nothing behind."""

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
from scripts.demonstration.scene import EXPECTED_CALLS
from tests.engines import containerd, dockerd, leftovers
from tests.system.proxy import wait_until

README = (Path(__file__).parents[2] / "README.rst").read_text()
CALLS = [
    HookCallLine(1000.5, "PreRunPodSandbox", "default/demo", ""),
    HookCallLine(1000.507, "PreCreateContainer", "default/demo", "main"),
    HookCallLine(1000.52, "PreCreateContainer", "default/demo", "main"),
]
GOOD = [Effect("demo", "main", "env A", "1", "2", "2"), Effect("demo", "main", "env B", "1", "", "1")]


@pytest.mark.parametrize(
    ("effects", "expected", "verdict", "says"),
    [
        (GOOD, {"PreRunPodSandbox": 1}, True, "OK: 2 effects"),
        ([*GOOD, Effect("a", "c", "cpu.shares", "2", "512", "2")], {}, False, "not as it should be: a c cpu.shares"),
        ([*GOOD, Effect("a", "", "group", "-", "gone", "there")], {}, False, "not as it should be: a group"),
        ([*GOOD, Effect("a", "c", "env C", "1", "", "-")], {}, False, "not as it should be: a c env C"),
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


def test_the_calls_are_shown_by_hook_point_and_pod(capsys: pytest.CaptureFixture[str]) -> None:
    report.show(GOOD, CALLS, {"PreRunPodSandbox": 1, "PreCreateContainer": 2, "PostStopContainer": 0})
    _, _, table = capsys.readouterr().out.partition("Hook calls")
    assert [line.split() for line in table.splitlines()[2:7]] == [
        ["hook", "point", "default/demo", "main"],
        ["-" * 18, "-" * 17],
        ["PreRunPodSandbox", "0"],
        ["PreCreateContainer", "7,", "20"],
        ["PostStopContainer", "-"],
    ]


def test_the_fake_runtime_is_never_a_silent_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert demonstration.why_fake(True) == "--fake was given"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "not root" in demonstration.why_fake(False)


@pytest.mark.parametrize(("mode", "runtime"), [("cri", "<sock>"), ("docker", "<docker sock>")])
def test_the_proxys_command_line_is_the_documented_one(tmp_path: Path, mode: str, runtime: str) -> None:
    _, *flags = processes.proxy_command(mode, tmp_path, runtime)
    documented = [flag for flag in flags if str(tmp_path) not in flag]
    assert " ".join([processes.COMMAND, *documented]) in {line.strip() for line in README.splitlines()}


def test_programs_are_asked_to_end_at_once(tmp_path: Path) -> None:
    wait = "touch asked-$0; until [ -e asked-a -a -e asked-b -a -e asked-c ]; do sleep 0.01; done; exit 0"
    script = f"cd {tmp_path}; trap '{wait}' TERM; echo WARNING all is well >&2; while :; do sleep 0.01; done"
    with processes.programs({name: ["sh", "-c", script, name] for name in "abc"}, tmp_path) as running:
        for each in running:
            wait_until(lambda each=each: each.troubles(), f"{each.name} listens to signals")
            assert each.resident_mib() < 100
    assert [each.troubles() for each in running] == [["WARNING all is well"]] * 3


@pytest.mark.parametrize(("listens", "says"), [(True, "bad does not listen"), (False, "exit code 3")])
def test_a_program_that_fails_is_told_with_its_output(tmp_path: Path, listens: bool, says: str) -> None:
    def run() -> None:
        with processes.program("bad", ["sh", "-c", "echo its last words; exit 3"], tmp_path) as bad:
            bad.process.wait()
            if listens:
                bad.wait_until_it_listens(tmp_path / "none.sock")

    with pytest.raises(processes.DemoError, match=rf"(?s){says}.*its last words"):
        run()


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


HOOK_CALLS = sum(EXPECTED_CALLS.values())
EFFECTS = {("CRI mode", False): 16, ("Docker mode", False): 15, ("CRI mode", True): 14, ("Docker mode", True): 13}
"""By mode, and whether the runtime is a fake, which has neither threads nor a first process."""
SCHEMATA = "L3:0=f;1=f MB:0=20;1=20"
"""Of the stand-in's machine."""


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "titles", "fake"),
    [
        pytest.param([], ["CRI mode", "Docker mode"], False, id="both", marks=pytest.mark.engine),
        pytest.param(["--mode", "cri"], ["CRI mode"], True, id="cri"),
        pytest.param(["--mode", "docker"], ["Docker mode"], True, id="docker"),
    ],
)
def test_the_demo_shows_each_mode_and_leaves_nothing(
    folder: Path, arguments: list[str], titles: list[str], fake: bool
) -> None:
    code, output = Demo(folder, *arguments, *(["--fake"] if fake else [])).end()
    assert code == 0, output
    verdict = (OF_A_FAKE if fake else INSIDE).verdict
    assert [line for line in output.splitlines() if line.endswith(" mode")] == titles
    assert [line for line in output.splitlines() if line.startswith("OK: ")] == [
        f"OK: {EFFECTS[title, fake]} effects {verdict}, {HOOK_CALLS} hook calls were made." for title in titles
    ]
    assert output.count("the FAKE one of the tests") == (len(titles) if fake else 0)
    assert output.count(f"{SCHEMATA}  {SCHEMATA}  ok") == output.count("a STAND-IN of the tests")
    assert output.count("moved after the start") == (0 if fake else len(titles))


@pytest.mark.slow
def test_what_hook_servers_complained_of_is_shown_with_a_failure(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(EXPECTED_CALLS, "PreRunPodSandbox", 5)
    assert not demonstration.demonstrate("cri", folder, "a test")
    _, verdict, complaints = capsys.readouterr().out.partition("FAILED: hook calls made: PreRunPodSandbox 4 of 5\n")
    assert verdict
    assert all(" WARNING " in complaint for complaint in complaints.splitlines())
    assert complaints.startswith("20-batchresource-cpunormalization-cpuset: ")  # a fake runtime has no cgroups


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["cri", "docker"])
@pytest.mark.parametrize("line", ["Runtime:", "RDT:", "Proxy:", "Hooks:"])
@pytest.mark.parametrize(
    ("by_terminal", "fake"),
    [
        pytest.param(False, True, id="SIGTERM-fake"),
        pytest.param(False, False, id="SIGTERM-real", marks=pytest.mark.engine),
        pytest.param(True, False, id="Ctrl-C-real", marks=pytest.mark.engine),
    ],
)
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
