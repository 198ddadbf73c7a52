"""Write the outputs of the commands into docs/commands.rst; run it by ``python -m tests.outputs``.

Each command there follows "$ " in a literal block, with its output below it. A test compares them. Commands that call
the proxy get canned answers.
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
_COMMAND = re.compile(r"^    \$ (.+)\n(?:    (?!\$ ).*\n|\n(?=    (?!\$ )))*", re.MULTILINE)
"""A command with the lines below it, up to the next command or the end of the block."""


def updated(page: str) -> str:
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder, "admin.sock"), CANNED):
        return _COMMAND.sub(lambda match: indent(f"$ {match[1]}\n{_output(match[1], folder)}", " " * 4), page)


def _output(command: str, folder: str) -> str:
    """Return the output of a command with 80 columns and without a terminal."""
    environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "80"}
    if "config" not in command:  # it would show the variable
        environ["RUNTIMEPROXY_ADMIN_ENDPOINT"] = f"{folder}/admin.sock"
    done = subprocess.run(
        ["bash", "-c", command], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.stdout


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
