"""README's two commands in the environments of newcomers, each with the result that its row expects.

The test enters a Debian tree of debootstrap in its own namespaces, with its own /run and /tmp; it shares the machine's
network, /dev, /sys and kernel. One row is a container of a private dockerd. The variables and certificates of pip on
this machine are passed on.
"""

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from tests.docs import ROOT, block
from tests.engines.docker_cli import DOCKER
from tests.engines.dockerd import Dockerd
from tests.machines.tree import debian
from tests.soak import MARKS
from tests.soak.conftest import Findings

pytestmark = [*MARKS, pytest.mark.engine, pytest.mark.trees, pytest.mark.release]

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
    Environment(
        "an ordinary user, packages present",
        prepare=USER,
        prefix="setpriv --reuid=new --regid=new --init-groups env HOME=/home/new",
    ),
    Environment("no git history", prepare="rm -rf .git", engines=True),
    Environment("Debian 13, root", suite="trixie", engines=True),
    Environment("Debian 11, root", suite="bullseye", refused="is Python 3.9.2: set PYTHON to a Python 3.11 or later"),
)


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
        variables = variables_for(tree)
        with entered(environment, tree, variables) as enter:
            run([*enter, environment.prepare], variables)
            for command in commands:
                start = time.monotonic()
                line = f"{environment.within}; {environment.prefix} {command}; {LISTED}"
                code, output = run([*enter, line], variables)
                check(environment, code, output)
                tests = [line.strip("= ") for line in output.splitlines() if re.match(r"=+ .* in [\d.]+s", line)]
                findings.note(command.splitlines()[-1], f"{time.monotonic() - start:.0f} s; {'; '.join(tests)}")


def check(environment: Environment, code: int, output: str) -> None:
    """Fail if a command did not have the expected result."""
    if environment.refused:
        assert (code, environment.refused in output) == (1, True), output
        return
    assert (code, LEFTOVERS in output) == (0, False), output
    assert not (environment.engines and "FAKE" in re.findall(r"Runtime: a (\w+)", output)), output
    assert [line for line in output.splitlines() if line.startswith("SKIPPED") and environment.skips not in line] == []


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


def run(command: Sequence[str | Path], variables: Mapping[str, str]) -> tuple[int, str]:
    """Run a command; return its exit code and its output."""
    pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, env=variables, text=True, errors="replace", check=False, **pipes)
    return done.returncode, str(done.stdout)


def variables_for(tree: Path) -> dict[str, str]:
    """Return the variables for the tree, and copy the network's configuration into it."""
    shutil.copy("/etc/resolv.conf", tree / "etc")
    passed = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    if certificates := os.environ.get("PIP_CERT"):
        (tree / CERTIFICATES.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(certificates, tree / CERTIFICATES.lstrip("/"))
        passed["PIP_CERT"] = CERTIFICATES
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "TERM": "dumb", **passed}
