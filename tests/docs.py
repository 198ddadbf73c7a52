"""The documents that tests compare with the program, and functions that find a table or a code block in one."""

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = {path.stem: path.read_text() for path in (ROOT / "docs").glob("*.rst")}
HOOKS, HOOK_API, KOORDLET = DOCS["hooks"], DOCS["hook-api"], DOCS["koordlet"]


def table(document: str, heading: str) -> list[list[str]]:
    """Return the rows of the list-table below a heading, without the head row."""
    section = document.partition(f"\n{heading}\n{'-' * len(heading)}\n")[2]
    body = re.split(r"\n\n(?=\S)", section.partition(".. list-table::")[2])[0]
    return [
        [" ".join(cell.split()) for cell in row.split("\n     - ")]
        for row in body.partition(":header-rows: 1")[2].split("\n   * - ")[2:]
    ]


def tables(document: str, last: str) -> list[list[list[str]]]:
    """Return the rows of each list-table whose last column has this heading, without the head rows."""
    found = []
    for body in re.split(r"^\.\. list-table::\n", document, flags=re.MULTILINE)[1:]:
        rows = re.split(r"^   \* - ", re.split(r"\n\n(?=\S)", body)[0], flags=re.MULTILINE)[1:]
        cells = [re.split(r"^     -", row, flags=re.MULTILINE) for row in rows]
        head, *rest = [[" ".join(cell.split()) for cell in row] for row in cells]
        found += [rest] if head[-1] == last else []
    return found


def code_blocks(language: str) -> list[str]:
    """Return the code blocks of a language in docs/hooks.rst, in their order."""
    found = re.findall(rf"^\.\. code-block:: {language}\n\n((?:(?:   .*)?\n)+)", HOOKS, re.MULTILINE)
    return [textwrap.dedent(block).strip() + "\n" for block in found]


CODE = code_blocks("python")[0]
"""The hook server in ten lines."""
