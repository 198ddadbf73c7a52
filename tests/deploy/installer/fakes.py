"""A node as a directory, whose systemctl, kubelet and proxy are this file's; an archive; an API server."""

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from runtimeproxy.cli.commands.kubelet_args import kubelet_args_command
from runtimeproxy_installer import tree
from runtimeproxy_installer.kubelet import Kubelet
from runtimeproxy_installer.node import File, Node
from runtimeproxy_installer.wanted import Wanted
from runtimeproxy_installer.work import Work
from tests.docs import ROOT

NAME, POOL, NAMESPACE = "n1", "pool-installer", "kube-system"
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
    """Write an archive with the units of deploy/systemd and others; return its digest."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.tar.gz"):
        old.unlink()
    path = folder / f"runtimeproxy_{version}_linux_x86_64.tar.gz"
    with gzip.GzipFile(path, "w", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        files = {f"share/systemd/{name}": text for name, text in (UNITS | units).items()}
        for name, text in (programs or {"runtimeproxy": f"#!/bin/sh\n# {version}\n"}).items():
            files[f"bin/{name}"] = text
        for name, text in files.items():
            entry = tarfile.TarInfo(f"runtimeproxy-{version}/{name}")
            entry.size, entry.mode = len(text), 0o755
            tar.addfile(entry, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def wanted(sha256: str, **changed: Any) -> Wanted:
    values = {
        "action": "install",
        "pool": POOL,
        "sha256": sha256,
        "configure_kubelet": False,
        "healthz_port": 1,
        "allow_downgrade": False,
        "parallel": 1,
        "config": {},
        "metrics_group_id": 965,
    }
    return Wanted(**values | changed)


class Killed(BaseException):
    """The installer was killed: nothing that it does any more has an effect."""


class FakeNode(Node):
    """A node in a directory.

    ``active`` are its running units, ``kubelet`` the command that its kubelet was started with last, ``breaks`` makes a
    command fail, ``kill_at`` is the number of the command or write at which the installer is killed. ``bad`` says when
    the kubelet is not well, by its command.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root, ())
        (root / "run/systemd/system").mkdir(parents=True)
        (root / "etc/systemd/system").mkdir(parents=True)
        (root / "etc/group").write_text("root:x:0:\n")
        (root / "usr/local/bin").mkdir(parents=True)
        self.units = {"kubelet.service"}
        self.active_units = {"kubelet.service"}
        self.kubelet = "/usr/bin/kubelet"
        self.kubelet_files = KUBEADM
        self.restarts = 0
        self.timers: list[str] = []
        self.bad: Callable[[str], bool] = lambda command: False
        self.proxy_fails: Callable[[str], bool] = lambda home: False
        self.doctor: dict[str, str] = {}
        self.breaks: Callable[[str], bool] = lambda command: False
        self.now = 0.0
        self.kill_at = -1
        self.steps = 0
        self.calls_made: list[str] = []

    def step(self) -> None:
        if self.steps == self.kill_at:
            raise Killed
        self.steps += 1

    def put(self, place: str, file: File) -> None:
        self.step()
        super().put(place, file)

    def remove(self, place: str) -> None:
        self.step()
        super().remove(place)

    def query(self, *command: str, seconds: float = 0.0) -> tuple[int, str]:
        words = " ".join(command)
        if "is-active" not in words:  # to be killed then is to be killed at the next step
            self.step()
        self.calls_made.append(words)
        if self.breaks(words):
            return 1, f"{command[0]}: no luck"
        if command[0].endswith("/bin/runtimeproxy"):
            assert self.path(command[0]).exists(), f"{command[0]} is not on the node"
            return self._program(command[0], *command[1:])
        return {"systemctl": self._systemctl, "systemd-run": self._timer, "groupadd": self._groupadd}[command[0]](
            *command[1:]
        )

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> float:
        return self.now

    @property
    def kubelet_well(self) -> bool:
        return "kubelet.service" in self.active_units and not self.bad(self.kubelet)

    def fire_timers(self) -> None:
        """Let systemd run what was to run later."""
        for _ in range(len(self.timers)):
            script, folder = self.timers.pop().replace("$$", "$"), DROP_IN.rpartition("/")[0]
            files, _, unit = script.rpartition("; systemctl daemon-reload; systemctl restart ")
            assert folder in files
            subprocess.run(["/bin/sh", "-c", files.replace(folder, str(self.path(folder)))], check=True)
            self._systemctl("restart", unit)

    def state(self) -> dict[str, Any]:
        """Return what an installation changes."""
        found = {
            str(path.relative_to(self.root)): path
            for folder in ("etc/systemd", "etc/runtimeproxy")
            for path in [self.root / folder, *sorted((self.root / folder).rglob("*"))]
        }
        return {
            "files": {name: path.read_text() for name, path in found.items() if path.is_file()},
            "folders": [name for name, path in found.items() if path.is_dir()],
            "active": self.active_units,
            "kubelet": self.kubelet,
            "trees": self.trees(),
        }

    def trees(self) -> list[str]:
        return sorted(path.name for path in self.path(tree.TREES).glob("*"))

    def _systemctl(self, *words: str) -> tuple[int, str]:
        verb, *units = [word for word in words if not word.startswith("--")]
        if verb == "is-active":
            return (0, "") if units[0] in self.active_units else (3, "")
        if verb == "cat":
            drop_in = self.text(DROP_IN)
            ours = "" if drop_in is None else f"\n# {DROP_IN}\n{drop_in}"
            return (0, self.kubelet_files + ours) if units[0] in self.units else (1, f"No files found for {units[0]}.")
        if verb in ("start", "restart"):
            for unit in units:
                there = unit in self.units or self.path(f"{tree.UNITS}/{unit}").exists()
                if not there:
                    return 5, f"Unit {unit} not found."
                self.active_units = self.active_units | {unit}
            if verb == "restart" and units == ["kubelet.service"]:
                self.restarts += 1
                drop_in = self.text(DROP_IN)
                self.kubelet = "/usr/bin/kubelet" if drop_in is None else drop_in.rpartition("ExecStart=")[2].strip()
        if verb in ("stop", "disable"):
            self.active_units = self.active_units - set(units)
            if units == ["runtimeproxy-kubelet-back.timer"]:
                code, self.timers = (0 if self.timers else 5), []
                return code, "not loaded" * bool(code)
        return 0, ""

    def _timer(self, *words: str) -> tuple[int, str]:
        self.timers.append(words[-1])
        return 0, ""

    def _groupadd(self, *words: str) -> tuple[int, str]:
        number = words[1].removeprefix("--gid=")
        with (self.root / "etc/group").open("a") as file:
            file.write(f"{words[-1]}:x:{number}:\n")
        return 0, ""

    def _program(self, program: str, *words: str) -> tuple[int, str]:
        config = next((word.partition("=")[2] for word in words if word.startswith("--config=")), "")
        text = self.text(config or "/etc/runtimeproxy/config.yaml") or ""
        home, _ = tree.running(self)
        match words[0]:
            case "kubelet-args":
                return kubelet_args(*words[1:], *mode_flag(text))
            case "config" if words[1] == "check":
                return (1, "error: no such key") if "wrong" in (self.text(words[2]) or "") else (0, "")
            case "config":
                mode = "Docker" if '"Docker"' in text else "Containerd"
                return 0, json.dumps([{"key": "backend-runtime-mode", "value": mode}])
            case "doctor":
                verdicts = {"runtime": "ok", "kubelet": "failed", "proxy": "ok"} | self.doctor
                return 1, json.dumps(
                    [{"check": c, "verdict": v, "why": "why", "do": "do"} for c, v in verdicts.items()]
                )
            case "status":
                well = SERVICE in self.active_units and not self.proxy_fails(home)
                checks = [{"name": "listening", "state": "ok" if well else "failed", "reason": "" if well else "gone"}]
                checks.append({"name": "fail_plugins", "state": "failed", "reason": "gpu is away"})
                return (0 if well else 1), json.dumps({"status": "", "text": "", "checks": checks})
            case "in-use":
                return (1, f"kubelet calls {SOCKET}\n") if SOCKET in self.kubelet else (0, "[]")
        raise AssertionError(words)


@cache
def kubelet_args(*words: str) -> tuple[int, str]:
    """Run the real command."""
    done = CliRunner().invoke(kubelet_args_command, list(words))
    return done.exit_code, done.output


def mode_flag(config: str) -> list[str]:
    crio = ["--remote-runtime-service-endpoint=/var/run/crio/crio.sock"] if "crio.sock" in config else []
    return ["--backend-runtime-mode=Docker"] if '"Docker"' in config else crio


class Bench:
    """A node, an archive, and the work on it with a clock of its own."""

    def __init__(self, folder: Path) -> None:
        self.archives = folder / "archives"
        self.sha256 = archive(self.archives)
        self.node = FakeNode(folder / "host")
        self.reported = Kubelet("v1.31.2", "Containerd", ready=True)
        self.ready = True
        self.places = 0
        self._port = 0

    def place(self) -> None:
        self.places += 1

    def work(self, **changed: Any) -> Work:
        return Work(
            self.node,
            wanted(self.sha256, **{"healthz_port": self._port} | changed),
            self.reported,
            self.place,
            lambda: self.ready,
            archives=self.archives,
            sleep=self.node.sleep,
            clock=self.node.clock,
        )

    def install(self, **changed: Any) -> str:
        return self.work(**changed).install()

    def uninstall(self, **changed: Any) -> None:
        self.work(action="uninstall", **changed).uninstall()

    @contextmanager
    def healthz(self) -> Iterator[None]:
        """Serve the kubelet's /healthz."""
        node = self.node

        class Handler(Quiet):
            def do_GET(self) -> None:
                self.answer(200 if node.kubelet_well else 500, {})

        with serving(Handler) as self._port:
            yield


class Quiet(BaseHTTPRequestHandler):
    """A handler that answers with JSON and logs nothing."""

    def answer(self, code: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: Any) -> None:
        pass


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Serve on the loopback address; yield the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Cluster:
    """What an API server has: nodes and the pool's leases. While ``away`` is true it answers 503."""

    def __init__(self, *names: str) -> None:
        self.nodes: dict[str, dict[str, Any]] = {name: node_object(name) for name in names}
        self.leases: dict[str, dict[str, Any]] = {}
        self.make_leases()
        self.away = False
        self.queried: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self._version = 0

    def make_leases(self) -> None:
        """Have leases that nobody holds, as the chart makes them."""
        for number in range(100):
            metadata = {"name": f"{POOL}-{number}", "resourceVersion": "0"}
            self.leases[metadata["name"]] = {"metadata": metadata, "spec": {}}

    def holders(self) -> dict[str, str]:
        """Return the leases that are held, by their holders."""
        return {held: name for name, lease in self.leases.items() if (held := lease["spec"].get("holderIdentity"))}

    def annotations(self, name: str) -> dict[str, str]:
        found: dict[str, str] = self.nodes[name]["metadata"]["annotations"]
        prefix = "runtimeproxy.koordinator.sh/installer-"
        return {key.removeprefix(prefix): value for key, value in found.items()}

    def answer(self, method: str, path: str, body: Any, authorization: str | None) -> tuple[int, Any]:
        with self._lock:
            self.queried.append((method, path))
            if self.away:
                return 503, {"message": "not now"}
            if authorization != "Bearer secret":
                return 401, {"message": "who are you?"}
            name = path.rpartition("/")[2]
            return self._node(method, name, body) if "/nodes/" in path else self._lease(method, name, body)

    def _node(self, method: str, name: str, body: Any) -> tuple[int, Any]:
        node = self.nodes[name]
        if method == "PATCH":
            for key, value in body["metadata"]["annotations"].items():
                if value is None:
                    node["metadata"]["annotations"].pop(key, None)
                else:
                    node["metadata"]["annotations"][key] = value
        return 200, node

    def _lease(self, method: str, name: str, body: Any) -> tuple[int, Any]:
        if name not in self.leases:
            return 404, {"message": "no such lease"}
        if method == "GET":
            return 200, self.leases[name]
        if self.leases[name]["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            return 409, {"message": "it was changed meanwhile"}
        self._version += 1
        self.leases[name] = body | {"metadata": body["metadata"] | {"resourceVersion": str(self._version)}}
        return 200, self.leases[name]

    @contextmanager
    def served(self) -> Iterator[str]:
        """Serve it; yield its URL."""
        cluster = self

        class Handler(Quiet):
            def do_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                content = json.loads(body) if body else None
                self.answer(*cluster.answer(self.command, self.path, content, self.headers["Authorization"]))

            do_GET = do_PUT = do_PATCH = do_any

        with serving(Handler) as port:
            yield f"http://127.0.0.1:{port}"


def node_object(name: str, runtime: str = "containerd://1.7.2", ready: str = "True") -> dict[str, Any]:
    """Return a node as the API has it."""
    return {
        "metadata": {"name": name, "annotations": {}},
        "status": {
            "nodeInfo": {"kubeletVersion": "v1.31.2", "containerRuntimeVersion": runtime},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }
