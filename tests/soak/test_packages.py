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
from tests.fakes.dockershim import CRI_DOCKERD, Dockershim
from tests.machines import node
from tests.machines.machine import Machine, fit
from tests.machines.tree import debian
from tests.soak import MARKS
from tests.soak.conftest import NEWER, Findings, built, contains
from tests.system.fronts import CriCaller, Failed
from tests.system.nodes import PatientDocker

pytestmark = [*MARKS, pytest.mark.engine, pytest.mark.trees, pytest.mark.release]

PACKAGES = ("systemd", "containerd", "docker.io", "busybox-static", "rpm")
PACKAGE, UNIT, EXPORTER = "runtimeproxy", "runtimeproxy.service", "runtimeproxy-export.service"
UNITS = (UNIT, EXPORTER, "runtimeproxy-hooks@.service")
PYTHON = "/usr/lib/runtimeproxy/bin/python3"
METRICS = "http://127.0.0.1:9654/metrics"
CONFIGURATION = "/etc/runtimeproxy/config.yaml"
REGISTRATIONS = "/etc/runtime/hookserver.d"
THEIRS = f"{REGISTRATIONS}/koordlet.json"
KUBELET = "/etc/systemd/system/kubelet.service"
PODS = 3
CALL_SECONDS = 0.01
BACKOFF: dict[str, Any] = {
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 5000,
    "grpc.max_reconnect_backoff_ms": 3000,
}
"""The kubelet's options for its connection to the runtime: attempts after 100 ms to 3 s, each with at least 5 s."""
FOREIGN_PATHS = (
    *("/proc", "/sys", "/dev", "/tmp", "/root", "/var/cache", "/var/log"),
    *("/var/lib/dpkg", "/var/lib/rpm", "/var/lib/systemd", "/var/lib/containerd", "/var/lib/docker"),
    *("/run/containerd", "/run/docker", "/run/log", "/run/systemd", "/run/udev"),
    *(f"/etc/systemd/system/{unit}.d" for unit in UNITS),
)
"""Paths with files of the engines, of package managers, of systemd and of the test."""
FORMS: dict[str, dict[str, str]] = {
    "deb": {
        "install": "dpkg -i",
        "change": "dpkg -i",
        "verify": "dpkg -V",
        "query": "dpkg-query -W '-f=${db:Status-Status} ${Version}'",
        "remove": "dpkg -r",
        "purge": f"dpkg -P {PACKAGE}",
    },
    "rpm": {
        "install": "rpm --force-debian --install --nodeps",
        "change": "rpm --force-debian --upgrade --oldpackage --nodeps",
        "verify": "rpm --force-debian --verify --nodeps --nomtime",  # files that are written back have a new time
        "query": "rpm --force-debian --query '--queryformat=installed %{VERSION}-%{RELEASE}'",
        "remove": "rpm --force-debian --erase",
        "purge": "rm -rf /etc/runtimeproxy /var/lib/runtimeproxy /run/koord-runtimeproxy /run/runtimeproxy-hooks"
        " /run/koord-runtimeproxy-metrics && groupdel runtimeproxy-metrics",
    },
}
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
    with Machine(debian(packages=PACKAGES), tmp_path_factory.mktemp("node") / "machine") as machine:
        for package in [file for files in packages.values() for file in files]:
            machine.copy(package, f"/root/{package.name}")
        node.configure_engines(machine)
        files = {unit: machine.path(Path("/lib/systemd/system", unit)) for unit in node.ENGINES}
        files |= {unit: node.UNITS / unit for unit in UNITS}
        for unit, file in files.items():
            fit(machine, unit, file)
        for folder in ("/usr/share/licenses", "/usr/share/zsh/site-functions"):  # a system with rpm has them
            machine.write(f"{folder}/another", "")
        machine.run("systemctl", "restart", *node.ENGINES)
        node.load_images(machine)
        yield machine


def test_lintian_finds_no_error(packages: dict[str, list[Path]]) -> None:
    subprocess.run(["lintian", "--fail-on=error", packages["deb"][0]], check=True)


@pytest.mark.parametrize("mode", ["Containerd", "Docker"])
@pytest.mark.parametrize("form", FORMS)
def test_package_life_cycle_fails_no_call(
    form: str, mode: str, machine: Machine, packages: dict[str, list[Path]], findings: Findings
) -> None:
    life = Life(machine, mode, form, *packages[form])
    before = life.files()
    life.install()
    socket = machine.path(node.SOCKET)
    life.run_pods(str(socket))
    pods = life.processes()
    with Calls(mode, socket) as calls:
        for package in (life.newer, life.package):
            life.change_version(package)
            machine.run("systemctl", "restart", UNIT)
        life.refuse_a_bad_configuration()
        life.refuse_removal_while_connected()
    assert calls.failed == []
    life.remove()
    assert life.processes() == pods
    life.purge(before)
    findings.note("calls during 2 changes of version, 2 restarts and 2 refusals", f"{calls.count:,}")
    findings.note("the longest took, in seconds", f"{calls.longest:.2f}")


class _PatientCri(CriCaller):
    """A kubelet's connection: a call without one fails immediately, and the client does not retry it."""

    def __init__(self, socket: Path) -> None:
        super().__init__(socket, **BACKOFF)


class _PatientDocker(PatientDocker):
    """cri-dockerd's connection: Go's net/http does not wait for a listener."""

    async def _connect(self) -> Client:
        try:
            return await Client.connect(self._socket)
        except OSError as error:
            raise Failed(None, f"refused: {error}") from None


class Calls:
    """Calls in their own thread, each 10 ms, until the end of the ``with`` block."""

    def __init__(self, mode: str, socket: Path) -> None:
        self.count = 0
        self.failed: list[str] = []
        self.longest = 0.0
        self._make = _PatientDocker if mode == "Docker" else _PatientCri
        self._socket = socket
        self._ending = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._call()))

    def __enter__(self) -> "Calls":
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._ending.set()
        self._thread.join()

    async def _call(self) -> None:
        async with self._make(self._socket) as caller:
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


def version_of(package: str) -> str:
    """Return version and revision in the name of a package's file."""
    match = re.search(r"[_-]([\d.]+-\d+)[._]", package)
    assert match
    return match[1]


class Life:
    """The life of a package in one mode; each method is a step."""

    def __init__(self, machine: Machine, mode: str, form: str, package: Path, newer: Path) -> None:
        self._machine, self._mode, self._form = machine, mode, form
        self.package, self.newer = package.name, newer.name

    def install(self) -> None:
        printed = self._run("install", f"/root/{self.package}")
        contains(printed, "the proxy runs and listens, and nothing uses it yet", "runtimeproxy kubelet-args")
        assert self._run("verify") == ""
        theirs = '{"remote-endpoint": "/run/koordlet/x.sock", "runtime-hooks": ["PreStartContainer"]}'
        self._machine.write(THEIRS, theirs)
        if self._mode == "Docker":
            self._machine.write(CONFIGURATION, "backend-runtime-mode: Docker\n")
            self._machine.run("systemctl", "restart", UNIT)
        self._machine.run("systemctl", "start", "runtimeproxy-hooks@gpu.service", EXPORTER)
        self._machine.until(lambda: "gpu.json" in self._machine.run("ls", REGISTRATIONS), "a registration of ours")

    def run_pods(self, socket: str) -> None:
        """Run pods with a container each."""
        names = [f"{self._form}-{number}" for number in range(PODS)]  # those of the previous life still run
        parents = {name: f"/kubepods/uid-{name}" for name in names}
        if self._mode == "Docker":
            with Dockershim(socket, CRI_DOCKERD) as shim:
                for name, parent in parents.items():
                    pod_id = shim.run_pod_sandbox(name, name, cgroup_parent=parent, oom_score_adj=0)
                    shim.start_container(shim.create_container(pod_id, "main", command=["/bin/sleep", "3600"]))
            return
        with cri.CriClient(socket) as client:
            for name, parent in parents.items():
                pod = cri.pod_config(name, name, cgroup_parent=parent)
                container = cri.container_config("main", command=["/bin/sleep", "3600"])
                client.start(client.create(client.run_pod(pod), container, pod))

    def change_version(self, package: str) -> None:
        first, exporter = self._pid(), self._pid(EXPORTER)
        contains(self._run("change", f"/root/{package}"), "hook servers still run the earlier version")
        admin = AdminClient(str(self._machine.path("/run/koord-runtimeproxy/admin.sock")))
        assert admin.call("version")["version"] == version_of(package).partition("-")[0]
        assert self._pid() != first
        assert self._pid(EXPORTER) != exporter
        fetch = f"{PYTHON} -c 'import urllib.request; urllib.request.urlopen(\"{METRICS}\")' && echo yes || true"
        self._machine.until(lambda: "yes" in self._machine.run("sh", "-c", fetch), "a scrape by the exporter")
        self._verify_changed()

    def refuse_a_bad_configuration(self) -> None:
        """An upgrade that would not start is refused; the old version has every file, and its process continues."""
        retained = self._machine.run("cat", CONFIGURATION)
        self._machine.write(CONFIGURATION, f"{retained}\nhook-timeot: 3s\n")
        self._refuse("change", f"/root/{self.newer}", "unknown key 'hook-timeot'", "would not start", "continues")
        self._machine.write(CONFIGURATION, retained)
        self._verify_changed()

    def refuse_removal_while_connected(self) -> None:
        """The client runs in the machine, because the machine cannot see those of ``Calls``."""
        hold = f"import socket, time; s = socket.socket(socket.AF_UNIX); s.connect('{node.SOCKET}'); time.sleep(3600)"
        self._machine.run("systemd-run", "--unit=connected", PYTHON, "-c", hold)
        uses = ("sh", "-c", "runtimeproxy in-use || true")
        self._machine.until(lambda: "has 1 connection to" in self._machine.run(*uses), "a connection")
        self._refuse("remove", PACKAGE, "has 1 connection to", "kubelet-args", "FORCE_RUNTIMEPROXY_REMOVAL=1")
        self._machine.run("systemctl", "stop", "connected.service")

    def remove(self) -> None:
        """Remove it after the calls: not while a stopped kubelet is configured to use it."""
        self._machine.write(KUBELET, f"[Service]\nExecStart=/bin/kubelet --container-runtime-endpoint={node.SOCKET}\n")
        self._machine.run("systemctl", "daemon-reload")
        words = ("kubelet.service is configured to call it", "kubelet-args", "FORCE_RUNTIMEPROXY_REMOVAL=1")
        self._refuse("remove", PACKAGE, *words)
        self._machine.run("rm", KUBELET)
        self._machine.run("systemctl", "daemon-reload")
        self._run("remove")
        assert self._machine.run("sh", "-c", "systemctl list-units -q runtimeproxy*") == ""
        assert self._machine.run("ls", REGISTRATIONS).split() == [Path(THEIRS).name]

    def purge(self, before: set[str]) -> None:
        self._run("purge", "")
        assert sorted(self.files() - before) == ["/etc/runtime", REGISTRATIONS, THEIRS]
        assert "runtimeproxy" not in self._machine.run("cat", "/etc/group")
        self._machine.run("rm", "-r", "/etc/runtime")

    def _run(self, action: str, subject: str = PACKAGE, fails: bool | None = False) -> str:
        """Run a command of the package manager without a terminal; return its output. None: it may fail."""
        command = f'{FORMS[self._form][action]} {subject}; echo "exit code $?"'
        printed, _, exit_code = self._machine.run("sh", "-c", command).rpartition("exit code ")
        assert fails in (None, int(exit_code) != 0), printed
        return printed

    def _refuse(self, action: str, subject: str, *words: str) -> None:
        """Run a command of the package manager that must be refused; the installed version and its process stay."""
        first = self._pid()
        contains(self._run(action, subject, fails=True), *words)
        assert self._pid() == first
        assert self._run("query") == f"installed {version_of(self.package)}"

    def _verify_changed(self) -> None:
        """Check that no file differs except the configuration of Docker mode, which the test wrote."""
        changed = ["c", CONFIGURATION] if self._mode == "Docker" else []
        assert self._run("verify", fails=None).split()[1:] == changed

    def _pid(self, unit: str = UNIT) -> str:
        return self._machine.show(unit, "MainPID")

    def files(self) -> set[str]:
        """Return all paths of the machine except foreign ones."""
        excluded = " -o ".join(f"-path {place}" for place in FOREIGN_PATHS)
        return set(self._machine.run("sh", "-c", f"find / \\( {excluded} \\) -prune -o -print").split("\n"))

    def processes(self) -> list[str]:
        """Return name, id and start of each process of the pods and their shims."""
        lines = self._machine.run("sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null || true").splitlines()
        rows = [line.split() for line in lines if "(sleep)" in line or "(containerd-shim" in line]
        return sorted(f"{row[1]} {row[0]} {row[21]}" for row in rows)
