"""Check that each pure file has test files of its own, which alone cover all its branches.

The pure files are listed in setup.cfg, in the contract that forbids them I/O. Prints which are not covered; exit code 1
if any is not.
"""

import os
import subprocess
import sys
import tempfile
from configparser import ConfigParser
from pathlib import Path

CONTRACT = "importlinter:contract:pure"


def main() -> int:
    """Run each pure file's tests with coverage of that file; return the exit code."""
    modules = pure_modules(Path("setup.cfg").read_text())
    findings = [finding for module in modules if (finding := lacking(module))]
    print("\n".join(findings) or f"{len(modules)} pure files, each covered by its own tests")
    return bool(findings)


def pure_modules(setup_cfg: str) -> list[str]:
    """Return the modules in the contract."""
    parser = ConfigParser(interpolation=None)
    parser.read_string(setup_cfg)
    return parser[CONTRACT]["source_modules"].split()


def own_tests(module: str) -> list[Path]:
    """Return the paths of the tests of ``runtimeproxy.x.y``: ``tests/x/test_y.py``, ``tests/x/test_y_z.py``."""
    *folders, name = module.split(".")[1:]
    folder = Path("tests", *folders)
    return [*folder.glob(f"test_{name}.py"), *sorted(folder.glob(f"test_{name}_*.py"))]


def lacking(module: str) -> str:
    """Return what is wrong with the tests of ``module``, with pytest's output; "" if nothing is."""
    tests = own_tests(module)
    if not tests:
        return f"{module}: there are no tests of its own"
    options = [f"--cov={module}", "--cov-branch", "--cov-report=term-missing:skip-covered", "--cov-fail-under=100"]
    command = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", *map(str, tests), *options]
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "COVERAGE_FILE": f"{folder}/coverage"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    if done.returncode == 0:
        return ""
    return f"{module}: its tests fail or do not cover it\n{done.stdout}{done.stderr}"


if __name__ == "__main__":
    sys.exit(main())
