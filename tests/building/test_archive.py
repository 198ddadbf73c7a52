"""The archive: it runs where there is nothing but a kernel, a shell and tar, as one process with its own name."""

import ast
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from runtimeproxy.settings.version import VERSION
from tests.building.made import bare_tree, inside, libraries
from tests.docs import ROOT
from tests.system.proxy import answers, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.release]  # a chroot needs root

PINS = dict(re.findall(r"^([\w.-]+)==(\S+) ", (ROOT / "deploy/requirements.lock").read_text(), re.MULTILINE))


def output_of(*command: str | Path, **more: object) -> str:
    done = subprocess.run(  # type: ignore[call-overload]
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60, **more
    )
    assert (done.returncode, done.stderr) == (0, "")
    return str(done.stdout)


def test_archive_is_unpacked_and_runs_where_there_are_only_sh_and_tar(release: Path, tmp_path: Path) -> None:
    (file,) = release.glob("*_linux_x86_64.tar.gz")
    tree, place = bare_tree(tmp_path / "tree"), tmp_path / "of its own"
    place.mkdir()
    script = f"cd '{place}' && tar -xzf {file} && runtimeproxy-{VERSION}/bin/runtimeproxy version -o json"
    shared = Path(os.path.commonpath([release, tmp_path]))
    rows = json.loads(output_of(*inside(tree, tmp_path / "work", shared), "sh", "-c", script))
    reported = {row["name"]: row["version"] for row in rows}
    commit = output_of("git", "-c", "safe.directory=*", "rev-parse", "HEAD", cwd=ROOT).strip()
    own = {name: reported.pop(name) for name in ("commit", "date", "runtimeproxy", "python", "linux")}
    assert (own["commit"], own["runtimeproxy"]) == (f"{commit}-dirty", VERSION)
    assert reported == {name: PINS[name] for name in reported}


def imported() -> set[str]:
    """Return what the proxy and its hook servers import, some of it only when they need it."""
    return {
        name
        for folder in ("runtimeproxy", "hooks")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "pytest_plugin.py"  # for developers: it needs pytest
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom) and not getattr(node, "level", 0)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }


def test_everything_that_is_ever_imported_is_there(archive: Path) -> None:
    code = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
    assert output_of(archive / "bin/python3", "-I", "-c", code, *sorted(imported())) == ""


PROXY = "--koord-runtimeproxy-endpoint={0}/served --remote-runtime-service-endpoint={0}/none --admin-endpoint=none"
PROXY += " --hookserver-config-dir={0} --state-dir={0}"
RUNNING = {
    "koord-runtime-proxy": ("koord-runtime-p", PROXY),
    "runtimeproxy": ("runtimeproxy", f"run {PROXY}"),
    "runtimeproxy-hooks": ("runtimeproxy-ho", "gpu --endpoint={0}/served --register-dir={0}"),
}
"""What the kernel keeps of each program's name, 15 bytes, and arguments with which it serves at ``served``."""


@pytest.mark.parametrize("name", sorted(RUNNING))
def test_program_is_one_process_by_its_own_name(archive: Path, tmp_path: Path, name: str) -> None:
    comm, arguments = RUNNING[name]
    words = arguments.format(tmp_path).split()
    with (tmp_path / "log").open("w") as log, subprocess.Popen([archive / "bin" / name, *words], stderr=log) as process:
        try:
            wait_until(lambda: answers(tmp_path / "served"), "it serves", (tmp_path / "log").read_text)
            proc = Path(f"/proc/{process.pid}")
            assert (proc / "comm").read_text() == f"{comm}\n"
            assert (proc / "exe").readlink() == archive / "libexec" / name
            assert (proc / f"task/{process.pid}/children").read_text() == ""
            assert {file for file in libraries(process.pid) if not file.startswith(f"{archive}/")} == set()
        finally:
            process.terminate()


WAYS = {
    "relative, whatever CDPATH is": "export CDPATH=/usr; cd {top}; exec bin/runtimeproxy",
    "sh in its directory": "cd {top}/bin; exec /bin/sh runtimeproxy",
    "PATH is relative": "cd {top}; PATH=bin; exec runtimeproxy",
    "a link to a link": "ln -s {top}/bin/runtimeproxy a; ln -s a b; exec ./b",
    "no tools": "PATH=/nowhere; exec {top}/bin/runtimeproxy",
    "variables of others": (
        "export PYTHONHOME=/no PYTHONPATH=/no LD_LIBRARY_PATH=/no LC_ALL=de_DE.UTF-8; exec {top}/bin/runtimeproxy"
    ),
    "a way through a link": "ln -s {top} top; exec top/bin/runtimeproxy",
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_program_finds_its_tree(archive: Path, tmp_path: Path, way: str) -> None:
    script = way.format(top=shlex.quote(str(archive)))
    assert f"runtimeproxy {VERSION} (commit " in output_of("sh", "-c", f"{script} --version", cwd=tmp_path)
