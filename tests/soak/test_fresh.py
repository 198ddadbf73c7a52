"""README's two commands in the environments of newcomers, each with the result that its row expects; and a release:
two builds have the same bytes, and the archive runs in trees of Debian without Python.

The test enters a Debian tree of debootstrap in its own namespaces, with its own /run and /tmp; it shares the machine's
network, /dev, /sys and kernel. One row is a container of a private dockerd. The variables and certificates of pip on
this machine are passed on.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from tests.building.made import PROGRAMS, inside
from tests.docs import ROOT, block
from tests.engines.cri import CriClient
from tests.engines.docker_cli import DOCKER
from tests.engines.dockerd import Dockerd
from tests.machines.machine import debian
from tests.soak.conftest import MARKS, Findings
from tests.system.fronts import CRI, CriRuntime
from tests.system.proxy import serving

pytestmark = [*MARKS, pytest.mark.engine, pytest.mark.trees, pytest.mark.release]

STARTS, START_SECONDS = 5, 0.3
CHECKOUT = "/srv/runtimeproxy"
VENV = "python3 -m venv /opt/runtimeproxy-venv"
"""The first line of the blocks that install from source, which are run in the first tree."""
WHEEL = f"""\
cd {CHECKOUT}
/opt/runtimeproxy-venv/bin/pip wheel --quiet --no-deps --use-pep517 --wheel-dir /root .
rm -r /opt/runtimeproxy-venv
cd /root
"""
CERTIFICATES = "/etc/ssl/certs/of-the-machine.crt"
LEFTOVERS = "left in /tmp: "

# Mounts end with the namespace, and processes with its first process.
SCRIPT = """
set -eu
mount --make-rprivate /
mount --bind "$1" "$1" # so that it is a mount, as pivot_root(2) wants
cd "$1"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=755 run run
mount -t tmpfs -o mode=1777 tmp tmp
mkdir -p .outside
pivot_root . .outside
exec chroot . sh -c 'umount -l /.outside && cd "$1" && eval "$2"' sh "$2" "$3" </dev/null
"""
# pytest keeps the directories of its last runs, by user.
LISTED = f'code=$?; ls /tmp | grep -v "^pytest-of-" | sed "s|^|{LEFTOVERS}|"; exit $code'

WITHOUT = "setpriv --bounding-set -sys_admin,-net_admin,-sys_resource,-sys_ptrace,-mknod,-audit_write"
READ_ONLY = 'for at in $(sed -n "s|^[^ ]* \\(/sys/fs/cgroup[^ ]*\\) .*|\\1|p" /proc/mounts); do'
USER = "scripts/install && rm -rf .venv && useradd --create-home new && chown -R new: ."
AS_USER = "setpriv --reuid=new --regid=new --init-groups env HOME=/home/new"


class Environment(NamedTuple):
    """A row.

    Shell code, run by root in the checkout: ``prepare`` once, ``within`` before each command, in its namespaces.
    ``prefix`` is put before the commands. A command that is ``refused`` must fail with that text. With ``engines`` real
    engines must run. Each reason of a skipped test contains ``skips``.
    """

    name: str
    suite: str = "bookworm"
    prepare: str = ":"
    within: str = ":"
    prefix: str = ""
    in_docker: bool = False
    refused: str = ""
    engines: bool = False
    skips: str = ""


ENVIRONMENTS = (
    Environment("Debian 12, root", engines=True, skips="helm"),  # its Go is too old for helm
    Environment("a container, docker run", in_docker=True),
    Environment("root without six capabilities", prefix=WITHOUT),
    Environment("root without CAP_NET_ADMIN", prefix="setpriv --bounding-set -net_admin"),
    Environment("read-only cgroups", within=f"{READ_ONLY} mount -o remount,bind,ro $at; done"),
    Environment("an ordinary user, packages present", prepare=USER, prefix=AS_USER),
    Environment("no git history", prepare="rm -rf .git", engines=True),
    Environment("Debian 13, root", suite="trixie", engines=True),
    Environment("Debian 11, root", suite="bullseye", refused="is Python 3.9.2: set PYTHON to a Python 3.11 or later"),
)


def run(command: Sequence[str | Path], env: Mapping[str, str], **more: Any) -> tuple[int, str]:
    """Run a command; return its exit code and its output."""
    pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, env=env, text=True, errors="replace", check=False, **pipes, **more)
    return done.returncode, str(done.stdout)


@contextmanager
def entered(environment: Environment, tree: Path, variables: Mapping[str, str]) -> Iterator[Sequence[str | Path]]:
    """Yield the command prefix that runs shell code in the tree."""
    if not environment.in_docker:
        namespaces = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
        yield [*namespaces, "sh", "-c", SCRIPT, "sh", tree, CHECKOUT]
        return
    with Dockerd() as engine:
        docker = [DOCKER, "--host", f"unix://{engine.socket}"]
        subprocess.run(f"tar -c . | {' '.join(docker)} import - fresh", shell=True, cwd=tree, check=True)
        created = [*docker, "run", "--detach", "--network=host", "--name=fresh", "fresh", "sleep", "infinity"]
        subprocess.run(created, check=True, stdout=subprocess.DEVNULL)
        passed = [f"--env={name}={value}" for name, value in variables.items()]
        yield [*docker, "exec", f"--workdir={CHECKOUT}", *passed, "fresh", "sh", "-c"]


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda environment: environment.name)
def test_readme_commands_work_in_fresh_environment(environment: Environment, findings: Findings) -> None:
    """Run scripts/demo, and scripts/test: completely in a full soak, else only its fast set."""
    commands = ["scripts/demo", "scripts/test" if findings.full else "scripts/test --fast"]
    if environment is ENVIRONMENTS[0]:
        scripts = block("README.rst", VENV).text, f"{WHEEL}\n{block('docs/install.rst', VENV).text}"
        commands += [f"sh -exc {shlex.quote(script)}" for script in scripts]
    # Not below /tmp, which may be in memory; with all packages the tree has 2 GB.
    base = debian(environment.suite, packages=())
    with TemporaryDirectory(prefix="fresh-", dir=base.parent) as folder:
        tree = Path(folder, "tree")
        subprocess.run(["cp", "-a", base, tree], check=True)  # devices, too
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, f"{tree}{CHECKOUT}"], check=True)
        shutil.copy("/etc/resolv.conf", tree / "etc")
        variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "TERM": "dumb"}
        variables |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        if certificates := os.environ.get("PIP_CERT"):
            variables["PIP_CERT"] = CERTIFICATES
            Path(f"{tree}{CERTIFICATES}").parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(certificates, f"{tree}{CERTIFICATES}")
        with entered(environment, tree, variables) as enter:
            run([*enter, environment.prepare], variables)
            for command in commands:
                start = time.monotonic()
                line = f"{environment.within}; {environment.prefix} {command}; {LISTED}"
                code, output = run([*enter, line], variables)
                if environment.refused:
                    assert (code, environment.refused in output) == (1, True), output
                else:
                    assert (code, LEFTOVERS in output) == (0, False), output
                    assert not (environment.engines and "FAKE" in re.findall(r"Runtime: a (\w+)", output)), output
                    skipped = [line for line in output.splitlines() if line.startswith("SKIPPED")]
                    assert [line for line in skipped if environment.skips not in line] == []
                tests = [line.strip("= ") for line in output.splitlines() if re.match(r"=+ .* in [\d.]+s", line)]
                findings.note(command.splitlines()[-1], f"{time.monotonic() - start:.0f} s; {'; '.join(tests)}")


def test_second_build_is_identical(findings: Findings, tmp_path: Path) -> None:
    """The builds differ in directory, umask, time zone and hour."""
    sums, abroad = [], {"TZ": "Asia/Tokyo", "LANG": "de_DE.UTF-8"}
    later = ["faketime", "-f", "+1h"]
    for name, umask, environ, before in (("one", 0o022, {}, []), ("another place", 0o077, abroad, later)):
        clone, temporary = tmp_path / name / "checkout", tmp_path / f"{name.split()[0]}-tmp"
        temporary.mkdir()
        subprocess.run(["git", "-c", "safe.directory=*", "clone", "-q", ROOT, clone], check=True)
        env = {**os.environ, **environ, "PYTHONPATH": str(clone), "TMPDIR": str(temporary)}
        code, output = run([*before, sys.executable, "-m", "scripts.building"], env, cwd=clone, umask=umask)
        assert code == 0, output[-4000:]
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
    programs, enter = tmp_path / "bin", shlex.join(inside(tree, tmp_path / "work", tmp_path))
    for folder in (programs, tmp_path / "tmp"):
        folder.mkdir()
    for name in PROGRAMS:
        (programs / name).write_text(f"#!/bin/sh\nexec {enter} '{top}/bin/{name}' \"$@\"\n")
        (programs / name).chmod(0o755)
    env = {**os.environ, "DEMO_PROGRAMS": str(programs), "TMPDIR": str(tmp_path / "tmp")}
    code, output = run([sys.executable, "-m", "scripts.demonstration"], env, cwd=ROOT)
    assert (code, sum(line.startswith("OK: ") for line in output.splitlines())) == (0, 2), output[-4000:]
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
