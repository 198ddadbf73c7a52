"""The pages of the documentation, and their literal blocks.

tests/outputs.py or tests/soak writes each block that begins with ``$``, with its output. tests/soak runs the other
blocks without a language.
"""

from collections.abc import Iterator
from functools import cache
from io import StringIO
from typing import NamedTuple

from docutils import nodes
from docutils.core import publish_doctree

from tests.docs import DOCS, ROOT

PAGES = {
    **{name: (ROOT / name).read_text() for name in ("README.rst", "CHANGELOG.rst", "CONTRIBUTING.rst", "SECURITY.rst")},
    **{f"docs/{name}.rst": text for name, text in sorted(DOCS.items())},
}


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
    document, _ = parsed(page)
    for node in document.findall(nodes.literal_block):
        classes: list[str] = node.get("classes", [])
        languages = [name for name in classes if name != "code"]
        yield Block(page, node.astext(), languages[0] if languages else "")


def block(page: str, first: str) -> Block:
    [found] = [each for each in blocks(page) if each.first == first]
    return found
