"""Running a few lines of Python in a process of their own."""

import subprocess
import sys


def run_python(code: str, *arguments: str, pass_fds: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run ``code``; the file descriptors keep their numbers."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, pass_fds=pass_fds)
