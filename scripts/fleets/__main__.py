"""Write the tables of docs/fleets.rst, or check that they are what would be written.

Run: ``python -m scripts.fleets [--check | --measure]``; scripts/fleet calls it.
"""

import asyncio
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from scripts.checks.generated import parser, write_or_compare
from scripts.fleets import blast, costs, gates

PAGE = Path("docs/fleets.rst")
_TABLE = r"(?m)^\.\. Written by scripts/fleet: {}\.\n\n(?:(?:[. ].*)?\n)*(?=\S|\Z)"
"""A table with the comment before it, up to the next text."""


def main() -> int:
    """Write the page, or with ``--check`` compare it; return the exit code."""
    command = "scripts/fleet"
    flags = parser(command, f"Write the tables of {PAGE}.")
    flags.add_argument("--measure", action="store_true", help="measure anew first; needs dist/ with the Debian package")
    arguments = flags.parse_args()
    if arguments.measure:
        from scripts.fleets.measure import measure  # the tests' fakes, which nothing else here needs

        costs.MEASURED.write_text(json.dumps(asyncio.run(measure()), indent=2) + "\n")
    return write_or_compare(command, {PAGE: renewed(PAGE.read_text(), tables())}, check=arguments.check)


def tables() -> Mapping[str, str]:
    """Return the tables by name."""
    found = costs.measured()
    ways = [[f"**{way}**", does, f"{blast.BACK_SECONDS:g} s"] for way, does in blast.WAYS_BACK.items()]
    return {
        "pools": table(("Pool", "Watched for"), gates.POOLS),
        "gates of a proxy": table(("What must be so", "What has data where it is not"), gates.rows(gates.OF_PROXY)),
        "gates of a hook server": table(
            ("What must be so", "What has data where it is not"), gates.rows(gates.OF_HOOK_SERVER)
        ),
        "blast radius": table(("Hook server", "Policy", "Lost", "Waits", "Seen", "Status"), blast.rows()),
        "ways back": table(("Way back", "What it does", "Within"), ways),
        "measured": table(("What", "Measured", "How"), costs.node_rows(found)),
        "fleet": table(("What", f"Of {costs.NODES:,} nodes"), costs.fleet_rows(found)),
        "hours": table(
            ("Nodes at a time", "Hours of an upgrade", "Hours of the first installation"), costs.hours_rows(found)
        ),
        "seconds": table(("Step", "Seconds"), costs.seconds_rows(found)),
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
