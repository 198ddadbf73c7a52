"""A node as a directory with fake systemctl, kubelet and proxy; an archive; an API server."""

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from runtimeproxy.cli.commands.kubelet_args import kubelet_args_command
from runtimeproxy_installer import kubelet, tree
from runtimeproxy_installer.desired import DesiredState
from runtimeproxy_installer.kubelet import Kubelet
from runtimeproxy_installer.node import File, Node
from runtimeproxy_installer.work import Work
from tests.docs import ROOT

POOL, NAMESPACE = "pool-installer", "kube-system"
SERVICE = "runtimeproxy.service"
_UNITS = ROOT / "deploy" / "systemd"
UNITS = {str(file.relative_to(_UNITS)): file.read_text() for file in sorted(_UNITS.rglob("*")) if file.is_file()}
INSTALLED = sorted(name for name in UNITS if not name.endswith(".sysusers"))
STARTED = {SERVICE, *(name for name in UNITS if name.endswith(".socket"))}
DROP_IN = "/etc/systemd/system/kubelet.service.d/90-runtimeproxy.conf"
KUBEADM = """\
# /lib/systemd/system/kubelet.service
[Service]
ExecStart=/usr/bin/kubelet

# /usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf
[Service]
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS \\
    $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""
SOCKET = "unix:///var/run/koord-runtimeproxy/runtimeproxy.sock"


def archive(folder: Path, version: str = "0.2.0", programs: Mapping[str, str] | None = None, **units: str) -> str:
    """Write an archive with the units of deploy/systemd and ``units``; return its digest."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.tar.gz"):
        old.unlink()
    path = folder / f"runtimeproxy_{version}_linux_x86_64.tar.gz"
    with gzip.GzipFile(path, "w", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        files = {f"share/systemd/{name}": text for name, text in (UNITS | units).items()}
        given = programs or {"runtimeproxy": f"#!/bin/sh\n# {version}\n"}
        files |= {f"bin/{name}": text for name, text in given.items()}
        for name, text in files.items():
            entry = tarfile.TarInfo(f"runtimeproxy-{version}/{name}")
            entry.size, entry.mode = len(text), 0o755
            tar.addfile(entry, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def desired_state(sha256: str = "0" * 64, **changed: Any) -> DesiredState:
    values: dict[str, Any] = {"action": "install", "pool": POOL, "sha256": sha256, "configure_kubelet": False}
    values |= {"healthz_port": 1, "allow_downgrade": False, "parallel": 1, "config": {}, "metrics_group_id": 965}
    return DesiredState(**values | changed)


class Killed(BaseException):
    """SIGKILL of the installer."""


class Bench(Node):
    """A node in a directory, an archive, and the work on it with a fake clock.

    ``kubelet`` is its kubelet's command, ``kubelet_files`` the output of ``systemctl cat`` for it. The installer is
    killed at the command or write ``kill_at``; the command ``fail_at`` fails. ``is_unhealthy`` returns whether a
    kubelet with this command is unhealthy. ``failing`` is the tree whose proxy does not listen.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder / "host", ())
        for folder_name in ("run/systemd/system", "etc/systemd/system", "usr/local/bin"):
            (self.root / folder_name).mkdir(parents=True)
        (self.root / "etc/group").write_text("root:x:0:\n")
        self.archives = folder / "archives"
        self.sha256 = archive(self.archives)
        self.reported = Kubelet("v1.31.2", "Containerd", ready=True)
        self.ready: Callable[[], bool] = lambda: True
        self.places: list[None] = []
        self.place: Callable[[], None] = lambda: self.places.append(None)
        self.active_units = {"kubelet.service"}
        self.kubelet, self.kubelet_files = "/usr/bin/kubelet", KUBEADM
        self.timers: list[str] = []
        self.commands: list[str] = []
        self.steps, self.kill_at, self.fail_at = 0, -1, -1
        self.is_unhealthy: Callable[[str], bool] = lambda command: False
        self.failing = ""
        self.doctor: dict[str, str] = {}
        self.now = 0.0
        monkeypatch.setattr(kubelet, "healthz", lambda port: "" if self.is_kubelet_healthy else "/healthz answers 500")

    def release(self, version: str, **units: str) -> None:
        """Replace the archive."""
        self.sha256 = archive(self.archives, version, None, **units)

    @property
    def home(self) -> str:
        """The directory of the archive's tree."""
        [file] = self.archives.iterdir()
        return f"{tree.TREES}/{file.name.split('_')[1]}-{self.sha256[:12]}"

    def work(self, **changed: Any) -> Work:
        desired, clock = desired_state(self.sha256, **changed), lambda: self.now
        seams: Any = {"archives": self.archives, "sleep": self.sleep, "clock": clock}
        return Work(self, desired, self.reported, self.place, lambda: self.ready(), **seams)

    def install(self, **changed: Any) -> str:
        return self.work(**changed).install()

    def uninstall(self) -> None:
        self.work(action="uninstall").uninstall()

    def step(self) -> None:
        if self.steps == self.kill_at:
            raise Killed
        self.steps += 1

    def put(self, node_path: str, file: File) -> None:
        self.step()
        super().put(node_path, file)

    def remove(self, node_path: str) -> None:
        self.step()
        super().remove(node_path)

    def query(self, *command: str, seconds: float = 0.0) -> tuple[int, str]:
        words = " ".join(command)
        is_check = "is-active" in words
        if not is_check:  # a kill here equals one at the next step
            self.step()
        if not (is_check and self.now):  # checks of the watch are not counted
            self.commands.append(words)
            if len(self.commands) == self.fail_at:
                return 1, f"{command[0]}: no luck"
        match command:
            case "systemctl", *rest:
                return self._systemctl(*(word for word in rest if not word.startswith("--")))
            case "systemd-run", *_, script:
                self.timers.append(script)
            case "groupadd", _, number, name:
                with (self.root / "etc/group").open("a") as file:
                    file.write(f"{name}:x:{number.removeprefix('--gid=')}:\n")
            case program, *rest:
                assert self.path(program).exists(), f"{program} is not on the node"
                return self._program(*rest)
        return 0, ""

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    @property
    def restarts(self) -> int:
        return self.commands.count("systemctl restart kubelet.service")

    @property
    def is_kubelet_healthy(self) -> bool:
        return "kubelet.service" in self.active_units and not self.is_unhealthy(self.kubelet)

    def fire_timers(self) -> None:
        """Run the timers of systemd."""
        while self.timers:
            script, folder = self.timers.pop().replace("$$", "$"), DROP_IN.rpartition("/")[0]
            files, _, unit = script.rpartition("; systemctl daemon-reload; systemctl restart ")
            assert folder in files
            subprocess.run(["/bin/sh", "-c", files.replace(folder, str(self.path(folder)))], check=True)
            self._systemctl("restart", unit)

    def state(self) -> dict[str, Any]:
        """Return the state that an installation changes."""
        tops = [self.root / folder for folder in ("etc/systemd", "etc/runtimeproxy")]
        paths = {str(path.relative_to(self.root)): path for top in tops for path in [top, *sorted(top.rglob("*"))]}
        return {
            "files": {name: path.read_text() for name, path in paths.items() if path.is_file()},
            "folders": [name for name, path in paths.items() if path.is_dir()],
            "link": self.file(tree.COMMAND),
            "active": self.active_units,
            "kubelet": self.kubelet,
            "timers": self.timers.copy(),
            "trees": sorted(path.name for path in self.path(tree.TREES).glob("*")),
        }

    def _systemctl(self, verb: str, *units: str) -> tuple[int, str]:
        drop_in = self.text(DROP_IN)
        if verb == "is-active":
            return (0, "") if units[0] in self.active_units else (3, "")
        if verb == "cat":
            text = "" if drop_in is None else f"\n# {DROP_IN}\n{drop_in}"
            return (0, self.kubelet_files + text) if self.kubelet_files else (1, f"No files found for {units[0]}.")
        if verb in ("start", "restart"):
            files = [f"{tree.UNITS}/{unit}" for unit in units if unit != "kubelet.service"]
            if not all(self.path(file).exists() for file in files):
                return 5, "Unit not found."
            self.active_units = self.active_units | {*units}
            if "kubelet.service" in units:
                self.kubelet = "/usr/bin/kubelet" if drop_in is None else drop_in.rpartition("ExecStart=")[2].strip()
        if verb in ("stop", "disable"):
            self.active_units = self.active_units - {*units}
            if units == ("runtimeproxy-kubelet-back.timer",):
                code, self.timers = (0 if self.timers else 5), []
                return code, "not loaded" * bool(code)
        return 0, ""

    def _program(self, *words: str) -> tuple[int, str]:
        given = next((word.partition("=")[2] for word in words if word.startswith("--config=")), "")
        config = self.text(given or "/etc/runtimeproxy/config.yaml") or ""
        mode = "Docker" if '"Docker"' in config else "Containerd"
        match words:
            case "kubelet-args", *flags:
                crio = ["--remote-runtime-service-endpoint=/var/run/crio/crio.sock"] if "crio.sock" in config else []
                done = CliRunner().invoke(kubelet_args_command, [*flags, f"--backend-runtime-mode={mode}", *crio])
                return done.exit_code, done.output
            case "config", "check", _:
                return 0, ""
            case "config", "show", *_:
                return 0, json.dumps([{"key": "backend-runtime-mode", "value": mode}])
            case "doctor", *_:
                verdicts = {"runtime": "ok", "kubelet": "failed", "proxy": "ok"} | self.doctor
                return 1, json.dumps(
                    [{"check": n, "verdict": v, "why": "why", "do": "do"} for n, v in verdicts.items()]
                )
            case "status", *_:
                ok = SERVICE in self.active_units and self.failing != tree.running(self)[0]
                checks = [{"name": "listening", "state": "ok" if ok else "failed", "reason": "" if ok else "gone"}]
                checks.append({"name": "fail_plugins", "state": "failed", "reason": "gpu is away"})
                return (0 if ok else 1), json.dumps({"status": "", "text": "", "checks": checks})
            case "in-use", *_:
                return (1, f"kubelet calls {SOCKET}\n") if SOCKET in self.kubelet else (0, "[]")
        raise AssertionError(words)


@contextmanager
def serving(answer: Callable[[str, str, Any, str | None], tuple[int, Any]]) -> Iterator[int]:
    """Serve HTTP on the loopback address; yield the port.

    ``answer`` returns the code and the content for a method, a path, a body and an authorization.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_any(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "null")
            code, content = answer(self.command, self.path, body, self.headers["Authorization"])
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())  # HTTP/1.0: its end is the connection's

        do_GET = do_PUT = do_PATCH = do_any

        def log_message(self, format: str, *words: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server, ThreadPoolExecutor(1) as threads:
        threads.submit(server.serve_forever, poll_interval=0.01)
        try:
            yield server.server_port
        finally:
            server.shutdown()


class Cluster:
    """An API server with nodes and the pool's leases. While ``is_unavailable`` is true it answers 503."""

    def __init__(self, *names: str) -> None:
        self.nodes: dict[str, dict[str, Any]] = {name: node_object(name) for name in names}
        self.leases: dict[str, dict[str, Any]] = {}
        self.make_leases()
        self.is_unavailable = False
        self.queried: list[tuple[str, str]] = []
        self._version = 0

    def make_leases(self) -> None:
        """Create leases without a holder, as the chart does."""
        labels = {"app.kubernetes.io/managed-by": "Helm"}
        for name in (f"{POOL}-{number}" for number in range(100)):
            self.leases[name] = {"metadata": {"name": name, "labels": labels, "resourceVersion": "0"}, "spec": {}}

    def annotations(self, name: str) -> dict[str, str]:
        annotations: dict[str, str] = self.nodes[name]["metadata"]["annotations"]
        return {key.removeprefix("runtimeproxy.koordinator.sh/installer-"): value for key, value in annotations.items()}

    def answer(self, method: str, path: str, body: Any, authorization: str | None) -> tuple[int, Any]:
        self.queried.append((method, path))
        if self.is_unavailable:
            return 503, {"message": "not now"}
        if authorization != "Bearer secret":
            return 401, {"message": "who are you?"}
        name = path.rpartition("/")[2]
        if "/nodes/" in path:
            metadata = self.nodes[name]["metadata"]
            changed = metadata["annotations"] | (body["metadata"]["annotations"] if body else {})
            metadata["annotations"] = {key: value for key, value in changed.items() if value is not None}
            return 200, self.nodes[name]
        if name not in self.leases:
            return 404, {"message": "no such lease"}
        if method == "PUT":
            if self.leases[name]["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
                return 409, {"message": "it was changed meanwhile"}
            self._version += 1
            self.leases[name] = body | {"metadata": body["metadata"] | {"resourceVersion": str(self._version)}}
        return 200, self.leases[name]


def node_object(name: str, runtime: str = "containerd://1.7.2", ready: str = "True") -> dict[str, Any]:
    """Return a node object of the API."""
    information = {"kubeletVersion": "v1.31.2", "containerRuntimeVersion": runtime}
    status = {"nodeInfo": information, "conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"name": name, "annotations": {}}, "status": status}
