"""Write the outputs of the commands into docs/commands.rst; run it by ``python -m tests.outputs``.

There a command follows "$ " in a literal block, with its output below it. A test compares them. The commands that call
the proxy get the tests' canned answers.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import indent

from tests.cli.admin_answers import CANNED
from tests.fakes.canned_admin import serving

PAGE = Path(__file__).parents[1] / "docs" / "commands.rst"
_MARGIN = " " * 4
_COMMAND = re.compile(r"^    \$ (.+)\n(?:    (?!\$ ).*\n|\n(?=    (?!\$ )))*", re.MULTILINE)
"""A command with the lines below it, up to the next command or the end of the block."""


def main() -> None:
    """Write the page again."""
    PAGE.write_text(renewed(PAGE.read_text()))


def renewed(page: str) -> str:
    """Return a page with the outputs that its commands have now."""
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder, "admin.sock"), CANNED):
        return _COMMAND.sub(lambda found: indent(f"$ {found[1]}\n{_output(found[1], folder)}", _MARGIN), page)


def _output(command: str, folder: str) -> str:
    """Return what a command prints where 80 columns are wide enough and stdout is no terminal."""
    environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "80"}
    if "config" not in command:  # it would show the variable
        environ["RUNTIMEPROXY_ADMIN_ENDPOINT"] = f"{folder}/admin.sock"
    done = subprocess.run(
        ["bash", "-c", command], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.stdout


if __name__ == "__main__":
    main()
