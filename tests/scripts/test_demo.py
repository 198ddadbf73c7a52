"""The demo: it says OK only if every effect was found and every hook call was made, and it leaves nothing behind."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtimeproxy.model.hookpoints import HOOK_POINTS
from runtimeproxy_hooks.lib.resctrl import Resctrl
from runtimeproxy_hooks.sdk.hook import method_name
from runtimeproxy_hooks.sdk.testing import HookTester
from scripts.demonstration import __main__ as demonstration
from scripts.demonstration import hookservers, processes, rdt, report, scene
from scripts.demonstration.interruption import Interruption
from scripts.demonstration.notes import Notes
from scripts.demonstration.pods import Pod, new_pods
from scripts.demonstration.processes import DemoError
from scripts.demonstration.rdt import Groups
from scripts.demonstration.report import INSIDE, OF_A_FAKE, Effect, HookCall
from scripts.demonstration.runtimes import MODES
from scripts.demonstration.scene import EXPECTED_CALLS, play
from tests.engines import containerd, leftovers, probe
from tests.fakes.resctrl import Hardware, StandIn
from tests.system.proxy import wait_until

Patch, Out = pytest.MonkeyPatch, pytest.CaptureFixture[str]
README = (Path(__file__).parents[2] / "README.rst").read_text()

CREATE = HookCall(1000.507, "PreCreateContainer", "default/demo", "main")
CALLS = [HookCall(1000.5, "PreRunPodSandbox", "default/demo", ""), CREATE, CREATE._replace(time=1000.52)]
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
def test_verdict(capsys: Out, effects: list[Effect], expected: Any, verdict: bool, says: str) -> None:
    assert report.show(effects, CALLS, expected) is verdict
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(("mode", "runtime"), [("cri", "<sock>"), ("docker", "<docker sock>")])
def test_command_line_of_the_proxy_is_the_documented_one(tmp_path: Path, mode: str, runtime: str) -> None:
    _, *flags = processes.proxy_command(mode, tmp_path, runtime)
    documented = [flag for flag in flags if str(tmp_path) not in flag]
    assert " ".join([processes.COMMAND, *documented]) in {line.strip() for line in README.splitlines()}


def test_other_programs_are_shown_if_they_are_there(tmp_path: Path, monkeypatch: Patch, capsys: Out) -> None:
    monkeypatch.setattr(processes, "PROGRAMS", str(tmp_path))
    assert processes.proxy_command("cri", tmp_path, "")[0] == str(tmp_path / processes.COMMAND)
    monkeypatch.setattr(sys, "argv", ["demo", "--fake"])
    with pytest.raises(SystemExit) as ended:
        demonstration.main()
    assert ended.value.code == 2
    assert "$DEMO_PROGRAMS has no koord-runtime-proxy: name the directory bin" in capsys.readouterr().err


def test_programs_are_asked_to_end_at_once(tmp_path: Path) -> None:
    wait = "touch asked-$0; until [ -e asked-a -a -e asked-b -a -e asked-c ]; do sleep 0.01; done; exit 0"
    script = f"cd {tmp_path}; trap '{wait}' TERM; echo WARNING all is well >&2; while :; do sleep 0.01; done"
    with processes.programs({name: ["sh", "-c", script, name] for name in "abc"}, tmp_path) as running:
        for each in running:
            wait_until(lambda each=each: each.troubles(), f"{each.name} listens to signals")
            assert 0 < each.memory() < 100 << 20
    assert [each.troubles() for each in running] == [["WARNING all is well"]] * 3


@pytest.mark.parametrize(("listens", "says"), [(True, "bad does not listen"), (False, "exit code 3")])
def test_program_that_fails_is_told_with_its_output(tmp_path: Path, listens: bool, says: str) -> None:
    def run() -> None:
        with processes.program("bad", ["sh", "-c", "echo its last words; exit 3"], tmp_path) as bad:
            bad.process.wait()
            if listens:
                bad.wait_until_it_listens(tmp_path / "none.sock")

    with pytest.raises(DemoError, match=rf"(?s){says}.*its last words"):
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
def test_signal_ends_at_once_and_once(interruption: Interruption, number: signal.Signals) -> None:
    interruption.check()
    with pytest.raises(SystemExit, match="interrupted"):
        signal.raise_signal(number)
    signal.raise_signal(number)  # the second one does not disturb what the first one began
    with interruption.held():
        pass
    with pytest.raises(SystemExit, match="interrupted"):
        interruption.check()


def test_signal_waits_for_what_must_not_be_cut_short(interruption: Interruption) -> None:
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


def test_calls_at_every_hook_point_are_noted_without_a_value(tmp_path: Path) -> None:
    log, hook, parser = tmp_path / "calls.jsonl", Notes(), argparse.ArgumentParser()
    hook.add_arguments(parser)
    hook.configure(parser.parse_args([f"--call-log={log}"]))
    tester = HookTester(hook)
    for point in HOOK_POINTS:
        call = getattr(tester, method_name(point))
        assert not call(pod="demo", labels={"canary": "canary"}, annotations={"canary": "canary"})
    assert "canary" not in log.read_text()
    assert [(call.point, call.pod, call.container) for call in report.read_calls(log)] == [
        (point.name, "default/demo", "" if point.name.endswith("PodSandbox") else "main") for point in HOOK_POINTS
    ]


def test_on_fakes_cgroups_and_resctrl_of_the_machine_are_left_alone(tmp_path: Path) -> None:
    groups = rdt.choose(tmp_path, runtime_is_fake=True)
    assert groups.resctrl.root.is_relative_to(tmp_path)
    servers = hookservers.hook_servers(tmp_path, groups, without_cgroups=True)
    lines = [server.command_line(tmp_path) for server in servers]
    assert [f"--cgroup-root={tmp_path / 'cgroup'}" in line for line in lines] == [False, True, True, False]
    assert lines[2][1:4] == ["-m", "scripts.demonstration.standin", str(groups.resctrl.root)]


@pytest.mark.parametrize(
    ("hardware", "says"),
    [
        (Hardware(), ""),
        (Hardware(l3_ids=()), ""),
        (Hardware(mb_ids=()), ""),
        (Hardware(l3_ids=(), mb_ids=()), "offers neither L3 nor MB"),
        (
            Hardware(mb_ids=(), cbm_mask=0x505),
            "offers neither L3 nor MB; L3 is not used: its cbm_mask is not an unbroken",
        ),
        (Hardware(closids=1), "takes no group: No space left on device"),
    ],
)
def test_resctrl_is_shown_where_it_limits_and_takes_groups(tmp_path: Path, hardware: Hardware, says: str) -> None:
    reason = rdt.why_stand_in(StandIn(tmp_path / "resctrl", hardware))
    assert says in reason
    assert bool(says) is bool(reason)
    assert not (tmp_path / "resctrl" / rdt.PROBE).exists()
    assert "offers neither L3 nor MB" in rdt.why_stand_in(Resctrl(tmp_path / "none"))


@pytest.fixture
def groups(tmp_path: Path) -> Groups:
    return Groups(StandIn(tmp_path / "resctrl"), stood_in=True)


@pytest.mark.parametrize(
    ("act", "found"),
    [
        (lambda resctrl, group: resctrl.limit(group, "L3:0=f;1=f\nMB:0=20;1=20\n"), "L3:0=f;1=f MB:0=20;1=20"),
        (lambda resctrl, group: None, "L3:0=7ff;1=7ff MB:0=100;1=100"),
        (lambda resctrl, group: resctrl.remove(group), "-"),
    ],
    ids=["limited", "unlimited", "missing"],
)
def test_schemata_of_a_group_are_compared(groups: Groups, act: Callable[[Resctrl, str], object], found: str) -> None:
    *_, pod = new_pods()
    assert pod.wish
    groups.resctrl.make(pod.group)
    act(groups.resctrl, pod.group)
    assert groups.expected(pod.wish) == "L3:0=f;1=f MB:0=20;1=20"
    assert groups.schemata(pod.group, pod.wish) == found


def test_groups_that_are_left_are_removed(groups: Groups) -> None:
    groups.resctrl.make("one")
    groups.resctrl.make("other")
    with pytest.raises(SystemExit), groups.removed(["one", "none"]):
        raise SystemExit
    assert [groups.resctrl.exists(name) for name in ("one", "other")] == [False, True]


EMPTY_KUBELET: Any = SimpleNamespace(
    **dict.fromkeys(("start", "stop", "remove", "stop_pod", "remove_pod"), lambda _: None),
    run_pod=lambda pod: pod.name,
    create=lambda pod_id, pod: f"{pod_id}-main",
    run=lambda container_id, *command: (1, b""),
    rdt_class=lambda container_id: "",
    cgroup=lambda pod, container_id: f"/no-such-pod/{container_id}",
)
"""No file and no process is in its containers, and nothing can be updated."""


def looked_at(groups: Groups, pod: Pod) -> dict[str, tuple[str, bool]]:
    return {effect.what: (effect.inside, effect.true) for effect in play(EMPTY_KUBELET, [pod], groups)}


def test_file_that_can_not_be_read_inside_is_a_failure(groups: Groups) -> None:
    with pytest.raises(DemoError, match="cat /proc/1/environ ended with exit code 1"):
        looked_at(groups, new_pods()[0])


def test_group_that_is_missing_or_stays_is_not_as_it_should_be(groups: Groups) -> None:
    *_, pod = new_pods()
    after = {"its group, after the pod's end": ("removed", True)}
    assert looked_at(groups, pod) == after | {
        "rdt-class in the create": ("-", False),
        "schemata of its group (stand-in)": ("-", False),
        "threads in its group (stand-in), moved after the start": ("0 of 0", False),
    }
    groups.resctrl.make(pod.group)
    assert looked_at(groups, pod)["its group, after the pod's end"] == ("still there", False)


def test_some_threads_of_a_container_are_not_enough(groups: Groups, monkeypatch: Patch) -> None:
    *_, pod = new_pods()
    groups.resctrl.make(pod.group)
    monkeypatch.setattr(scene.cgroups, "processes", lambda cgroup: {os.getpid()})
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    groups.resctrl.move(pod.group, os.getpid())
    inside, true = looked_at(groups, pod)["threads in its group (stand-in), moved after the start"]
    over.set()
    other.join()
    assert (inside[:5], true) == ("1 of ", False)


EFFECTS = {("CRI mode", False): 19, ("Docker mode", False): 18, ("CRI mode", True): 17, ("Docker mode", True): 16}
"""The number of effects by mode, and whether the runtime is a fake, which has neither threads nor a first process."""
SCHEMATA = "L3:0=f;1=f MB:0=20;1=20"
"""Of the stand-in's machine."""


class Demo:
    """The demo as a program, with a folder of its own for everything that it creates."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "scripts.demonstration", *arguments]
        environ = os.environ | {"TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
        pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(command, **pipes, env=environ, text=True, process_group=0)

    def read_until(self, text: str) -> None:
        assert self.process.stdout is not None
        assert any(text in line for line in self.process.stdout), f"the demo ended without {text!r}"

    def end(self) -> tuple[int, str]:
        """Wait for the end; return exit code and output. Nothing may be left: no file, no process, no mount."""
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
        pytest.param(["--engines"], ["CRI mode", "Docker mode"], False, id="both", marks=pytest.mark.engine),
        pytest.param(["--mode", "cri", "--fake"], ["CRI mode"], True, id="cri"),
        pytest.param(["--mode", "docker", "--fake"], ["Docker mode"], True, id="docker"),
    ],
)
def test_demo_shows_modes_and_leaves_nothing(folder: Path, arguments: list[str], titles: list[str], fake: bool) -> None:
    code, output = Demo(folder, *arguments).end()
    assert code == 0, output
    _, verdict = OF_A_FAKE if fake else INSIDE
    assert [line for line in output.splitlines() if line.endswith(" mode")] == titles
    assert [line for line in output.splitlines() if line.startswith("OK: ")] == [
        f"OK: {EFFECTS[title, fake]} effects {verdict}, {sum(EXPECTED_CALLS.values())} hook calls were made."
        for title in titles
    ]
    assert output.count("a FAKE one of the tests") == (len(titles) if fake else 0)
    words = " ".join(output.split())
    assert words.count(f"{SCHEMATA} {SCHEMATA} ok") == output.count("a STAND-IN of the tests")
    assert output.count("moved after the start") == (0 if fake else len(titles))


@pytest.mark.slow
def test_complaints_of_hook_servers_are_shown_with_a_failure(folder: Path, monkeypatch: Patch, capsys: Out) -> None:
    monkeypatch.setitem(EXPECTED_CALLS, "PreRunPodSandbox", 5)
    assert not demonstration.demonstrate("cri", folder, "a test")
    _, verdict, complaints = capsys.readouterr().out.partition("FAILED: hook calls made: PreRunPodSandbox 4 of 5\n")
    assert verdict
    assert all(" WARNING " in complaint for complaint in complaints.splitlines())
    assert complaints.startswith("20-batchresource-cpunormalization-cpuset: ")  # a fake runtime has no cgroups


def break_probe(monkeypatch: Patch) -> str:
    monkeypatch.setattr(probe, "missing_right", lambda: "no CAP_TEST; get it")
    return "no CAP_TEST; get it"


def break_start(monkeypatch: Patch) -> str:
    monkeypatch.setattr(probe, "missing_for", lambda engine: "")
    monkeypatch.setattr(containerd.Containerd, "start", lambda self: self._run(["false"], lambda: False))
    return "containerd exited with 1"


def break_pods(monkeypatch: Patch) -> str:
    """Have the engine, which is a fake one here, fail each call."""
    monkeypatch.setattr(probe, "missing_for", lambda engine: "")

    @contextmanager
    def started() -> Iterator[Any]:
        yield "/no/such.sock", lambda socket: contextlib.nullcontext(Failing())

    monkeypatch.setitem(MODES, "cri", MODES["cri"]._replace(started=started))
    return "containerd cannot start a pod, even without the proxy: no pod"


class Failing:
    start = create = None

    def run_pod(self, pod: Pod) -> str:
        raise OSError("no pod")


@pytest.mark.slow
@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("broken", [break_probe, break_start, break_pods])
def test_demo_falls_back_to_fakes_unless_engines_are_required(
    monkeypatch: Patch, capsys: Out, interruption: Interruption, broken: Callable[[Patch], str], required: bool
) -> None:
    reason = broken(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["demo", "--mode=cri", *(["--engines"] if required else [])])
    assert demonstration.main() == int(required)
    shown = capsys.readouterr()
    assert reason in (shown.err if required else shown.out)
    assert ("a FAKE one of the tests" in shown.out, "FAILED" in shown.err) == (not required, required)


@pytest.mark.slow
def test_demo_ends_quietly_when_its_reader_ends(folder: Path) -> None:
    demo = Demo(folder, "--fake", "--mode=cri")
    demo.read_until("CRI mode")
    assert demo.process.stdout is not None
    demo.process.stdout.close()
    assert demo.process.wait(60) == 1
    assert not list(folder.iterdir())
    assert not leftovers.processes(str(folder))


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
def test_interrupted_demo_leaves_nothing(folder: Path, mode: str, line: str, by_terminal: bool, fake: bool) -> None:
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


def test_wrong_argument_starts_nothing(folder: Path) -> None:
    code, output = Demo(folder, "--mode", "podman").end()
    assert (code, "--mode" in output) == (2, True)
