"""Every rule of ``runtimeproxy hook verify`` finds the server that breaks it, and no other rule reports it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtimeproxy.model.fields import HookRequest
from runtimeproxy.model.hookpoints import BY_NAME, HOOK_POINTS, HookPoint
from runtimeproxy_hooks.tools import request, trials, verify
from runtimeproxy_hooks.tools.trials import Broken, Late, Skipped, TriedServer
from runtimeproxy_hooks.tools.verify import RULES, Mark, Rule, Verdict, judge
from tests.fakes import hookanswers
from tests.fakes.broken_hookservers import BROKEN, GOOD, LATE_SECONDS, Made, Tried, answering
from tests.fakes.hookserver import HookServer
from tests.hooks.nodes import rows
from tests.hooks.sdk.processes import eventually

pytestmark = pytest.mark.slow
Points = Sequence[HookPoint]

TWO_POINTS = (BY_NAME["PreRunPodSandbox"], BY_NAME["PreCreateContainer"])
ECHO = tuple(rule for rule in RULES if rule.name == "echo")
NOWHERE = "no hook point answers a plain request"


def one_point(path: str) -> HookServer:
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


@pytest.mark.parametrize("tried", BROKEN.values(), ids=BROKEN)
async def test_broken_server_breaks_its_own_rules_only(tmp_path: Path, tried: Tried) -> None:
    points = TWO_POINTS if tried.timeout_seconds > LATE_SECONDS else TWO_POINTS[1:]  # a server that hangs does so once
    found = await verdicts(tmp_path, tried.made, points, timeout_seconds=tried.timeout_seconds)
    assert marked(found, Mark.BROKEN) == tried.breaks, found
    assert list(found) == [rule.name for rule in RULES]


def test_every_rule_has_a_server_that_breaks_it() -> None:
    assert {name for tried in BROKEN.values() for name in tried.breaks} | {"restart"} == {rule.name for rule in RULES}


@pytest.mark.parametrize("made", GOOD.values(), ids=GOOD)
async def test_good_server_keeps_every_rule(tmp_path: Path, made: Made) -> None:
    found = await verdicts(tmp_path, made)
    assert marked(found, Mark.BROKEN) == set()
    refused = {"values", "echo"} if "refused" in found["values"].words else set()
    assert marked(found, Mark.SKIPPED) == {"restart"} | refused


TRIED = [
    ("all", GOOD["an echo"], (), HOOK_POINTS),
    ("one", one_point, (), TWO_POINTS[1:]),
    ("named", GOOD["an echo"], TWO_POINTS[:1], TWO_POINTS[:1]),
    ("others where no named one is served", one_point, TWO_POINTS[:1], TWO_POINTS[1:]),
]


@pytest.mark.parametrize(("made", "named", "served"), rows(TRIED))
async def test_named_points_or_all_served_are_tried(tmp_path: Path, made: Made, named: Points, served: Points) -> None:
    tried: set[HookPoint] = set()

    async def note(subject: TriedServer) -> None:
        tried.update(subject.working)

    found = await verdicts(tmp_path, made, named, tried=(*RULES, Rule("note", "It is noted.", note)))
    assert marked(found, Mark.BROKEN) == ({"serves"} if set(named) - set(served) else set())
    assert tried == set(served)


NUMBERS = "cpu_period, cpu_quota, cpu_shares, memory_limit_in_bytes, memory_swap_limit_in_bytes"
ENDED = "afterwards a plain request: not reachable: No such file or directory"
REFUSED = "the plain request is refused: give one that is not (-f)"
BOTH_LATE = "PreRunPodSandbox (a plain request), PreCreateContainer (a plain request)"
FORGETS, HANGS_ONCE = BROKEN["forgets a number of its echo"], BROKEN["hangs without a cgroup parent"]
LATE, SEE = HANGS_ONCE.timeout_seconds, "no answer in time, see 'deadline'"
LATE_TWICE = f"no answer within {LATE:g} s: PreRunPodSandbox (empty), PreRunPodSandbox (missing)"
MIXTURE = f"PreCreateContainer: resources: {NUMBERS} repeated as sent, oom_score_adj left out"
REPORTED: list[tuple[str, Made, float, dict[str, str]]] = [
    ("mixture", FORGETS.made, 10.0, {"echo": MIXTURE}),
    ("refusal", GOOD["a refusal"], 10.0, {"values": REFUSED, "echo": REFUSED}),
    ("late", BROKEN["hangs"].made, 0.2, {"deadline": f"no answer within 0.2 s: {BOTH_LATE}"}),
    ("late twice", HANGS_ONCE.made, LATE, {"empty": SEE, "missing": SEE, "deadline": LATE_TWICE}),
]


@pytest.mark.parametrize(("made", "seconds", "words"), rows(REPORTED))
async def test_verdict_says_what_broke_the_rule(tmp_path: Path, made: Made, seconds: float, words: Any) -> None:
    tried = [rule for rule in RULES if rule.name in words]
    found = await verdicts(tmp_path, made, timeout_seconds=seconds, tried=tried)
    assert {name: verdict.words for name, verdict in found.items()} == words


async def test_any_number_may_be_repeated_in_an_update(tmp_path: Path) -> None:
    found = await verdicts(tmp_path, FORGETS.made, [BY_NAME["PreUpdateContainerResources"]], tried=ECHO)
    assert found["echo"].mark is Mark.PASSED


async def test_refusal_of_other_numbers_skips_the_echo_rule(tmp_path: Path) -> None:
    plain = hookanswers.echo(lambda response: response.container_resources.ClearField("oom_score_adj"))
    refuse = hookanswers.BY_NAME["refuse"]()

    async def answer(call: hookanswers.HookCall) -> bytes:
        return await (plain if call.request.container_resources.cpu_period == 100_000 else refuse)(call)

    found = await verdicts(tmp_path, answering(answer), points=TWO_POINTS[1:], tried=ECHO)
    words = "the plain request is refused with other numbers in its resources"
    assert (found["echo"].mark, found["echo"].words) == (Mark.SKIPPED, words)


@pytest.mark.parametrize("name", ["serves no hook point", "fails", "hangs"])
async def test_other_rules_are_skipped_where_no_plain_request_is_answered(tmp_path: Path, name: str) -> None:
    found = await verdicts(tmp_path, BROKEN[name].made, timeout_seconds=0.2 if name == "hangs" else 10.0)
    tried = {"serves", "unknown-method", "restart", "deadline", *(["plain"] if name == "fails" else [])}
    assert {rule for rule, verdict in found.items() if verdict.words == NOWHERE} == found.keys() - tried


async def test_server_that_is_gone_is_blamed_once(tmp_path: Path) -> None:
    found = await verdicts(tmp_path, BROKEN["dies of an empty request"].made)
    assert found["empty"].words.endswith(f"; {ENDED}")
    after = [rule.name for rule in RULES[RULES.index(found["empty"].rule) + 1 :]]
    assert {found[name].words for name in after[:-1]} == {"the server answers no more since 'empty'"}
    assert (after[-1], found["deadline"].mark) == ("deadline", Mark.PASSED)


async def test_server_that_hangs_after_a_rule_is_reported(tmp_path: Path) -> None:
    hanging: list[bool] = []

    async def answer(call: hookanswers.HookCall) -> bytes:
        return await (hookanswers.hang() if hanging else hookanswers.echo())(call)

    async def harm(subject: TriedServer) -> None:
        hanging.append(True)

    rule = Rule("harm", "It survives.", harm)
    found = await verdicts(tmp_path, answering(answer), timeout_seconds=LATE_SECONDS, tried=(rule,))
    assert found["harm"] == Verdict(rule, Mark.BROKEN, "afterwards a plain request: no answer in time")


ENDS: list[tuple[list[Exception | None], Exception | None]] = [
    ([None, None, None], None),
    ([Broken("a"), None, None], Broken("One: a")),
    ([None, Broken("a"), Broken("b")], Broken("Two: a (and at Three)")),
    ([Broken("a"), Broken("b"), Broken("c")], Broken("One: a (and at Two, Three)")),
    ([Skipped("s"), None, None], Skipped("s")),
    ([Skipped("s"), Broken("a"), None], Broken("Two: a")),
    ([Late("l"), Broken("a"), None], Late("l")),
    ([Broken("a"), Late("l"), Broken("b")], Broken("One: a")),
]


@pytest.mark.parametrize(("ends", "raised"), ENDS, ids=str)
async def test_rule_is_broken_if_one_point_breaks_it(ends: list[Exception | None], raised: Exception | None) -> None:
    points = {replace(TWO_POINTS[0], name=name): end for name, end in zip(("One", "Two", "Three"), ends, strict=True)}

    async def trial(subject: Any, point: Any) -> None:
        if end := points[point]:
            raise end

    subject: Any = SimpleNamespace(working=tuple(points))
    try:
        await verify._per_point(trial)(subject)
        notified = None
    except (Broken, Skipped, Late) as error:
        notified = error
    assert repr(notified) == repr(raised)


RESTART = tuple(rule for rule in RULES if rule.name == "restart")


def has_ended(pid: str) -> bool:
    """Return whether a process that is not waited for has ended."""
    status = Path("/proc", pid, "status")
    return not status.exists() or "State:\tZ" in status.read_text()


COMMANDS = [
    ("answers again", "true", Mark.PASSED, RESTART[0].sentence),
    ("fails", "exit 3", Mark.BROKEN, "the restart command ended with exit code 3"),
    ("hangs, as does its child", "sleep 100 & echo $! > {pid}; wait", Mark.BROKEN, "waited 2 s for the command to end"),
    ("away", "rm {socket}", Mark.BROKEN, f"waited 2 s for an answer at PreRunPodSandbox; {ENDED}"),
]


@pytest.mark.parametrize(("command", "mark", "words"), rows(COMMANDS))
async def test_restart_is_tried_with_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, mark: Mark, words: str
) -> None:
    monkeypatch.setattr(trials, "RESTART_SECONDS", 2.0 if words.startswith("waited") else 10.0)
    command, pid = command.format(socket=tmp_path / "hooks.sock", pid=tmp_path / "pid"), tmp_path / "pid"
    found = await verdicts(tmp_path, answering(hookanswers.echo()), restart_command=command, tried=RESTART)
    assert (found["restart"].mark, found["restart"].words) == (mark, words)
    if pid.exists():
        await asyncio.to_thread(eventually, lambda: has_ended(pid.read_text().strip()))


async def test_server_may_be_slow_after_a_restart(tmp_path: Path) -> None:
    """Two calls are late, two fail, then it answers."""
    restarted = tmp_path / "restarted"
    starts = [hookanswers.hang(), hookanswers.BY_NAME["fail"](), hookanswers.hang(), hookanswers.BY_NAME["fail"]()]

    async def answer(call: hookanswers.HookCall) -> bytes:
        return await (starts.pop() if restarted.exists() and starts else hookanswers.echo())(call)

    more: dict[str, Any] = {"points": TWO_POINTS[:1], "timeout_seconds": LATE_SECONDS / 2, "tried": RESTART}
    found = await verdicts(tmp_path, answering(answer), restart_command=f"touch {restarted}", **more)
    assert found["restart"].mark is Mark.PASSED
    assert starts == []


POD_ONLY = HookRequest(request.example().pod)
UNSERVED = "serves             FAIL  PreRunPodSandbox not served (UNIMPLEMENTED)\n"
ONE_OF_TWO = "\n13 passed, 1 failed, 1 skipped"
TABLES: list[tuple[str, Made, HookRequest, Points, str, str, str]] = [
    ("good", GOOD["an echo"], POD_ONLY, TWO_POINTS[:1], "PreRunPodSandbox", "", "\n14 passed, 0 failed, 1 skipped"),
    ("others are tried", one_point, request.example(), TWO_POINTS[:1], "PreCreateContainer", UNSERVED, ONE_OF_TWO),
    ("unfit for the others", one_point, POD_ONLY, TWO_POINTS[:1], "none of PreRunPodSandbox", UNSERVED, ""),
    ("nothing", BROKEN["serves no hook point"].made, request.example(), (), "no hook point", "", ""),
]


async def shown(folder: Path, made: Made, queried: HookRequest, points: Points) -> tuple[bool, list[str]]:
    """Return whether a server keeps every rule, and what is shown."""
    lines: list[str] = []
    async with made(path := str(folder / "hooks.sock")):
        subject = TriedServer(path, queried, points, 10.0)
        return await asyncio.to_thread(verify.verify, subject, lines.append), lines


@pytest.mark.parametrize(("made", "queried", "points", "serves", "first", "last"), rows(TABLES))
async def test_table_says_what_is_served(
    tmp_path: Path, made: Made, queried: HookRequest, points: Points, serves: str, first: str, last: str
) -> None:
    good, lines = await shown(tmp_path, made, queried, points)
    assert lines[0] == f"{tmp_path}/hooks.sock serves {serves}\n"
    assert lines[1].startswith(first)
    assert lines[-1].startswith(last)
    assert good == ("0 failed" in lines[-1])


BAD_QUOTA = "resources.cpu_quota: must be -1 (unlimited), 0 (not set) or at least 1000 microseconds"
VALUES_FAIL = [
    f"values             FAIL  PreRunPodSandbox: {BAD_QUOTA} (and at PreCreateContainer)",
    f"                         the rule: {RULES[2].sentence}",
]


async def test_table_shows_each_rule_and_the_sums(tmp_path: Path) -> None:
    good, lines = await shown(tmp_path, answering(hookanswers.koordlet(cpu_quota=-5)), request.example(), TWO_POINTS)
    assert not good
    assert lines[1] == "serves             pass  It serves at least one hook point, and those that --point names."
    assert lines[3].splitlines() == VALUES_FAIL
    assert [row.split()[0] for row in lines[1:-1]] == [rule.name for rule in RULES]
    assert lines[-1] == ONE_OF_TWO
