"""The table of rules that ``runtimeproxy hook verify`` checks: a name, a sentence, and a test.

Invariant: a rule that is broken at one hook point is broken; a hook point that is not served breaks none.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from runtimeproxy.model.hookpoints import HookPoint
from runtimeproxy_hooks.tools import connections, messages
from runtimeproxy_hooks.tools.subject import Broken, Late, Skipped, Status, TriedServer

_NOWHERE = "no hook point answers a plain request"

Trial = Callable[[TriedServer], Awaitable[None]]
AtPoint = Callable[[TriedServer, HookPoint], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and its test. ``trial`` raises Broken if it is broken, Skipped if it cannot be checked, Late if no answer
    came in time."""

    name: str
    sentence: str
    trial: Trial
    asks: bool = True
    """Whether its trial calls the server, and so needs one that still answers."""


def _each(trial: AtPoint) -> Trial:
    """Return the trial of a rule at each hook point that answers a plain request; the first failure is reported."""

    async def try_all(subject: TriedServer) -> None:
        if not subject.sound:
            raise Skipped(_NOWHERE)
        faults: dict[str, str] = {}
        untried: Skipped | Late | None = None
        for point in subject.sound:
            try:
                await trial(subject, point)
            except Broken as broken:
                faults[point.name] = str(broken)
            except Skipped as skipped:
                untried = skipped
            except Late as late:
                untried = late
                break  # the others would wait as long
        if faults:
            raise Broken(_summary(faults))
        if untried is not None:
            raise untried

    return try_all


def _summary(faults: Mapping[str, str]) -> str:
    (first, words), *others = faults.items()
    return f"{first}: {words}" + (f" (and at {', '.join(name for name, _ in others)})" if others else "")


async def _serves(subject: TriedServer) -> None:
    if absent := [point.name for point in subject.named if point not in subject.served]:
        raise Broken(f"{', '.join(absent)} not served (UNIMPLEMENTED)")
    if not subject.served:
        raise Broken("no hook point is served (UNIMPLEMENTED)")


async def _plain(subject: TriedServer) -> None:
    came = {point: subject.plain[point] for point in subject.served if point in subject.plain}
    if not came:
        raise Skipped(_NOWHERE)
    bad = ((point, outcome) for point, outcome in came.items() if point not in subject.sound)
    if faults := {point.name: outcome.words for point, outcome in bad if isinstance(outcome, Status)}:
        raise Broken(_summary(faults))


async def _deadline(subject: TriedServer) -> None:
    if subject.late:
        raise Broken(f"no answer within {subject.timeout_seconds:g} s: {', '.join(subject.late)}")


_VALUES = "What an answer sets is valid: a bad field is lost, and under policy Fail the call with it."
_ECHO = "An answer repeats all numbers of the resources that were sent, or none (at PreUpdateContainerResources any)."
_MISSING = "A request without any one field is answered, or refused with a fitting status."
_AT_ONCE = f"{connections.AT_ONCE} calls at once are answered, each for its own pod."
_BROKEN = "After a connection broke in the middle of a call a new one is served."
_RESTART = f"Within {connections.RESTART_SECONDS:g} s of a restart the socket answers again."

RULES: tuple[Rule, ...] = (
    Rule("serves", "It serves at least one hook point, and those that --point names.", _serves, asks=False),
    Rule("plain", "A plain request is answered, or refused with PERMISSION_DENIED.", _plain, asks=False),
    Rule("values", _VALUES, _each(messages.values), asks=False),
    Rule("echo", _ECHO, _each(messages.echo)),
    Rule("same-answer", "The same request gets the same answer.", _each(messages.same_answer)),
    Rule("empty", "An empty request is answered, or refused with a fitting status.", _each(messages.empty)),
    Rule("missing", _MISSING, _each(messages.missing)),
    Rule("unknown-fields", "Fields of a later protocol do not change the answer.", _each(messages.unknown_fields)),
    Rule("unknown-method", "A method that does not exist is UNIMPLEMENTED.", messages.unknown_method),
    Rule("big", "A request with 1 MiB of annotations is answered.", _each(messages.big)),
    Rule("concurrency", _AT_ONCE, _each(connections.concurrency)),
    Rule("cancelled", "A cancelled call harms no other call.", _each(connections.cancelled)),
    Rule("broken-connection", _BROKEN, _each(connections.broken_connection)),
    Rule("restart", _RESTART, connections.restart),
    Rule("deadline", "Every answer comes within --timeout.", _deadline, asks=False),
)
