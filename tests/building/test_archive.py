"""The archive: it runs where there is nothing but a kernel, a shell and tar, as one process with its own name."""

import ast
import contextlib
import json
import os
import re
import shlex
import socket
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from runtimeproxy.settings.version import VERSION
from tests.building.made import bare_tree, inside, libraries
from tests.control import call
from tests.docs import ROOT
from tests.system.cri_front import CRI
from tests.system.docker_front import DOCKER
from tests.system.fronts import Front
from tests.system.proxy import WAIT_SECONDS, answers, wait_until

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
    tree = bare_tree(tmp_path / "tree")
    assert sorted(path.name for path in (tree / "bin").iterdir()) == ["sh", "tar"]
    place = tmp_path / "of its own"
    place.mkdir()
    script = f"cd '{place}' && tar -xzf {file} && runtimeproxy-{VERSION}/bin/runtimeproxy version -o json"
    shared = Path(os.path.commonpath([release, tmp_path]))
    rows = json.loads(output_of(*inside(tree, tmp_path / "work", shared), "sh", "-c", script))
    reported = {row["name"]: row["version"] for row in rows}
    commit = subprocess.run(
        ["git", "-c", "safe.directory=*", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, check=True
    )
    assert reported.pop("commit") == f"{commit.stdout.decode().strip()}-dirty"
    assert reported.pop("date").endswith("Z")
    assert (reported.pop("runtimeproxy"), reported.pop("python")[:5], reported.pop("linux")) == (
        VERSION,
        "3.11.",
        os.uname().release,
    )
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


@pytest.mark.parametrize("front", [CRI, DOCKER], ids=lambda front: front.name)
async def test_proxy_serves_in_a_tree_without_anything(archive: Path, tmp_path: Path, front: Front) -> None:
    shared = Path(os.path.commonpath([archive, tmp_path]))
    command = inside(bare_tree(tmp_path / "tree"), tmp_path / "work", shared)
    program = (*command, str(archive / "bin/koord-runtime-proxy"))
    proxy = front.process(tmp_path, program=program)
    async with front.runtime(str(proxy.runtime)) as runtime, proxy, front.caller(proxy.socket) as kubelet:
        await kubelet.create(await kubelet.run_pod())
        assert runtime.verbs()[-1] == "create"
        proc = Path(f"/proc/{proxy.pid}")
        assert (proc / "comm").read_text() == "koord-runtime-p\n"
        assert (proc / f"task/{proxy.pid}/children").read_text() == ""
        answer = call(proxy.admin, "version")
        assert (answer["version"], answer["pid"]) == (VERSION, proxy.pid)


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


WAYS = [
    ("relative", "cd {top}; exec bin/runtimeproxy"),
    ("in its directory", "cd {top}/bin; exec ./runtimeproxy"),
    ("sh in its directory", "cd {top}/bin; exec /bin/sh runtimeproxy"),
    ("found in PATH", "PATH={top}/bin; exec runtimeproxy"),
    ("PATH is relative", "cd {top}; PATH=bin; exec runtimeproxy"),
    ("a link", "ln -s {top}/bin/runtimeproxy link; exec ./link"),
    ("a link to a link", "ln -s {top}/bin/runtimeproxy a; ln -s a b; exec ./b"),
    ("no tools", "PATH=/nowhere; exec {top}/bin/runtimeproxy"),
    ("another Python's variables", "export PYTHONHOME=/nowhere PYTHONPATH=/nowhere; exec {top}/bin/runtimeproxy"),
    (
        "another C library's variables",
        "export LD_LIBRARY_PATH=/nowhere LC_ALL=de_DE.UTF-8; exec {top}/bin/runtimeproxy",
    ),
    ("a way through a link", "ln -s {top} top; exec top/bin/runtimeproxy"),
]


@pytest.mark.parametrize("way", [script for _, script in WAYS], ids=[name for name, _ in WAYS])
def test_program_finds_its_tree(archive: Path, tmp_path: Path, way: str) -> None:
    script = way.format(top=shlex.quote(str(archive)))
    assert f"runtimeproxy {VERSION} (commit " in output_of("sh", "-c", f"{script} --version", cwd=tmp_path)


def test_link_without_readlink_is_reported(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(archive / "bin/runtimeproxy")
    done = subprocess.run([tmp_path / "link"], env={"PATH": "/nowhere"}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"runtimeproxy: error: {tmp_path / 'link'} is a symbolic link, and there is no readlink to follow it: "
        "call the program itself\n"
    )


AS_SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
own = str(os.getpid())
os.execve(sys.argv[2], sys.argv[2:], os.environ | {"LISTEN_PID": own, "LISTEN_FDS": "1", "WATCHDOG_PID": own})
"""


def test_listener_watchdog_and_main_process_are_the_programs_own(archive: Path, tmp_path: Path) -> None:
    """The proxy takes the socket that LISTEN_PID gives to it, and notifies systemd of itself as its main process."""
    with contextlib.ExitStack() as stack:
        notified, held = (stack.enter_context(socket.socket(socket.AF_UNIX, kind)) for kind in (2, 1))
        notified.bind(str(tmp_path / "notify"))
        notified.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        notified.settimeout(WAIT_SECONDS)
        held.bind(str(tmp_path / "held.sock"))
        held.listen()
        program = (sys.executable, "-c", AS_SYSTEMD, str(held.fileno()), str(archive / "bin/koord-runtime-proxy"))
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        endpoint = str(tmp_path / "held.sock")
        proxy = CRI.process(
            tmp_path,
            program=program,
            environment=environment,
            pass_fds=[held.fileno()],
            koord_runtimeproxy_endpoint=endpoint,
        )
        with proxy:
            reported: dict[str, int] = {}
            while not {"READY=1", "WATCHDOG=1"} <= set(reported):
                data, more, _, _ = notified.recvmsg(4096, socket.CMSG_SPACE(12))
                reported |= dict.fromkeys(data.decode().splitlines(), struct.unpack("3i", more[0][2])[0])
            assert set(reported.values()) == {proxy.pid}
        assert (tmp_path / "held.sock").exists()  # not the proxy's own, so it stays


def test_wheel_and_sdist_name_their_build(release: Path) -> None:
    (wheel,), (sdist,) = release.glob("*.whl"), release.glob(f"runtimeproxy-{VERSION}.tar.gz")
    with zipfile.ZipFile(wheel) as of_wheel, tarfile.open(sdist) as of_sdist:
        build = of_sdist.extractfile(f"runtimeproxy-{VERSION}/runtimeproxy/BUILD")
        assert build is not None
        assert re.fullmatch(r"commit: [0-9a-f]{40}-dirty\ndate: \S+Z\n", of_wheel.read("runtimeproxy/BUILD").decode())
        assert build.read() == of_wheel.read("runtimeproxy/BUILD")
