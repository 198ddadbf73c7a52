"""Two builds have the same bytes, and the archive runs in trees of Debian without Python."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.building import made
from tests.docs import ROOT
from tests.engines.cri import CriClient
from tests.machines.tree import debian
from tests.soak import MARKS
from tests.soak.conftest import Findings
from tests.system.fronts import CRI, CriRuntime
from tests.system.proxy import serving

pytestmark = [*MARKS, pytest.mark.engine, pytest.mark.trees, pytest.mark.release]

STARTS = 5
START_SECONDS = 0.3


def run_module(name: str, *, before: Sequence[str] = (), cwd: Path = ROOT, umask: int = -1, **environ: str) -> str:
    """Run a module of the checkout; return its output. Fails if it fails."""
    pipes: Any = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    command = [*before, sys.executable, "-m", name]
    done = subprocess.run(command, cwd=cwd, env=os.environ | environ, umask=umask, check=False, **pipes)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return str(done.stdout)


def test_second_build_is_identical(findings: Findings, tmp_path: Path) -> None:
    """The builds differ in directory, umask, time zone and hour."""
    sums = []
    abroad: dict[str, Any] = {"TZ": "Asia/Tokyo", "LANG": "de_DE.UTF-8", "before": ["faketime", "-f", "+1h"]}
    for name, umask, environ in (("one", 0o022, {}), ("another place", 0o077, abroad)):
        clone, temporary = tmp_path / name / "checkout", tmp_path / f"{name.split()[0]}-tmp"
        temporary.mkdir()
        subprocess.run(["git", "-c", "safe.directory=*", "clone", "-q", ROOT, clone], check=True)
        environ |= {"PYTHONPATH": str(clone), "TMPDIR": str(temporary)}
        run_module("scripts.building", cwd=clone, umask=umask, **environ)
        sums.append((clone / "dist" / "checksums.txt").read_text().splitlines())
    findings.note("files of a release", len(sums[0]))
    assert sums[0] == sums[1]


@pytest.mark.parametrize("suite", ["bullseye", "bookworm", "trixie"])
def test_archive_runs_without_python(suite: str, release: Path, findings: Findings, tmp_path: Path) -> None:
    """The demo, with the archive's programs in a minimal tree of Debian 11, 12 or 13."""
    (file,) = release.glob("*_linux_x86_64.tar.gz")
    tree = debian(suite, ())
    assert [path.name for path in (tree / "usr/bin").glob("python*")] == []
    shutil.unpack_archive(file, tmp_path / "of its own")
    (top,) = (tmp_path / "of its own").iterdir()
    programs = made.wrapped(top, made.inside(tree, tmp_path / "work", tmp_path), tmp_path / "bin")
    (tmp_path / "tmp").mkdir()
    output = run_module("scripts.demonstration", DEMO_PROGRAMS=str(programs), TMPDIR=str(tmp_path / "tmp"))
    assert sum(line.startswith("OK: ") for line in output.splitlines()) == 2
    seconds = []
    for _ in range(STARTS):
        proxy = CRI.process(tmp_path / "starts", program=[str(programs / "koord-runtime-proxy")], log_level="info")
        with serving(CriRuntime(str(proxy.runtime))):
            began = time.perf_counter()
            with proxy, CriClient(str(proxy.socket)) as client:
                client.version()
                seconds.append(time.perf_counter() - began)
    found = median(seconds)
    what = f"seconds from start to first answer, median of {STARTS}"
    findings.note(what, f"{found:.2f}", START_SECONDS, found <= START_SECONDS)
