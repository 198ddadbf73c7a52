"""The pages of the documentation, which tests compare with the program, their tables, and their literal blocks.

tests/outputs.py or tests/soak writes each block that begins with ``$``, with its output. tests/soak runs the other
blocks without a language.
"""

import re
import textwrap
from collections.abc import Iterator
from functools import cache
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from docutils import nodes
from docutils.core import publish_doctree

ROOT = Path(__file__).parents[1]
DOCS = {path.stem: path.read_text() for path in (ROOT / "docs").glob("*.rst")}
HOOKS, HOOK_API, KOORDLET = DOCS["hooks"], DOCS["hook-api"], DOCS["koordlet"]
PAGES = {
    **{name: (ROOT / name).read_text() for name in ("README.rst", "CHANGELOG.rst", "CONTRIBUTING.rst", "SECURITY.rst")},
    **{f"docs/{name}.rst": text for name, text in sorted(DOCS.items())},
}


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


CODE = code_blocks("python")[0]  # the hook server in ten lines


class Block(NamedTuple):
    """A literal block of a page; ``language`` is "" without one."""

    page: str
    text: str
    language: str

    @property
    def first(self) -> str:
        return self.text.partition("\n")[0]

    @property
    def lines(self) -> list[str]:
        """Return its command lines. A backslash at the end of a line joins it with the next one."""
        return self.text.replace("\\\n", "").splitlines()


@cache
def parsed(page: str) -> tuple[nodes.document, str]:
    warnings = StringIO()
    settings = {"report_level": 2, "halt_level": 5, "warning_stream": warnings, "file_insertion_enabled": False}
    return publish_doctree(PAGES[page], source_path=page, settings_overrides=settings), warnings.getvalue()


def blocks(page: str) -> Iterator[Block]:
    for node in parsed(page)[0].findall(nodes.literal_block):
        languages = [name for name in node.get("classes", []) if name != "code"]
        yield Block(page, node.astext(), languages[0] if languages else "")


def block(page: str, first: str) -> Block:
    [found] = [each for each in blocks(page) if each.first == first]
    return found
