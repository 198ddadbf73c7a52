"""Check that each rule cited by code or tests is in docs/, and that each rule there is cited by a test or a soak step.

A rule's number is bold at the beginning of its paragraph, a promise's is in the first column of its table. A section of
the hook protocol is cited by its heading. Prints what is wrong; exit code 1 if anything is.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("runtimeproxy", "hooks", "scripts", "tests")
SHOWING = ("tests", "scripts/benchmark")
"""The folders whose citations count as proof of a rule: the tests, and what the soak and the bench run."""
NUMBERS = r"[A-Z]?\d+(?:(?:, | and | to )[A-Z]?\d+)*"
CITATION = re.compile(
    rf"\b(relay-rules|fault\s+matrix|promises?)\s+({NUMBERS})|\bhook-api,\s+\"([\w ]+)\"", re.IGNORECASE
)
RELAY_RULES, FAULTS, PROMISES, HOOK_API = "relay-rules", "fault matrix", "promise", "hook-api"


def main() -> int:
    """Check the checkout in the current directory; return the exit code."""
    known = set(rules())
    cited = {
        path: set(citations(path.read_text())) for folder in FOLDERS for path in sorted(Path(folder).rglob("*.py"))
    }
    shown = {rule for path, found in cited.items() if path.as_posix().startswith(SHOWING) for rule in found}
    findings = [
        f"{path}: cites {kind} {number}, which docs/ does not have: correct it, or write the rule"
        for path, found in cited.items()
        for kind, number in sorted(found - known)
    ]
    for kind, number in sorted(known - shown):
        findings.append(f"docs: no test cites {kind} {number}: name it in the docstring of the test that shows it")
    for row in _document(FAULTS).split("\n\n"):
        if rule := re.match(r"\*\*([A-Z]\d+) ", row):
            for name in re.findall(r"``((?:tests|scripts)/\S+\.py)``", row):
                if (FAULTS, rule[1]) not in cited.get(Path(name), set()):
                    findings.append(f"docs/fault-matrix.rst: {rule[1]} names {name}, which does not cite it")
    print("\n".join(findings) or f"{len(known)} rules, each cited by a test")
    return bool(findings)


def _document(kind: str) -> str:
    return Path("docs", f"{kind.replace(' ', '-')}.rst").read_text()


def rules() -> Iterator[tuple[str, str]]:
    """Yield the rules in the documents, as kind and number, or kind and heading."""
    for kind in (RELAY_RULES, FAULTS):
        text = _document(kind)
        yield from ((kind, number) for number in re.findall(r"^\*\*([A-Z]\d+) ", text, re.MULTILINE))
        yield from ((PROMISES, number) for number in re.findall(r"^(\d+)  ", text, re.MULTILINE))
    yield from ((HOOK_API, heading) for heading in re.findall(r"^(.+)\n-+$", _document(HOOK_API), re.MULTILINE))


def citations(text: str) -> Iterator[tuple[str, str]]:
    """Yield the rules that a text cites; "A4 to A7, C1" cites five."""
    for kind, numbers, heading in CITATION.findall(text):
        if heading:
            yield HOOK_API, heading
            continue
        name = " ".join(kind.lower().split()).removesuffix("s") if kind.lower().startswith("promise") else kind.lower()
        for part in re.split(r", | and ", numbers):
            first, _, last = part.partition(" to ")
            letter, begin = re.fullmatch(r"([A-Z]?)(\d+)", first).groups()  # type: ignore[union-attr]
            for number in range(int(begin), int(last.lstrip(letter) or begin) + 1 if last else int(begin) + 1):
                yield " ".join(name.split()), f"{letter}{number}"


if __name__ == "__main__":
    sys.exit(main())
