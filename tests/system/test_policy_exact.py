"""The policy is exact (promise 2): a failed hook call is handled by its policy, and every counter is correct.

Each outcome is counted once, with its reason, and is one event: the rows of docs/fleets.rst, "A bad hook server". That
includes a socket that another user could have created (fault matrix X6).
"""

import asyncio
import random
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.observe.events import event_object
from runtimeproxy.observe.metric_table import METRICS, Key
from tests.amounts import HOOK_FAILURES
from tests.deploy.files import ALERTS, metrics
from tests.docs import DOCS
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime
from tests.observe.events import shown_of
from tests.system.clients import Client
from tests.system.fronts import Failed, Front, Runtime
from tests.system.proxy import ProxyInside

pytestmark = pytest.mark.slow

HOOK_POINT, OPERATION = "PreCreateContainer", "CreateContainer"
Failing = Callable[[HookServer], AbstractContextManager[None]]
"""Makes a hook server fail during a block."""


@contextmanager
def answering(answer: hookanswers.Answer, hooks: HookServer) -> Iterator[None]:
    hooks.default = answer
    yield
    hooks.default = hookanswers.empty()


def giving(answer: hookanswers.Answer) -> Failing:
    return partial(answering, answer)


def status(name: str) -> Failing:
    return giving(hookanswers.status(grpc.StatusCode[name], "no"))


@contextmanager
def crashing(hooks: HookServer) -> Iterator[None]:
    """Drop the connection in the middle of the answer."""
    assert hooks.faults is not None
    with answering(hooks.crash_mid_answer(), hooks):
        yield
    hooks.faults.to_client.cut_after_bytes = None


@contextmanager
def unavailable(hooks: HookServer, replaced: bool = False, folder_mode: int = 0o700) -> Iterator[None]:
    """Move its socket away; a dead one may replace it, in a folder of this mode."""
    path = Path(hooks.socket_path)
    aside = path.rename(path.with_suffix(".aside"))
    with socket.socket(socket.AF_UNIX) as unserved:
        if replaced:
            unserved.bind(hooks.socket_path)
        path.parent.chmod(folder_mode)
        yield
        path.parent.chmod(0o700)
    aside.rename(path)


def plant(text: str) -> Callable[[Any], None]:
    return lambda response: response.container_envs.update(HOOKED=text)


BAD_CPUSET = api_pb2.ContainerResourceHookResponse(container_resources={"cpuset_cpus": "3-1"})
BAD_FIELD = ("hook_bad_fields", ("early", "resources.cpuset_cpus"))
CONFLICT = ("hook_conflicts", ("early", HOOK_POINT))
REFUSING, PAGE = "wrong: refusing", DOCS["fleets"]
REASONS = dict(re.findall(r"^   \*\*([^*]+)\*\*: [^|]* \| ``(\w+)`` \|", PAGE, re.MULTILINE))
REASONS |= {REFUSING: "refused", "another user's": "untrusted_socket"}
"""The kinds of failing hook servers, and the counted reason."""
SIGNS = dict(re.findall(r"^   ``(\w+)`` \| [^|]+ \| event ``(.*)$", PAGE, re.MULTILINE))
SIGNS[REFUSING] = re.findall(rf"{REFUSING}\*\*: .* \| event ``(.*)", PAGE)[0]
"""The page's event, metric and alert of a failure, by policy, and those of a refusal."""


@dataclass(frozen=True)
class Injection:
    """A failure of the hook server ``early`` at a create: its kind, how, the counted code, and other series."""

    kind: str
    does: Failing
    code: str = ""
    more: tuple[Key, ...] = ()

    def is_refused(self, policy: str) -> bool:
        return self.kind == REFUSING or (self.kind in REASONS and policy == "Fail")

    def signs(self, policy: str) -> tuple[str, str]:
        """Return the event and the name of the metric's row of a failure."""
        event, metric, _ = re.split(r"``; (?:``)?", SIGNS[REFUSING if self.kind == REFUSING else policy])
        return event, next(name for name, row in METRICS.items() if row.shown == metric)

    def counted(self, policy: str) -> Iterator[Key]:
        """Yield the series that a create counts once each."""
        refused, reason = self.is_refused(policy), REASONS.get(self.kind, "")
        yield "calls", (OPERATION, "refused" if refused else "agreed")
        yield "hook_calls", ("early", HOOK_POINT, self.code or reason or "ok")
        if reason:
            yield "hook_failures", ("early", HOOK_POINT, reason)
            yield self.signs(policy)[1], ("early", HOOK_POINT, reason)[: 2 if self.kind == REFUSING else 3]
        yield from self.more
        if not refused:
            yield "hook_calls", ("late", HOOK_POINT, "ok")
            yield "hook_fields_changed", ("late", "envs")


GOOD, SLOW = Injection("good", giving(hookanswers.empty())), Injection("hung", giving(hookanswers.hang()))
NO_MESSAGES = (hookanswers.garbage(), hookanswers.raw(b"\x1a\x02\xff\xfe"), hookanswers.huge())
FAST = (
    *(GOOD, Injection("slow", giving(hookanswers.after(0.1))), Injection("breaking off", crashing)),
    *(Injection("vanished", partial(unavailable, replaced=dead)) for dead in (False, True)),
    *(Injection("wrong: no message", giving(answer)) for answer in NO_MESSAGES),
    *(Injection("wrong: an error", status(name)) for name in ("INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED")),
    Injection("wrong: impossible", giving(hookanswers.reply(BAD_CPUSET)), "ok", (BAD_FIELD,)),
    Injection(REFUSING, status("PERMISSION_DENIED")),
    Injection("wrong: unwanted", giving(hookanswers.echo(plant("early"))), more=(CONFLICT,)),
    Injection("another user's", partial(unavailable, replaced=True, folder_mode=0o1777)),
)
COUNTED = ("calls", "hook_", "config_reloads", "fields_left_out", "internal_errors")
"""The counters whose series must all be expected: their names, or prefixes."""


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
async def test_failure_is_handled_by_policy_and_counted(
    front: Front, tmp_path: Path, runtime: Runtime, policy: str
) -> None:
    """A good answer follows each failure, so the breaker stays closed."""
    chance = random.Random(policy)
    injections = [*FAST, SLOW, *chance.choices(FAST, k=HOOK_FAILURES.now - len(FAST) - 1)]
    chance.shuffle(injections)
    early = HookServer(str(tmp_path / "early.sock"), faulty=True, keep_calls=False)
    late = HookServer(str(tmp_path / "late.sock"), default=hookanswers.echo(plant("late")), keep_calls=False)
    inside = front.inside(tmp_path)
    # A delay of a busy machine must not count as a deadline.
    inside.register("early.json", early.socket_path, [HOOK_POINT], policy=policy, timeout="4s")
    inside.register("late.json", late.socket_path, [HOOK_POINT])
    expected = Counter[Key]({("config_reloads", ("ok",)): 2, ("calls", ("RunPodSandbox", "agreed")): 1})
    async with early, late, inside as proxy, front.caller(proxy.socket) as caller:
        pod_id, faults = await caller.run_pod(), early.faults
        assert faults is not None

        async def create(injection: Injection) -> None:
            """Create a container, and check the outcome of the call and its event."""
            expected.update(injection.counted(policy))
            before = proxy.metrics.events.last
            if not injection.is_refused(policy):
                await caller.create(pod_id)
            else:
                with pytest.raises(Failed, match=f"hook server 'early' at {HOOK_POINT}: ") as raised:
                    await caller.create(pod_id)
                assert raised.value.status == (front.refused if injection.kind == REFUSING else front.failed)
            if reason := REASONS.get(injection.kind):
                found = [event_object(row) for row in proxy.metrics.events.read(before)[0]]
                events = [(one["kind"], one["reason"]) for one in found if one["kind"] in ("failed_open", "refused")]
                assert events == [(injection.signs(policy)[0], reason)]

        for injection in injections:
            with injection.does(early):
                await create(injection)
            # Drop the bytes of connections that have ended: some answers are long.
            faults.connections = [connection for connection in faults.connections if connection.is_open]
            await create(GOOD)
        counters = +Counter({key: n for key, n in proxy.metrics.counters.items() if key[0].startswith(COUNTED)})
        assert {key: n for key, n in counters.items() if key[0] != "calls_passed"} == +expected
        histograms = proxy.metrics.histograms
        for server in ("early", "late"):
            calls = sum(n for (name, labels), n in expected.items() if (name, labels[0]) == ("hook_calls", server))
            assert sum(histograms["hook_call_duration_seconds", (server,)].counts) == calls
        assert sum(histograms["call_duration_seconds", (OPERATION, "own")].counts) == 2 * len(injections)
    assert len(runtime.arrived("create")) == counters["calls", (OPERATION, "agreed")]


def test_page_has_each_failure_and_names_existing_alerts() -> None:
    assert {injection.kind for injection in (*FAST, SLOW)} >= {*REASONS} - {"crashing", "wrong: unserved"}
    for event, metric, alert in (re.split(r"``; (?:``)?", signs) for signs in SIGNS.values()):
        assert event in {"failed_open", "refused"}
        named = list(metrics(ALERTS[alert]["expr"])) if alert in ALERTS else []
        assert (metric in named) == (alert != "no alert")


RESTORES = [("PreRunPodSandbox", "Fail", True), ("PreStartContainer", "Fail", False)]
RESTORES += [("PreCreateContainer", "Ignore", False), ("", "", False)]


@pytest.mark.parametrize(("hook_point", "policy", "is_refused"), RESTORES)
async def test_restored_pod_passes_unless_hook_was_required(
    tmp_path: Path, hook_point: str, policy: str, is_refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """RestorePod creates and starts a pod in one call, without a hook point."""
    inside = ProxyInside(tmp_path)
    if hook_point:
        inside.register("a.json", tmp_path / "hooks.sock", [hook_point], policy=policy)
    async with FakeRuntime(str(inside.runtime)) as runtime, inside as proxy, Client(proxy.socket) as client:
        (answer,) = await asyncio.gather(client.call("RestorePod", b"request"), return_exceptions=True)
        (event,) = [event for event in shown_of(proxy.metrics.events) if event.get("operation") == "RestorePod"]
        passed = [received.message for received in runtime.requests("RestorePod")]
    assert proxy.metrics.counted("calls_passed", method="RestorePod") == len(passed) == (not is_refused)
    if is_refused:
        assert answer.code() == grpc.StatusCode.UNIMPLEMENTED
        assert f"'a' at {hook_point}: unhooked: " in answer.details()
        expected = {"kind": "refused", "hookServer": "a", "hook": hook_point, "reason": "unhooked"}
        assert proxy.metrics.counted("hook_fail_closed", hook_server="a", hook=hook_point, reason="unhooked") == 1
    else:
        assert passed == [answer] == [b"request"]
        expected = {"kind": "unhooked", "text": "passed without hooks"}
        assert ("RestorePod passed without hooks" in caplog.text) == bool(hook_point)
    assert event.items() >= expected.items()
