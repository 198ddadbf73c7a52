"""Check that no Python file is longer than 600 lines, and no function longer than 60 (without its docstring).

Up to that length a path is read in one piece; shorter pieces would scatter it. Generated code is left out. Prints what
is too long; exit code 1 if anything is.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

LONGEST_FILE = 600
LONGEST_FUNCTION = 60
FOLDERS = ("runtimeproxy", "hooks", "deploy", "scripts", "tests")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> int:
    """Check every Python file of the checkout in the current directory; return the exit code."""
    files = [Path("setup.py"), *(path for folder in FOLDERS for path in sorted(Path(folder).rglob("*.py")))]
    findings = [line for path in files if not path.stem.endswith("_pb2") for line in too_long(path)]
    print("\n".join(findings) or f"{len(files)} files, none too long")
    return bool(findings)


def too_long(path: Path) -> Iterator[str]:
    """Yield a line for the file, and for each of its functions, that is too long."""
    text = path.read_text()
    count = len(text.splitlines())
    if count > LONGEST_FILE:
        yield f"{path}: {count} lines, {LONGEST_FILE} at most"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Function) and length(node) > LONGEST_FUNCTION:
            yield f"{path}:{node.lineno}: {node.name} has {length(node)} lines, {LONGEST_FUNCTION} at most"


def length(function: Function) -> int:
    """Return the number of lines from ``def`` to the end, without the docstring."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function, clean=False) is not None:
        docstring = function.body[0]
        assert docstring.end_lineno is not None
        lines -= docstring.end_lineno - docstring.lineno + 1
    return lines


if __name__ == "__main__":
    sys.exit(main())
