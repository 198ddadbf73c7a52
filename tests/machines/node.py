"""A node in a machine: the checkout's program with the units of deploy/systemd, and this machine's engines.

Here a system call that a unit does not allow ends the process; the shipped unit refuses it.
"""

import site
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.docs import ROOT, block
from tests.engines import images
from tests.engines.containerd import CONFIG
from tests.machines.machine import Machine, fit
from tests.machines.tree import debian

UNITS = ROOT / "deploy" / "systemd"
SERVICES = ("runtimeproxy.service", "runtimeproxy-export.service", "runtimeproxy-hooks@.service")
SOCKETS = ("runtimeproxy.socket", "runtimeproxy-admin.socket", "runtimeproxy-metrics.socket")
ENGINES = ("containerd.service", "docker.service")
SOCKET = "/run/koord-runtimeproxy/runtimeproxy.sock"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
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

_DOCKER = '{"bridge": "none", "iptables": false, "ip6tables": false, "exec-opts": ["native.cgroupdriver=cgroupfs"]}'


@contextmanager
def node(work: Path) -> Iterator[Machine]:
    """Boot a machine with running engines and units, without the settings that it does not support."""
    with Machine(debian(), work, BINDS, overlay=True) as machine:
        for engine in ENGINES:
            fit(machine, engine, Path("/usr/lib/systemd/system", engine))
        for unit in SERVICES:
            machine.write(f"/etc/systemd/system/{unit}.d/91-kills.conf", "[Service]\nSystemCallErrorNumber=kill\n")
            fit(machine, unit, UNITS / unit)
        configure_engines(machine)
        machine.run("groupadd", "--system", "docker")  # its package would do it
        machine.run("systemctl", "restart", *ENGINES)
        for name, main in PROGRAMS.items():
            machine.write(f"/usr/bin/{name}", program(main), mode=0o755)
        # As docs/operation.rst has it.
        commands = block(
            "docs/operation.rst", "cp -r runtimeproxy*.{socket,service,service.d} /etc/systemd/system"
        ).text
        machine.copy(UNITS, "/opt/units")
        machine.run("bash", "-ec", f"cd /opt/units\n{commands}")
        yield machine


def program(function: str = "") -> str:
    """Return the text of a program that runs a function of ours, or that is a Python with our packages."""
    run = f"-c 'import sys; from runtimeproxy.__main__ import {function} as main; sys.exit(main())'"
    paths = f"PYTHONPATH={PROGRAM_PATH}:{PACKAGES} LD_LIBRARY_PATH={PREFIX}/lib"
    return f'#!/bin/sh\n{paths} exec {PYTHON} {run if function else ""} "$@"\n'


def configure_engines(machine: Machine) -> None:
    """Write the configuration of containerd and dockerd, before either runs."""
    config = CONFIG.format(base="/var/lib/containerd", socket=CONTAINERD_SOCKET, pause=images.PAUSE_IMAGE)
    machine.write("/etc/containerd/config.toml", config)
    machine.write("/etc/docker/daemon.json", _DOCKER)
    machine.write("/etc/hosts", "127.0.0.1 localhost\n")


def load_images(machine: Machine) -> None:
    """Load the test images into both engines, which run."""
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
    """Create a pod's cgroup in each hierarchy, as a kubelet does before it runs the pod."""
    machine.run("sh", "-c", _MAKE_CGROUP, "sh", path.lstrip("/"))
