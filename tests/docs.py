"""The documents that tests compare with the program, and functions that find their tables and code blocks."""

import re
import textwrap
from pathlib import Path

from docutils import nodes
from docutils.core import publish_doctree

ROOT = Path(__file__).parents[1]
DOCS = {path.stem: path.read_text() for path in (ROOT / "docs").glob("*.rst")}
HOOKS, HOOK_API, KOORDLET = DOCS["hooks"], DOCS["hook-api"], DOCS["koordlet"]


def table(document: str, heading: str) -> list[list[str]]:
    """Return the rows of the first table below a heading, without the head row, in the markup of the page."""
    section = document.partition(f"\n{heading}\n{'-' * len(heading)}\n")[2]
    quiet = {"report_level": 5, "halt_level": 5}  # a link to another section has no target here
    node = publish_doctree(section, settings_overrides=quiet).next_node(nodes.table)
    assert node, heading
    return [
        [" ".join(" ".join(text.rawsource for text in cell.findall(nodes.paragraph)).split()) for cell in row]
        for body in node.findall(nodes.tbody)
        for row in body
    ]


def tables(document: str, last: str) -> list[list[list[str]]]:
    """Return the rows of each list-table whose last column has this heading, without the head rows."""
    matching = []
    for body in re.split(r"^\.\. list-table::\n", document, flags=re.MULTILINE)[1:]:
        rows = re.split(r"^   \* - ", re.split(r"\n\n(?=\S)", body)[0], flags=re.MULTILINE)[1:]
        cells = [re.split(r"^     -", row, flags=re.MULTILINE) for row in rows]
        head, *body_rows = [[" ".join(cell.split()) for cell in row] for row in cells]
        matching += [body_rows] if head[-1] == last else []
    return matching


def code_blocks(language: str) -> list[str]:
    """Return the code blocks of a language in docs/hooks.rst, in their order."""
    blocks = re.findall(rf"^\.\. code-block:: {language}\n\n((?:(?:   .*)?\n)+)", HOOKS, re.MULTILINE)
    return [textwrap.dedent(block).strip() + "\n" for block in blocks]


CODE = code_blocks("python")[0]
"""The hook server in ten lines."""
