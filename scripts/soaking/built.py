"""Steps about what scripts/build makes: the same bytes twice, and the archive in trees of Debian without Python."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median

from scripts.benchmark.ends import CriClient
from scripts.building.__main__ import CHECKSUMS
from scripts.demonstration import processes
from scripts.demonstration.processes import DemoError
from scripts.demonstration.runtimes import MODES
from scripts.figures import Figure, at_most
from scripts.soaking.tested import run_module
from tests.building import bills, made
from tests.docs import ROOT
from tests.fakes import cri_pb2
from tests.machines.tree import debian

SUITES = ("bullseye", "bookworm", "trixie")
"""Debian 11, 12 and 13."""
STARTS = 5
START_SECONDS = 0.3


def built_twice(share: float) -> list[Figure]:
    """Build the last commit twice: in directories of different names, a umask, a time zone and an hour apart.

    Raises DemoError with the output of a build that fails.
    """
    later = ["faketime", "-f", "+1h"]
    with tempfile.TemporaryDirectory(prefix="rp-soak-") as folder:
        first = _built(Path(folder, "one"), [], 0o022, {})
        unnamed = bills.faults(Path(folder, "one/checkout/dist"))
        second = _built(Path(folder, "another place"), later, 0o077, {"TZ": "Asia/Tokyo", "LANG": "de_DE.UTF-8"})
    differing = sorted({line.split(maxsplit=1)[1] for line in first ^ second})
    named = ", ".join(differing) or "none"
    return [
        Figure("files of a release", f"{len(first)}"),
        Figure("files that differ in a second build", named, "none", not differing),
        Figure("faults of bills of materials", "; ".join(unnamed) or "none", "none", not unnamed),
    ]


def _built(place: Path, before: list[str], umask: int, environ: dict[str, str]) -> set[str]:
    """Build the last commit in a clone; return the lines of the checksums."""
    temporary, clone = place.with_name(f"{place.name.split()[0]}-tmp"), place / "checkout"
    temporary.mkdir()
    subprocess.run(["git", "-c", "safe.directory=*", "clone", "-q", ROOT, clone], check=True)
    command = [*before, sys.executable, "-m", "scripts.building"]
    environ = os.environ | {"PYTHONPATH": str(clone), "TMPDIR": str(temporary)} | environ
    done = subprocess.run(
        command,
        cwd=clone,
        env=environ,
        umask=umask,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DemoError(f"the build in {place.name} failed: {done.stderr[-2000:]}")
    return set((clone / "dist" / CHECKSUMS).read_text().splitlines())


def archive_runs(share: float) -> list[Figure]:
    """Run the demo in both modes with the archive's programs, each in a tree of Debian with nothing but its minimum,
    and measure how soon the proxy answers there. Raises DemoError with the output of a demo that fails."""
    figures = []
    with tempfile.TemporaryDirectory(prefix="rp-soak-") as name:
        folder = Path(name)
        (file,) = made.release(folder / "release").glob("*_linux_x86_64.tar.gz")
        (folder / "tmp").mkdir()
        shutil.unpack_archive(file, folder / "of its own")
        (top,) = (folder / "of its own").iterdir()
        for suite in SUITES:
            tree = debian(suite, ())
            pythons = [path.name for path in (tree / "usr/bin").glob("python*")]
            command = made.inside(tree, folder / f"work-{suite}", folder)
            programs = made.wrapped(top, command, folder / f"bin-{suite}")
            code, output = run_module(
                ["scripts.demonstration"], {"DEMO_PROGRAMS": str(programs), "TMPDIR": str(folder / "tmp")}
            )
            if code:
                raise DemoError(f"the demo in {suite} ended with exit code {code}; its output: {output}")
            shown = len(re.findall(r"^OK: ", output, re.MULTILINE))
            start = median(_start_seconds(folder / f"starts-{suite}", programs / processes.COMMAND))
            figures += [
                Figure(f"{suite}: Pythons in the tree", ", ".join(pythons) or "none", "none", not pythons),
                Figure(
                    f"{suite}: modes whose demo shows every effect", f"{shown}", f"{len(MODES)}", shown == len(MODES)
                ),
                at_most(f"{suite}: start to first answer, median of {STARTS}", start, START_SECONDS, " s"),
            ]
    return figures


def _start_seconds(folder: Path, program: Path) -> list[float]:
    """Start a proxy several times before a fake runtime; return the seconds to each one's first answer."""
    folder.mkdir()
    runtime, seconds = folder / "fake.sock", []
    with processes.program(
        "fake", [sys.executable, "-m", "tests.fakes.runtime", f"--socket={runtime}"], folder
    ) as fake:
        fake.wait_until_it_listens(runtime)
        for number in range(STARTS):
            place = folder / str(number)
            processes.registrations(place).mkdir(parents=True)
            _, *flags = processes.proxy_command("cri", place, str(runtime))
            began = time.perf_counter()
            with processes.program("proxy", [str(program), *flags], place) as proxy:
                proxy.wait_until_it_listens(processes.proxy_socket(place))
                with closing(CriClient(processes.proxy_socket(place))) as client:
                    client.call("Version", cri_pb2.VersionRequest())
                    seconds.append(time.perf_counter() - began)
    return seconds
