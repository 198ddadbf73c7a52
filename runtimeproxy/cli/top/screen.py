"""The layout of ``runtimeproxy top``: from the figures to rich's tables.

Invariant: a frame is no higher than the terminal, and no text of the proxy's can control the terminal.
"""

import math
from collections.abc import Sequence
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from runtimeproxy.cli.shared.output import STATES, printable
from runtimeproxy.cli.top.figures import GOOD_OUTCOMES, GOOD_STATE, OUTCOMES, Error, HookServer, Operation, View
from runtimeproxy.observe.metric_table import SECONDS

HEAD, TITLE, GOOD, MEDIUM, BAD, FAINT = "bold", "bold cyan", "green", "yellow", "bold red", "dim"
NOTHING = Text("-", FAINT)
_SIDE_BY_SIDE, _COLUMNS_OF_ERRORS, _POLICY, _LAST_ERROR = 156, 120, 80, 98
"""Least widths: for hook servers next to the operations, for separate columns of an error's subject, for a hook
server's policy and last error."""
_LEFT_WIDTH, _BETWEEN = 76, 4
_NOTES, _LEAST_ERRORS, _MOST_ERRORS = 3, 3, 20
"""Most lines of /readyz, least lines of errors, and most of errors if the output has no height."""
_LATENCY_LINES, _GAPS = 3, 4
_LONGEST_NAME, _SHORTEST_NAME, _STATE, _KIND, _FIGURE = 24, 21, 8, 12, 8
"""Widths of columns; heads are filled up to them, else columns would move as figures come and go."""
_Row = TypeVar("_Row")


def screen(view: View, width: int, height: int | None = None) -> RenderableType:
    """Return a frame for so many columns and lines; without a height, with all rows."""
    head = _head(view)
    side_by_side = width >= _SIDE_BY_SIDE
    operations, hook_servers, errors, spaced = _rows(view, None if height is None else height - len(head), side_by_side)
    gap: list[RenderableType] = [Text()] * spaced
    calls: list[RenderableType] = [_operations(view.operations, operations), *gap, _latency(view)]
    servers = _hook_servers(view.hook_servers, hook_servers, width - (_LEFT_WIDTH + _BETWEEN) * side_by_side)
    last = [*gap, _errors(view.errors, errors, width)]
    if not side_by_side:
        return Group(*head, *gap, *calls, *gap, servers, *last)
    grid = Table.grid(padding=(0, _BETWEEN, 0, 0), expand=True)
    grid.add_column(width=_LEFT_WIDTH)
    grid.add_column(ratio=1)
    grid.add_row(Group(*calls), servers)
    return Group(*head, *gap, grid, *last)


def _rows(view: View, lines: int | None, side_by_side: bool) -> tuple[int, int, int, bool]:
    """Return how many operations, hook servers and errors there is room for, and whether also for empty lines."""
    operations, servers = max(len(view.operations), 1), max(len(view.hook_servers), 1)
    if lines is None:
        return operations, servers, _MOST_ERRORS, True
    if side_by_side:
        most = max(lines - _LEAST_ERRORS - 3, 0)
        operations, servers = min(operations, max(most - _LATENCY_LINES - 2, 0)), min(servers, most - 1)
        return operations, servers, lines - max(operations + _LATENCY_LINES + 2, servers + 1) - 3, True
    rows = lines - _LATENCY_LINES - 3
    spaced = operations + servers + _LEAST_ERRORS <= rows - _GAPS
    rows -= _GAPS * spaced
    operations, servers = allocate_lines(rows - _LEAST_ERRORS, operations, servers)
    return operations, servers, rows - operations - servers, spaced


def allocate_lines(lines: int, *desired: int) -> list[int]:
    """Return each part's number of lines: the desired one, or as many as the other parts that get fewer."""
    given = [0] * len(desired)
    while lines > 0 and (short := [at for at, most in enumerate(desired) if given[at] < most]):
        for at in short[:lines]:
            given[at] += 1
        lines -= len(short)
    return given


def duration(seconds: float | None) -> str:
    """Return a time in the unit that suits it, with two or three digits."""
    if seconds is None:
        return "-"
    if math.isinf(seconds):
        return f">{SECONDS[-1]:g} s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms" if seconds else "0 s"
    if seconds < 99.5:
        return f"{seconds:.3g} s"
    minutes = int(seconds // 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 48 * 60 else f"{minutes // 1440} d"


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0f}" if rate >= 99.95 else f"{rate:.1f}"


def _text(text: str, style: str = "") -> Text:
    """Return a text that cannot control the terminal."""
    return Text(printable(text), style)


def _head(view: View) -> list[RenderableType]:
    since = "since its start" if view.interval is None else f"last {view.interval:.0f} s"
    state = {True: ("ready", GOOD), False: ("not ready", BAD), None: ("ready unknown", MEDIUM)}[view.ready]
    if view.ready and view.notes:
        state = "ready, degraded", MEDIUM
    if view.missing:
        state = "no answer, these figures are old", BAD
    name = _text(f"runtimeproxy {view.version} {view.mode}".strip(), HEAD)
    first = Text.assemble(name, "   ", state, f"   up {duration(view.uptime)}   {since}")
    held = Text(f"held {view.held}", HEAD if view.held else "")
    oldest = f", oldest {duration(view.oldest)}" if view.held else ""
    store = f"  pods {view.pods}  containers {view.containers}  connections {view.connections}"
    second = Text.assemble(held, oldest, f"  passing {_rate(view.passing)}/s", store)
    notes = [_text(note, BAD if note.startswith("[-]") else MEDIUM) for note in view.notes[:_NOTES]]
    if len(view.notes) > _NOTES:
        notes[-1] = Text(f"and {len(view.notes) - _NOTES + 1} more in /readyz?verbose", MEDIUM)
    if view.missing:
        notes.insert(0, _text(view.missing, BAD))
    lines = [first, second, *notes]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return list(lines)


def _table(first: str, *more: str, last: str = "") -> Table:
    """Return a table with a left column, columns of figures, and a last one that fills the width."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=TITLE, expand=bool(last))
    table.add_column(first, no_wrap=True, overflow="ellipsis")
    for name in more:
        table.add_column(name, justify="right", no_wrap=True)
    if last:
        table.add_column(last, ratio=1, no_wrap=True, overflow="ellipsis")
    return table


def _cut(rows: Sequence[_Row], most: int) -> tuple[Sequence[_Row], str]:
    if len(rows) <= most:
        return rows, ""
    shown = max(most - 1, 0)
    return rows[:shown], f"and {len(rows) - shown} more"


def _operations(operations: Sequence[Operation], most: int) -> Table:
    table = _table(f"{'OPERATION':{_LONGEST_NAME}}", "CALLS/S", *(outcome.upper() for outcome in OUTCOMES))
    rows, more = _cut(operations, most)
    for row in rows:
        counts = [_count(row.outcomes[o], o not in GOOD_OUTCOMES, o in row.worse) for o in OUTCOMES]
        table.add_row(_text(row.name), _rate(row.rate), *counts)
    if more or not operations:
        table.add_row(Text(more or "no call was held yet", FAINT))
    return table


def _count(count: int, bad: bool, worse: bool) -> Text:
    if not count:
        return NOTHING
    return Text(str(count), BAD if worse else MEDIUM if bad else "")


def _latency(view: View) -> Table:
    table = _table("LATENCY", *(f"{part.upper():>{_FIGURE}}" for part in view.parts))
    parts = view.parts.values()
    for at, quantile in enumerate(("p50", "p99")):
        table.add_row(quantile, *(duration(part[at]) for part in parts))
    return table


def _hook_servers(servers: Sequence[HookServer], most: int, width: int) -> Table:
    policy, last_error = ["POLICY"] * (width >= _POLICY), ["LAST ERROR"] * (width >= _LAST_ERROR)
    heads = (f"{'HOOK SERVER':{_SHORTEST_NAME}}", f"{'STATE':{_STATE}}", *policy)
    figures = (f"{'P50':>{_FIGURE}}", f"{'P99':>{_FIGURE}}")
    table = _table(*heads, "CALLS/S", *figures, "FAILED", last="".join(last_error))
    table.columns[0].max_width = _LONGEST_NAME
    for column in table.columns[1 : 2 + len(policy)]:
        column.justify = "left"
    if len(servers) > most:  # the bad ones must be seen
        servers = sorted(servers, key=lambda server: (server.state == GOOD_STATE, not server.worse))
    rows, more = _cut(servers, most)
    for row in rows:
        words = STATES.get(row.state, row.state).removeprefix("breaker ")
        state = _text(words, GOOD if row.state == GOOD_STATE else MEDIUM if row.state == "disabled" else BAD)
        kind = [_text(row.policy) for _ in policy]
        last = [_text(row.last_error) for _ in last_error]
        measured = (_rate(row.rate), *map(duration, row.latency))
        table.add_row(_text(row.name), state, *kind, *measured, _count(row.failures, True, row.worse), *last)
    if more or not servers:
        table.add_row(Text(more or "none registered", FAINT))
    return table


def _errors(errors: Sequence[Error], most: int, width: int) -> Table:
    wide = width >= _COLUMNS_OF_ERRORS
    table = _table("ERRORS, UTC", f"{'KIND':{_KIND}}", *["OPERATION", "HOOK SERVER", "SUBJECT"] * wide, last="WHAT")
    for column, longest in zip(table.columns[1:-1], (15, 27, _LONGEST_NAME, width // 4), strict=False):
        column.justify, column.overflow, column.max_width = "left", "ellipsis", longest
    for time, kind, operation, subject, hook_server, text in errors[: max(most, 0)]:
        about = (operation, hook_server, subject, text)
        more = about if wide else ("  ".join(filter(None, (text, hook_server, subject, operation))),)
        table.add_row(_text(time), _text(kind, BAD), *map(_text, more))
    if not errors:
        table.add_row(Text("none", FAINT))
    return table
