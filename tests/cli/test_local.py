"""Commands that need no proxy; wrong values are in tests/settings, what ``hook`` does in tests/hooks/tools."""

import asyncio
import json
import os
import re
import stat
import tarfile
import threading
from collections.abc import Iterator
from configparser import ConfigParser
from functools import partial
from importlib import metadata, resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from runtimeproxy.cli.commands import report
from runtimeproxy.cli.commands.report import FOLDER, MANIFEST, SOURCES, Source
from runtimeproxy.cli.doctor import clients, table
from runtimeproxy.cli.doctor.findings import Check, Finding, Verdict, failed, ok, skipped, unknown, warning
from runtimeproxy.cli.doctor.machine import Machine
from runtimeproxy.cli.shared import output
from runtimeproxy.errors import ConfigError
from runtimeproxy.model.hookpoints import HOOK_POINTS
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.settings import config
from runtimeproxy.settings.options import OPTIONS, SETTINGS
from runtimeproxy.settings.version import BUILD, LIBRARIES, VERSION
from tests.cli.admin_answers import CANNED, EVENTS, UNREADY, figures
from tests.cli.conftest import Run
from tests.docs import DOCS, ROOT
from tests.doctor.conftest import CANARY, Made
from tests.fakes import hookanswers
from tests.fakes.canned_admin import serving
from tests.fakes.hookserver import HookServer


def test_config_prints_keys_errors_and_warnings(run: Run, tmp_path: Path) -> None:
    show, file = partial(run, "runtimeproxy", "config", "show", "-o", "json"), tmp_path / "x.yaml"
    file.write_text("hook-budget: 30s\n")
    code, out, err = show("--origin", f"--config={file}", "--log-level=debug", RUNTIMEPROXY_HOOK_TIMEOUT="3s")
    rows = {row["key"]: (row["value"], row["origin"]) for row in json.loads(out)}
    assert (code, err, list(rows)) == (0, "", [option.name for option in OPTIONS])
    reported: dict[str, Any] = {"hook-budget": ("30s", "file"), "hook-timeout": ("3s", "environment")}
    reported |= {"socket-group": (None, "default"), "config": (str(file), "flag"), "log-level": ("debug", "flag")}
    assert {key: rows[key] for key in reported} == reported
    code, out, err = show("--backend-runtime-mode=docker", "--remote-image-service-endpoint=/x")
    warning = "warning: --remote-image-service-endpoint is ignored: Docker mode has no image endpoint\n"
    assert (code, "/x" in out, err) == (0, False, warning)
    code, out, err = run("runtimeproxy", "config", "default")
    assert (code, err) == (0, "")
    assert config.load({}, {}, out, "x") == config.load({}, {})
    assert list(yaml.safe_load(out)) == [option.name for _, option in SETTINGS if option.default is not None]
    for _, option in SETTINGS:
        assert f"\n# {option.help}\n{'' if option.default else '#'}{option.name}: " in out
    check, file = partial(run, "runtimeproxy", "config", "check"), tmp_path / "x.yaml"
    file.write_text("hook-timeout: 3s\n")
    assert check(file) == check(RUNTIMEPROXY_CONFIG=str(file)) == (0, f"{file}: nothing is wrong\n", "")
    assert check(file, "-o", "json") == (0, "[]\n", "")
    file.write_text("hook-timeout: soon\nhook-budgt: 2s\nsocket-group: no-such\nstate-dir: /s\n")
    environ = {"RUNTIMEPROXY_METRICS_ENDPOINT": "/m/m", "RUNTIMEPROXY_X": "canary"}
    code, out, err = check(file, "--for-version=0.1.0", "--metrics-group=0", **environ)
    assert (code, err, "canary" in out) == (1, "", False)
    assert [" ".join(line.split()[:3]).replace(str(file), "x") for line in out.splitlines()] == [
        *("SEVERITY FINDING", "error x: unknown", "error x: hook-timeout:", "error --socket-group: there"),
        *("error --metrics-group is", "error x: state-dir"),
        *("warning RUNTIMEPROXY_X is", "warning RUNTIMEPROXY_METRICS_ENDPOINT is"),
    ]
    code, out, err = check(file, "--for-version=old")
    assert (code, out) == (2, "")
    assert err.startswith("runtimeproxy: error: --for-version: 'old' is not a version")


def test_version_has_commit_date_and_libraries(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    by_url = '{"url": "file:///secret", "dir_info": {}}'
    by_commit = '{"url": "https://secret@x", "vcs_info": {"commit_id": "abc"}}'
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    needed = [line.split(">=")[0] for line in setup["options"]["install_requires"].split()]
    assert sorted([*needed, "grpcio"]) == list(LIBRARIES)

    def reported() -> dict[str, str | None]:
        code, out, err = run("runtimeproxy", "version", "-o", "json")
        assert (code, err, "secret" in out) == (0, "", False)
        return {row["name"]: row["version"] for row in json.loads(out)}

    for noted, commit in ((None, None), (by_url, None), (by_commit, "abc")):  # by pip
        installed = [SimpleNamespace(version="1", read_text={"direct_url.json": noted}.get)]
        monkeypatch.setattr(metadata, "distributions", lambda name, installed=installed: installed)
        assert reported()["commit"] == commit
    monkeypatch.setattr(metadata, "distributions", lambda name: [])
    assert reported()["commit"] is None
    (tmp_path / BUILD).write_text("commit: abc-dirty\ndate: 2026-01-02T03:04:05Z\n")
    monkeypatch.setattr(resources, "files", lambda package: tmp_path)
    assert (reported()["commit"], reported()["date"]) == ("abc-dirty", "2026-01-02T03:04:05Z")
    first = run("runtimeproxy", "--version")[1].splitlines()[0]
    assert first == f"runtimeproxy {VERSION} (commit abc-dirty, date 2026-01-02T03:04:05Z)"


SOCKET = "unix:///var/run/koord-runtimeproxy/runtimeproxy.sock"
CRI, DOCKER = f"--container-runtime-endpoint={SOCKET}", f"--docker-endpoint={SOCKET}"
IN_DOCKER_MODE = "--backend-runtime-mode=docker"


def kubelet_args(run: Run, arguments: str) -> dict[str, Any]:
    """Return the parts for a version of Kubernetes."""
    code, out, err = run("runtimeproxy", "kubelet-args", "-o", "json", "--kube-version", *arguments.split())
    assert (code, err) == (0, "")
    return dict(json.loads(out))


FLAGS = [
    ("1.18", "kubelet", ["--container-runtime=remote", CRI]),
    ("1.24", "kubelet", [CRI]),
    ("2.0", "kubelet", [CRI]),
    (f"1.23 {IN_DOCKER_MODE}", "kubelet", [DOCKER]),
    ("1.23 --cri-dockerd", "cri-docker", [DOCKER]),
    (f"1.31 {IN_DOCKER_MODE} --cri-dockerd", "cri-docker", [DOCKER]),
    ("1.31 --koord-runtimeproxy-endpoint=/a", "kubelet", ["--container-runtime-endpoint=unix:///a"]),
    ("v1.33.1+k0s --cri-dockerd", "cri-docker", [DOCKER]),
]


RANCHER = "/etc/rancher/{}/config.yaml.d/90-runtimeproxy.yaml"
IN_K3S, IN_K0S = (f"--remote-runtime-service-endpoint=/run/{name}" for name in ("k3s/containerd/", "k0s/"))
IN_MICROK8S = "--remote-runtime-service-endpoint=/var/snap/microk8s/common/run/"
KUBELITE = ("snap.microk8s.daemon-kubelite", "/var/snap/microk8s/current/args/kubelet", f"{CRI}\n", IN_MICROK8S)
K0S = ("k0sworker", "/etc/systemd/system/k0sworker.service.d/90-runtimeproxy.conf")
KUBELET_ARG, ENDPOINT = f"kubelet-arg+:\n- {CRI[2:]}\n", f"container-runtime-endpoint: {SOCKET}\n"
DISTRIBUTIONS: list[tuple[str, str, str, str, str]] = [
    ("v1.33.1+k3s1", "k3s", RANCHER.format("k3s"), KUBELET_ARG, IN_K3S),
    ("v1.33.1+rke2r1", "rke2-agent", RANCHER.format("rke2"), KUBELET_ARG, IN_K3S),
    ("v1.33.1+k0s.0", *K0S, f' "--kubelet-extra-args={CRI}"\n', IN_K0S),
    ("v1.22.2-3+9ad9ee77396805", *KUBELITE),
    ("1.33.1 --distribution=microk8s", *KUBELITE),
    ("v1.33.1+k3s1 --cri-dockerd", "k3s", RANCHER.format("k3s"), ENDPOINT, ""),
]


def test_kubelet_flags_follow_version_mode_and_runtime(run: Run) -> None:
    """In the drop-in they come last: the last one of two equal flags is in force."""
    for arguments, unit, flags in FLAGS:
        parts = kubelet_args(run, arguments)
        assert (parts["unit"], parts["flags"]) == (f"{unit}.service", flags)
        assert parts["proxy"] == [f"--backend-runtime-mode={'Docker' if DOCKER in flags else 'Containerd'}"]
        section, reset, command = parts["dropIn"].splitlines()
        assert (section, reset, command.split()[-len(flags) :]) == ("[Service]", "ExecStart=", flags)
        assert parts["file"] == f"/etc/systemd/system/{unit}.service.d/90-runtimeproxy.conf"
        assert parts["apply"] == ["systemctl daemon-reload", f"systemctl restart {unit}.service"]
        assert parts["back"] == [f"rm {parts['file']}", *parts["apply"]]
    for arguments, unit, file, content, containerd in DISTRIBUTIONS:
        parts = kubelet_args(run, arguments)
        assert (parts["unit"], parts["file"]) == (f"{unit}.service", file)
        assert parts["dropIn"].endswith(content)
        mode = f"--backend-runtime-mode={'Containerd' if containerd else 'Docker'}"
        assert parts["proxy"] == [mode, *[f"{containerd}containerd.sock"] * bool(containerd)]
        assert parts["apply"][-1] == parts["back"][-1] == f"systemctl restart {unit}.service"
        assert file in parts["back"][0]
        assert "kubelet.service" not in json.dumps(parts)
    at_crio, listen = "--remote-runtime-service-endpoint=/var/run/crio/crio.sock", "--koord-runtimeproxy-endpoint"
    crio_sockets: list[tuple[str, str, int]] = [
        (f"1.29 {at_crio}", "/var/run/koord-runtimeproxy/run/crio/crio.sock", 2),
        (f"1.29 {at_crio} {listen}=/run/a/crio.sock", "/run/a/run/crio/crio.sock", 2),
        (f"1.29 {at_crio} {listen}=/a/run/crio/crio.sock", "/a/run/crio/crio.sock", 0),
        (f"1.28 {at_crio}", "/var/run/koord-runtimeproxy/run/crio/crio.sock", 3),
    ]
    for arguments, socket, notes in crio_sockets:
        parts = kubelet_args(run, arguments)
        text = run("runtimeproxy", "kubelet-args", "--kube-version", *arguments.split())[1]
        lines = [parts["file"], *parts["dropIn"].splitlines()]
        lines += [line for key in ("proxy", "flags", "apply", "back", "notes") for line in parts[key]]
        assert [line for line in lines if line not in text] == []
        assert parts["flags"][-1] == f"--container-runtime-endpoint=unix://{socket}"
        assert len(parts["notes"]) == 2 + notes


CREATE = "PreCreateContainer"


UNREACHABLE = "not reachable: No such file or directory; is it running, and is this its socket?"
RULE = "resources.cpu_period: must be 0 (not set) or 1000..1000000 microseconds"


@pytest.fixture
def hook(run: Run) -> Any:
    """Return a function that runs a command in a thread, next to a hook server of the test."""
    return partial(asyncio.to_thread, run, "runtimeproxy", "hook")


async def test_failing_server_prints_one_line_and_exits_1(hook: Any, tmp_path: Path) -> None:
    socket = str(tmp_path / "x.sock")
    for command, name in (("call", CREATE), ("verify", "verify"), ("bench", CREATE)):
        arguments = (command, socket, *[CREATE] * (command == "call"))
        line = f"runtimeproxy: error: {socket}: {name}: "
        assert await hook(*arguments) == (1, "", f"{line}{UNREACHABLE}\n")
        if command != "verify":
            async with HookServer(socket, default=hookanswers.BY_NAME["refuse"]()):
                printed = await hook(*arguments)
            assert printed == (1, "", f"{line}refused (PERMISSION_DENIED): refused by the fake hook server\n")
    async with HookServer(socket, default=hookanswers.koordlet(cpu_period=5)):
        code, out, err = await hook("call", socket, CREATE)
    assert yaml.safe_load(out) == {"applied": {}, "dropped": {"resources": {"cpu_period": 5}}, "bad": [RULE]}
    assert (code, err) == (1, f"{line}bad answer: {RULE}\n")


async def test_hook_commands_print_results_and_set_exit_code(hook: Any, tmp_path: Path) -> None:
    """Every hook point accepts the example."""
    async with HookServer(str(tmp_path / "x.sock"), default=hookanswers.BY_NAME["echo"]()) as echoing:
        path = echoing.socket_path
        for name in [*(hook_point.name for hook_point in HOOK_POINTS), CREATE.lower(), CREATE.upper()]:
            code, out, err = await hook("call", path, name)
            assert (code, yaml.safe_load(out), "not reported" in out, err) == (0, {"applied": {}}, False, "")
            example = (await hook("call", "--example"))[1]
            code, out, err = await hook("call", f"unix://{path}", name, "-f", "-", stdin=example)
            assert (code, yaml.safe_load(out), err) == (0, {"applied": {}}, "")
            assert ("# not sent at this hook point: container\n" in out) == name.endswith("PodSandbox")
        verify = partial(hook, "verify", path, "--timeout=10s", "--point=prestartcontainer")
        code, out, err = await verify("-f", "-", "--restart-command=true", stdin="container: {name: main}")
        assert (code, out.splitlines()[-1], err) == (0, "15 passed, 0 failed, 0 skipped", "")
        code, out, err = await verify("--restart-command=false")
    assert (code, err) == (1, "")
    assert "\nrestart            FAIL  the restart command ended with exit code 1\n" in out
    fail = hookanswers.BY_NAME["fail"]()
    async with HookServer(str(tmp_path / "x.sock")) as server:
        bench = partial(hook, "bench", server.socket_path, "-n", "5", "--concurrency=4")
        code, out, err = await bench("--point=PostStopContainer")
        assert (code, err) == (0, "")
        first, *figures = out.splitlines()
        assert first == f"5 calls of PostStopContainer at {server.socket_path}, 4 at a time"
        assert [line.split()[0] for line in figures] == ["p50", "p90", "p99", "longest", "calls/s", "failures"]
        assert figures[-1].split() == ["failures", "0"]
        server.calls.clear()

        async def answer(call: hookanswers.HookCall) -> bytes:
            return await fail(call) if len(server.calls) > 7 else b""

        server.default = answer
        code, out, err = await bench()
    assert (code, err) == (1, "")
    assert out.splitlines()[-1] == "  4 x INTERNAL: failed as requested"


def test_doctor_and_in_use_print_one_line_per_finding(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = "runtimeproxy doctor: {} failed, {}; not checked: {} unknown, {} skipped\n"
    in_use = partial(run, "runtimeproxy", "in-use", "--koord-runtimeproxy-endpoint=/x.sock")
    connected = "kubelet (pid 4) has 1 connection to /x.sock"
    for users, exit_code, shown in ([], 0, "nobody uses /x.sock\n"), ([connected, "b\x1b"], 1, f"{connected}\nb?\n"):
        monkeypatch.setattr(clients, "users", lambda machine, users=users: iter(users))
        assert in_use("--no-headers") == (exit_code, shown, "")
        code, out, _ = in_use("-o", "json")
        assert (code, len(json.loads(out))) == (exit_code, len(users))
    monkeypatch.setattr(clients, "users", Mock(side_effect=OSError(0, "systemctl show does not answer")))
    code, out, err = in_use()
    assert (code, out, "systemctl show does not answer" in err) == (1, "", True)

    def doctor(*flags: str, examine: Any = table.examine, **findings: tuple[Finding, ...]) -> tuple[int, str, str]:
        checks = [Check(check_id, "", Mock(return_value=found)) for check_id, found in findings.items()]
        monkeypatch.setattr(table, "examine", partial(examine, checks=checks))
        return run("runtimeproxy", "doctor", *flags)

    examined = partial(doctor, a=(ok("well"),), long=(failed("bad\x1b[2J\nname", "mend it"),))
    lines = ["CHECK   VERDICT   WHY", "a       ok        well", "long    failed    bad?[2J?name -> mend it", ""]
    assert examined() == (1, "\n".join(lines), counts.format(1, "0 warnings", 0, 0))
    well, bad = json.loads(examined("-o", "json")[1])
    assert [well, bad] == yaml.safe_load(examined("-o", "yaml")[1])
    assert (well["verdict"], well["do"]) == ("ok", None)
    row = {"check": "long", "verdict": "failed", "why": "bad?[2J?name", "do": "mend it"}
    assert bad == {**row, "doc": "docs/troubleshooting.rst#doctor-long"}
    monkeypatch.setattr(output, "_remaining_columns", lambda taken: 11)
    lines = ["a      ok       well", "long   failed   bad?[2J?name", f"{'':16}-> mend it"]
    assert examined("--no-headers")[1].splitlines() == lines, "on a terminal"
    monkeypatch.setenv("RUNTIMEPROXY_LISTEN", CANARY)
    for finding, code, warnings in ((ok(""), 0, "0 warnings"), (warning("", "x"), 1, "1 warning")):
        exit_code, _, err = doctor(a=(unknown("hidden", "x"), unknown("away", "x")), b=(skipped("no"),), c=(finding,))
        ignored, last = err.splitlines(keepends=True)
        assert (exit_code, last) == (code, counts.format(0, warnings, 2, 1))
        assert ignored.startswith("warning: RUNTIMEPROXY_LISTEN is ignored")


def test_failing_or_hanging_check_does_not_stop_checks(tmp_path: Path) -> None:
    """Checks that make calls begin when the others have ended."""
    raised: list[tuple[Exception, Verdict, str]] = [
        (PermissionError(13, "Permission denied", "/proc/1/fd"), Verdict.UNKNOWN, "/proc/1/fd: Permission denied"),
        (OSError(), Verdict.UNKNOWN, "OSError"),
        (ConfigError("there is no group 'x'"), Verdict.WARNING, "there is no group 'x'"),
        (ValueError(CANARY), Verdict.UNKNOWN, f"unexpected ValueError at {__file__}:"),
    ]
    over, order = threading.Event(), list[str]()

    def fail(error: Exception, machine: Machine) -> Iterator[Finding]:
        yield ok("half")
        raise error

    def hang(machine: Machine) -> list[Finding]:
        order.append("hang")
        over.wait()
        return []

    def well(machine: Machine) -> list[Finding]:
        order.append("well")
        return [ok("well")]

    checks = [Check("hang", "a file", hang, calls=True), Check("b", "", well)]
    checks += [Check("fail", "", partial(fail, error)) for error, *_ in raised]
    first, second, *more = [finding for _, finding in table.examine(Made(tmp_path).machine, checks, seconds=0.5)]
    over.set()
    assert (first.verdict, first.why) == (Verdict.WARNING, "no answer within 0.5 s: a file")
    assert (second, order) == (ok("well"), ["well", "hang"])
    assert [finding.verdict for finding in more] == [verdict for _, verdict, _ in raised]
    assert all(finding.why.startswith(words) for finding, (*_, words) in zip(more, raised, strict=True)), more
    assert CANARY not in str(more)


def test_doctor_reads_flags_and_changes_no_file(run: Run, tmp_path: Path) -> None:
    made = Made(tmp_path)
    flags = (f"--koord-runtimeproxy-endpoint={made.ours}", f"--remote-runtime-service-endpoint={made.runtime}")
    registrations = {"RUNTIMEPROXY_HOOKSERVER_CONFIG_DIR": str(made.registrations)}
    code, out, err = run("runtimeproxy", "doctor", *flags, "-o", "json", **registrations)
    assert (code, err.count("\n")) == (1, 1)
    verdicts = {row["check"]: row["verdict"] for row in json.loads(out)}
    assert list(verdicts) == [check.id for check in table.CHECKS]
    assert (verdicts["socket"], verdicts["runtime"], verdicts["registrations"]) == ("failed", "failed", "ok")
    terms = re.findall(r"^_`doctor-([\w-]+)`\n    \w", DOCS["troubleshooting"], re.MULTILINE)
    assert terms == list(verdicts)
    made.proxy()
    made.process(40, "kubelet")
    before = {path: path.lstat().st_mtime_ns for path in made.root.parent.rglob("*")}
    list(table.examine(made.machine))
    assert {path: path.lstat().st_mtime_ns for path in made.root.parent.rglob("*")} == before


ADMIN = [f"{name}.json" for name in ("version", "livez", "readyz", "configz", "hooks", "store")]
ADMIN[5:5] = ["metrics.txt", "events.ndjson"]
JOURNAL = '#!/bin/sh\nif [ "$5" = --unit=runtimeproxy ]; then echo "a line"; fi\n'
RECORDS = [{"id": str(number)} for number in range(3)]


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[None]:
    """Run a proxy at admin.sock."""
    metrics = Metrics(lambda: 0.0, "Containerd")
    metrics.gauge("held_calls", 3)
    more = {"configz": {"options": []}, "livez": {"checks": []}, "readyz": UNREADY, "metrics": figures(metrics, 1000.0)}
    store = {"pods": RECORDS, "containers": RECORDS[:1]}
    with serving(tmp_path / "admin.sock", {**CANNED, **more, "store": store}):
        yield


@pytest.fixture
def write(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that writes report.tar.gz; the machine is the test's: no engine, a journal of its own."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "journalctl").write_text(JOURNAL)
    (programs / "journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    flags = [f"--koord-runtimeproxy-endpoint={tmp_path}/p.sock", f"--admin-endpoint={tmp_path}/admin.sock"]
    flags += [f"--remote-runtime-service-endpoint={tmp_path}/r.sock", f"--hookserver-config-dir={tmp_path}/hooks.d"]

    def write(*more: str, file: str = "report.tar.gz", **environ: str) -> tuple[int, str, str]:
        return run("runtimeproxy", "report", str(tmp_path / file), *flags, *more, **environ)

    return write


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        files = {Path(entry.name): archive.extractfile(entry) for entry in archive}
        assert {name.parent for name in files} == {Path(FOLDER)}
        assert {(entry.mode, entry.uid, entry.uname) for entry in archive} == {(0o600, 0, "")}
        return {name.name: file.read().decode() for name, file in files.items() if file}


def test_report_lists_missing_sources_when_no_proxy_runs(write: Run, tmp_path: Path) -> None:
    """An existing file is replaced only with --force."""
    path = tmp_path / "report.tar.gz"
    path.write_text("mine")
    path.chmod(0o644)
    line = f"runtimeproxy: error: {path} is there already: name another file, or replace it with --force\n"
    assert (write(), path.read_text()) == ((2, "", line), "mine")
    code, out, err = write("--force")
    assert (code, err, stat.S_IMODE(path.stat().st_mode)) == (1, "", 0o600)
    assert f"\nnot got: {', '.join(ADMIN)}: start the proxy" in out
    files = contents(path)
    assert list(files) == [MANIFEST, "doctor.json", "versions.json", "journal.txt"]
    assert all(f"\nnot got  {name}: start the proxy" in files[MANIFEST] for name in ADMIN)


def test_failing_source_is_reported_without_value(write: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    never, wrong = threading.Event().wait, Mock(side_effect=ValueError("canary"))
    sources = (
        Source("a.txt", lambda node: str(never()), 0.1),
        Source("b.txt", wrong),
        Source("c.txt", lambda node: "c"),
    )
    monkeypatch.setattr(report, "SOURCES", sources)
    code, out, err = write()
    assert (code, err, "canary" in out) == (1, "", False)
    assert "has 1 of 3 sources. Look through it before you attach it.\nnot got: a.txt: no answer within 0.1 s" in out
    assert "not got: b.txt: unexpected ValueError at " in out


@pytest.mark.usefixtures("proxy")
def test_report_contains_every_source(write: Run, tmp_path: Path) -> None:
    path = tmp_path / "report.tar.gz"
    assert write() == (0, f"{path} has 11 of 11 sources. Look through it before you attach it.\n", "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    files = contents(path)
    assert list(files) == [MANIFEST, *(source.name for source in SOURCES)]
    assert "\nruntimeproxy_held_calls 3.0\n" in files["metrics.txt"]
    assert (json.loads(files["readyz.json"]), files["journal.txt"]) == (UNREADY, "a line\n")
    events = [json.loads(line) for line in files["events.ndjson"].splitlines()]
    assert events == [event for event in EVENTS if "later" not in event]
    assert json.loads(files["store.json"]) == {"pods": RECORDS, "containers": RECORDS[:1]}  # one of each a page
    assert {row["check"] for row in json.loads(files["doctor.json"])} >= {"socket", "runtime"}
    assert {"distribution", "linux", "python"} <= json.loads(files["versions.json"]).keys()
    assert files[MANIFEST].count("\ngot ") == len(SOURCES)
    other_unit = JOURNAL.replace("runtimeproxy", "other")
    not_got: list[tuple[str, list[str], dict[str, str], str]] = [
        ("#!/bin/sh\nexit 1\n", [], {}, "journal.txt: journalctl does not answer (CalledProcessError)"),
        (other_unit, [], {}, "journal.txt: the journal has no line of the unit runtimeproxy"),
        (other_unit, ["--unit=other"], {}, ""),
        (JOURNAL, ["--config=/dev/null/x"], {}, "doctor.json: /dev/null/x: the configuration file cannot be"),
        (JOURNAL, [], {"PATH": "/nowhere"}, "journal.txt: journalctl is not there"),
    ]
    for journalctl, flags, environ, why in not_got:
        (tmp_path / "bin" / "journalctl").write_text(journalctl)
        code, out, _ = write("--force", *flags, **environ)
        assert (code, out.count("not got: "), f"\nnot got: {why}" in out) == (int(bool(why)), int(bool(why)), bool(why))


def test_unwritable_report_leaves_no_file(write: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for file, why in (("link", "a symbolic link"), ("bin", "no regular file"), ("missing/x", "no directory")):
        for flags in ([], ["--force"]):
            code, out, err = write(*flags, file=file)
            assert (code, out, err.count("\n"), f" is {why}" in err) == (2, "", 1, True)
    monkeypatch.setattr(tarfile.TarFile, "addfile", Mock(side_effect=OSError(28, "No space left on device")))
    assert write() == (1, "", "runtimeproxy: error: [Errno 28] No space left on device\n")
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "link"}
