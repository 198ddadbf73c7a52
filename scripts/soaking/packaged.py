"""The packages on a node: installed, upgraded and downgraded with pods running, removed, purged.

The node is a machine (tests/machines) with Debian's containerd and dockerd, and each package has its turn on it in each
mode: the RPM, too, by Debian's rpm, which does not know the packages that it requires. A kubelet calls all the while: a
call each 10 ms, and connections as grpc-go makes them, or Go's net/http. Everything that is not as it must be raises
DemoError; an error that lintian finds in the package, BuildError.
"""

import asyncio
import itertools
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from runtimeproxy.cli.shared.admin_client import AdminClient
from scripts.building import sources
from scripts.building.errors import run
from scripts.demonstration.processes import DemoError
from scripts.figures import Figure
from tests.docker.client import Client
from tests.docs import ROOT
from tests.engines import cri
from tests.fakes.dockershim import CRI_DOCKERD, Dockershim
from tests.machines import node
from tests.machines.fitting import fit
from tests.machines.machine import Machine, MachineError
from tests.machines.tree import debian
from tests.system import clients
from tests.system.cri_front import METHODS, CriCaller
from tests.system.fronts import SECONDS, Failed
from tests.system.patient import PatientDocker

NEWER = "99.0.0"
"""The version of the second package, which has all else of the first."""
PACKAGES = ("systemd", "containerd", "docker.io", "busybox-static", "rpm")
PACKAGE, UNIT, EXPORTER = "runtimeproxy", "runtimeproxy.service", "runtimeproxy-export.service"
PYTHON = "/usr/lib/runtimeproxy/bin/python3"
ADMIN, METRICS = "/run/koord-runtimeproxy/admin.sock", "http://127.0.0.1:9654/metrics"
CONFIGURATION = "/etc/runtimeproxy/config.yaml"
REGISTRATIONS = "/etc/runtime/hookserver.d"
THEIRS = f"{REGISTRATIONS}/koordlet.json"
KUBELET = "/etc/systemd/system/kubelet.service"
MODES = ("Containerd", "Docker")
PODS = 3
CALL_SECONDS = 0.01
BACKOFF: dict[str, Any] = {
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 5000,
    "grpc.max_reconnect_backoff_ms": 3000,
}
"""What the kubelet sets for its connection to the runtime: attempts after 100 ms to 3 s, with 5 s for each at least."""
CHANGED_FILE = ["c", CONFIGURATION]
"""What a verification says of the configuration in Docker mode, which is not the package's own, behind the flags."""
OF_OTHERS = (
    *("/proc", "/sys", "/dev", "/tmp", "/root", "/var/cache", "/var/log"),
    *("/var/lib/dpkg", "/var/lib/rpm", "/var/lib/systemd", "/var/lib/containerd", "/var/lib/docker"),
    *("/run/containerd", "/run/docker", "/run/log", "/run/systemd", "/run/udev"),
    *(f"/etc/systemd/system/{unit}.d" for unit in ("runtimeproxy.service", EXPORTER, "runtimeproxy-hooks@.service")),
)
"""Places whose files are of the engines, of package managers, of systemd and of the test."""


class _Form(NamedTuple):
    """The commands of a package manager; each is followed by a file or by the package's name."""

    kind: str
    install: Sequence[str]
    change: Sequence[str]
    """To a newer or an older version."""
    verify: Sequence[str]
    query: Sequence[str]
    remove: Sequence[str]
    purge: Sequence[Sequence[str]]
    """All that is needed behind a removal so that nothing of the package is left."""


_RPM = ("rpm", "--force-debian")
FORMS = DEB, RPM = (
    _Form(
        "deb",
        install=("dpkg", "-i"),
        change=("dpkg", "-i"),
        verify=("dpkg", "-V"),
        query=("dpkg-query", "-W", "-f=${db:Status-Status} ${Version}"),
        remove=("dpkg", "-r"),
        purge=(("dpkg", "-P", PACKAGE),),
    ),
    _Form(
        "rpm",
        install=(*_RPM, "--install", "--nodeps"),
        change=(*_RPM, "--upgrade", "--oldpackage", "--nodeps"),
        verify=(*_RPM, "--verify", "--nodeps", "--nomtime"),  # files that are written back have a new time
        query=(*_RPM, "--query", "--queryformat=installed %{VERSION}-%{RELEASE}"),
        remove=(*_RPM, "--erase"),
        purge=(
            ("rm", "-rf", "/etc/runtimeproxy", "/var/lib/runtimeproxy"),
            ("rm", "-rf", "/run/koord-runtimeproxy", "/run/koord-runtimeproxy-metrics", "/run/runtimeproxy-hooks"),
            ("groupdel", "runtimeproxy-metrics"),
        ),
    ),
)


def packaged(share: float) -> list[Figure]:
    """Live each package's life once in each mode, whatever the share. Raises DemoError."""
    with tempfile.TemporaryDirectory(prefix="rp-packaged-") as folder:
        work = Path(folder)
        kinds = [form.kind for form in FORMS]
        dists = [built(work / "this", kinds), built(work / "newer", kinds, NEWER)]
        packages = {form: [package for dist in dists for package in dist.glob(f"*.{form.kind}")] for form in FORMS}
        # Only what is built from a commit is compressed.
        compression = ",".join(f"uses-no-compression-for-{part}-tarball" for part in ("control", "data"))
        run(["lintian", "--fail-on=error", f"--suppress-tags={compression}", packages[DEB][0]])
        try:
            with Machine(debian(packages=PACKAGES), work / "machine") as machine:
                for package in itertools.chain(*packages.values()):
                    machine.copy(package, f"/root/{package.name}")
                dropped = _prepared(machine)
                lives = [_Life(machine, mode, form, *packages[form]) for form in FORMS for mode in MODES]
                figures = [figure for life in lives for figure in life.lived()]
        except MachineError as error:
            raise DemoError(str(error)) from None
    return [*figures, Figure("settings of units that this machine cannot give", ", ".join(dropped) or "none")]


def _prepared(machine: Machine) -> list[str]:
    """Start the engines with the tests' images, and return what this machine cannot give to them and to our units."""
    node.configure_engines(machine)
    units = {unit: Path("/lib/systemd/system", unit) for unit in node.ENGINES}
    files = {unit: machine.path(file) for unit, file in units.items()}
    files |= {unit: node.UNITS / unit for unit in (UNIT, EXPORTER, "runtimeproxy-hooks@.service")}
    dropped = [f"{unit}: {setting}" for unit, file in files.items() for setting in fit(machine, unit, file)]
    for folder in ("/usr/share/licenses", "/usr/share/zsh/site-functions"):  # a system with rpm has them
        machine.write(f"{folder}/another", "")
    machine.run("systemctl", "restart", *node.ENGINES)
    node.load_images(machine)
    return dropped


def built(folder: Path, artefacts: Sequence[str], version: str = "") -> Path:
    """Build artefacts of the working tree, of another version if one is given; return their directory.

    Raises DemoError.
    """
    source = folder / "checkout"
    sources.extract(ROOT, source, dirty=True)
    if version:
        file = source / "runtimeproxy/settings/version.py"
        file.write_text(re.sub(r'^VERSION = ".*"$', f'VERSION = "{version}"', file.read_text(), flags=re.MULTILINE))
    identity = ["-c", "user.name=soak", "-c", "user.email=soak"]
    for words in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "sources"]):
        subprocess.run(["git", "-C", source, *words], check=True)
    command = [sys.executable, "-m", "scripts.building", "--dirty", f"--dist={folder / 'dist'}", *artefacts]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DemoError(f"{', '.join(artefacts)} cannot be built: {done.stderr[-2000:]}")
    return folder / "dist"


class _PatientCri(CriCaller):
    """A kubelet's connection: a call fails at once where there is none, and is not made again by the client."""

    def __init__(self, socket: Path) -> None:
        super().__init__(socket)
        self._client = clients.Client(socket, **BACKOFF)

    async def send(self, verb: str, request: bytes, seconds: float = SECONDS) -> bytes:
        try:
            return bytes(await self._client.call(METHODS[verb], request, timeout=seconds))
        except grpc.aio.AioRpcError as error:
            raise Failed(error.code(), str(error.details())) from None


class _PatientDocker(PatientDocker):
    """cri-dockerd's: Go's net/http does not wait for a listener."""

    async def _connect(self) -> Client:
        try:
            return await Client.connect(self._socket)
        except OSError as error:
            raise Failed(None, f"refused: {error}") from None


class _Calls:
    """Calls that are made in a thread of their own, each 10 ms, until the end of the ``with`` block."""

    def __init__(self, mode: str, socket: Path) -> None:
        self.count = 0
        self.failed: list[str] = []
        self.longest = 0.0
        self._make = _PatientDocker if mode == "Docker" else _PatientCri
        self._socket = socket
        self._ending = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._call()))

    def __enter__(self) -> "_Calls":
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
                took = time.monotonic() - start
                self.longest = max(self.longest, took)
                await asyncio.sleep(max(CALL_SECONDS - took, 0))


def _version(package: str) -> str:
    """Return version and revision in the name of a package's file."""
    found = re.search(r"[_-]([\d.]+-\d+)[._]", package)
    assert found
    return found[1]


class _Life:
    """The life of a package in one mode; each method is a part of it."""

    def __init__(self, machine: Machine, mode: str, form: _Form, package: Path, newer: Path) -> None:
        self._machine, self._mode, self._form = machine, mode, form
        self._package, self._newer = package.name, newer.name
        self._name = f"{form.kind}, {mode}"
        self._changed = CHANGED_FILE if mode == "Docker" else []

    def lived(self) -> list[Figure]:
        """Live it. Raises DemoError."""
        before = self._files()
        self._install()
        socket = self._machine.path(node.SOCKET)
        self._run_pods(str(socket))
        pods = self._processes()
        with _Calls(self._mode, socket) as calls:
            for package in (self._newer, self._package):
                self._change_version(package)
                self._machine.run("systemctl", "restart", UNIT)
            self._refuse_a_bad_configuration()
            self._refuse_removal_while_connected()
        self._check("failed calls", calls.failed[:3], [])
        self._remove()
        self._check("processes of pods", self._processes(), pods)
        self._purge(before)
        what = f"{self._name}: calls during 2 changes of version, 2 restarts and 2 refusals"
        return [
            Figure(what, f"{calls.count:,}"),
            Figure(f"{self._name}: of these failed", f"{len(calls.failed)}", "0", not calls.failed),
            Figure(f"{self._name}: the longest took", f"{calls.longest:.2f} s"),
            Figure(f"{self._name}: processes of pods, the same at the end", f"{len(pods)}"),
        ]

    def _install(self) -> None:
        told = self._told(*self._form.install, f"/root/{self._package}")
        self._tells(told, "the proxy runs and listens, and nothing uses it yet", "runtimeproxy kubelet-args")
        self._verify([])
        self._machine.write(
            THEIRS, '{"remote-endpoint": "/run/koordlet/x.sock", "runtime-hooks": ["PreStartContainer"]}'
        )
        if self._mode == "Docker":
            self._machine.write(CONFIGURATION, "backend-runtime-mode: Docker\n")
            self._machine.run("systemctl", "restart", UNIT)
        self._machine.run("systemctl", "start", "runtimeproxy-hooks@gpu.service", EXPORTER)
        self._machine.until(lambda: "gpu.json" in self._machine.run("ls", REGISTRATIONS), "a registration of ours")

    def _run_pods(self, socket: str) -> None:
        """Run pods with a container each."""
        names = [f"{self._form.kind}-{number}" for number in range(PODS)]  # those of the life before run on
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

    def _change_version(self, package: str) -> None:
        first, exporter = self._machine.show(UNIT, "MainPID"), self._machine.show(EXPORTER, "MainPID")
        told = self._told(*self._form.change, f"/root/{package}")
        self._tells(told, "hook servers still run the earlier version")
        self._check("the version that answers", self._version_that_answers(), _version(package).partition("-")[0])
        self._check("the process is the old one", self._machine.show(UNIT, "MainPID") == first, False)
        self._check("the exporter is the old one", self._machine.show(EXPORTER, "MainPID") == exporter, False)
        self._machine.until(self._is_scraped, "a scrape by the exporter")
        self._verify(self._changed)

    def _refuse_a_bad_configuration(self) -> None:
        """An upgrade that would not start is refused; then the old version has every file, and its process goes on."""
        kept, first = self._machine.run("cat", CONFIGURATION), self._machine.show(UNIT, "MainPID")
        self._machine.write(CONFIGURATION, f"{kept}\nhook-timeot: 3s\n")
        told = self._told(*self._form.change, f"/root/{self._newer}", fails=True)
        self._tells(told, "unknown key 'hook-timeot'", "would not start", "runs on")
        self._machine.write(CONFIGURATION, kept)
        self._check("the process", self._machine.show(UNIT, "MainPID"), first)
        self._verify(self._changed)
        self._check("the installed version", self._installed(), f"installed {_version(self._package)}")

    def _refuse_removal(self, words: str) -> None:
        first = self._machine.show(UNIT, "MainPID")
        told = self._told(*self._form.remove, PACKAGE, fails=True)
        self._tells(told, words, "kubelet-args", "FORCE_RUNTIMEPROXY_REMOVAL=1")
        self._check("the process", self._machine.show(UNIT, "MainPID"), first)
        self._check("the installed version", self._installed(), f"installed {_version(self._package)}")

    def _refuse_removal_while_connected(self) -> None:
        """A client in the machine, because those of the calls are outside, where nobody in the machine sees them."""
        hold = f"import socket, time; s = socket.socket(socket.AF_UNIX); s.connect('{node.SOCKET}'); time.sleep(3600)"
        self._machine.run("systemd-run", "--unit=connected", PYTHON, "-c", hold)
        uses = ("sh", "-c", "runtimeproxy in-use || true")
        self._machine.until(lambda: "has 1 connection to" in self._machine.run(*uses), "a connection")
        self._refuse_removal("has 1 connection to")
        self._machine.run("systemctl", "stop", "connected.service")

    def _remove(self) -> None:
        """Remove it when the calls have ended: not while a kubelet that does not run is configured to use it."""
        self._machine.write(KUBELET, f"[Service]\nExecStart=/bin/kubelet --container-runtime-endpoint={node.SOCKET}\n")
        self._machine.run("systemctl", "daemon-reload")
        self._refuse_removal("kubelet.service is configured to call it")
        self._machine.run("rm", KUBELET)
        self._machine.run("systemctl", "daemon-reload")
        self._told(*self._form.remove, PACKAGE)
        self._check(
            "what is left of its units", self._machine.run("sh", "-c", "systemctl list-units -q runtimeproxy*"), ""
        )
        self._check("the registrations", self._machine.run("ls", REGISTRATIONS).split(), [Path(THEIRS).name])

    def _purge(self, before: set[str]) -> None:
        for command in self._form.purge:
            self._machine.run(*command)
        left = sorted(self._files() - before)
        self._check("what is left", left, ["/etc/runtime", REGISTRATIONS, THEIRS])
        self._check("its group", "runtimeproxy" in self._machine.run("cat", "/etc/group"), False)
        self._machine.run("rm", "-r", "/etc/runtime")

    def _told(self, *command: str, fails: bool = False) -> str:
        """Run a command without a terminal, and return what it says. Raises DemoError if it fails, or should have."""
        told = self._machine.run("sh", "-c", '"$@" || echo "it failed"', "sh", *command)
        self._check(f"{' '.join(command)} fails ({told[-1000:]})", "it failed" in told, fails)
        return told

    def _verify(self, changed: list[str]) -> None:
        told = self._machine.run(*self._form.verify, PACKAGE, check=False)
        self._check(f"what a verification says ({told})", told.split()[1:], changed)

    def _installed(self) -> str:
        return self._machine.run(*self._form.query, PACKAGE)

    def _version_that_answers(self) -> str:
        """Return the version of the running process."""
        return str(AdminClient(str(self._machine.path(ADMIN))).call("version")["version"])

    def _is_scraped(self) -> bool:
        fetch = f"{PYTHON} -c 'import urllib.request; urllib.request.urlopen(\"{METRICS}\")' && echo yes || true"
        return "yes" in self._machine.run("sh", "-c", fetch)

    def _files(self) -> set[str]:
        """Return all paths of the machine but those of others."""
        left_out = " -o ".join(f"-path {place}" for place in OF_OTHERS)
        return set(self._machine.run("sh", "-c", f"find / \\( {left_out} \\) -prune -o -print").split("\n"))

    def _processes(self) -> list[str]:
        """Return name, id and start of each process of the pods and their shims."""
        lines = self._machine.run("sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null || true").splitlines()
        rows = [line.split() for line in lines if "(sleep)" in line or "(containerd-shim" in line]
        return sorted(f"{row[1]} {row[0]} {row[21]}" for row in rows)

    def _tells(self, told: str, *words: str) -> None:
        if missing := [word for word in words if word not in told]:
            raise DemoError(f"{self._name}: it does not say {missing}, but: {told}")

    def _check(self, what: str, found: object, wanted: object) -> None:
        if found != wanted:
            raise DemoError(f"{self._name}: {what}: {found}, not {wanted}; {self._machine.journal(UNIT)[-2000:]}")
