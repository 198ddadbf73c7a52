"""Ask for known weaknesses of the libraries that a release is made of (pip-audit).

Exit code 0: none is known. 1: one is, or not every library could be asked about, which is said.
"""

import json
import subprocess
import sys
from typing import Any

LOCKS = ("deploy/requirements.lock", "deploy/build-requirements.lock")
COMMAND = ("pip_audit", "--disable-pip", "--require-hashes", "--progress-spinner=off", "--format=json")


def main() -> int:
    """Return the exit code."""
    command = [sys.executable, "-m", *COMMAND, *(f"--requirement={lock}" for lock in LOCKS)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    try:
        rows = json.loads(done.stdout)["dependencies"]
    except (ValueError, LookupError, TypeError):
        said = done.stderr.strip().splitlines() or ["without a word"]
        print(f"NOT CHECKED: pip-audit ended with {done.returncode}: {said[-1]}")
        return 1
    findings = told(rows)
    print("\n".join(findings) or f"{len(rows)} libraries, no known weakness")
    return bool(findings)


def told(rows: list[dict[str, Any]]) -> list[str]:
    """Return a line for each weakness, and one for all libraries that could not be asked about."""
    found = []
    for row in rows:
        for weakness in row.get("vulns", []):
            mended = ", ".join(weakness["fix_versions"]) or "no version"
            found.append(f"{row['name']} {row['version']}: {weakness['id']}, mended in {mended}")
    reasons = [row["skip_reason"] for row in rows if "skip_reason" in row] if rows else ["none was named"]
    if reasons:
        found.append(
            f"NOT CHECKED: {len(reasons)} of {len(rows)} libraries: {reasons[0]}. Check them where the service of "
            "advisories can be reached, before this is released"
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
