"""A node in a machine: the units of deploy/systemd as a package puts them there, and this machine's engines.

The program is the checkout's, with this Python, below /opt; other forms of it come by ``program``. A system call that a
unit does not allow ends the process here, while the unit as shipped refuses it: so it is seen.
"""

import site
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.docs import ROOT
from tests.engines import images
from tests.engines.containerd import CONFIG
from tests.machines.fitting import fit
from tests.machines.machine import Machine
from tests.machines.tree import debian

UNITS = ROOT / "deploy" / "systemd"
SERVICES = ("runtimeproxy.service", "runtimeproxy-export.service", "runtimeproxy-hooks@.service")
ENGINES = ("containerd.service", "docker.service")
SOCKET = "/run/koord-runtimeproxy/runtimeproxy.sock"
CONTAINERD_SOCKET, DOCKER_SOCKET = "/run/containerd/containerd.sock", "/run/docker.sock"
PROGRAMS: Mapping[str, str] = {
    "runtimeproxy": "runtimeproxy.cli:main",
    "koord-runtime-proxy": "runtimeproxy.cli:koord_runtime_proxy",
    "runtimeproxy-hooks": "runtimeproxy_hooks.__main__:run",
}
BINDS = {
    "/opt/python": Path(sys.base_prefix),
    "/opt/packages": Path(site.getsitepackages()[0]),
    "/opt/program/runtimeproxy": ROOT / "runtimeproxy",
    "/opt/program/runtimeproxy_hooks": ROOT / "hooks",
}
PYTHON = f"/opt/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"

_DOCKER = """
{"bridge": "none", "iptables": false, "ip6tables": false, "exec-opts": ["native.cgroupdriver=cgroupfs"]}
"""
_KILLS = "[Service]\nSystemCallErrorNumber=kill\n"


@contextmanager
def node(work: Path) -> Iterator[Machine]:
    """Boot a machine with units, program and engines; nothing of them is started."""
    with Machine(debian(), work, BINDS, beside=True) as machine:
        for name, main in PROGRAMS.items():
            machine.write(f"/usr/bin/{name}", program(main), mode=0o755)
        install(machine)
        _configure_engines(machine)
        for engine in ENGINES:
            fit(machine, engine, Path("/usr/lib/systemd/system", engine))
        yield machine


def install(machine: Machine) -> None:
    """Put the units into a machine, without what it cannot give."""
    machine.copy(UNITS, "/usr/lib/systemd/system")
    machine.copy(UNITS / "runtimeproxy.sysusers", "/usr/lib/sysusers.d/runtimeproxy.conf")
    machine.run("systemd-sysusers")
    for unit in SERVICES:
        machine.write(f"/etc/systemd/system/{unit}.d/91-kills.conf", _KILLS)
        fit(machine, unit, UNITS / unit)
    machine.run("systemctl", "daemon-reload")


def program(main: str = "") -> str:
    """Return the text of a program that runs ``main``, or of a Python that has our packages."""
    module, _, function = main.partition(":")
    code = f"-c 'import sys; from {module} import {function} as main; sys.exit(main())'" if main else ""
    paths = "PYTHONPATH=/opt/program:/opt/packages LD_LIBRARY_PATH=/opt/python/lib"
    return f'#!/bin/sh\n{paths} exec {PYTHON} {code} "$@"\n'


def _configure_engines(machine: Machine) -> None:
    config = CONFIG.format(base="/var/lib/containerd", socket=CONTAINERD_SOCKET, pause=images.PAUSE_IMAGE)
    machine.write("/etc/containerd/config.toml", config)
    machine.write("/etc/docker/daemon.json", _DOCKER)
    machine.write("/etc/hosts", "127.0.0.1 localhost\n")
    machine.run("groupadd", "--system", "docker")


def load_images(machine: Machine) -> None:
    """Give the test images to the engines that run."""
    archive = "/tmp/images.tar"
    machine.path(archive).write_bytes(images.archive(Path("/usr/bin/busybox")))
    machine.run("ctr", "--namespace=k8s.io", "images", "import", "--snapshotter=native", archive)
    machine.run("docker", "load", "--input", archive)


_MAKE_CGROUP = """
set -e
top=/sys/fs/cgroup
if [ ! -e $top/cgroup.controllers ]; then
    for each in $top/*/cgroup.procs; do mkdir -p "${each%/*}/$1"; done
    exit
fi
IFS=/
for part in $1; do
    echo "+cpu +memory +pids" >$top/cgroup.subtree_control
    top=$top/$part
    mkdir -p $top
done
"""


def make_cgroup(machine: Machine, path: str) -> None:
    """Make a pod's cgroup in each hierarchy, as a kubelet does before it runs the pod."""
    machine.run("sh", "-c", _MAKE_CGROUP, "sh", path.lstrip("/"))
