"""Write the tables of docs/fleets.rst, or check that they are what would be written.

Run: ``python -m scripts.fleets [--check]``; scripts/fleet calls it.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from scripts.fleets import blast

PAGE = Path("docs/fleets.rst")
_TABLE = r"(?m)^\.\. Written by scripts/fleet: {}\.\n\n(?:(?:[. ].*)?\n)*(?=\S|\Z)"
"""A table with the comment before it, up to the next text."""


def main() -> int:
    """Write the page, or with ``--check`` compare it; return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/fleet", description="Write the tables of docs/fleets.rst.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the page would change")
    arguments = parser.parse_args()
    page = PAGE.read_text()
    wanted = renewed(page, tables())
    if not arguments.check:
        PAGE.write_text(wanted)
    elif page != wanted:
        print(f"fleet: {PAGE} would change: run scripts/fleet", file=sys.stderr)
        return 1
    return 0


def tables() -> Mapping[str, str]:
    """Return the tables by name."""
    ways = [[f"**{way}**", does, f"{blast.BACK_SECONDS:g} s"] for way, does in blast.WAYS_BACK.items()]
    return {
        "blast radius": table(("Hook server", "Policy", "Lost", "Waits", "Seen", "Status"), blast.rows()),
        "ways back": table(("Way back", "What it does", "Within"), ways),
    }


def renewed(page: str, made: Mapping[str, str]) -> str:
    """Return a page with these tables in their places. Raises ValueError if a table has none."""
    for name, text in made.items():
        page, places = re.subn(_TABLE.format(name), lambda _: f".. Written by scripts/fleet: {name}.\n\n{text}\n", page)  # noqa: B023
        if places != 1:
            raise ValueError(f"{PAGE} has {places} places for the table {name}")
    return page


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a list-table."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for first, *others in (head, *rows):
        lines += [f"   * - {first}", *(f"     - {cell}" for cell in others)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
