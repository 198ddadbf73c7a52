"""What scripts/bench prints.

Owns the tables.
Must not know: how anything is measured.
Invariant: every figure names its unit.
"""

from collections.abc import Callable, Sequence
from statistics import median

from scripts.benchmark.cases import Case
from scripts.benchmark.limits import MIB, Check, Verdict
from scripts.benchmark.measure import Figures, Round
from scripts.demonstration.report import print_table

HEADER = (
    *("case", "way", "p50 us", "p99 us", "calls/s", "CPU us/call", "grew MiB"),
    *("p50 to direct", "p50 to pipe", "CPU to pipe"),
)


def show_figures(mode: str, rounds: Sequence[Round]) -> None:
    """Print the medians over the rounds of a mode."""
    title = f"{mode}, median of {len(rounds)} rounds" if len(rounds) > 1 else f"{mode}, one round"
    print_table(f"{title}, every way in turns", [HEADER, *figure_rows(rounds)])


def figure_rows(rounds: Sequence[Round]) -> list[tuple[str, ...]]:
    """Return the rows below ``HEADER``: every case on each of its ways."""
    return [_row(rounds, case, way) for case, way in rounds[0]]


def _rate(value: float) -> str:
    """Spell calls per second, of which transfers make less than one."""
    return format(value, ".0f" if value >= 10 else ".2f")


def _row(rounds: Sequence[Round], case: Case, way: str) -> tuple[str, ...]:
    def over(
        figure: Callable[[Figures], float | None], spelling: str | Callable[[float], str], base: str | None = None
    ) -> str:
        values = [_value(measured, case, way, figure, base) for measured in rounds]
        known = [value for value in values if value is not None]
        if not known:
            return "-"
        return format(median(known), spelling) if isinstance(spelling, str) else spelling(median(known))

    return (
        case.name,
        way,
        over(lambda figures: figures.p50, ".0f"),
        over(lambda figures: figures.p99, ".0f"),
        over(lambda figures: figures.calls_per_second, _rate),
        over(lambda figures: figures.cpu, ".1f"),
        over(lambda figures: None if figures.growth is None else figures.growth / MIB, ".2f"),
        over(lambda figures: figures.p50, ".2f", "direct"),
        over(lambda figures: figures.p50, ".2f", "pipe"),
        over(lambda figures: figures.cpu, ".2f", "pipe"),
    )


def _value(
    measured: Round, case: Case, way: str, figure: Callable[[Figures], float | None], base: str | None
) -> float | None:
    """Return a figure, or its ratio to that of another way; None where there is none."""
    value = figure(measured[case, way])
    if base is None or value is None:
        return value
    other = figure(measured[case, base]) if (case, base) in measured else None
    return value / other if other else None


def show_checks(mode: str, checks: Sequence[Check]) -> None:
    """Print what was found of the proxy by itself."""
    rows = [(check.what, check.found, check.limit, _word(check.kept)) for check in checks]
    print_table(f"{mode}, the proxy by itself", [("", "found", "limit", ""), *rows])


def show_verdicts(mode: str, verdicts: Sequence[Verdict]) -> None:
    """Print the limits and what was found."""
    rows = [
        (verdict.name, f"{verdict.median:.2f}", f"{verdict.best:.2f}", verdict.limit, _word(verdict.kept))
        for verdict in verdicts
    ]
    print_table(f"{mode}, limits by the median of the rounds", [("figure", "median", "best", "limit", ""), *rows])


def _word(kept: bool) -> str:
    return "ok" if kept else "MISSED"
