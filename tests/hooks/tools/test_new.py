"""A new hook server: the folder is written once, its tests pass, and it serves without changes."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.plugins import registration
from runtimeproxy_hooks.tools import new
from tests.hooks.nodes import umask
from tests.hooks.sdk import processes

Patch = pytest.MonkeyPatch
INVALID, TAKEN = "is not a name: write small letters", "is the name of another module"
REFUSED = [
    *((name, INVALID) for name in ("", "Gpu", "1a", "_a", "a--b", "a/b", "é", "..", "x" * 41)),
    *((name, TAKEN) for name in ("class", "json")),
    ("runtimeproxy-hooks", f"'runtimeproxy_hooks' {TAKEN}, which runtimeproxy_hooks.py would"),
]


@pytest.mark.parametrize(("name", "words"), REFUSED)
def test_invalid_or_used_name_is_refused(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        new.new(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_folder_is_removed_if_file_cannot_be_written(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(new, "files", lambda name: {"no folder/gpu.py": ""})
    with pytest.raises(ConfigError, match=f"^{tmp_path}/gpu cannot be written: No such file or directory; name a fold"):
        new.new("gpu", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_folder_has_all_files_and_is_writable_only_by_owner(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        folder = new.new("gpu-env", tmp_path)
    assert (folder, stat.S_IMODE(folder.stat().st_mode)) == (tmp_path / "gpu_env", 0o755)
    files = {path.name: path.read_text() for path in folder.iterdir()}
    assert files.keys() == {"gpu_env.py", "test_gpu_env.py", "gpu_env.service", "gpu_env.json", "README.rst"}
    assert not [name for name, text in files.items() if "$name" in text or "{name}" in text or "$class" in text]
    assert "class GpuEnvHook(Hook):" in files["gpu_env.py"]
    entry = registration.parse("gpu_env.json", files["gpu_env.json"].encode())
    assert (entry.warnings, entry.points) == ((), {"PreCreateContainer"})
    assert entry.endpoint == "/var/run/runtimeproxy-hooks/gpu_env.sock"


def test_files_name_running_python(monkeypatch: Patch) -> None:
    python, home = "/a b/100%/python3", "/home/me/venv/bin/python"
    monkeypatch.setattr(sys, "executable", python)
    word, in_unit, files = f"'{python}'", "'/a b/100%%/python3'", new.files("gpu")
    assert f"\nExecStart={in_unit} /usr/local/lib/gpu/gpu.py " in files["gpu.service"]
    assert "\nProtectHome=yes\n" in files["gpu.service"]
    for command in (f"{word} -m pytest``", f"{word} -m pip install pytest``", f"    {word} gpu.py --endpoint"):
        assert command in files["README.rst"]
    assert not [name for name, text in files.items() if "python3" in text.replace(word, "").replace(in_unit, "")]
    monkeypatch.setattr(sys, "executable", home)
    assert "\nProtectHome=read-only\n" in new.files("gpu")["gpu.service"]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(processes.ROOT)}


def run(*command: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environ = ENVIRONMENT | more
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_commands_of_readme_work(tmp_path: Path) -> None:
    """The first block serves, the second calls, verifies and measures."""
    folder = new.new("gpu-env", tmp_path)
    serve, try_out = re.findall(r"::\n\n((?: {4}.*\n)+)", (folder / "README.rst").read_text())
    program = tmp_path / "runtimeproxy"  # the name in the README
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m runtimeproxy "$@"\n')
    program.chmod(0o755)
    serving = subprocess.Popen(["bash", "-c", f"exec {serve.strip()}"], cwd=folder, env=ENVIRONMENT)
    try:
        processes.eventually((folder / "gpu_env.sock").exists)
        done = run("bash", "-euc", try_out, folder=folder, PATH=f"{tmp_path}:{os.environ['PATH']}")
    finally:
        serving.terminate()
        assert serving.wait(timeout=30) == 0
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (
        'applied:\n  envs:\n    HOOK_GPU_ENV: "on"\n',
        "14 passed, 0 failed, 1 skipped",
        "1000 calls of PreCreateCon",
    )
    assert [words for words in lines if words not in done.stdout] == []
    assert not (folder / "gpu_env.sock").exists()
