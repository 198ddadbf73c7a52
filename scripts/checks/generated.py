"""Files that a program of ours writes: written, or compared with what would be written.

Must not know: what is in them.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path


def parser(command: str, description: str) -> argparse.ArgumentParser:
    """Return the parser of a command that writes files, with its flag ``--check``."""
    made = argparse.ArgumentParser(prog=command, description=description)
    made.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a file would change")
    return made


def write_or_compare(command: str, desired: Mapping[Path, str], *, check: bool) -> int:
    """Write files, or with ``check`` print which of them ``command`` would change; return the exit code."""
    changed = [path for path, text in desired.items() if not path.exists() or path.read_text() != text]
    for path in changed:
        if check:
            print(f"{path} would change: run {command}", file=sys.stderr)
        else:
            path.write_text(desired[path])
    return int(check and bool(changed))
