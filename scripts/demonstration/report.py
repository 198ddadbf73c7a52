"""What the demo prints: the effects asked for and found, the hook calls with their times, and the verdict.

Owns the tables and what counts as success.
Must not know: how anything was found out.
Invariant: success is every effect found true and every expected hook call made, nothing less.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import localtime, strftime

from scripts.figures import print_table


@dataclass(frozen=True, slots=True)
class Effect:
    """One row: what the kubelet asked for, what a hook set ("" for nothing), what was found.

    ``container`` is "" for what is the pod's.
    """

    pod: str
    container: str
    what: str
    asked: str
    hook: str
    inside: str

    @property
    def name(self) -> str:
        """Name the row."""
        return " ".join(filter(None, (self.pod, self.container, self.what)))

    @property
    def true(self) -> bool:
        """Tell whether the hook's value was found, or the kubelet's where no hook set one."""
        return self.inside == (self.hook or self.asked)


@dataclass(frozen=True, slots=True)
class HookCallLine:
    """One call that was noted, at seconds since the epoch."""

    at: float
    point: str
    pod: str
    container: str


def read_calls(path: Path) -> list[HookCallLine]:
    """Read the calls that were noted."""
    return [HookCallLine(each.pop("time"), **each) for each in map(json.loads, path.read_text().splitlines())]


@dataclass(frozen=True, slots=True)
class Wording:
    """What the found values are called: the column's head, and the verdict on all of them."""

    column: str
    verdict: str


INSIDE = Wording("true inside", "are true in the containers and on the node")
OF_A_FAKE = Wording("the fake shows", "reached the fake runtime, where no container really runs")


def show(
    effects: Sequence[Effect],
    calls: Sequence[HookCallLine],
    expected_calls: Mapping[str, int],
    wording: Wording = INSIDE,
) -> bool:
    """Print both tables and the verdict; return whether all is as it should be."""
    _print_effects(effects, wording)
    _print_calls(calls, expected_calls)
    print()
    wrong = [effect.name for effect in effects if not effect.true]
    counted = Counter(call.point for call in calls)
    uncalled = [
        f"{point} {counted[point]} of {times}" for point, times in expected_calls.items() if counted[point] != times
    ]
    for problem, names in (("not as it should be", wrong), ("hook calls made", uncalled)):
        if names:
            print(f"FAILED: {problem}: {', '.join(names)}")
    if wrong or uncalled:
        return False
    print(f"OK: {len(effects)} effects {wording.verdict}, {len(calls)} hook calls were made.")
    return True


def _print_effects(effects: Sequence[Effect], wording: Wording) -> None:
    rows = [("pod", "container", "what", "the kubelet asked", "the hook set", wording.column, "")]
    rows += [
        (
            *(effect.pod, effect.container or "-", effect.what),
            *(effect.asked, effect.hook or "-", effect.inside),
            "ok" if effect.true else "NO",
        )
        for effect in effects
    ]
    print_table("What was asked, what was changed, what came of it", rows)


def _print_calls(calls: Sequence[HookCallLine], expected: Mapping[str, int]) -> None:
    """Print the calls: a row a hook point, a column a pod."""
    first = min((call.at for call in calls), default=0.0)
    pods = list(dict.fromkeys(call.pod for call in calls))
    rows = [("hook point", *(_with_container(pod, calls) for pod in pods))]
    for point in expected:
        times = (
            [f"{(call.at - first) * 1000:.0f}" for call in calls if (call.point, call.pod) == (point, pod)]
            for pod in pods
        )
        rows.append((point, *(", ".join(each) or "-" for each in times)))
    clock = strftime("%H:%M:%S", localtime(first)) + f".{int(first % 1 * 1000):03d}"
    print_table(f"Hook calls, at milliseconds after the first one at {clock}", rows)


def _with_container(pod: str, calls: Sequence[HookCallLine]) -> str:
    names = dict.fromkeys(call.container for call in calls if call.pod == pod and call.container)
    return f"{pod} {', '.join(names)}".rstrip()


def print_title(title: str) -> None:
    """Print the title of all that follows."""
    print(f"\n{title}\n{'=' * len(title)}\n")
