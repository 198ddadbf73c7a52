"""The code blocks of docs/hooks.rst, which tests run as they stand there.

Owns how a block is found in the text.
Must not know: what is done with it.
"""

import re
import textwrap
from pathlib import Path

HOOKS = (Path(__file__).parents[1] / "docs" / "hooks.rst").read_text()


def code_blocks(language: str) -> list[str]:
    """Return the blocks of a language, in their order."""
    found = re.findall(rf"^\.\. code-block:: {language}\n\n((?:(?:   .*)?\n)+)", HOOKS, re.MULTILINE)
    return [textwrap.dedent(block).strip() + "\n" for block in found]


CODE = code_blocks("python")[0]
"""The hook server of ten lines."""
