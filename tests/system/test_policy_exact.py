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


def answering(answer: hookanswers.Answer) -> Failing:
    @contextmanager
    def failing(hooks: HookServer) -> Iterator[None]:
        hooks.default = answer
        yield
        hooks.default = hookanswers.empty()

    return failing


def status(name: str) -> Failing:
    return answering(hookanswers.status(grpc.StatusCode[name], "no"))


@contextmanager
def crashing(hooks: HookServer) -> Iterator[None]:
    """Drop the connection in the middle of the answer."""
    assert hooks.faults is not None
    with answering(hooks.crash_mid_answer())(hooks):
        yield
    hooks.faults.to_client.cut_after_bytes = None


@contextmanager
def unavailable(hooks: HookServer) -> Iterator[None]:
    path = Path(hooks.socket_path)
    aside = path.rename(path.with_suffix(".aside"))
    yield
    aside.rename(path)


@contextmanager
def dead(hooks: HookServer) -> Iterator[None]:
    with unavailable(hooks), socket.socket(socket.AF_UNIX) as unserved:
        unserved.bind(hooks.socket_path)
        yield


@contextmanager
def writable_by_all(hooks: HookServer) -> Iterator[None]:
    """Create a new socket in a folder that is writable by all users."""
    folder = Path(hooks.socket_path).parent
    with dead(hooks):
        folder.chmod(0o1777)
        yield
        folder.chmod(0o700)


def plant(text: str) -> Callable[[Any], None]:
    def change(response: Any) -> None:
        response.container_envs["HOOKED"] = text

    return change


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


GOOD = Injection("good", answering(hookanswers.empty()))
SLOW = Injection("hung", answering(hookanswers.hang()))
FAST = (
    GOOD,
    Injection("slow", answering(hookanswers.after(0.1))),
    Injection("breaking off", crashing),
    *(Injection("vanished", failing) for failing in (unavailable, dead)),
    Injection("wrong: no message", answering(hookanswers.garbage())),
    Injection("wrong: no message", answering(hookanswers.raw(b"\x1a\x02\xff\xfe"))),
    Injection("wrong: no message", answering(hookanswers.huge())),
    *(Injection("wrong: an error", status(name)) for name in ("INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED")),
    Injection("wrong: impossible", answering(hookanswers.reply(BAD_CPUSET)), "ok", (BAD_FIELD,)),
    Injection(REFUSING, status("PERMISSION_DENIED")),
    Injection("wrong: unwanted", answering(hookanswers.echo(plant("early"))), more=(CONFLICT,)),
    Injection("another user's", writable_by_all),
)
COUNTED = ("calls", "hook_", "config_reloads", "fields_left_out", "internal_errors")
"""The counters whose series must all be expected: their names, or prefixes."""


def counters(proxy: ProxyInside) -> Counter[Key]:
    found = proxy.metrics.counters
    return +Counter({key: n for key, n in found.items() if key[0].startswith(COUNTED) and key[0] != "calls_passed"})


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
        pod_id = await caller.run_pod()

        async def create(injection: Injection) -> None:
            """Create a container, and check the outcome of the call and its event."""
            expected.update(injection.counted(policy))
            before = proxy.metrics.events.last
            if not injection.is_refused(policy):
                await caller.create(pod_id)
            else:
                with pytest.raises(Failed) as raised:
                    await caller.create(pod_id)
                assert raised.value.status == (front.refused if injection.kind == REFUSING else front.failed)
                assert f"hook server 'early' at {HOOK_POINT}: " in raised.value.text
            if reason := REASONS.get(injection.kind):
                found = [event_object(row) for row in proxy.metrics.events.read(before)[0]]
                events = [
                    (each["kind"], each["reason"]) for each in found if each["kind"] in ("failed_open", "refused")
                ]
                assert events == [(injection.signs(policy)[0], reason)]

        for injection in injections:
            with injection.does(early):
                await create(injection)
            assert early.faults is not None
            # Drop the bytes of connections that have ended: some answers are long.
            early.faults.connections = [connection for connection in early.faults.connections if connection.is_open]
            await create(GOOD)
        assert counters(proxy) == +expected
        for server in ("early", "late"):
            calls = sum(n for (name, labels), n in expected.items() if (name, labels[0]) == ("hook_calls", server))
            assert sum(proxy.metrics.histograms["hook_call_duration_seconds", (server,)].counts) == calls
        own = proxy.metrics.histograms["call_duration_seconds", (OPERATION, "own")]
        assert sum(own.counts) == 2 * len(injections)
        agreed = counters(proxy)["calls", (OPERATION, "agreed")]
    assert len(runtime.arrived("create")) == agreed


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
        answers: Any = await asyncio.gather(client.call("RestorePod", b"request"), return_exceptions=True)
        assert [received.message for received in runtime.requests("RestorePod")] == [b"request"] * (not is_refused)
        event = next(event for event in shown_of(proxy.metrics.events) if event.get("operation") == "RestorePod")
        total = proxy.metrics.counted
        assert total("calls_passed", method="RestorePod") == (not is_refused)
    (answer,) = answers
    if is_refused:
        assert (answer.code(), f"'a' at {hook_point}: unhooked: " in answer.details()) == (
            grpc.StatusCode.UNIMPLEMENTED,
            True,
        )
        recorded = (event["kind"], event["hookServer"], event["hook"], event["reason"])
        assert recorded == ("refused", "a", hook_point, "unhooked")
        assert total("hook_fail_closed", hook_server="a", hook=hook_point, reason="unhooked") == 1
    else:
        assert answer == b"request"
        assert (event["kind"], event["text"]) == ("unhooked", "passed without hooks")
        assert ("RestorePod passed without hooks" in caplog.text) == bool(hook_point)
