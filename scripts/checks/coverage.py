"""Compare the covered branches of each package with the least shares: ``python -m scripts.checks.coverage FILE``.

FILE is the output of ``coverage json``. scripts/coverage runs all tests and calls this. Exit code 0: no share is lower.
"""

import json
import sys
from collections import Counter
from pathlib import Path

from scripts.figures import Figure, show

LEAST = {
    **dict.fromkeys(("hooks", "hooks/lib", "hooks/servers"), 100.0),
    **{"hooks/sdk": 99.4, "hooks/tools": 96.9},
    **{f"runtimeproxy/{name}": 100.0 for name in ("hookapi", "model", "observe", "settings", "wire")},
    **{"runtimeproxy": 98.3, "runtimeproxy/admin": 98.7, "runtimeproxy/cli": 97.8, "runtimeproxy/core": 99.2},
    **{"runtimeproxy/cri": 98.9, "runtimeproxy/docker": 99.8, "runtimeproxy/plugins": 99.5, "runtimeproxy/relay": 98.5},
}
"""Percent of the branches, measured on 2026-11-29."""


def main(file: str) -> int:
    """Print the shares; return the exit code."""
    branches, covered = Counter[str](), Counter[str]()
    for name, found in json.loads(Path(file).read_text())["files"].items():
        top, package, *_ = name.split("/")
        place = top if package.endswith(".py") else f"{top}/{package}"
        branches[place] += found["summary"]["num_branches"]
        covered[place] += found["summary"]["covered_branches"]
    figures = []
    for place, least in sorted(LEAST.items()):
        share = 100 * covered[place] / branches[place]
        figures.append(Figure(place, f"{share:.2f} % of {branches[place]}", f"at least {least} %", share >= least))
    show("Covered branches", figures)
    return int(any(figure.missed for figure in figures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
