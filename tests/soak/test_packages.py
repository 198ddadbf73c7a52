"""The packages on a node: installed, upgraded and downgraded with pods running, removed, purged.

The node is a machine (tests/machines) with Debian's containerd and dockerd. Each package is tested in each mode: also
the RPM, by Debian's rpm, without its requirements. A kubelet makes a call each 10 ms, and connects like grpc-go, or
Go's net/http.
"""

import asyncio
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.cli.shared.admin_client import AdminClient
from tests.docker.client import Client
from tests.engines import cri
from tests.machines import machine as node
from tests.machines.machine import Machine, debian, fit
from tests.soak.conftest import MARKS, NEWER, Findings, built, contains
from tests.system.fronts import CriCaller, Failed
from tests.system.nodes import PatientDocker

pytestmark = [*MARKS, pytest.mark.engine, pytest.mark.trees, pytest.mark.release]

PACKAGE, UNIT, EXPORTER = "runtimeproxy", "runtimeproxy.service", "runtimeproxy-export.service"
UNITS = (UNIT, EXPORTER, "runtimeproxy-hooks@.service")
PYTHON = "/usr/lib/runtimeproxy/bin/python3"
METRICS = "http://127.0.0.1:9654/metrics"
FETCH = f"{PYTHON} -c 'import urllib.request; urllib.request.urlopen(\"{METRICS}\")' && echo yes || true"
HOLD = f"import socket, time; s = socket.socket(socket.AF_UNIX); s.connect('{node.SOCKET}'); time.sleep(3600)"
CONFIGURATION = "/etc/runtimeproxy/config.yaml"
REGISTRATIONS = "/etc/runtime/hookserver.d"
THEIRS = f"{REGISTRATIONS}/koordlet.json"
KUBELET = "/etc/systemd/system/kubelet.service"
PODS = 3
CALL_SECONDS = 0.01
BACKOFF: Any = {f"grpc.{k}_reconnect_backoff_ms": v for k, v in (("initial", 100), ("min", 5000), ("max", 3000))}
"""The kubelet's options for its connection to the runtime: attempts after 100 ms to 3 s, each with at least 5 s."""
FOREIGN_PATHS = (
    *("/proc", "/sys", "/dev", "/tmp", "/root", "/var/cache", "/var/log"),
    *("/var/lib/dpkg", "/var/lib/rpm", "/var/lib/systemd", "/var/lib/containerd", "/var/lib/docker"),
    *("/run/containerd", "/run/docker", "/run/log", "/run/systemd", "/run/udev"),
    *(f"/etc/systemd/system/{unit}.d" for unit in UNITS),
)
"""Paths with files of the engines, of package managers, of systemd and of the test."""
RPM = "rpm --force-debian"
LEFT = "/etc/runtimeproxy /var/lib/runtimeproxy /run/runtimeproxy-hooks /run/koord-runtimeproxy*"
DEB_QUERY = "dpkg-query -W '-f=${db:Status-Status} ${Version}'"
RPM_QUERY = f"{RPM} --query '--queryformat=installed %{{VERSION}}-%{{RELEASE}}'"
VERIFY = f"{RPM} --verify --nodeps --nomtime"  # files that are written back have a new time
FORMS = {
    "deb": ("dpkg -i", "dpkg -i", "dpkg -V", DEB_QUERY, "dpkg -r", f"dpkg -P {PACKAGE}"),
    "rpm": (
        *(f"{RPM} --install --nodeps", f"{RPM} --upgrade --oldpackage --nodeps", VERIFY, RPM_QUERY, f"{RPM} --erase"),
        f"rm -rf {LEFT} && groupdel runtimeproxy-metrics",
    ),
}
ACTIONS = ("install", "change", "verify", "query", "remove", "purge")
"""The commands of package managers; the first five are followed by a file or by the package's name."""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Build this version and a newer one; return the packages by kind."""
    folder = tmp_path_factory.mktemp("packages")
    dists = [built(folder / "this", [*FORMS]), built(folder / "newer", [*FORMS], NEWER)]
    return {kind: [package for dist in dists for package in dist.glob(f"*.{kind}")] for kind in FORMS}


@pytest.fixture(scope="module")
def machine(packages: dict[str, list[Path]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Start a machine with the engines, the tests' images and the packages."""
    tree = debian(packages=("systemd", "containerd", "docker.io", "busybox-static", "rpm"))
    with Machine(tree, tmp_path_factory.mktemp("node") / "machine") as machine:
        for package in [file for files in packages.values() for file in files]:
            machine.copy(package, f"/root/{package.name}")
        files = {unit: machine.path(Path("/lib/systemd/system", unit)) for unit in node.ENGINES}
        files |= {unit: node.UNITS / unit for unit in UNITS}
        for unit, file in files.items():
            fit(machine, unit, file)
        for folder in ("/usr/share/licenses", "/usr/share/zsh/site-functions"):  # a system with rpm has them
            machine.write(f"{folder}/another", "")
        node.start_engines(machine)
        yield machine


def test_lintian_finds_no_error(packages: dict[str, list[Path]]) -> None:
    subprocess.run(["lintian", "--fail-on=error", packages["deb"][0]], check=True)


class PromptDocker(PatientDocker):
    """cri-dockerd's connection: Go's net/http does not wait for a listener."""

    async def _connect(self) -> Client:
        try:
            return await Client.connect(self._socket)
        except OSError as error:
            raise Failed(None, f"refused: {error}") from None


class Calls:
    """Calls in their own thread, each 10 ms, until the end of the ``with`` block."""

    def __init__(self, mode: str, socket: Path) -> None:
        self.count, self.longest = 0, 0.0
        self.failed: list[str] = []
        # A kubelet's connection: a call without one fails immediately, and the client does not retry it.
        self._make = (lambda: PromptDocker(socket)) if mode == "Docker" else lambda: CriCaller(socket, **BACKOFF)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._call()))

    def __enter__(self) -> "Calls":
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._ending.set()
        self._thread.join()

    async def _call(self) -> None:
        async with self._make() as caller:
            while not self._ending.is_set():
                start = time.monotonic()
                try:
                    await caller.act("list" if self.count % 2 else "ping")
                except Failed as error:
                    self.failed.append(f"{time.strftime('%X')} {error}")
                self.count += 1
                seconds = time.monotonic() - start
                self.longest = max(self.longest, seconds)
                await asyncio.sleep(max(CALL_SECONDS - seconds, 0))


class Installed:
    """A package in one mode, and a newer one."""

    def __init__(self, machine: Machine, mode: str, form: str, files: list[Path]) -> None:
        self._machine, self._form = machine, form
        self.package, self.newer = (file.name for file in files)
        found = [re.search(r"[_-]([\d.]+-\d+)[._]", file.name) for file in files]
        self.versions = {file.name: match[1] for file, match in zip(files, found, strict=True) if match}
        self._changed = ["c", CONFIGURATION] if mode == "Docker" else []  # which the test wrote

    def run(self, action: str, subject: str = PACKAGE, fails: bool | None = False) -> str:
        """Run a command of the package manager without a terminal; return its output. None: it may fail."""
        command = f'{FORMS[self._form][ACTIONS.index(action)]} {subject}; echo "exit code $?"'
        printed, _, exit_code = self._machine.run("sh", "-c", command).rpartition("exit code ")
        assert fails in (None, int(exit_code) != 0), printed
        return printed

    def refuse(self, action: str, subject: str, *words: str) -> None:
        """Run a command of the package manager that must be refused; the installed version and its process stay."""
        first = self.pid()
        contains(self.run(action, subject, fails=True), *words)
        assert self.pid() == first
        assert self.run("query") == f"installed {self.versions[self.package]}"

    def verify(self) -> None:
        assert self.run("verify", fails=None).split()[1:] == self._changed

    def pid(self, unit: str = UNIT) -> str:
        return self._machine.show(unit, "MainPID")


def files_of(machine: Machine) -> set[str]:
    """Return all paths of the machine except foreign ones."""
    excluded = " -o ".join(f"-path {place}" for place in FOREIGN_PATHS)
    return set(machine.run("sh", "-c", f"find / \\( {excluded} \\) -prune -o -print").split("\n"))


def processes_of(machine: Machine) -> list[str]:
    """Return name, id and start of each process of the pods and their shims."""
    lines = machine.run("sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null || true").splitlines()
    rows = [line.split() for line in lines if "(sleep)" in line or "(containerd-shim" in line]
    return sorted(f"{row[1]} {row[0]} {row[21]}" for row in rows)


@pytest.mark.parametrize("mode", node.CLIENTS)
@pytest.mark.parametrize("form", FORMS)
def test_package_life_cycle_fails_no_call(
    form: str, mode: str, machine: Machine, packages: dict[str, list[Path]], findings: Findings
) -> None:
    installed, before = Installed(machine, mode, form, packages[form]), files_of(machine)
    printed = installed.run("install", f"/root/{installed.package}")
    contains(printed, "the proxy runs and listens, and nothing uses it yet", "runtimeproxy kubelet-args")
    assert installed.run("verify") == ""
    machine.write(THEIRS, '{"remote-endpoint": "/run/koordlet/x.sock", "runtime-hooks": ["PreStartContainer"]}')
    if mode == "Docker":
        machine.write(CONFIGURATION, "backend-runtime-mode: Docker\n")
        machine.run("systemctl", "restart", UNIT)
    machine.run("systemctl", "start", "runtimeproxy-hooks@gpu.service", EXPORTER)
    machine.until(lambda: "gpu.json" in machine.run("ls", REGISTRATIONS), "a registration of ours")
    socket = machine.path(node.SOCKET)
    with node.CLIENTS[mode](str(socket)) as client:
        for name in (f"{form}-{number}" for number in range(PODS)):  # those of the previous life still run
            pod = cri.pod_config(name, name, cgroup_parent=f"/kubepods/uid-{name}")
            container = cri.container_config("main", command=["/bin/sleep", "3600"])
            client.start(client.create(client.run_pod(pod), container, pod))
    pods = processes_of(machine)
    with Calls(mode, socket) as calls:
        for package in (installed.newer, installed.package):
            first, exporter = installed.pid(), installed.pid(EXPORTER)
            contains(installed.run("change", f"/root/{package}"), "hook servers still run the earlier version")
            admin = AdminClient(str(machine.path("/run/koord-runtimeproxy/admin.sock")))
            assert admin.call("version")["version"] == installed.versions[package].partition("-")[0]
            assert installed.pid() != first
            assert installed.pid(EXPORTER) != exporter
            machine.until(lambda: "yes" in machine.run("sh", "-c", FETCH), "a scrape by the exporter")
            installed.verify()
            machine.run("systemctl", "restart", UNIT)

        # An upgrade that would not start is refused; the old version has every file, and its process continues.
        retained = machine.run("cat", CONFIGURATION)
        machine.write(CONFIGURATION, f"{retained}\nhook-timeot: 3s\n")
        installed.refuse(
            "change", f"/root/{installed.newer}", "unknown key 'hook-timeot'", "would not start", "continues"
        )
        machine.write(CONFIGURATION, retained)
        installed.verify()

        # A removal while a client is connected: in the machine, because the machine cannot see those of ``Calls``.
        machine.run("systemd-run", "--unit=connected", PYTHON, "-c", HOLD)
        uses = ("sh", "-c", "runtimeproxy in-use || true")
        machine.until(lambda: "has 1 connection to" in machine.run(*uses), "a connection")
        installed.refuse("remove", PACKAGE, "has 1 connection to", "kubelet-args", "FORCE_RUNTIMEPROXY_REMOVAL=1")
        machine.run("systemctl", "stop", "connected.service")
    assert calls.failed == []

    # The removal after the calls: not while a stopped kubelet is configured to use it.
    machine.write(KUBELET, f"[Service]\nExecStart=/bin/kubelet --container-runtime-endpoint={node.SOCKET}\n")
    machine.run("systemctl", "daemon-reload")
    words = ("kubelet.service is configured to call it", "kubelet-args", "FORCE_RUNTIMEPROXY_REMOVAL=1")
    installed.refuse("remove", PACKAGE, *words)
    machine.run("rm", KUBELET)
    machine.run("systemctl", "daemon-reload")
    installed.run("remove")
    assert machine.run("sh", "-c", "systemctl list-units -q runtimeproxy*") == ""
    assert machine.run("ls", REGISTRATIONS).split() == [Path(THEIRS).name]
    assert processes_of(machine) == pods
    installed.run("purge", "")
    assert sorted(files_of(machine) - before) == ["/etc/runtime", REGISTRATIONS, THEIRS]
    assert "runtimeproxy" not in machine.run("cat", "/etc/group")
    machine.run("rm", "-r", "/etc/runtime")
    findings.note("calls during 2 changes of version, 2 restarts and 2 refusals", f"{calls.count:,}")
    findings.note("the longest took, in seconds", f"{calls.longest:.2f}")
