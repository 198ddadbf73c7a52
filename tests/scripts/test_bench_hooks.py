"""The bench of the hook servers: every row makes its hook work, and the rounds' medians decide."""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runtimeproxy.model.hookpoints import BY_NAME, SubjectKind
from runtimeproxy_hooks import Hook
from runtimeproxy_hooks.__main__ import HOOKS, load
from runtimeproxy_hooks.sdk.hook import ask
from scripts.benchmark import hooks
from scripts.benchmark.barehook import Bare
from scripts.benchmark.hooks import ALL, BVT_FILE, HOOK_SERVERS, Figures, HookServer, changed
from scripts.benchmark.loads import Run
from scripts.demonstration.processes import DemoError
from scripts.figures import MIB, Figure
from tests.system.proxy import wait_until

GPU = next(server for server in HOOK_SERVERS if server.name == "gpu")
each_server = pytest.mark.parametrize("server", HOOK_SERVERS, ids=lambda server: server.name)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with hooks.node(tmp_path):
        yield tmp_path
        [listed] = tmp_path.glob(f"cgroup/**/{hooks.CONTAINER_ID}/cgroup.procs")
        command = Path(f"/proc/{listed.read_text().strip()}/cmdline")
        wait_until(lambda: command.read_text().startswith("sleep"), "the node's container has a process")
    assert not command.exists()


def hooks_of(server: HookServer, folder: Path) -> list[Hook]:
    """Return the row's hooks as their server would have them."""
    made = [load(name) for name in (sorted(HOOKS) if server.name == ALL else [server.name])]
    parser = argparse.ArgumentParser()
    for hook in made:
        hook.add_arguments(parser)
    flags = parser.parse_args(server.arguments(folder)[1:])
    for hook in made:
        hook.configure(flags)
    return made


def changes(server: HookServer, asked: list[Hook]) -> frozenset[str]:
    return changed(server.request, ask(asked, BY_NAME[server.point_name], server.request, lambda waiting: None))


def test_every_hook_is_measured_alone_and_all_of_them_together() -> None:
    assert [*sorted(HOOKS), ALL] == [server.name for server in HOOK_SERVERS]


@each_server
def test_request_makes_the_hook_work_again_and_again(server: HookServer, folder: Path) -> None:
    asked, point, container = hooks_of(server, folder), BY_NAME[server.point_name], server.request.container
    assert point in {each for hook in asked for each in hook.points}
    assert (container is None) is (point.subject is SubjectKind.POD)
    assert container is None or bool(container.id) is (server.point_name != "PreCreateContainer")
    assert [changes(server, asked) for _ in range(2)] == [server.changes] * 2
    assert server.written is None or (folder / server.written).read_text() == "-1\n"


@each_server
def test_bare_hook_answers_the_same_call_and_changes_nothing(server: HookServer) -> None:
    assert BY_NAME[server.point_name] in Bare().points
    assert changes(server, [Bare()]) == frozenset()


@pytest.mark.slow
def test_round_measures_a_server_beside_the_bare_one() -> None:
    [(name, found)] = hooks.one_round(0.01, [GPU]).items()
    assert name == "gpu"
    assert len(found.own.microseconds) == len(found.bare.microseconds) == hooks.CALLS * 0.01
    assert 0 < found.idle <= found.resident


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "says"),
    [
        (replace(GPU, annotations={}), "gpu changed nothing, it should: envs"),
        (replace(GPU, written=BVT_FILE), "gpu wrote nothing into cgroup/"),
        (replace(GPU, point_name="PreStartContainer"), "hook server 'gpu' at PreStartContainer: "),
        (replace(GPU, flags=("--nothing",)), "gpu does not listen"),
    ],
)
def test_hook_server_that_does_not_do_its_work_is_no_measurement(server: HookServer, says: str) -> None:
    with pytest.raises(DemoError, match=says):
        hooks.one_round(0.01, [server])


def figures(p50: int, mib: float) -> Figures:
    return Figures(30 * MIB, int(mib * MIB), Run((p50, p50, 9_000), 1.0), Run((400,), 1.0))


def test_median_of_the_rounds_decides() -> None:
    rounds = [{"gpu": figures(*each)} for each in ((2000, 74), (900, 63), (999, 62), (1000, 64), (3000, 84))]
    assert hooks.judge(rounds) == [
        Figure("gpu: resident MiB", "64.00 (best round 62.00)", "at most 64.00", True),
        Figure("gpu: p50 us of an answer", "1000.00 (best round 900.00)", "at most 1000.00", True),
    ]
    row = ("gpu", "PreCreateContainer", "30.0", "64.0", "1000", "9000", "400", "400", "2.50")
    assert hooks.figure_table(rounds)[1:] == [row]
    rounds[2] = {"gpu": figures(1001, 64.5)}
    assert [figure.kept for figure in hooks.judge(rounds)] == [False, False]
