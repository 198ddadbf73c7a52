"""``runtimeproxy hook verify``: check a hook server against every rule.

Invariants: a server that stops answering breaks only the rule that was checked then. A rule that is broken at one hook
point is broken; an unserved hook point breaks none.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import uvloop

from runtimeproxy.model.hookpoints import HookPoint
from runtimeproxy_hooks.tools import trials
from runtimeproxy_hooks.tools.trials import PLAIN, Broken, Late, Skipped, Status, TriedServer, code

_NOWHERE = "no hook point answers a plain request"

Trial = Callable[[TriedServer], Awaitable[None]]
AtPoint = Callable[[TriedServer, HookPoint], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and its test. ``trial`` raises Broken if it is broken, Skipped if it cannot be checked, Late if an answer
    is late."""

    name: str
    sentence: str
    trial: Trial
    calls: bool = True
    """Whether its trial calls the server, and so needs a server that answers."""


def _per_point(trial: AtPoint) -> Trial:
    """Return the trial of a rule at each hook point that answers a plain request; the first failure is reported."""

    async def try_all(subject: TriedServer) -> None:
        if not subject.working:
            raise Skipped(_NOWHERE)
        faults: dict[str, str] = {}
        untried: Skipped | Late | None = None
        for hook_point in subject.working:
            try:
                await trial(subject, hook_point)
            except Broken as broken:
                faults[hook_point.name] = str(broken)
            except Skipped as skipped:
                untried = skipped
            except Late as late:
                untried = late
                break  # the next ones would wait as long
        if faults:
            raise Broken(_summary(faults))
        if untried is not None:
            raise untried

    return try_all


def _summary(faults: Mapping[str, str]) -> str:
    (first, words), *more = faults.items()
    return f"{first}: {words}" + (f" (and at {', '.join(name for name, _ in more)})" if more else "")


async def _serves(subject: TriedServer) -> None:
    if absent := [hook_point.name for hook_point in subject.named if hook_point not in subject.served]:
        raise Broken(f"{', '.join(absent)} not served (UNIMPLEMENTED)")
    if not subject.served:
        raise Broken("no hook point is served (UNIMPLEMENTED)")


async def _plain(subject: TriedServer) -> None:
    arrived = {hook_point: subject.plain[hook_point] for hook_point in subject.served if hook_point in subject.plain}
    if not arrived:
        raise Skipped(_NOWHERE)
    bad = ((hook_point, outcome) for hook_point, outcome in arrived.items() if hook_point not in subject.working)
    if faults := {hook_point.name: outcome.words for hook_point, outcome in bad if isinstance(outcome, Status)}:
        raise Broken(_summary(faults))


async def _deadline(subject: TriedServer) -> None:
    if subject.late:
        raise Broken(f"no answer within {subject.timeout_seconds:g} s: {', '.join(subject.late)}")


_VALUES = "What an answer sets is valid: a bad field is lost, and under policy Fail the call with it."
_ECHO = "An answer repeats all numbers of the resources that were sent, or none (at PreUpdateContainerResources any)."
_MISSING = "A request without any one field is answered, or refused with a fitting status."
_CONCURRENT = f"{trials.CONCURRENT} concurrent calls are answered, each for its own pod."
_BROKEN = "After a connection broke in the middle of a call a new one is served."
_RESTART = f"Within {trials.RESTART_SECONDS:g} s of a restart the socket answers again."

RULES: tuple[Rule, ...] = (
    Rule("serves", "It serves at least one hook point, and those that --point names.", _serves, calls=False),
    Rule("plain", "A plain request is answered, or refused with PERMISSION_DENIED.", _plain, calls=False),
    Rule("values", _VALUES, _per_point(trials.values), calls=False),
    Rule("echo", _ECHO, _per_point(trials.echo)),
    Rule("same-answer", "The same request gets the same answer.", _per_point(trials.same_answer)),
    Rule("empty", "An empty request is answered, or refused with a fitting status.", _per_point(trials.empty)),
    Rule("missing", _MISSING, _per_point(trials.missing)),
    Rule("unknown-fields", "Fields of a later protocol do not change the answer.", _per_point(trials.unknown_fields)),
    Rule("unknown-method", "A method that does not exist is UNIMPLEMENTED.", trials.unknown_method),
    Rule("big", "A request with 1 MiB of annotations is answered.", _per_point(trials.big)),
    Rule("concurrency", _CONCURRENT, _per_point(trials.concurrency)),
    Rule("cancelled", "A cancelled call harms no other call.", _per_point(trials.cancelled)),
    Rule("broken-connection", _BROKEN, _per_point(trials.broken_connection)),
    Rule("restart", _RESTART, trials.restart),
    Rule("deadline", "Every answer comes within --timeout.", _deadline, calls=False),
)


# -- verdicts ----------------------------------------------------------------------------------------------------------


_NAME_WIDTH = max(len(rule.name) for rule in RULES) + 2


class Mark(Enum):
    """The result of a rule, with the printed text."""

    PASSED = "pass"
    BROKEN = "FAIL"
    SKIPPED = "skip"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row of the table."""

    rule: Rule
    mark: Mark
    words: str

    @property
    def row(self) -> str:
        row = f"{self.rule.name:{_NAME_WIDTH}}{self.mark.value}  {self.words}"
        below = f"\n{'':{_NAME_WIDTH}}      the rule: {self.rule.sentence}"
        return row + (below if self.mark is Mark.BROKEN else "")


def verify(subject: TriedServer, show: Callable[[str], None]) -> bool:
    """Check a hook server against every rule, showing each verdict; return whether no rule is broken. Raises
    HookCallFailed if nothing listens at the socket."""
    return uvloop.run(_verify(subject, show))


async def _verify(subject: TriedServer, show: Callable[[str], None]) -> bool:
    await subject.probe()
    served, named = (", ".join(row.name for row in rows) for rows in (subject.served, subject.named))
    show(f"{subject.endpoint} serves {served or (f'none of {named}' if named else 'no hook point')}\n")
    verdicts = await judge(subject, lambda verdict: show(verdict.row))
    counts = {mark: sum(verdict.mark is mark for verdict in verdicts) for mark in Mark}
    show(f"\n{counts[Mark.PASSED]} passed, {counts[Mark.BROKEN]} failed, {counts[Mark.SKIPPED]} skipped")
    return not counts[Mark.BROKEN]


async def judge(
    subject: TriedServer, show: Callable[[Verdict], None] = lambda verdict: None, rules: Sequence[Rule] = RULES
) -> list[Verdict]:
    """Return the verdicts on all rules, and pass each to ``show``; the subject must have been probed."""
    verdicts: list[Verdict] = []
    absent_since = ""
    for rule in rules:
        if absent_since and rule.calls:
            verdict = Verdict(rule, Mark.SKIPPED, f"the server answers no more since {absent_since!r}")
        else:
            verdict = await _check(rule, subject)
            if rule.calls and (failure := await _failure(subject)):
                absent_since = rule.name
                words = f"{verdict.words}; " if verdict.mark is Mark.BROKEN else ""
                verdict = Verdict(rule, Mark.BROKEN, f"{words}afterwards a plain request: {failure}")
        verdicts.append(verdict)
        show(verdict)
    return verdicts


async def _check(rule: Rule, subject: TriedServer) -> Verdict:
    try:
        await rule.trial(subject)
    except Broken as broken:
        return Verdict(rule, Mark.BROKEN, str(broken))
    except Skipped as skipped:
        return Verdict(rule, Mark.SKIPPED, str(skipped))
    except Late as late:
        subject.late.append(f"{late} ({rule.name})")
        return Verdict(rule, Mark.SKIPPED, "no answer in time, see 'deadline'")
    return Verdict(rule, Mark.PASSED, rule.sentence)


async def _failure(subject: TriedServer) -> str:
    """Return why the server no longer answers a plain request; "" if it does or never did."""
    for hook_point in subject.working[:1]:
        async with subject.connection() as client:
            try:
                outcome = await subject.call(client, hook_point)
            except Late:
                return "no answer in time"
        if isinstance(outcome, Status) and code(outcome) not in PLAIN:
            return outcome.words
    return ""
