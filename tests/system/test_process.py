"""The proxy as a process: signals, rights, systemd, the documented command lines (fault matrix P7, X7).

No log line or output of it contains a value of a request, and no heavy module is loaded without need: fault matrix X4,
promise 16. tests/admin tests answers to invalid requests.
"""

import asyncio
import json
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Awaitable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import grpc
import pytest

from runtimeproxy.admin import queries
from runtimeproxy.hookapi import api_pb2
from runtimeproxy.settings.version import VERSION
from runtimeproxy_hooks.__main__ import ALL, HOOKS
from tests import control
from tests.amounts import Amount
from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes import hookanswers, registration
from tests.fakes.dockershim_bodies import Container, Pod
from tests.fakes.hookserver import HookServer
from tests.hooks.sdk import processes
from tests.system.fronts import CRI, DOCKER, PARENT, Caller, Failed, Front, Runtime
from tests.system.proxy import PROGRAM, ROOT, WAIT_SECONDS, ProxyProcess, answers, handed_over

pytestmark = pytest.mark.slow


FIGURES = ('operation="RunPodSandbox",outcome="agreed"} 1', f'build_info{{version="{VERSION}",python="', "draining 0")


async def test_signals_log_metrics_or_end_proxy(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    """SIGHUP and SIGUSR2, which are commands of other daemons, do not end the proxy.

    SIGTERM waits for calls and tunnels; a second signal ends that. Docker mode serves new clients meanwhile.
    """
    proxy = front.process(tmp_path, drain_timeout="60s", hook_budget="60s")
    proxy.register("hung.json", hooks.socket_path, ["PreRunPodSandbox"], timeout="60s")
    async with proxy, front.caller(proxy.socket) as caller:

        async def signalled(number: signal.Signals, *logged: str) -> None:
            os.kill(proxy.pid, number)
            for text in logged:
                await asyncio.to_thread(proxy.wait_for_log, text)

        await caller.run_pod()
        for number in (signal.SIGHUP, signal.SIGUSR2):
            await signalled(number, f"{number.name}: reg")
        await signalled(signal.SIGUSR1, *FIGURES)
        stream = await caller.open_stream()
        hooks.calls.clear()
        hooks.default = hookanswers.hang()
        held = asyncio.ensure_future(caller.run_pod())
        await hooks.wait_for_calls("PreRunPodSandbox")
        is_docker = front is DOCKER
        await signalled(signal.SIGTERM, f"{'continuing to serve' if is_docker else 'draining'} for at most")
        if is_docker:
            async with front.caller(proxy.socket) as newer:
                await newer.act("ping")
        assert not held.done()
        await signalled(signal.SIGINT)
        for end in (held, asyncio.ensure_future(stream.read())):
            with pytest.raises(Failed):
                await asyncio.wait_for(end, WAIT_SECONDS)
        process, proxy.process = proxy.process, None
        assert process is not None
        proxy.check(await asyncio.to_thread(process.wait, WAIT_SECONDS))
        assert not proxy.socket.exists()
    assert "drained in" in proxy.output()


@pytest.mark.engine
async def test_proxy_needs_no_capability_no_network_and_no_stdin(
    front: Front, tmp_path: Path, runtime: Runtime
) -> None:
    bare = ["unshare", "--net", "setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    program = [*bare, "bash", "-c", 'exec "$@" <&-', "closed", *PROGRAM]
    async with front.process(tmp_path, program=program) as proxy, front.caller(proxy.socket) as caller:
        status, limits = (Path(f"/proc/{proxy.pid}/{name}").read_text() for name in ("status", "limits"))
        assert re.search(r"^CapEff:\s*0+$", status, re.MULTILINE)
        assert re.search(r"^Max core file size +0 +0 ", limits, re.MULTILINE)
        await caller.run_pod()


# ---- systemd


def test_systemd_is_notified_once_clients_can_connect(front: Front, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(WAIT_SECONDS)
        proxy = front.process(tmp_path)
        proxy.environment |= {"NOTIFY_SOCKET": f"{tmp_path}/notify", "WATCHDOG_USEC": "200000"}
        proxy.launch()
        try:
            assert systemd.recv(100) == b"READY=1"
            assert answers(proxy.socket)
            assert {systemd.recv(100) for _ in range(3)} == {b"WATCHDOG=1", b"STATUS=serving, 0 hook servers"}
        finally:
            proxy.stop()
        while systemd.recv(100) != b"STOPPING=1":
            pass


def test_handed_over_socket_of_runtime_is_refused(tmp_path: Path) -> None:
    with handed_over(tmp_path / "given.sock") as handed:
        os.link(tmp_path / "given.sock", tmp_path / "runtime's.sock")
        proxy = ProxyProcess(tmp_path, **handed, remote_image_service_endpoint=str(tmp_path / "runtime's.sock"))
        proxy.launch()
        assert proxy.process is not None
        assert proxy.process.wait(WAIT_SECONDS) == 1
    line = f"--remote-image-service-endpoint ({tmp_path}/runtime's.sock) is the socket that the proxy itself listens on"
    assert f"{line} ({tmp_path}/given.sock): change it, or --koord-runtimeproxy-endpoint or" in proxy.output()


# ---- the documented command lines, unchanged

NAMESPACE = """
mount -t tmpfs -o mode=755 tmpfs /run && mount -t tmpfs tmpfs /etc
mkdir -p /run/containerd /etc/runtime/hookserver.d
exec "$@"
"""
"""The mounts of /run and /etc exist only in the new process's namespace."""
CONSOLE_SCRIPT = f"#!{sys.executable}\nimport sys\nfrom runtimeproxy import cli\nsys.exit(cli.koord_runtime_proxy())\n"
"""A script as pip writes it for the entry point of setup.cfg."""
DOCKERD = ["--backend-runtime-mode=Docker", "--remote-runtime-service-endpoint=/var/run/docker.sock"]
CONTAINERDS_IMAGES = "--remote-image-service-endpoint=/var/run/containerd/containerd.sock"
COMMANDS: dict[str, tuple[Front, list[str]]] = {
    "no parameter": (CRI, []),
    "endpoints": (CRI, [CONTAINERDS_IMAGES.replace("image", "runtime"), CONTAINERDS_IMAGES]),
    "docker": (DOCKER, DOCKERD),
    "docker without its endpoint": (DOCKER, DOCKERD[:1]),
    "docker with an image endpoint": (DOCKER, [*DOCKERD, CONTAINERDS_IMAGES]),
}


class InItsNamespace(ProxyProcess):
    """``koord-runtime-proxy`` on the default paths, which the test reaches through ``/proc/PID/root``."""

    def start(self) -> None:
        self.launch()
        self.root = Path(f"/proc/{self.pid}/root")
        self.socket = self.root / "run/koord-runtimeproxy/runtimeproxy.sock"
        self.wait_until_it_listens()


@pytest.mark.engine  # it needs a mount namespace
@pytest.mark.parametrize(("front", "arguments"), COMMANDS.values(), ids=COMMANDS)
async def test_documented_command_lines_work_on_default_paths(
    front: Front, tmp_path: Path, arguments: list[str]
) -> None:
    proxy, script = InItsNamespace(tmp_path), tmp_path / "koord-runtime-proxy"
    script.write_text(CONSOLE_SCRIPT)
    script.chmod(0o755)
    proxy.command = ["unshare", "--mount", "sh", "-c", NAMESPACE, "namespace", str(script), *arguments]
    async with proxy:
        hook_socket = proxy.root / "run/hooks.sock"
        async with (
            front.runtime(str(proxy.root / front.default_socket)) as runtime,
            HookServer(str(hook_socket)) as hooks,
            front.caller(proxy.socket) as caller,
        ):
            proxy.registrations = proxy.root / "etc/runtime/hookserver.d"
            proxy.register("koordlet.json", "/run/hooks.sock", ["PreCreateContainer"])
            await asyncio.to_thread(proxy.wait_for_log, "registration koordlet.json ")
            await caller.create(await caller.run_pod())
            await caller.act("images")
            assert [len(runtime.arrived(verb)) for verb in ("run_pod", "create", "images")] == [1, 1, 1]
            assert len(hooks.calls) == 1


# ---- the project's own hook servers

OWN_PATHS = {"coresched": ["core-sched-state"], "rdt": ["resctrl-root"], ALL: ["core-sched-state", "resctrl-root"]}
"""The flags of a hook's paths, which are the machine's by default."""


@pytest.mark.parametrize("name", [*sorted(HOOKS), ALL])
def test_hook_server_passes_hook_verify(tmp_path: Path, name: str) -> None:
    flags = [f"--{flag}={tmp_path}/{flag}" for flag in OWN_PATHS.get(name, [])]
    with processes.running(tmp_path, *flags, program=("-m", "runtimeproxy_hooks", name)) as program:
        command = [sys.executable, "-m", "runtimeproxy", "hook", "verify", str(program.socket)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
        assert program.end(15) == 0
    assert "Traceback" not in program.log


# ---- secrets

CANARY = "canary-7f3a91"
WORDS = "spoken-5d20c4"
"""Texts of hook servers and runtimes, which may reach the caller, but no log."""
TIMEOUT = "2s"
RESPONSE = api_pb2.ContainerResourceHookResponse
NEVER_IMPORTED = ("aiohttp.web", "grpc", "prometheus_client", "rich", "runtimeproxy.admin.exporter")
"""Modules that no daemon imports, in either mode and for any request."""
LABELS = {"secret": CANARY}
RUNS: Any = {"command": ("/bin/sh", "-c", CANARY), "args": (CANARY,), "envs": (("SECRET", CANARY),)}
CONTAINER = Container("main", BUSYBOX_IMAGE, **RUNS, labels=LABELS, annotations=LABELS)


def pod(name: str) -> Pod:
    return Pod(name, f"{name}-uid", labels=LABELS, annotations=LABELS, cgroup_parent=PARENT)


async def hang_at_create(call: hookanswers.HookCall) -> bytes:
    """Hang at one hook point, to cost only one timeout, which is long for a busy machine."""
    return await (hookanswers.hang() if call.point.name == "PreRunPodSandbox" else hookanswers.empty())(call)


def plant(response: Any) -> None:
    (response.container_envs if isinstance(response, RESPONSE) else response.labels)["HOOKED"] = CANARY


ANSWERS: dict[str, hookanswers.Answer] = {
    "empty": hookanswers.empty(),
    "echo": hookanswers.echo(),
    "changed": hookanswers.echo(plant),
    "refused": hookanswers.status(grpc.StatusCode.PERMISSION_DENIED, f"no {WORDS} here"),
    "error": hookanswers.status(grpc.StatusCode.INTERNAL, f"{WORDS} failed", (("x-more", CANARY),)),
    "garbage": hookanswers.raw(CANARY.encode()),
    "huge": hookanswers.huge(),
    "hang": hang_at_create,
    "bad-name": hookanswers.reply(RESPONSE(container_envs={f"{CANARY}=": CANARY})),
    "bad-parent": hookanswers.reply(RESPONSE(pod_cgroup_parent=CANARY)),
    "bad-cpuset": hookanswers.reply(RESPONSE(container_resources={"cpuset_cpus": CANARY})),
}


async def make_all(caller: Caller, runtime: Runtime, hooks: HookServer, at_least: int) -> list[str]:
    """Make every held call with every answer of the hook server, and calls that fail in other ways.

    Return the texts of the calls' errors. The breaker opens after several failures, so each answer is that of a new
    server.
    """
    texts: list[str] = []
    call_count = 0

    async def tried(call: Awaitable[object]) -> str:
        """Return a call's id; "unknown" if it failed."""
        nonlocal call_count
        call_count += 1
        try:
            return str(await call)
        except Failed as error:
            texts.append(error.text)
            return "unknown"

    while call_count < at_least:
        for name, hooks.default in ANSWERS.items():
            pod_id = await tried(caller.run_pod(pod(f"pod-{name}")))
            container_id = await tried(caller.create(pod_id, CONTAINER))
            await tried(caller.update(container_id, annotations={"secret": CANARY}))
            for verb in ("start", "stop", "remove", "stop_pod", "remove_pod"):
                await tried(caller.act(verb, pod_id if verb.endswith("pod") else container_id))
            await hooks.stop()
            await hooks.start()
        hooks.default = hookanswers.empty()
        await caller.call_unheld(CANARY)
        container_id = await caller.create(await caller.run_pod(pod("failing")), CONTAINER)
        # The runtime answers with its own text, first to the extra update of a start; other answers are malformed.
        hooks.on("PreStartContainer", hookanswers.reply(RESPONSE(container_resources={"cpu_shares": 77})))
        runtime.set_fault("update", text=WORDS)
        await tried(caller.act("start", container_id))
        hooks.answers.clear()
        runtime.set_fault("update")
        verbs = ("run_pod", "create", "update", "start")
        for verb in verbs:
            await tried(caller.send(verb, caller.broken_request(verb, CANARY.encode())))
            runtime.set_fault(verb, text=WORDS)
        calls = (caller.create("unknown", CONTAINER), caller.update(container_id), caller.act("start", container_id))
        for call in (caller.run_pod(pod("other")), *calls):
            await tried(call)
        for verb in verbs:
            runtime.set_fault(verb)
    assert {call.point.name for call in hooks.calls} == set(registration.ALL_POINTS)
    assert sum(CANARY.encode() in call.message for call in hooks.calls) > len(ANSWERS)
    return texts


@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
async def test_no_log_line_metric_or_error_contains_value(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every line is checked, also those that the log's rate limit would drop."""
    caplog.set_level(logging.DEBUG, logger="runtimeproxy")
    proxy = front.inside(tmp_path)
    proxy.register("plugin.json", hooks.socket_path, timeout=TIMEOUT, policy=policy)
    async with proxy, front.caller(proxy.socket) as caller:
        for _ in range(0, Amount(100, 10_000).now, 100):
            caplog.clear()
            failed, bad = (proxy.metrics.total(name) for name in ("hook_failures", "hook_bad_fields"))
            texts = await make_all(caller, runtime, hooks, 100)
            failed, bad = proxy.metrics.total("hook_failures") - failed, proxy.metrics.total("hook_bad_fields") - bad
            assert failed > len(ANSWERS)
            logged_before = bad - caplog.text.count("this is logged once for this field") if policy == "Ignore" else 0
            assert caplog.text.count("'plugin'") == failed - logged_before
            assert (CANARY in caplog.text, WORDS in caplog.text) == (False, False)
            lines = "".join(text for text in texts if text.startswith("runtimeproxy: "))
            assert (WORDS in lines, CANARY in lines) == (True, False), "the hook server's text reaches the caller"
        figures = f"{proxy.metrics.counters} {proxy.metrics.gauges} {proxy.metrics.calls}"
    assert ("'plugin'" in figures, CANARY in figures, WORDS in figures) == (True, False, False)


JSON_COMMANDS = ("status", "hook ls", "hook trace", "events", "store ls", "doctor", "log-level info")
SUBJECT_COMMANDS = ("store get {pod}", "store get {container}", "explain {pod}", "explain {container}")
READING_COMMANDS = [f"{command}{form}" for command in (*JSON_COMMANDS, *SUBJECT_COMMANDS) for form in ("", " -o json")]
READING_COMMANDS += ["top --once", "version", "config show --origin", "config show -o json", "config check"]
READING_COMMANDS += ["hook disable plugin --reason=x", "hook ls -o yaml", "status -o yaml", "hook enable plugin"]
READING_COMMANDS += ["report {folder}/r.gz"]
NEEDED = {"name": "plugin", "reason": "x", "level": "info"}


def started(proxy: ProxyProcess, command: str, **more: Any) -> "subprocess.Popen[str]":
    """Start a command that finds the proxy by the variables of the environment; the journal is its log."""
    given = (word.removeprefix("--").split("=", 1) for word in proxy.command if word.startswith("--"))
    flags = {f"RUNTIMEPROXY_{name.upper().replace('-', '_')}": value for name, value in given}
    environment = {"PATH": f"{proxy.path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "LANG": "C", "TERM": "xterm"}
    words = [sys.executable, "-m", "runtimeproxy", *shlex.split(command)]
    more |= {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(words, env=environment | flags, cwd=proxy.path, **more)


async def test_no_admin_answer_command_or_report_contains_value(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    """Two commands follow all events, because the ring of events is bounded.

    The proxy imports no libraries for them, which would multiply its memory. Docker mode reads the daemon's state with
    aiohttp.
    """
    program = (sys.executable, "-X", "importtime", *PROGRAM[1:])  # a line for each module, on stderr
    proxy = front.process(tmp_path, program=program, log_format="json" if front is DOCKER else "text")
    proxy.register("plugin.json", hooks.socket_path, timeout="500ms")
    journal, followed = tmp_path / "journalctl", tmp_path / "followed"
    journal.write_text(f"#!/bin/sh\nexec cat {proxy.log}\n")
    journal.chmod(0o755)
    with followed.open("w") as out, ExitStack() as stack:
        async with proxy, front.caller(proxy.socket) as caller:
            following = [started(proxy, f"{command} -f -o json", stdout=out) for command in ("events", "hook trace")]
            for follower in following:
                stack.enter_context(follower)
                stack.callback(follower.kill)
            await make_all(caller, runtime, hooks, Amount(100, 10_000).now)
            hooks.default = hookanswers.echo(plant)
            container_id = await caller.create(await caller.run_pod(pod("seen")), CONTAINER)
            outputs = await asyncio.to_thread(all_outputs, proxy, "seen", container_id)
            assert [follower.args for follower in following if follower.poll() is not None] == [], followed.read_text()
    outputs |= {"followed": followed.read_text(), "log": proxy.output()}
    for name in ("hook trace -o json", "explain {container}", "events.ndjson", "store.json", "followed"):
        assert "envs" in outputs[name], name
    assert [name for name, text in outputs.items() if CANARY in text or WORDS in text] == []
    assert "'plugin'" in proxy.output()
    imported = set(re.findall(r"^import time:.*\| +(\S+)$", proxy.output(), re.MULTILINE))
    assert {"uvloop", "runtimeproxy.admin.queries", f"runtimeproxy.{front.name}.front"} <= imported
    assert imported & {*NEVER_IMPORTED, *front.never_imported} == set()


def all_outputs(proxy: ProxyProcess, pod_name: str, container_id: str) -> dict[str, str]:
    names = {"pod": pod_name, "container": container_id[:12], "folder": str(proxy.path)}
    outputs = {}
    for command in READING_COMMANDS:
        with started(proxy, command.format(**names), stdout=subprocess.PIPE) as running:
            outputs[command] = running.communicate(timeout=60)[0]
            assert outputs[command], command
    with tarfile.open(proxy.path / "r.gz") as archive:
        files = [(Path(member.name).name, archive.extractfile(member)) for member in archive.getmembers()]
        outputs |= {name: file.read().decode() for name, file in files if file is not None}
    for name, method in queries.methods(MagicMock()).items():
        more = {"follow": True, "limit": 1} if name == "events" else {}
        params = {parameter: NEEDED[parameter] for parameter in method.required} | more
        answers = control.lines(proxy.admin, json.dumps({"id": 1, "method": name, "params": params}).encode() + b"\n")
        assert "end" in answers[-1], (name, answers)
        outputs[f"method {name}"] = json.dumps(answers)
    return outputs
