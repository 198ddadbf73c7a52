"""README's two commands in a Debian tree that has nothing but what debootstrap gives: each must pass there.

The tree is chrooted to in namespaces of its own, with its own HOME, /run and /tmp; it shares the machine's network,
/dev, /sys and kernel. Variables and the certificates that pip needs on this machine are passed on.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from scripts.demonstration.processes import DemoError
from scripts.figures import Figure
from tests.documents import block
from tests.machines.tree import debian

ROOT = Path(__file__).parents[2]
CHECKOUT = "/root/runtimeproxy"
README, INSTALL, VENV = "README.rst", "docs/install.rst", "python3 -m venv /opt/runtimeproxy"
"""The blocks that install from source, which are run in the same tree."""
WHEEL = f"""\
cd {CHECKOUT}
/opt/runtimeproxy/bin/pip wheel --quiet --no-deps --use-pep517 --wheel-dir /root .
rm -r /opt/runtimeproxy
cd /root
"""
CERTIFICATES = "/etc/ssl/certs/of-the-machine.crt"
TAIL = 4000

# What is mounted ends with the namespace, and what runs with its first process.
SCRIPT = """
set -eu
mount --make-rprivate /
mount --bind "$1" "$1" # so that it is a mount, as pivot_root(2) wants
cd "$1"
shift
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=755 run run
mount -t tmpfs -o mode=1777 tmp tmp
mkdir -p .outside
pivot_root . .outside
exec chroot . sh -c 'umount -l /.outside && cd "$1" && shift && exec "$@"' sh "$@" </dev/null
"""


def readme(share: float) -> list[Figure]:
    """Run scripts/demo, and scripts/test whole or at a smaller share only its fast set. Raises DemoError."""
    tested = ["scripts/test"] if share == 1 else ["scripts/test", "--fast"]
    # Not below /tmp, which may be in memory: with all packages the tree has 2 GB.
    with tempfile.TemporaryDirectory(prefix="fresh-", dir=debian(packages=()).parent) as folder:
        tree = Path(folder, "tree")
        sources = [f"cd {CHECKOUT}\n{block(README, VENV).text}", f"{WHEEL}\n{block(INSTALL, VENV).text}"]
        subprocess.run(["cp", "-a", debian(packages=()), tree], check=True)  # devices, too
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, f"{tree}{CHECKOUT}"], check=True)
        return [
            Figure(f"seconds of {' '.join(command).splitlines()[-1]}", f"{_seconds(tree, command):.0f}")
            for command in (["scripts/demo"], tested, *(["sh", "-exc", source] for source in sources))
        ]


def _seconds(tree: Path, command: Sequence[str]) -> float:
    """Run a command in the tree's checkout; return how long it took. Raises DemoError with the end of its output."""
    start = time.monotonic()
    shell: list[str | Path] = ["sh", "-c", SCRIPT, "sh", tree, CHECKOUT, *command]
    namespaces = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
    with subprocess.Popen(
        [*namespaces, *shell],
        env=_environment(tree),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            output, _ = process.communicate()
        except BaseException:
            process.send_signal(signal.SIGTERM)
            raise
    if process.returncode:
        failures = "\n".join(line for line in output.splitlines() if line.startswith(("E  ", ">  ")))  # as pytest tells
        what = f"{' '.join(command)} ended with exit code {process.returncode}"
        raise DemoError(f"{what}; its output: {failures[-TAIL:]}\n{output[-TAIL:]}")
    return time.monotonic() - start


def _environment(tree: Path) -> dict[str, str]:
    """Return the variables for the tree, and copy what this machine's network needs into it."""
    shutil.copy("/etc/resolv.conf", tree / "etc")
    passed = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    if certificates := os.environ.get("PIP_CERT"):
        (tree / CERTIFICATES.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(certificates, tree / CERTIFICATES.lstrip("/"))
        passed["PIP_CERT"] = CERTIFICATES
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "TERM": "dumb", **passed}
