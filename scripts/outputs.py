"""Write the outputs of the commands into docs/commands.rst; run it by ``python -m scripts.outputs``.

There a command stands behind "$ " in a literal block, and its output below it. A test compares them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent

PAGE = Path(__file__).parents[1] / "docs" / "commands.rst"
_MARGIN = " " * 4
_COMMAND = re.compile(r"^    \$ (.+)\n(?:    (?!\$ ).*\n|\n(?=    (?!\$ )))*", re.MULTILINE)
"""A command with the lines below it, up to the next command or the end of the block."""


def main() -> None:
    """Write the page anew."""
    PAGE.write_text(renewed(PAGE.read_text()))


def renewed(page: str) -> str:
    """Return a page with the outputs that its commands have now."""
    return _COMMAND.sub(lambda found: indent(f"$ {found[1]}\n{_output(found[1])}", _MARGIN), page)


def _output(command: str) -> str:
    """Return what a command prints where 80 columns are wide enough and stdout is no terminal."""
    environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "80"}
    done = subprocess.run(
        ["bash", "-c", command], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.stdout


if __name__ == "__main__":
    main()
