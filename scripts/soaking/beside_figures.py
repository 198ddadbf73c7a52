"""What calls cost beside something that hangs, in figures with their limits.

Owns the figures' words, and which limits are judged.
Must not know: how anything is run.
Invariant: a ratio is judged only where all calls of its turns were made.
"""

from scripts.benchmark.cases import HOOKED
from scripts.soaking import big, hung, slow
from scripts.soaking.beside import Beside
from scripts.soaking.results import Figure, Found


def beside_hung(name: str, share: float) -> Found:
    """Measure other calls beside creates whose hook server hangs."""
    what = f"p99 beside {hung.HELD} held creates to that at another proxy"
    return Found([_figure(f"{each.case.name}: {what}", each, hung.RATIO, share) for each in hung.measure(name, share)])


def beside_slow(name: str, share: float) -> Found:
    """Measure other calls beside creates that the runtime does not answer."""
    what = f"p99 beside {slow.HELD} creates that the runtime does not answer to that at another proxy"
    return Found([_figure(f"{each.case.name}: {what}", each, slow.RATIO, share) for each in slow.measure(name, share)])


def beside_creates(name: str, share: float) -> list[Figure]:
    """Measure small calls beside creates of 16 MiB."""
    limit = f"{big.MORE_MICROSECONDS / 1000:.0f} ms more than past the proxy"
    return [
        Figure(
            f"p99 of a small call beside creates of 16 MiB{', with a hook server' if each.way == HOOKED else ''}",
            f"{each.through / 1000:.1f} ms (past the proxy {each.past / 1000:.1f} ms)",
            limit,
            each.kept if share == 1 else None,
        )
        for each in big.measure(name, share)
    ]


def _figure(what: str, found: Beside, limit: float, share: float) -> Figure:
    here, elsewhere = found.p99s
    shown = f"{found.ratio:.2f} ({here:,} us to {elsewhere:,} us)"
    return Figure(what, shown, f"{limit:.2f}", found.ratio <= limit if share == 1 else None)
