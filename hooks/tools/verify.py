"""``runtimeproxy hook verify``: check a hook server against every rule.

Invariant: a server that no longer answers breaks exactly one rule, the one after which it stopped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import uvloop

from runtimeproxy_hooks.tools.rules import RULES, Rule
from runtimeproxy_hooks.tools.subject import PLAIN, Broken, Late, Skipped, Status, TriedServer, code

_NAME_WIDTH = max(len(rule.name) for rule in RULES) + 2


class Mark(Enum):
    """The result of a rule; values are what is printed."""

    KEPT = "pass"
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
        """Return the row as it is printed; below a broken rule its sentence is added."""
        row = f"{self.rule.name:{_NAME_WIDTH}}{self.mark.value}  {self.words}"
        below = f"\n{'':{_NAME_WIDTH}}      the rule: {self.rule.sentence}"
        return row + (below if self.mark is Mark.BROKEN else "")


def verify(subject: TriedServer, show: Callable[[str], None]) -> bool:
    """Check a hook server against every rule, showing each verdict as it is found; return whether no rule is broken.
    Raises HookCallFailed if nothing listens at the socket."""
    return uvloop.run(_verify(subject, show))


async def _verify(subject: TriedServer, show: Callable[[str], None]) -> bool:
    await subject.probe()
    served, named = (", ".join(point.name for point in points) for points in (subject.served, subject.named))
    show(f"{subject.endpoint} serves {served or (f'none of {named}' if named else 'no hook point')}\n")
    verdicts = await judge(subject, lambda verdict: show(verdict.row))
    counts = {mark: sum(verdict.mark is mark for verdict in verdicts) for mark in Mark}
    show(f"\n{counts[Mark.KEPT]} passed, {counts[Mark.BROKEN]} failed, {counts[Mark.SKIPPED]} skipped")
    return not counts[Mark.BROKEN]


async def judge(
    subject: TriedServer, told: Callable[[Verdict], None] = lambda verdict: None, rules: Sequence[Rule] = RULES
) -> list[Verdict]:
    """Return the verdicts on all rules, each passed to ``told`` as it is found; the subject must have been probed."""
    verdicts: list[Verdict] = []
    gone_since = ""
    for rule in rules:
        if gone_since and rule.asks:
            verdict = Verdict(rule, Mark.SKIPPED, f"the server answers no more since {gone_since!r}")
        else:
            verdict = await _judged(rule, subject)
            if rule.asks and (gone := await _gone(subject)):
                gone_since = rule.name
                words = f"{verdict.words}; " if verdict.mark is Mark.BROKEN else ""
                verdict = Verdict(rule, Mark.BROKEN, f"{words}afterwards a plain request: {gone}")
        verdicts.append(verdict)
        told(verdict)
    return verdicts


async def _judged(rule: Rule, subject: TriedServer) -> Verdict:
    try:
        await rule.trial(subject)
    except Broken as broken:
        return Verdict(rule, Mark.BROKEN, str(broken))
    except Skipped as skipped:
        return Verdict(rule, Mark.SKIPPED, str(skipped))
    except Late as late:
        subject.late.append(f"{late} ({rule.name})")
        return Verdict(rule, Mark.SKIPPED, "no answer in time, see 'deadline'")
    return Verdict(rule, Mark.KEPT, rule.sentence)


async def _gone(subject: TriedServer) -> str:
    """Return why the server no longer answers a plain request; "" if it does or never did."""
    for point in subject.sound[:1]:
        async with subject.connection() as client:
            try:
                outcome = await subject.ask(client, point)
            except Late:
                return "no answer in time"
        if isinstance(outcome, Status) and code(outcome) not in PLAIN:
            return outcome.words
    return ""
