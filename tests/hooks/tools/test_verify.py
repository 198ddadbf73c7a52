"""Every rule of ``runtimeproxy hook verify`` detects its broken server, and no other rule reports it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.model.fields import HookRequest
from runtimeproxy.model.hookpoints import BY_NAME, HookPoint
from runtimeproxy_hooks.tools import request, trials, verify
from runtimeproxy_hooks.tools.trials import TriedServer
from runtimeproxy_hooks.tools.verify import RULES, Mark, Rule, Verdict, judge
from tests.fakes import hookanswers
from tests.fakes.broken_hookservers import BROKEN, GOOD, LATE_SECONDS, Made, answering
from tests.fakes.hookserver import HookServer
from tests.hooks.nodes import rows
from tests.hooks.sdk.processes import eventually

pytestmark = pytest.mark.slow
Points = Sequence[HookPoint]

TWO_POINTS = (BY_NAME["PreRunPodSandbox"], BY_NAME["PreCreateContainer"])
NOWHERE = "no hook point answers a plain request"


def serve_create(path: str) -> HookServer:
    """Serve PreCreateContainer only."""
    unserved = hookanswers.BY_NAME["unimplemented"]()
    return HookServer(path, {"PreCreateContainer": hookanswers.echo()}, default=unserved)


async def verdicts(
    folder: Path, made: Made, points: Points = TWO_POINTS, tried: Sequence[Rule] = RULES, **more: Any
) -> dict[str, Verdict]:
    """Return the verdicts on a server, by the rules' names."""
    async with made(path := str(folder / "hooks.sock")):
        subject = TriedServer(path, request.example(), points, **({"timeout_seconds": 10.0} | more))
        await subject.probe()
        return {verdict.rule.name: verdict for verdict in await judge(subject, rules=tried)}


def marked(found: dict[str, Verdict], mark: Mark) -> set[str]:
    return {name for name, verdict in found.items() if verdict.mark is mark}


NUMBERS = "cpu_period, cpu_quota, cpu_shares, memory_limit_in_bytes, memory_swap_limit_in_bytes"
BAD_PERIOD = "must be 0 (not set) or 1000..1000000 microseconds"
NO_ANSWER = "the server answers no more since 'empty'"
LATE, SEE = f"no answer within {LATE_SECONDS:g} s", "no answer in time, see 'deadline'"
LATE_TWICE = f"{LATE}: PreCreateContainer (empty), PreCreateContainer (missing)"
WORDS = {
    "sets a bad value": {"values": f"PreRunPodSandbox: resources.cpu_period: {BAD_PERIOD} (and at PreCreateContainer)"},
    "forgets a number of its echo": {
        "echo": f"PreCreateContainer: resources: {NUMBERS} repeated as sent, oom_score_adj left out"
    },
    "dies of an empty request": {"missing": NO_ANSWER, "broken-connection": NO_ANSWER, "restart": NO_ANSWER},
    "hangs": {"deadline": "no answer within 0.2 s: PreCreateContainer (a plain request)"},
    "hangs without a cgroup parent": {"empty": SEE, "missing": SEE, "deadline": LATE_TWICE},
}


@pytest.mark.parametrize("name", BROKEN)
async def test_broken_server_fails_only_expected_rules(tmp_path: Path, name: str) -> None:
    tried = BROKEN[name]
    points = TWO_POINTS if tried.timeout_seconds > LATE_SECONDS else TWO_POINTS[1:]  # a server that hangs does so once
    found = await verdicts(tmp_path, tried.made, points, timeout_seconds=tried.timeout_seconds)
    words = {rule: verdict.words for rule, verdict in found.items()}
    assert marked(found, Mark.BROKEN) == {tried.breaks}, words
    assert words | WORDS.get(name, {}) == words
    if tried.breaks in ("serves", "plain"):
        not_checked = {"serves", "unknown-method", "restart", "deadline", tried.breaks}
        assert {rule for rule, each in words.items() if each == NOWHERE} == found.keys() - not_checked
    assert list(found) == [rule.name for rule in RULES]
    assert {each.breaks for each in BROKEN.values()} | {"restart"} == found.keys(), "a rule has no server"


@pytest.mark.parametrize("name", GOOD)
async def test_good_server_passes_every_rule(tmp_path: Path, name: str) -> None:
    found = await verdicts(tmp_path, GOOD[name])
    assert marked(found, Mark.BROKEN) == set()
    refused = {"values", "echo"} if name == "a refusal" else set()
    assert marked(found, Mark.SKIPPED) == {"restart"} | refused
    assert {found[rule].words for rule in refused} <= {"the plain request is refused: give one that is not (-f)"}


ENDED = "afterwards a plain request: not reachable: No such file or directory"


async def test_server_that_hangs_after_rule_is_reported(tmp_path: Path) -> None:
    hanging: list[bool] = []

    async def answer(call: hookanswers.HookCall) -> bytes:
        return await (hookanswers.hang() if hanging else hookanswers.echo())(call)

    async def harm(subject: TriedServer) -> None:
        hanging.append(True)

    rule = Rule("harm", "It survives.", harm)
    found = await verdicts(tmp_path, answering(answer), timeout_seconds=LATE_SECONDS, tried=(rule,))
    assert found["harm"] == Verdict(rule, Mark.BROKEN, "afterwards a plain request: no answer in time")


RESTART = tuple(rule for rule in RULES if rule.name == "restart")


def has_ended(pid: str) -> bool:
    """Return whether a process has ended, without waiting for it."""
    status = Path("/proc", pid, "status")
    return not status.exists() or "State:\tZ" in status.read_text()


COMMANDS = [
    ("fails", "exit 3", Mark.BROKEN, "the restart command ended with exit code 3"),
    ("hangs, as does its child", "sleep 100 & echo $! > {pid}; wait", Mark.BROKEN, "waited 2 s for the command to end"),
    ("away", "rm {socket}", Mark.BROKEN, f"waited 2 s for an answer at PreRunPodSandbox; {ENDED}"),
]


@pytest.mark.parametrize(("command", "mark", "words"), rows(COMMANDS))
async def test_restart_is_tested_with_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, mark: Mark, words: str
) -> None:
    monkeypatch.setattr(trials, "RESTART_SECONDS", 2.0 if words.startswith("waited") else 10.0)
    command, pid = command.format(socket=tmp_path / "hooks.sock", pid=tmp_path / "pid"), tmp_path / "pid"
    found = await verdicts(tmp_path, answering(hookanswers.echo()), restart_command=command, tried=RESTART)
    assert (found["restart"].mark, found["restart"].words) == (mark, words)
    if pid.exists():
        await asyncio.to_thread(eventually, lambda: has_ended(pid.read_text().strip()))


async def test_server_may_be_slow_after_restart(tmp_path: Path) -> None:
    """Two calls are late, two fail, then it answers."""
    restarted = tmp_path / "restarted"
    starts = [hookanswers.hang(), hookanswers.BY_NAME["fail"](), hookanswers.hang(), hookanswers.BY_NAME["fail"]()]

    async def answer(call: hookanswers.HookCall) -> bytes:
        return await (starts.pop() if restarted.exists() and starts else hookanswers.echo())(call)

    more: dict[str, Any] = {"points": TWO_POINTS[:1], "timeout_seconds": LATE_SECONDS / 2, "tried": RESTART}
    found = await verdicts(tmp_path, answering(answer), restart_command=f"touch {restarted}", **more)
    assert (found["restart"].mark, found["restart"].words, starts) == (Mark.PASSED, RESTART[0].sentence, [])


POD = request.example().pod
POD_ONLY, WITHOUT_HANDLER = HookRequest(POD), replace(request.example(), pod=replace(POD, runtime_handler=""))
WITH_UPDATE = (TWO_POINTS[0], BY_NAME["PreUpdateContainerResources"])
BOTH = "PreRunPodSandbox, PreUpdateContainerResources"
UNSERVED = "serves             FAIL  PreRunPodSandbox not served (UNIMPLEMENTED)\n"
ONE_OF_TWO = "\n13 passed, 1 failed, 1 skipped"
TABLES: list[tuple[str, Made, HookRequest, Points, str, str, str]] = [
    ("good", GOOD["an echo"], WITHOUT_HANDLER, WITH_UPDATE, BOTH, "", "\n14 passed, 0 failed, 1 skipped"),
    ("of a pod alone", GOOD["an echo"], POD_ONLY, TWO_POINTS[:1], "PreRunPodSandbox", "", "\n14 passed, 0 failed"),
    ("others are tried", serve_create, request.example(), TWO_POINTS[:1], "PreCreateContainer", UNSERVED, ONE_OF_TWO),
    ("unfit for the others", serve_create, POD_ONLY, TWO_POINTS[:1], "none of PreRunPodSandbox", UNSERVED, ""),
    ("nothing", BROKEN["serves no hook point"].made, request.example(), (), "no hook point", "", ""),
]


@pytest.mark.parametrize(("made", "queried", "points", "serves", "first", "last"), rows(TABLES))
async def test_table_has_each_rule_and_sums(
    tmp_path: Path, made: Made, queried: HookRequest, points: Points, serves: str, first: str, last: str
) -> None:
    lines: list[str] = []
    async with made(path := str(tmp_path / "hooks.sock")):
        subject = TriedServer(path, queried, points, 10.0)
        good = await asyncio.to_thread(verify.verify, subject, lines.append)
    assert lines[0] == f"{tmp_path}/hooks.sock serves {serves}\n"
    assert lines[1].startswith(first)
    assert [row.split()[0] for row in lines[1:-1]] == [rule.name for rule in RULES]
    assert lines[-1].startswith(last)
    assert good == ("0 failed" in lines[-1])
