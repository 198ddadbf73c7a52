"""The demo ends with OK only if every effect was found, and leaves nothing on the machine."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs import ROOT
from tests.engines.engine import mounts, processes

pytestmark = pytest.mark.slow

EFFECTS = {("CRI mode", False): 19, ("Docker mode", False): 18, ("CRI mode", True): 17, ("Docker mode", True): 16}
"""Number of effects by mode, and by whether the runtime is a fake, which has no processes."""
SCHEMATA = "L3:0=f;1=f MB:0=20;1=20"  # of the stand-in's machine


class Demo:
    """The demo as a program, with a folder for all its files."""

    def __init__(self, folder: Path, *arguments: str, **environ: str) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "scripts.demonstration", *arguments]
        environ = os.environ | {"TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"} | environ
        pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(command, **pipes, cwd=ROOT, env=environ, text=True, process_group=0)

    def end(self) -> tuple[int, str]:
        """Wait for the end; return exit code and output. No file, process or mount may be left."""
        output, _ = self.process.communicate(timeout=60)
        assert not list(self.folder.iterdir())
        assert not processes(str(self.folder))
        assert not mounts(self.folder)
        return self.process.returncode, output


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path, which is too long for the paths of an engine's sockets.
    with tempfile.TemporaryDirectory(prefix="rp-test-") as path:
        yield Path(path)


BOTH = pytest.param(["--engines"], ["CRI mode", "Docker mode"], False, marks=pytest.mark.engine)
FAKES = [(["--fake", "--mode=cri"], ["CRI mode"], True), (["--fake", "--mode=docker"], ["Docker mode"], True)]


@pytest.mark.parametrize(("arguments", "titles", "fake"), [*FAKES, BOTH])
def test_demo_shows_modes_and_leaves_nothing(folder: Path, arguments: list[str], titles: list[str], fake: bool) -> None:
    code, output = Demo(folder, *arguments).end()
    assert code == 0, output
    verdict = "reached the fake runtime, where no container really runs" if fake else "are true in the containers"
    assert [line for line in output.splitlines() if line.endswith(" mode")] == titles
    verdicts = [line for line in output.splitlines() if line.startswith("OK: ")]
    expected = [f"OK: {EFFECTS[title, fake]} effects " for title in titles]
    assert [line.partition(verdict)[0] for line in verdicts] == expected
    assert output.count("a FAKE one of the tests") == (len(titles) if fake else 0)
    words = " ".join(output.split())
    assert words.count(f"{SCHEMATA} {SCHEMATA} ok") == len(titles)
    assert output.count("moved after the start") == (0 if fake else len(titles))


def test_missing_effect_fails_demo(folder: Path, tmp_path: Path) -> None:
    """The hook servers run without the node's settings, so they scale no quota."""
    for name in ("koord-runtime-proxy", "runtimeproxy", "runtimeproxy-hooks"):
        program = Path(sys.executable).with_name(name)
        (tmp_path / name).write_text(f'#!/bin/bash\nexec {program} "${{@/#--node-config=*/--timeout=2s}}"\n')
        (tmp_path / name).chmod(0o755)
    code, output = Demo(folder, "--fake", "--mode=cri", DEMO_PROGRAMS=str(tmp_path)).end()
    assert code == 1
    assert "FAILED: not as expected: gpu main cpu." in output


ENGINE = pytest.param("cri", "Proxy:", False, marks=pytest.mark.engine)


@pytest.mark.parametrize(("mode", "line", "fake"), [("cri", "Runtime:", True), ("docker", "Hooks:", True), ENGINE])
def test_interrupted_demo_leaves_nothing(folder: Path, mode: str, line: str, fake: bool) -> None:
    demo = Demo(folder, "--mode", mode, *(["--fake"] if fake else []))
    assert any(line in text for text in demo.process.stdout or []), f"the demo ended without {line!r}"
    if fake:
        demo.process.terminate()
    else:  # as a terminal does
        os.killpg(demo.process.pid, signal.SIGINT)
    code, output = demo.end()
    assert (code, "FAILED: interrupted" in output, "Traceback" in output) == (1, True, False)
