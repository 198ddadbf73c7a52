"""A node in a machine: the checkout's program with the units of deploy/systemd, and this machine's engines.

Here a system call that a unit does not allow ends the process; the shipped unit refuses it.
"""

import site
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs import ROOT
from tests.documents import block
from tests.engines import images
from tests.engines.containerd import CONFIG
from tests.engines.cri import CriClient
from tests.machines.machine import Machine, debian, fit
from tests.system.real import Kubelet

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
_DOCKER = '{"bridge": "none", "iptables": false, "ip6tables": false, "exec-opts": ["native.cgroupdriver=cgroupfs"]}'


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
    machine.write("/etc/docker/daemon.json", _DOCKER)
    machine.write("/etc/hosts", "127.0.0.1 localhost\n")
    machine.run("systemctl", "restart", *ENGINES)
    machine.path("/tmp/images.tar").write_bytes(images.archive(Path("/usr/bin/busybox")))
    machine.run("ctr", "--namespace=k8s.io", "images", "import", "--snapshotter=native", "/tmp/images.tar")
    machine.run("docker", "load", "--input=/tmp/images.tar")
