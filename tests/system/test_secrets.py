"""Nothing that the proxy logs or shows contains a value of a request, and nothing heavy is loaded without need.

That is fault matrix X4, promise 16. Answers to wrong requests: tests/admin.
"""

import asyncio
import json
import logging
import re
import sys
import tarfile
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import grpc
import pytest

from runtimeproxy.admin import queries
from runtimeproxy.hookapi import api_pb2
from tests import control
from tests.amounts import Amount
from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes import hookanswers, registration
from tests.fakes.dockershim_bodies import Container, Pod
from tests.fakes.hookserver import HookServer
from tests.system import commands
from tests.system.docker_front import DOCKER
from tests.system.fronts import PARENT, Caller, Failed, Front, Runtime
from tests.system.proxy import PROGRAM, ProxyProcess

pytestmark = pytest.mark.slow

CANARY = "canary-7f3a91"
WORDS = "spoken-5d20c4"
"""Texts of hook servers and runtimes for the caller, which may reach it, but no log."""
SECRETS = (CANARY, WORDS)
TIMEOUT = "2s"
RESPONSE = api_pb2.ContainerResourceHookResponse
NEVER_IMPORTED = ("aiohttp.web", "grpc", "prometheus_client", "rich", "runtimeproxy.admin.exporter")
"""What a daemon of neither mode imports, whatever is requested of it."""
LABELS = {"secret": CANARY}
RUNS: Any = {"command": ("/bin/sh", "-c", CANARY), "args": (CANARY,), "envs": (("SECRET", CANARY),)}
CONTAINER = Container("main", BUSYBOX_IMAGE, **RUNS, labels=LABELS, annotations=LABELS)


def pod(name: str) -> Pod:
    return Pod(name, f"{name}-uid", labels=LABELS, annotations=LABELS, cgroup_parent=PARENT)


async def hang_at_one_point(call: hookanswers.HookCall) -> bytes:
    """Hang at one point only, to cost only one timeout: it is long, because a busy machine must not cause more."""
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
    "hang": hang_at_one_point,
    "bad name": hookanswers.reply(RESPONSE(container_envs={f"{CANARY}=": CANARY})),
    "bad parent": hookanswers.reply(RESPONSE(pod_cgroup_parent=CANARY)),
    "bad cpuset": hookanswers.reply(RESPONSE(container_resources={"cpuset_cpus": CANARY})),
}


@dataclass
class Calls:
    """Makes calls with the canary wherever a value is possible; collects the texts of their errors."""

    caller: Caller
    runtime: Runtime
    hooks: HookServer
    count: int = 0
    texts: list[str] = field(default_factory=list)

    async def make_all(self) -> None:
        """Make every held call with every answer of the hook server, and calls that fail in other ways.

        A server that failed too often is not called for a while, so each answer is that of a new one.
        """
        for name, answer in ANSWERS.items():
            self.hooks.default = answer
            await self._life_of_a_pod(name)
            await self.hooks.stop()
            await self.hooks.start()
        self.hooks.default = hookanswers.empty()
        await self.caller.call_unheld(CANARY)
        await self._rejected_update()
        await self._failing_calls()
        assert {call.point.name for call in self.hooks.calls} == set(registration.ALL_POINTS)
        assert sum(CANARY.encode() in call.message for call in self.hooks.calls) > len(ANSWERS)

    async def _life_of_a_pod(self, name: str) -> None:
        pod_id = await self._tried(self.caller.run_pod(pod(f"pod-{name.replace(' ', '-')}"))) or "unknown"
        container_id = await self._tried(self.caller.create(pod_id, CONTAINER)) or "unknown"
        await self._tried(self.caller.update(container_id, annotations={"secret": CANARY}))
        for verb in ("start", "stop", "remove"):
            await self._tried(self.caller.act(verb, container_id))
        for verb in ("stop_pod", "remove_pod"):
            await self._tried(self.caller.act(verb, pod_id))

    async def _rejected_update(self) -> None:
        """Make the runtime reject the extra update of PreStartContainer with a text of its own."""
        container_id = await self.caller.create(await self.caller.run_pod(pod("rejected")), CONTAINER)
        self.hooks.on("PreStartContainer", hookanswers.reply(RESPONSE(container_resources={"cpu_shares": 77})))
        before = len(self.hooks.calls)
        self.runtime.set_fault("update", text=WORDS)
        await self._tried(self.caller.act("start", container_id))
        assert self.hooks.calls[before].point.name == "PreStartContainer"
        self.hooks.answers.clear()
        self.runtime.set_fault("update")

    async def _failing_calls(self) -> None:
        """Make calls that cannot be read, and calls that the runtime answers with an error text of its own."""
        caller, runtime = self.caller, self.runtime
        container_id = await caller.create(await caller.run_pod(pod("failing")), CONTAINER)
        verbs = ("run_pod", "create", "update", "start")
        for verb in verbs:
            await self._tried(caller.send(verb, caller.broken_request(verb, CANARY.encode())))
            runtime.set_fault(verb, text=WORDS)
        await self._tried(caller.run_pod(pod("other")))
        await self._tried(caller.create("unknown", CONTAINER))
        await self._tried(caller.update(container_id))
        await self._tried(caller.act("start", container_id))
        for verb in verbs:
            runtime.set_fault(verb)

    async def _tried(self, call: Awaitable[object]) -> str:
        """Return a call's id; "" if it failed."""
        self.count += 1
        try:
            return str(await call)
        except Failed as error:
            self.texts.append(error.text)
            return ""


@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
async def test_no_line_figure_or_error_text_holds_a_value(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every line is checked, also those that the log's rate limit would leave out."""
    caplog.set_level(logging.DEBUG, logger="runtimeproxy")
    proxy = front.inside(tmp_path)
    proxy.register("plugin.json", hooks.socket_path, timeout=TIMEOUT, policy=policy)
    async with proxy, front.caller(proxy.socket) as caller:
        made = Calls(caller, runtime, hooks)
        while made.count < Amount(100, 10_000).now:
            caplog.clear()
            failed, bad = (proxy.metrics.total(name) for name in ("hook_failures", "hook_bad_fields"))
            await made.make_all()
            failed, bad = proxy.metrics.total("hook_failures") - failed, proxy.metrics.total("hook_bad_fields") - bad
            assert failed > len(ANSWERS)
            logged_before = bad - caplog.text.count("this is logged once for this field") if policy == "Ignore" else 0
            assert caplog.text.count("'plugin'") == failed - logged_before
            assert not any(secret in caplog.text for secret in SECRETS)
        figures = f"{proxy.metrics.counters} {proxy.metrics.gauges} {proxy.metrics.calls}"
    assert "'plugin'" in figures
    assert not any(secret in figures for secret in SECRETS)
    ours = [text for text in made.texts if text.startswith("runtimeproxy: ")]
    assert any(WORDS in text for text in ours), "the hook server's text reaches the caller"
    assert CANARY not in "".join(ours)


COMMANDS = [
    *(f"{command}{form}" for form in ("", " -o json") for command in ("status", "hook ls", "hook trace", "events")),
    *(f"{command}{form}" for form in ("", " -o json") for command in ("store ls", "doctor", "log-level info")),
    *(f"{command} {subject}" for command in ("store get", "explain") for subject in ("{pod}", "{container}")),
    *(f"{command} {subject} -o json" for command in ("store get", "explain") for subject in ("{pod}", "{container}")),
    *["top --once", "version", "config show --origin", "config show -o json", "config check"],
    *["hook disable plugin --reason=x", "hook ls -o yaml", "status -o yaml", "hook enable plugin"],
    "report {folder}/r.gz",
]
NEEDED = {"name": "plugin", "reason": "x", "level": "info"}


async def test_no_admin_answer_command_or_report_holds_a_value(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    """Two commands follow all that happens, because the ring of events forgets.

    The proxy imports nothing foreign for it: the libraries are several times its own memory. Docker mode reads the
    daemon's state with aiohttp.
    """
    program = (sys.executable, "-X", "importtime", *PROGRAM[1:])  # a line for each module, on stderr
    proxy = front.process(tmp_path, program=program, log_format="json" if front is DOCKER else "text")
    proxy.register("plugin.json", hooks.socket_path, timeout="500ms")
    async with proxy, front.caller(proxy.socket) as caller:
        with commands.following(proxy, "events -f -o json", "hook trace -f -o json") as followed:
            made = Calls(caller, runtime, hooks)
            while made.count < Amount(100, 10_000).now:
                await made.make_all()
            hooks.default = hookanswers.echo(plant)
            pod_id = await caller.run_pod(pod("seen"))
            container_id = await caller.create(pod_id, CONTAINER)
            shown = await asyncio.to_thread(everything, proxy, "seen", container_id)
        shown |= {"followed": followed.read_text(), "log": proxy.output()}
    for name in ("hook trace -o json", "explain {container}", "events.ndjson", "store.json", "followed"):
        assert "envs" in shown[name], name
    assert [name for name, text in shown.items() if CANARY in text or WORDS in text] == []
    assert "'plugin'" in proxy.output()
    imported = set(re.findall(r"^import time:.*\| +(\S+)$", proxy.output(), re.MULTILINE))
    assert {"uvloop", "runtimeproxy.admin.queries", f"runtimeproxy.{front.name}.front"} <= imported
    assert imported & {*NEVER_IMPORTED, *front.never_imported} == set()


def everything(proxy: ProxyProcess, pod_name: str, container_id: str) -> dict[str, str]:
    """Return what commands print, the report's files and the admin endpoint's answers."""
    names = {"pod": pod_name, "container": container_id[:12], "folder": str(proxy.path)}
    shown = {each: commands.output(proxy, each.format(**names)) for each in COMMANDS}
    with tarfile.open(proxy.path / "r.gz") as archive:
        files = [(Path(one.name).name, archive.extractfile(one)) for one in archive.getmembers()]
        shown |= {name: file.read().decode() for name, file in files if file is not None}
    for name, method in queries.methods(MagicMock()).items():
        more = {"follow": True, "limit": 1} if name == "events" else {}
        params = {parameter: NEEDED[parameter] for parameter in method.required} | more
        found = control.lines(proxy.admin, json.dumps({"id": 1, "method": name, "params": params}).encode() + b"\n")
        assert "end" in found[-1], (name, found)
        shown[f"method {name}"] = json.dumps(found)
    return shown
