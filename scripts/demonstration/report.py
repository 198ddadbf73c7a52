"""The output of the demo: the expected and actual effects, the hook calls with their times, and the verdict.

It succeeds only if every effect was found and every expected hook call was made.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import localtime, strftime
from typing import NamedTuple

from scripts.figures import print_table


class Effect(NamedTuple):
    """What the kubelet asked for, what a hook set ("" for nothing), what was found. Without a container it is the
    pod's."""

    pod: str
    container: str
    what: str
    asked: str
    hook: str
    inside: str

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.pod, self.container, self.what)))

    @property
    def true(self) -> bool:
        """Return whether the hook's value was found, or the kubelet's if no hook set one."""
        return self.inside == (self.hook or self.asked)


class HookCall(NamedTuple):
    """One noted call, in seconds since the epoch."""

    time: float
    point: str
    pod: str
    container: str


def read_calls(path: Path) -> list[HookCall]:
    return [HookCall(**json.loads(line)) for line in path.read_text().splitlines()]


INSIDE = ("true inside", "are true in the containers and on the node")
OF_A_FAKE = ("the fake shows", "reached the fake runtime, where no container really runs")
"""Names for the found values: the column's head, and the verdict on all of them."""


def show(
    effects: Sequence[Effect],
    calls: Sequence[HookCall],
    expected: Mapping[str, int],
    wording: tuple[str, str] = INSIDE,
) -> bool:
    """Print both tables and the verdict; return whether all is as expected."""
    column, verdict = wording
    rows = [("pod", "container", "what", "the kubelet asked", "the hook set", column, "")]
    rows += [
        (pod, container or "-", what, asked, hook or "-", inside, "ok" if effect.true else "NO")
        for effect in effects
        for pod, container, what, asked, hook, inside in [effect]
    ]
    print_table("What was asked, what was changed, what came of it", rows)
    _print_calls(calls, expected)
    print()
    wrong = [effect.name for effect in effects if not effect.true]
    counted = Counter(call.point for call in calls)
    uncalled = [f"{point} {counted[point]} of {times}" for point, times in expected.items() if counted[point] != times]
    for problem, names in (("not as it should be", wrong), ("hook calls made", uncalled)):
        if names:
            print(f"FAILED: {problem}: {', '.join(names)}")
    if not (wrong or uncalled):
        print(f"OK: {len(effects)} effects {verdict}, {len(calls)} hook calls were made.")
    return not (wrong or uncalled)


def _print_calls(calls: Sequence[HookCall], expected: Mapping[str, int]) -> None:
    """Print the calls: one row per hook point, one column per pod."""
    first = min((call.time for call in calls), default=0.0)
    pods: dict[str, str] = {}
    for call in calls:
        pods[call.pod] = call.container or pods.get(call.pod, "")
    rows = [("hook point", *(" ".join(filter(None, each)) for each in pods.items()))]
    for point in expected:
        times = (
            [f"{(call.time - first) * 1000:.0f}" for call in calls if (call.point, call.pod) == (point, pod)]
            for pod in pods
        )
        rows.append((point, *(", ".join(each) or "-" for each in times)))
    clock = strftime("%H:%M:%S", localtime(first)) + f".{int(first % 1 * 1000):03d}"
    print_table(f"Hook calls, at milliseconds after the first one at {clock}", rows)
