"""A machine with a real systemd as process 1, in its own namespaces and cgroups; root on Debian only.

It has its own processes, network (loopback alone), host name, /run, /tmp and /dev; /sys and the kernel's settings are
read-only, cgroups and engines work. It ends with the ``with`` block, or with a killed test.

Its root is a file system of Debian as debootstrap creates it, named after its contents, and cached below
$XDG_CACHE_HOME/runtimeproxy (~/.cache) from the first use on. A node (the fixture ``machine``) has the checkout's
program with the units of deploy/systemd, and this machine's engines. Here a system call that a unit does not allow ends
the process; the shipped unit refuses it.
"""

import fcntl
import hashlib
import os
import platform
import re
import select
import shutil
import site
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import pytest

from tests.docs import ROOT, block
from tests.engines import images
from tests.engines.containerd import CONFIG
from tests.engines.cri import CriClient
from tests.system.real import Kubelet

SECONDS = 60.0
"""Timeout of a command."""
POLL_SECONDS = 0.05
Env = Mapping[str, str]
NONE: Mapping[str, Any] = MappingProxyType({})
BOOT = Path(__file__).with_name("boot.sh")
STARTED = ("running", "degraded")
"""Answers of ``systemctl is-system-running`` after a boot; degraded: a unit of the tree failed."""

MAKE_SECONDS = 280.0
"""A tree takes 25 to 60 s, half of them downloads."""

# In memory, because dpkg waits for the disk after each file. Mounts end with the namespace, in any case.
SCRIPT = """
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 tree "$1/memory"
debootstrap --variant=minbase ${2:+--include="$2"} "$3" "$1/memory/tree"
rm -rf "$1"/memory/tree/var/cache/apt/archives/*.deb
cp -a "$1/memory/tree" "$1/tree"
"""


class MachineError(Exception):
    """A command in a machine failed, or a wait timed out; the text has the output."""


def debian(suite: str | None = None, packages: Sequence[str] = ("systemd",)) -> Path:
    """Return a minbase tree of a release (the host's by default) with some packages; it must not be changed.

    The first call creates it, which needs about a minute and the network; concurrent tests wait for it. Raises
    MachineError.
    """
    suite = suite or platform.freedesktop_os_release()["VERSION_CODENAME"]

    def make(work: Path) -> Path:
        (work / "memory").mkdir()
        # --kill-child: with the namespace's first process all the others end.
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", SCRIPT, "sh"]
        pipes: Any = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": MAKE_SECONDS}
        done = subprocess.run([*enter, work, ",".join(packages), suite], **pipes)
        if done.returncode:
            raise MachineError(f"debootstrap {suite} failed; its last lines: {(done.stdout + done.stderr)[-1500:]}")
        return work / "tree"

    digest = hashlib.sha256("\0".join([SCRIPT, *packages]).encode()).hexdigest()[:8]
    return cached_directory(f"{suite}-{digest}", make)


def cached_directory(name: str, make: Callable[[Path], Path]) -> Path:
    """Return the cached directory of a name; it must not be changed.

    ``make`` gets an empty directory, and returns the path to cache. Concurrent callers wait, also in other processes.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "runtimeproxy")
    cache.mkdir(parents=True, exist_ok=True)
    cached, work = cache / name, cache / f".{name}"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not cached.exists():
            shutil.rmtree(work, ignore_errors=True)  # of a killed process
            work.mkdir()
            try:
                make(work).rename(cached)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return cached


class Machine:
    """A booted tree; use as a context manager.

    ``tree`` is its root (``debian``), which stays unchanged: writes are in memory. ``work`` is an empty directory of
    the test. ``binds`` are paths in the machine with the host's paths mounted there, read-only. With ``overlay`` the
    host's /usr is the lower layer of the tree's.
    """

    def __init__(self, tree: Path, work: Path, binds: Mapping[str, Path] = NONE, *, overlay: bool = False) -> None:
        self.name = f"machine-{uuid.uuid4().hex[:8]}"
        """The name of its cgroup, in each hierarchy."""
        self.pid = 0
        """The host's process id of its systemd."""
        self._work = work
        self._command: list[str | Path] = [BOOT, self.name, tree, "/usr" if overlay else "", work / "mount"]
        self._command += [f"{source}:{place}" for place, source in binds.items()]

    def __enter__(self) -> Self:
        (self._work / "mount").mkdir(parents=True)
        log = self._work / "boot.log"
        with log.open("wb") as file:
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": file, "text": True}
            # In its own session: Ctrl-C ends the test, and that ends the machine.
            self._boot: Any = subprocess.Popen(self._command, start_new_session=True, **pipes)
        try:
            assert self._boot.stdout is not None
            ready, _, _ = select.select([self._boot.stdout], [], [], SECONDS)
            self.pid = int(self._boot.stdout.readline() or 0) if ready else 0
            if not self.pid:
                raise MachineError("the machine does not boot")
            self.until(lambda: self.run("systemctl", "is-system-running", check=False).strip() in STARTED, "the boot")
        except BaseException as error:
            self.__exit__()
            error.add_note(f"the log of its start: {log.read_text()[-2000:]}")
            raise
        return self

    def __exit__(self, *details: object) -> None:
        self._boot.stdin.close()
        self._boot.stdout.close()
        self._boot.wait(SECONDS)

    def run(
        self, *command: str | Path, input: str = "", check: bool = True, seconds: float = SECONDS, env: Env = NONE
    ) -> str:
        """Run a command in the machine as root; return its standard output and error.

        Its background processes belong to no unit: start daemons with systemd-run or a unit. Raises MachineError if it
        fails (unless ``check`` is False), or takes longer than ``seconds``.
        """
        # timeout: nsenter's end would not be its child's.
        words = [*self.enter(), "timeout", "--signal=KILL", f"{seconds:.0f}", *map(str, command)]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
        env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LANG": "C.UTF-8", **env}
        done = subprocess.run(words, input=input, env=env, timeout=seconds + SECONDS, **pipes)
        if check and done.returncode:
            description = " ".join(map(str, command))
            raise MachineError(f"{description}: exit code {done.returncode}; it wrote: {done.stdout[-4000:]}")
        return str(done.stdout)

    def path(self, inside: str | Path) -> Path:
        """Return the host's path of a path in the machine; unix sockets there can be connected to."""
        # A link with an absolute target (/var/run) would resolve outside of the machine.
        return self.root / self.run("realpath", "--canonicalize-missing", inside).strip().lstrip("/")

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self.pid}/root")

    def copy(self, source: Path, inside: str | Path) -> None:
        """Copy a file or directory into the machine, with modes and links; creates the parents."""
        target = self.path(inside)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(source, target)

    def write(self, inside: str | Path, text: str, mode: int = 0o644) -> None:
        """Write a file in the machine; creates the parents."""
        target = self.path(inside)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit, as ``systemctl show`` reports it."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def journal(self, unit: str) -> str:
        """Return the messages of a unit and of systemd about it."""
        return self.run("journalctl", "--no-pager", "--output=cat", "--unit", unit)

    def until(self, condition: Callable[[], object], description: str, seconds: float = SECONDS) -> None:
        """Wait until a condition holds. Raises MachineError after that time."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline or not os.path.exists(self.root):
                raise MachineError(f"waited {seconds:.0f} s for {description}")
            time.sleep(POLL_SECONDS)

    def enter(self) -> list[str]:
        """Return the prefix of a command that runs in the machine."""
        # Enters its cgroups first: nsenter changes the view of cgroups, not the process's own.
        mounts = (line.partition(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines())
        tops = [Path(mounted.split()[4]) for mounted, _, kind in mounts if kind.startswith("cgroup")]
        groups = " ".join(f"{top}/{self.name}-outer/cgroup.procs" for top in tops)
        into = f'for group in {groups}; do echo $$ >"$group"; done; exec "$@"'
        return ["sh", "-c", into, "sh", "nsenter", "--target", str(self.pid), "--all", "--"]


NEEDS_THE_HOST = re.compile(
    r"(?:Private|Protect|Proc|Restrict|Limit|Device|IPAddress|Memory|SystemCall|OOM|Capability|NoNew|Lock)\w*=.+"
)
"""Settings that the kernel or the host's rights may refuse."""


def fit(machine: Machine, unit: str, file: Path) -> None:
    """Write a drop-in that resets the settings of a unit's file that this machine does not support; print them.

    The unit's program is not started. Raises MachineError if the settings fail together and none fails alone.
    """

    def starts(settings: list[str]) -> bool:
        text = "\n".join(["[Service]", "Type=oneshot", "ExecStart=/bin/true", *settings, ""])
        machine.write("/run/systemd/system/probe.service", text)
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "start", "probe.service", check=False)
        return machine.show("probe.service", "Result") == "success"

    settings = [line for line in file.read_text().splitlines() if NEEDS_THE_HOST.fullmatch(line)]
    if starts(settings):
        return
    dropped = [setting for setting in settings if not starts([setting])]
    reset = ["[Service]"]
    for name, _, value in (setting.partition("=") for setting in dropped):
        off = "no" if value in ("yes", "strict", "invisible") else "0" if value.lstrip("-").isdigit() else ""
        reset.append(f"{name}={off}")
    machine.write(f"/etc/systemd/system/{unit}.d/90-machine.conf", "\n".join(reset))
    if not starts([setting for setting in settings if setting not in dropped]):
        raise MachineError(f"{unit} starts neither with its settings nor without {dropped}")
    print(f"{unit}: this machine cannot give {', '.join(dropped)}")


# ---- a node

UNITS = ROOT / "deploy" / "systemd"
SERVICES = ("runtimeproxy.service", "runtimeproxy-export.service", "runtimeproxy-hooks@.service")
SOCKETS = ("runtimeproxy.socket", "runtimeproxy-admin.socket", "runtimeproxy-metrics.socket")
ENGINES = ("containerd.service", "docker.service")
SOCKET = "/run/koord-runtimeproxy/runtimeproxy.sock"
PROGRAMS = {"runtimeproxy": "main", "koord-runtime-proxy": "koord_runtime_proxy", "runtimeproxy-hooks": "hooks"}
"""The programs, by the functions of runtimeproxy.__main__."""
PREFIX, PROGRAM_PATH, PACKAGES = "/opt/python", "/opt/program", "/opt/packages"
"""Directories of the Python that runs the tests, our code, and its packages."""
PYTHON = f"{PREFIX}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
BINDS = {
    PREFIX: Path(sys.base_prefix),
    PACKAGES: Path(site.getsitepackages()[0]),
    f"{PROGRAM_PATH}/runtimeproxy": ROOT / "runtimeproxy",
    f"{PROGRAM_PATH}/runtimeproxy_hooks": ROOT / "hooks",
}

FILES = "runtimeproxy*.{socket,service,service.d}"
CLIENTS: dict[str, Callable[[str], Any]] = {"Containerd": CriClient, "Docker": Kubelet}
"""The clients of a proxy by its mode."""
DOCKER = '{"bridge": "none", "iptables": false, "ip6tables": false, "exec-opts": ["native.cgroupdriver=cgroupfs"]}'


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Boot a machine for the tests of a file, with running engines and units, without unsupported settings."""
    with Machine(debian(), tmp_path_factory.mktemp("node") / "machine", BINDS, overlay=True) as machine:
        for engine in ENGINES:
            fit(machine, engine, Path("/usr/lib/systemd/system", engine))
        for unit in SERVICES:
            machine.write(f"/etc/systemd/system/{unit}.d/91-kills.conf", "[Service]\nSystemCallErrorNumber=kill\n")
            fit(machine, unit, UNITS / unit)
        machine.run("groupadd", "--system", "docker")  # its package would do it
        start_engines(machine)
        for name, main in PROGRAMS.items():
            machine.write(f"/usr/bin/{name}", program(main), mode=0o755)
        commands = block("docs/operation.rst", f"cp -r {FILES} /etc/systemd/system").text
        machine.copy(UNITS, "/opt/units")
        machine.run("bash", "-ec", f"cd /opt/units\n{commands}")
        yield machine


def program(function: str = "") -> str:
    """Return the text of a program that runs a function of ours, or that is a Python with our packages."""
    run = f"-c 'import sys; from runtimeproxy.__main__ import {function} as main; sys.exit(main())'"
    paths = f"PYTHONPATH={PROGRAM_PATH}:{PACKAGES} LD_LIBRARY_PATH={PREFIX}/lib"
    return f'#!/bin/sh\n{paths} exec {PYTHON} {run if function else ""} "$@"\n'


def start_engines(machine: Machine) -> None:
    """Start containerd and dockerd with the tests' images."""
    names = {"base": "/var/lib/containerd", "socket": "/run/containerd/containerd.sock", "pause": images.PAUSE_IMAGE}
    machine.write("/etc/containerd/config.toml", CONFIG.format(**names))
    machine.write("/etc/docker/daemon.json", DOCKER)
    machine.write("/etc/hosts", "127.0.0.1 localhost\n")
    machine.run("systemctl", "restart", *ENGINES)
    machine.path("/tmp/images.tar").write_bytes(images.archive(Path("/usr/bin/busybox")))
    machine.run("ctr", "--namespace=k8s.io", "images", "import", "--snapshotter=native", "/tmp/images.tar")
    machine.run("docker", "load", "--input=/tmp/images.tar")
