"""A bad hook server of each kind before real engines: the table of docs/fleets.rst is what happens."""

import asyncio
import itertools
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from runtimeproxy.admin.exposition import exposition
from runtimeproxy.errors import Reason
from runtimeproxy.hookapi import api_pb2
from runtimeproxy.observe.metric_table import METRICS
from runtimeproxy.plugins.client import FAILURES_IN_A_ROW
from runtimeproxy.plugins.registration import FailurePolicy
from tests.control import call
from tests.deploy.files import ALERTS, metrics
from tests.fakes import hookanswers
from tests.fakes.hookanswers import Answer, HookCall
from tests.fakes.hookserver import HookServer
from tests.fakes.server import Server
from tests.system import blast
from tests.system.blast import BACK_SECONDS, DISABLE, KINDS, MOVE, REPLACE, Lost
from tests.system.node import resources_answer, serving
from tests.system.proxy import ROOT, answers, wait_until
from tests.system.real import CONTAINERD, DOCKERD, Kind, RealNode, running

pytestmark = [pytest.mark.engine, pytest.mark.slow]

POINT = "PreCreateContainer"
HUNG_SECONDS, SLOW_SECONDS = 0.2, 0.3
MARK = "example.com/by"


class Gone(Server):
    """The socket file of a dead process."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def start(self) -> None:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(self._path)

    async def stop(self) -> None:
        Path(self._path).unlink(missing_ok=True)


class Crashing(HookServer):
    """Aborts the connection in each call; with ``restarts`` the server stops, and starts again as by a supervisor."""

    def __init__(self, path: str, *, restarts: bool = False) -> None:
        super().__init__(path, faulty=True)
        self.restarts, self.starts = restarts, 0

    async def start(self) -> None:
        await super().start()
        self.starts += 1

    async def answer(self, call: HookCall) -> bytes:
        if self.restarts:
            self._restart = asyncio.create_task(self._stop_and_start())
        assert self.faults is not None
        self.faults.cut()
        return await hookanswers.hang()(call)

    async def _stop_and_start(self) -> None:
        await self.stop()
        await self.start()


def answering(answer: Answer) -> Callable[[str], Server]:
    return lambda path: HookServer(path, default=answer)


def setting(by: str, **resources: int | str) -> Answer:
    """Return an answer that marks the container, and sets these resources."""
    values: Any = {"container_annotations": {MARK: by}, "container_resources": resources}
    return hookanswers.reply(api_pb2.ContainerResourceHookResponse(**values))


BAD: dict[str, Callable[[str], Server]] = {
    "hung": answering(hookanswers.hang()),
    "slow": answering(hookanswers.after(SLOW_SECONDS, setting("bad"))),
    "breaking off": Crashing,
    "crashing": lambda path: Crashing(path, restarts=True),
    "vanished": Gone,
    "wrong: no message": answering(hookanswers.garbage()),
    "wrong: an error": answering(hookanswers.status(grpc.StatusCode.INTERNAL, "no")),
    "wrong: unserved": answering(hookanswers.status(grpc.StatusCode.UNIMPLEMENTED)),
    "wrong: impossible": answering(setting("bad", cpu_period=5)),
    "wrong: refusing": answering(hookanswers.status(grpc.StatusCode.PERMISSION_DENIED, "no")),
    "wrong: not here": answering(resources_answer({"cpuset_cpus": "1000"})),
    "wrong: unwanted": answering(setting("bad", cpu_shares=2)),
}
"""The hook servers by the names of the table's rows."""


@pytest.fixture(scope="module")
def unhooked(kind: Kind, engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """Run a node without a hook server."""
    with running(kind, engine, tmp_path_factory.mktemp("node"), lambda node: None) as node:
        yield node


@dataclass
class Trial:
    """A row's hook server on a node, and a kubelet with a pod."""

    node: RealNode
    bad: blast.Kind
    policy: FailurePolicy
    path: str
    client: Any
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.name = f"{self.bad.name.replace(': ', '-').replace(' ', '-')}-{self.policy.value.lower()}"
        self.lost, self.signs = self.bad.lost[self.policy], self.bad.signs(self.policy)
        self.pod = self.node.plain_pod(self.name)
        self.pod_id = self.client.run_pod(self.pod)
        self.server: Any = BAD[self.bad.name](self.path)

    def register(self) -> Path:
        timeout = {"timeout": f"{HUNG_SECONDS}s"} if self.bad.waits else {}
        points = [POINT, "PostStartContainer"] if self.lost is Lost.CONTAINER else [POINT]
        proxy, line = self.node.proxy, f"registration {self.name}.json "
        before = proxy.output().count(line)
        file = proxy.register(f"{self.name}.json", self.path, points, policy=self.policy.value, **timeout)
        proxy.wait_for_log(line, before + 1)
        return file

    def create(self) -> str:
        """Create a container, and start it where the start may fail; return its mark, "" for none."""
        container = self.client.create(self.pod_id, self.node.plain_container(f"c{next(self.numbers)}"), self.pod)
        if self.lost is Lost.CONTAINER:
            self.client.start(container)
        return str(self.node.annotations(self.client, container).get(MARK, ""))

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        """Return the events of calls that name the hook server, those of one kind or all."""
        found = call(self.node.proxy.admin, "events", hookServer=self.name)["events"]
        return [event for event in found if "operation" in event and event["kind"] in (kind, kind or event["kind"])]

    def checks(self) -> list[str]:
        """Return the checks of readyz, and so of ``status``, that name the hook server."""
        checks = call(self.node.proxy.admin, "readyz")["checks"]
        return [check["name"] for check in checks if self.name in check["reason"]]

    def counted(self) -> float:
        """Return the sum of the series of the row's metric."""
        metric, labels = self.signs.metric, {"hook_server": self.name}
        if self.lost is Lost.CONTAINER:
            labels = {"outcome": "failed"}
        elif self.bad.reason and self.signs is not blast.REFUSAL:
            labels["reason"] = self.bad.reason.value
        elif self.lost is Lost.VALUE:
            labels["field"] = "resources.cpu_shares"
        name = METRICS[metric].shown + "_count" * (metric == "hook_call_duration_seconds")
        text = exposition(call(self.node.proxy.admin, "metrics")).decode()
        lines = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
        named = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(float(line.split()[-1]) for line in lines if all(each in line for each in named))

    def creates_with(self, mark: str) -> bool:
        """Return whether a create has this mark; without one the bad hook server must not be called."""

        def calls() -> tuple[int, int]:
            return len(self.events()), len(getattr(self.server, "calls", ()))

        before = calls()
        try:
            found = self.create()
        except Exception:  # of either client
            return False
        return found == mark and (bool(mark) or calls() == before)


def check_loss(trial: Trial) -> None:
    """Make creates; compare what is lost, its time, and how it shows with the row."""
    bad, lost = trial.bad, trial.lost
    before = trial.counted()
    creates = FAILURES_IN_A_ROW + 1 if bad.opens or bad.name == "crashing" else 1
    failed = FAILURES_IN_A_ROW if bad.opens else creates
    for number in range(creates):
        if bad.name == "crashing":
            wait_until(lambda: trial.server.starts > number and answers(Path(trial.path)), "it has restarted")  # noqa: B023
        begun = time.monotonic()
        if lost in (Lost.CALL, Lost.CONTAINER):
            reason = Reason.BREAKER_OPEN if number >= failed else bad.reason
            text = f"hook server {trial.name!r} at {POINT}: {reason.value}" if reason else ""
            assert text in trial.node.failure(trial.create).text
        else:
            assert trial.create() == ("" if lost is Lost.HOOK else "bad")
        least = HUNG_SECONDS if bad.waits and number < failed else SLOW_SECONDS if lost is Lost.TIME else 0.0
        assert time.monotonic() - begun >= least
    kind, reasons = trial.signs.event.value, [bad.reason.value] * failed if bad.reason else []
    wait_until(lambda: len(trial.events(kind)) == creates, "each create has its event", lambda: str(trial.events()))
    assert [event["reason"] for event in trial.events(kind)[:failed] if "reason" in event] == reasons
    wait_until(lambda: trial.counted() == before + failed, "they are counted")
    if bad.reason is not Reason.UNREACHABLE:  # whose check fails after 30 s
        checks = [bad.checks[trial.policy]] if bad.checks else []
        wait_until(lambda: trial.checks() == checks, f"the checks are {checks}", lambda: str(trial.checks()))


def check_ways_back(trial: Trial, file: Path) -> None:
    good = HookServer(trial.path, default=setting("good"))
    disable = [sys.executable, "-m", "runtimeproxy", "hook", "disable", trial.name, "--reason=it is bad"]
    disable.append(f"--admin-endpoint={trial.node.proxy.admin}")
    with ExitStack() as stack:
        ways: dict[str, tuple[Callable[[], object], str]] = {
            MOVE: (lambda: file.rename(file.with_suffix(".aside")), ""),
            DISABLE: (lambda: subprocess.run(disable, cwd=ROOT, capture_output=True, check=True), ""),
            REPLACE: (lambda: stack.enter_context(serving(good)), "good"),
        }
        for way, (act, mark) in ways.items():
            begun = time.monotonic()
            act()
            wait_until(lambda: trial.creates_with(mark), way)  # noqa: B023
            assert time.monotonic() - begun < BACK_SECONDS, way
            if way == MOVE:
                trial.register()
            elif way == DISABLE:
                call(trial.node.proxy.admin, "enable", name=trial.name)


ROWS = [(CONTAINERD, bad, policy) for bad in KINDS for policy in FailurePolicy]
ROWS += [(DOCKERD, bad, policy) for _, bad, policy in ROWS if bad.lost[policy] is Lost.CONTAINER]
"""Both engines where they differ: containerd fails the start, dockerd the create."""
IDS = [f"{kind.name}, {bad.name}, {policy.value}" for kind, bad, policy in ROWS]


@pytest.mark.parametrize(("kind", "bad", "policy"), ROWS, ids=IDS, scope="module")
def test_bad_hook_server_costs_what_its_row_says(
    unhooked: RealNode, bad: blast.Kind, policy: FailurePolicy, tmp_path: Path
) -> None:
    with unhooked.client() as client:
        trial = Trial(unhooked, bad, policy, str(tmp_path / "hooks.sock"), client)
        with serving(trial.server):
            file = trial.register()
            try:
                check_loss(trial)
                check_ways_back(trial, file)
            finally:
                file.unlink(missing_ok=True)


def test_each_row_names_an_existing_alert() -> None:
    assert list(BAD) == [kind.name for kind in KINDS]
    for signs in (*blast.SIGNS.values(), blast.REFUSAL):
        shown = METRICS[signs.metric].shown
        assert not signs.alert or any(name.startswith(shown) for name in metrics(ALERTS[signs.alert]["expr"]))
