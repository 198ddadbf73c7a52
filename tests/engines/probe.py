"""The rights and programs that this machine lacks to run a private containerd or dockerd, found by attempts.

``python3 tests/engines/probe.py`` prints the first missing right and exits with 1, or exits with 0. It needs only the
standard library: scripts/install runs it before anything is installed.
"""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

RIGHTS_REMEDY = "run it as root on a machine, or in a container with --privileged"
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
DOCKERD = "/usr/sbin/dockerd"
"""The distribution's, even if another one is first on the PATH."""
_CONTAINERD = dict.fromkeys(("containerd", "containerd-shim-runc-v2"), "containerd")
_CONTAINERD |= {"runc": "runc", "busybox": "busybox-static"}
PROGRAMS: Mapping[str, Mapping[str, str]] = {
    "containerd": {**_CONTAINERD, "ctr": "containerd"},
    "dockerd": {DOCKERD: "docker.io", **_CONTAINERD},
    "clients": {"/usr/bin/docker": "docker-cli", "curl": "curl", "promtool": "prometheus"},
}
"""The programs of each engine and of its tests, each with Debian's package."""
TOOLS: Mapping[str, str] = {
    "git": "apt-get install git",
    "helm": "install Go 1.24 or later, and run scripts/install",
    "minisign": "apt-get install minisign",
    "strace": "apt-get install strace",
}
"""The programs of other tests, each with its installer."""

CAPABILITIES: Mapping[str, int] = {
    **{"CAP_SYS_ADMIN": 21, "CAP_NET_ADMIN": 12, "CAP_SYS_PTRACE": 19},
    **{"CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3, "CAP_FSETID": 4, "CAP_KILL": 5, "CAP_SETGID": 6},
    **{"CAP_SETUID": 7, "CAP_SETPCAP": 8, "CAP_NET_BIND_SERVICE": 10, "CAP_NET_RAW": 13, "CAP_SYS_CHROOT": 18},
    **{"CAP_MKNOD": 27, "CAP_AUDIT_WRITE": 29, "CAP_SETFCAP": 31},
}
"""The capabilities of the engines, and those of every container (capabilities(7)), without which runc fails."""

_UP = """import fcntl, socket, struct
any_socket, SIOCSIFFLAGS, IFF_UP = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8914, 1
fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))
"""
_MOUNT = "mount -t tmpfs -o dev none /tmp"
ATTEMPTS: Mapping[str, tuple[str, ...]] = {
    "cannot create a mount namespace": ("--mount", "true"),
    "cannot mount a file system": ("--mount", *_MOUNT.split()),
    "cannot create a device": ("--mount", "sh", "-c", f"{_MOUNT} && mknod /tmp/null c 1 3 && : >/tmp/null"),
    "cannot create a network namespace": ("--net", "true"),
    "cannot set up a network interface": ("--net", sys.executable, "-c", _UP),  # its loopback: netdevice(7)
}
"""The engines' system calls by the error text, as arguments of unshare; mounts end with its namespace."""

RELEASE_BASE = "12"
"""The version of Debian whose Python is in a release (scripts/building/debian.py)."""


@cache
def missing_right() -> str:
    """Return the first right that the engines need and this process lacks, with the remedy; "" if it has all."""
    missing = _missing_right()
    return f"{missing}; {RIGHTS_REMEDY}" if missing else ""


@cache
def missing_for(*engines: str) -> str:
    """Return the first right or program that these engines (all by default) lack, with the remedy; "" if none."""
    return missing_right() or next(filter(None, map(missing_programs, engines or PROGRAMS)), "")


def missing_programs(engine: str) -> str:
    """Return the programs that an engine lacks, with the remedy; "" if none."""
    path = PATH if engine == "dockerd" else None
    packages = {name: package for name, package in PROGRAMS[engine].items() if shutil.which(name, path=path) is None}
    if not packages:
        return ""
    return f"not found: {', '.join(packages)}; apt-get install {' '.join(sorted(set(packages.values())))}"


def missing_tool(name: str) -> str:
    """Return that a program of ``TOOLS`` is missing, with the remedy; "" if it is installed."""
    return "" if shutil.which(tool(name)) else f"not found: {name}; {TOOLS[name]}"


def tool(name: str) -> str:
    """Return the path of a program in .venv, where scripts/install puts helm; else its name."""
    installed = Path(sys.executable).with_name(name)
    return str(installed) if installed.exists() else name


def missing_for_trees() -> str:
    """Return why debootstrap cannot make trees of this machine's release; "" if it can."""
    if (name := _system()[0]) != "debian":
        return f"this is {name}, and debootstrap makes trees of Debian; run it on Debian"
    return "" if shutil.which("debootstrap") else "not found: debootstrap; apt-get install debootstrap"


def missing_for_release() -> str:
    """Return why scripts/build cannot make a release on this machine; "" if it can."""
    if (system := _system()) != ("debian", RELEASE_BASE):
        return f"this is {' '.join(system)}, and a release has the packages of Debian {RELEASE_BASE}; run it there"
    packages = {"dpkg-buildpackage": "debhelper", "help2man": "help2man"}
    missing = [package for program, package in packages.items() if not shutil.which(program)]
    return missing_history() or (f"not found: apt-get install {' '.join(missing)}" if missing else "")


def missing_history() -> str:
    """Return that the checkout has no git history; "" if it has one."""
    has_one = Path(__file__).parents[2].joinpath(".git").exists()
    return "" if has_one else "this checkout has no git history; git clone it"


def _system() -> tuple[str, str]:
    """Return the name and version of the distribution: os-release(5)."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return "a system without os-release", ""
    return release["ID"], release.get("VERSION_ID", "")


def _missing_right() -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = int(next(line.split()[1] for line in lines if line.startswith("CapEff:")), 16)
    if lacking := [name for name, bit in CAPABILITIES.items() if not effective >> bit & 1]:
        return f"no {lacking[0]}"
    mounts = [line.partition(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    hierarchies = [Path(mounted.split()[4]) for mounted, _, kind in mounts if kind.startswith("cgroup")]
    if not hierarchies:
        return "no cgroup hierarchy"
    for hierarchy in hierarchies:
        group = hierarchy / f"runtimeproxy-probe-{os.getpid()}"
        try:
            group.mkdir()
            group.rmdir()
            if hierarchy == Path("/sys/fs/cgroup") and (hierarchy / "cgroup.controllers").exists():
                # EBUSY where the root has processes of its own, as in a container: cgroups(7), "no internal processes".
                (hierarchy / "cgroup.subtree_control").write_text("+cpu +cpuset +memory +pids")
        except OSError as error:
            return f"cannot create a cgroup in {hierarchy}, with its controllers: {error.strerror}"
    for text, words in ATTEMPTS.items():
        done = subprocess.run(["unshare", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            return f"{text}: {' '.join(done.stderr.split())}"
    return ""


if __name__ == "__main__":
    print(missing_right())
    sys.exit(1 if missing_right() else 0)
