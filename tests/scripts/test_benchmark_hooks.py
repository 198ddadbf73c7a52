"""The bench of the hook servers: every row makes its hook work, medians decide, and a start has all its marks."""

import argparse
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest

from runtimeproxy.hookpoints import SubjectKind
from runtimeproxy.model import HookAnswer
from runtimeproxy_hooks import Hook
from runtimeproxy_hooks.__main__ import HOOKS, load
from runtimeproxy_hooks.cgroups import Cgroups
from runtimeproxy_hooks.coresched import NOT_SUPPORTED
from runtimeproxy_hooks.sdk.hook import ask
from runtimeproxy_hooks.sdk.testing import CONTAINER_ID, HookTester
from scripts.benchmark import __main__ as benchmark
from scripts.benchmark import answers, hookmode, hookservers, window, windowhook
from scripts.benchmark.answers import Figures
from scripts.benchmark.barehook import Bare
from scripts.benchmark.h2load import Run
from scripts.benchmark.hookservers import ALL, HOOK_SERVERS, HookServer
from scripts.benchmark.limits import MIB
from scripts.benchmark.window import Start
from scripts.benchmark.windowhook import Note, Noting, NotingRdt
from scripts.demonstration.processes import DemoError
from tests.hooks.rdt_node import POD_GROUP, SMALL, Node, annotated, threads
from tests.system.proxy import wait_until

NAMES = [server.name for server in HOOK_SERVERS]
GPU = next(server for server in HOOK_SERVERS if server.name == "gpu")
GONE = 2**22 + 1
"""No thread's id: the kernel gives none above 2**22."""
STARTS = [Start(20_000 + 1000 * number, 10_000 + 100 * number, 4) for number in range(30)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with hookservers.node(tmp_path):
        yield tmp_path


def hooks_of(server: HookServer, folder: Path) -> list[Hook]:
    """Return the row's hooks as their server would have them."""
    hooks = [load(name) for name in (sorted(HOOKS) if server.name == ALL else [server.name])]
    parser = argparse.ArgumentParser()
    for hook in hooks:
        hook.add_arguments(parser)
    flags = parser.parse_args(server.arguments(folder)[1:])
    for hook in hooks:
        hook.configure(flags)
    return hooks


def answered(server: HookServer, hooks: list[Hook]) -> HookAnswer:
    return ask(hooks, server.point, server.request, lambda waiting: None)


def figures(p50: int = 500, mib: float = 40.0, bare: int = 400) -> Figures:
    return Figures(int(30 * MIB), int(mib * MIB), Run((p50, p50, 9_000), 1.0), Run((bare,), 1.0))


# -- the rows --------------------------------------------------------------------------------------------------------


def test_every_hook_is_measured_alone_and_all_of_them_together() -> None:
    assert [*sorted(HOOKS), ALL] == NAMES


@pytest.mark.parametrize("server", HOOK_SERVERS, ids=NAMES)
def test_the_request_makes_the_hook_work(server: HookServer, folder: Path) -> None:
    hooks = hooks_of(server, folder)
    assert server.point in {point for hook in hooks for point in hook.points}
    assert hookservers.changed(server.request, answered(server, hooks)) == server.changes
    assert hookservers.changed(server.request, answered(server, hooks)) == server.changes  # again and again
    if server.written is not None:
        assert (folder / server.written).read_text() == "-1\n"


@pytest.mark.parametrize("server", HOOK_SERVERS, ids=NAMES)
def test_the_bare_hook_answers_the_same_call_and_changes_nothing(server: HookServer) -> None:
    assert server.point in Bare().points
    assert hookservers.changed(server.request, answered(server, [Bare()])) == frozenset()


def test_an_answer_that_changes_nothing_is_seen_as_that() -> None:
    request = GPU.request
    assert request.container is not None
    echo = answered(GPU, [])
    assert hookservers.changed(request, echo) == frozenset()
    assert hookservers.changed(request, replace(echo, cgroup_parent="/x", envs={})) == {"cgroup_parent", "envs"}


def test_the_nodes_container_has_a_process_until_the_end(tmp_path: Path) -> None:
    with hookservers.node(tmp_path):
        [listed] = tmp_path.glob(f"cgroup/**/{hookservers.CONTAINER_ID}/cgroup.procs")
        command = Path(f"/proc/{listed.read_text().strip()}/cmdline")
        wait_until(lambda: command.read_text().startswith("sleep"), "the process runs its program")
    assert not command.exists()


@pytest.mark.parametrize("server", HOOK_SERVERS, ids=NAMES)
def test_a_request_is_what_the_point_is_sent(server: HookServer) -> None:
    container = server.request.container
    assert (container is None) is (server.point.subject is SubjectKind.POD)
    assert container is None or bool(container.id) is (server.point_name != "PreCreateContainer")


# -- a round ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_round_measures_a_server_beside_the_bare_one() -> None:
    [(name, found)] = answers.one_round(0.01, [GPU]).items()
    assert name == "gpu"
    assert len(found.own.microseconds) == len(found.bare.microseconds) == answers.CALLS * 0.01
    assert 0 < found.idle <= found.resident


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "says"),
    [
        (replace(GPU, annotations={}), "gpu changed nothing, it should: envs"),
        (replace(GPU, changes=frozenset()), "gpu changed envs, it should: nothing"),
        (replace(GPU, written=hookservers.BVT_FILE), "gpu wrote nothing into cgroup/"),
        (replace(GPU, point_name="PreStartContainer"), "hook server 'gpu' at PreStartContainer: "),
        (replace(GPU, flags=("--nothing",)), "gpu does not listen"),
    ],
)
def test_a_hook_server_that_does_not_do_its_work_is_no_measurement(server: HookServer, says: str) -> None:
    with pytest.raises(DemoError, match=says):
        answers.one_round(0.01, [server])


# -- the verdicts ----------------------------------------------------------------------------------------------------


def test_the_median_of_the_rounds_decides() -> None:
    rounds = [{"gpu": figures(p50, mib)} for p50, mib in ((2000, 74), (900, 63), (999, 62), (1000, 64), (3000, 84))]
    memory, answer = hookmode.judge(rounds)
    assert (memory.name, memory.median, memory.best, memory.kept) == ("gpu: resident MiB", 64, 62, True)
    assert (answer.name, answer.median, answer.best, answer.kept) == ("gpu: p50 us of an answer", 1000, 900, True)
    rounds[2] = {"gpu": figures(1001, 64.5)}
    assert [verdict.kept for verdict in hookmode.judge(rounds)] == [False, False]


def test_the_table_has_the_medians() -> None:
    rounds = [{"gpu": figures(p50, mib), ALL: figures()} for p50, mib in ((500, 40), (700, 44), (600, 42))]
    header, gpu, together = hookmode.figure_table(rounds)
    assert header == hookmode.HEADER
    assert gpu == ("gpu", "PreCreateContainer", "30.0", "42.0", "600", "9000", "400", "400", "1.50")
    assert len(together) == len(header)


def test_the_windows_rows() -> None:
    program, event, cri = hookmode.window_rows(STARTS)
    assert program == (hookmode.FROM_PROGRAM, "p50 34.0 ms, p99 49.0 ms, longest 49.0 ms, of 30 starts")
    assert event == (hookmode.FROM_EVENT, "p50 11.4 ms, p99 12.9 ms, longest 12.9 ms, of 30 starts")
    assert cri == hookmode.IN_CRI_MODE
    assert "io.kubernetes.cri.rdt-class" in cri[1]


def test_a_window_that_is_not_measured_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hookmode, "why_fake", lambda asked: "not root")
    assert hookmode.windows(1) == "not root"
    assert hookmode.window_rows("not root")[0] == ("Docker mode", "not measured: not root")


@pytest.mark.parametrize(("share", "starts"), [(1.0, 30), (0.5, 15), (0.01, 3)])
def test_a_share_of_the_starts_is_measured(monkeypatch: pytest.MonkeyPatch, share: float, starts: int) -> None:
    monkeypatch.setattr(hookmode, "why_fake", lambda asked: "")
    monkeypatch.setattr(window, "measure", lambda count: STARTS[:count])
    assert len(hookmode.windows(share)) == starts


@pytest.mark.parametrize(
    ("refuses", "says"), [(0, ""), (min(NOT_SUPPORTED), "this kernel or machine has no core scheduling (")]
)
def test_what_the_kernel_refuses_is_said(monkeypatch: pytest.MonkeyPatch, refuses: int, says: str) -> None:
    def prctl(command: int, pid: int, scope: int) -> int:
        if refuses:
            raise OSError(refuses, "no")
        return 0

    monkeypatch.setattr(hookmode, "sched_core", prctl)
    assert hookmode.core_sched_refusal() == (f"{says}no)" if says else "")


@pytest.mark.parametrize(("check", "rounds"), [(True, 5), (False, 1)])
def test_limits_are_judged_only_with_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], check: bool, rounds: int
) -> None:
    slow = [{"gpu": figures(1200)} for _ in range(rounds)]
    monkeypatch.setattr(answers, "one_round", lambda share: slow.pop())
    monkeypatch.setattr(hookmode, "windows", lambda share: STARTS)
    monkeypatch.setattr(hookmode, "core_sched_refusal", lambda: "none")
    monkeypatch.setattr("sys.argv", ["bench", "--mode", "hooks", *(["--check"] if check else [])])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert benchmark.main() == int(check)
    printed = capsys.readouterr()
    missed = "FAILED: hooks: gpu: p50 us of an answer is 1200.00, the limit is at most 1000.00\n"
    assert printed.err == (missed if check else "")
    assert not slow
    assert ("MISSED" in printed.out) is check
    assert hookmode.FROM_EVENT in printed.out
    assert "coresched: none" in printed.out


# -- the window ------------------------------------------------------------------------------------------------------


def test_the_hook_notes_when_the_last_thread_was_moved(tmp_path: Path) -> None:
    node = Node(tmp_path)
    hook = NotingRdt(Noting(node.root), tmp_path / "notes")
    hook.cgroups = Cgroups(node.cgroup_root)
    tester = HookTester(hook)
    tester.pre_create_container(annotations=annotated(SMALL))
    for count in (3, 1):
        with threads(count) as tids:
            node.container(*tids, GONE)
            before = time.time_ns()
            tester.post_start_container(annotations=annotated(SMALL))
            note = windowhook.read(tmp_path / "notes")[-1]
            assert before < note.at < time.time_ns()
            assert note == Note(CONTAINER_ID, count, note.at)
            assert node.resctrl.tasks(POD_GROUP) == set(tids)
    node.container()
    tester.post_start_container(annotations=annotated(SMALL))
    assert windowhook.read(tmp_path / "notes")[-1] == Note(CONTAINER_ID, 0, 0)


def test_the_opening_of_a_program_is_seen(tmp_path: Path) -> None:
    program = tmp_path / "true"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o755)
    with window.opened(program) as times:
        before = time.time_ns()
        subprocess.run([program], check=True)
        assert before < times.get(timeout=window.WAIT_SECONDS) < time.time_ns() + 10**9
    with window.opened(program) as times:
        pass
    assert times.empty()


def test_a_program_that_nobody_opens_is_no_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "WAIT_SECONDS", 0.01)
    with pytest.raises(DemoError, match="no program of a container"):
        window.first(SimpleQueue())


@pytest.mark.parametrize("notes", [[], [Note("other", 4, 5)], [Note("c", 0, 0)]])
def test_a_start_that_the_hook_did_not_follow_is_no_mark(tmp_path: Path, notes: list[Note]) -> None:
    lines = [json.dumps({"container": note.container, "threads": note.threads, "at": note.at}) for note in notes]
    (tmp_path / "notes").write_text("\n".join(lines))
    with pytest.raises(DemoError, match="the hook moved no thread"):
        window.note_of(tmp_path / "notes", "c")


@pytest.mark.slow
@pytest.mark.engine
def test_starts_on_a_real_dockerd() -> None:
    starts = window.measure(2)
    assert len(starts) == 2
    for start in starts:
        assert start.from_program >= 0  # 0: what was moved had yet to become the container's program
        assert start.from_event > 0
        assert start.threads >= 1
