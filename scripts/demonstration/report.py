"""What the demo prints: the effects asked for and found, the hook calls with their times, and the verdict.

Owns the tables and what counts as success.
Must not know: how anything was found out.
Invariant: success is every effect true inside and every expected hook call made, nothing less.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import localtime, strftime


@dataclass(frozen=True, slots=True)
class Effect:
    """One row: what the kubelet asked for, what the hook server set ("" for nothing), what is true inside."""

    container: str
    what: str
    asked: str
    hook: str
    inside: str

    @property
    def true(self) -> bool:
        """Tell whether the inside shows the hook server's value, or the kubelet's where no hook set one."""
        return self.inside == (self.hook or self.asked)


@dataclass(frozen=True, slots=True)
class HookCallLine:
    """One line of the hook server's log: seconds since the epoch, and milliseconds that the answer took there."""

    at: float
    point: str
    pod: str
    container: str
    took_ms: float


def read_calls(path: Path) -> list[HookCallLine]:
    """Read the hook server's log."""
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        HookCallLine(entry["time"], entry["point"], entry["pod"], entry["container"], entry["took_ms"])
        for entry in entries
    ]


@dataclass(frozen=True, slots=True)
class Wording:
    """What the found values are called: the column's head, and the verdict on all of them."""

    column: str
    verdict: str


INSIDE = Wording("true inside", "are true inside the containers")
OF_A_FAKE = Wording("the fake shows", "reached the fake runtime, where no container really runs")


def show(
    effects: Sequence[Effect],
    calls: Sequence[HookCallLine],
    expected_calls: Mapping[str, int],
    wording: Wording = INSIDE,
) -> bool:
    """Print both tables and the verdict; return whether all is as it should be."""
    header = ("container", "what", "the kubelet asked", "the hook set", wording.column, "")
    rows = [
        (effect.container, effect.what, effect.asked, effect.hook or "-", effect.inside, "ok" if effect.true else "NO")
        for effect in effects
    ]
    print_table("What was asked, what was changed, what came of it", [header, *rows])
    print_table("Hook calls", [("time", "after", "hook point", "pod", "container", "took"), *_call_rows(calls)])
    wrong = [f"{effect.container} {effect.what}" for effect in effects if not effect.true]
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


def _call_rows(calls: Sequence[HookCallLine]) -> list[tuple[str, ...]]:
    return [
        (
            strftime("%H:%M:%S", localtime(call.at)) + f".{int(call.at % 1 * 1000):03d}",
            f"{(call.at - calls[0].at) * 1000:.0f} ms",
            call.point,
            call.pod,
            call.container or "-",
            f"{call.took_ms:.2f} ms",
        )
        for call in calls
    ]


def print_title(title: str) -> None:
    """Print the title of all that follows."""
    print(f"\n{title}\n{'=' * len(title)}\n")


def print_table(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a title; the first row is the header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    rule = "  ".join("-" * width for width in widths)
    print("\n".join(["", title, "", lines[0], rule, *lines[1:], ""]))
