"""The policy is exact (promise 2): a failed hook call ends as its policy requires, and every counter is true.

Each outcome is counted once, with its reason, and is one event: the rows of docs/fleets.rst, "A bad hook server". That
includes a socket that another user could have made (fault matrix X6).
"""

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from runtimeproxy.errors import Reason
from runtimeproxy.hookapi import api_pb2
from runtimeproxy.observe.events import shown
from runtimeproxy.observe.metric_table import METRICS, Key
from runtimeproxy.plugins.registration import FailurePolicy
from tests.amounts import HOOK_FAILURES
from tests.deploy.files import ALERTS, metrics
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime
from tests.observe.events import shown_of
from tests.system import blast
from tests.system.clients import Client
from tests.system.fronts import Failed, Front, Runtime
from tests.system.proxy import ProxyInside

pytestmark = pytest.mark.slow

POINT, OPERATION = "PreCreateContainer", "CreateContainer"
Failing = Callable[[HookServer], AbstractContextManager[None]]
"""Makes a hook server fail for a moment."""


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
    """Put a new socket into a folder where any user may put one."""
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
CONFLICT = ("hook_conflicts", ("early", POINT))
KINDS = {kind.name: kind for kind in blast.KINDS}
UNTRUSTED = blast.Kind("untrusted", "listens where any user may", blast.BY_POLICY, Reason.UNTRUSTED_SOCKET)


@dataclass(frozen=True)
class Injection:
    """What the hook server ``early`` does at a create: how, the counted code, and other series; None is good."""

    kind: blast.Kind | None
    does: Failing
    code: str = ""
    more: tuple[Key, ...] = ()

    def is_refused(self, policy: FailurePolicy) -> bool:
        return self.kind is not None and self.kind.lost[policy] is blast.Lost.CALL

    def counted(self, policy: FailurePolicy) -> Iterator[Key]:
        """Yield the series that a create counts once each."""
        refused, reason = self.is_refused(policy), self.kind.reason if self.kind else None
        yield "calls", (OPERATION, "refused" if refused else "agreed")
        yield "hook_calls", ("early", POINT, self.code or (reason.value if reason else "ok"))
        if self.kind is not None and reason is not None:
            yield "hook_failures", ("early", POINT, reason.value)
            yield self.kind.signs(policy).metric, ("early", POINT, reason.value)[: 2 if reason is Reason.REFUSED else 3]
        yield from self.more
        if not refused:
            yield "hook_calls", ("late", POINT, "ok")
            yield "hook_fields_changed", ("late", "envs")


GOOD = Injection(None, answering(hookanswers.empty()))
SLOW = Injection(KINDS["hung"], answering(hookanswers.hang()))
FAST = (
    GOOD,
    Injection(KINDS["slow"], answering(hookanswers.after(0.1))),
    Injection(KINDS["breaking off"], crashing),
    *(Injection(KINDS["vanished"], gone) for gone in (unavailable, dead)),
    Injection(KINDS["wrong: no message"], answering(hookanswers.garbage())),
    Injection(KINDS["wrong: no message"], answering(hookanswers.raw(b"\x1a\x02\xff\xfe"))),
    Injection(KINDS["wrong: no message"], answering(hookanswers.huge())),
    *(Injection(KINDS["wrong: an error"], status(name)) for name in ("INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED")),
    Injection(KINDS["wrong: impossible"], answering(hookanswers.reply(BAD_CPUSET)), "ok", (BAD_FIELD,)),
    Injection(KINDS["wrong: refusing"], status("PERMISSION_DENIED")),
    Injection(KINDS["wrong: unwanted"], answering(hookanswers.echo(plant("early"))), more=(CONFLICT,)),
    Injection(UNTRUSTED, writable_by_all),
)
COUNTED = ("calls", "hook_", "config_reloads", "fields_left_out", "internal_errors")
"""The counters of which every series is expected: their names, or how these begin."""


def counters(proxy: ProxyInside) -> Counter[Key]:
    found = proxy.metrics.counters
    return +Counter({key: n for key, n in found.items() if key[0].startswith(COUNTED) and key[0] != "calls_passed"})


@pytest.mark.parametrize("policy", FailurePolicy, ids=str)
async def test_failure_ends_as_the_policy_says_and_is_counted(
    front: Front, tmp_path: Path, runtime: Runtime, policy: FailurePolicy
) -> None:
    """A good answer follows each failure, so the breaker stays closed."""
    chance = random.Random(policy.value)
    injections = [*FAST, SLOW, *chance.choices(FAST, k=HOOK_FAILURES.now - len(FAST) - 1)]
    chance.shuffle(injections)
    early = HookServer(str(tmp_path / "early.sock"), faulty=True, keep_calls=False)
    late = HookServer(str(tmp_path / "late.sock"), default=hookanswers.echo(plant("late")), keep_calls=False)
    inside = front.inside(tmp_path)
    # What a busy machine delays must not count as a deadline.
    inside.register("early.json", early.socket_path, [POINT], policy=policy.value, timeout="4s")
    inside.register("late.json", late.socket_path, [POINT])
    expected = Counter[Key]({("config_reloads", ("ok",)): 2, ("calls", ("RunPodSandbox", "agreed")): 1})
    async with early, late, inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()

        async def create(injection: Injection) -> None:
            """Create a container, and check the outcome of the call and its event."""
            expected.update(injection.counted(policy))
            kind, before = injection.kind, proxy.metrics.events.last
            if not injection.is_refused(policy):
                await caller.create(pod_id)
            else:
                with pytest.raises(Failed) as raised:
                    await caller.create(pod_id)
                is_refusal = kind is KINDS["wrong: refusing"]
                assert raised.value.status == (front.refused if is_refusal else front.failed)
                assert f"hook server 'early' at {POINT}: " in raised.value.text
            if kind is not None and kind.reason is not None:
                found = [shown(row) for row in proxy.metrics.events.read(before)[0]]
                events = [(event["kind"], event["reason"]) for event in found if event.get("hookServer") == "early"]
                assert events == [(kind.signs(policy).event.value, kind.reason.value)]

        for injection in injections:
            with injection.does(early):
                await create(injection)
            assert early.faults is not None
            # Drop the bytes of connections that have ended: some answers are long.
            early.faults.connections = [one for one in early.faults.connections if one.is_open]
            await create(GOOD)
        assert counters(proxy) == +expected
        for server in ("early", "late"):
            calls = sum(n for (name, labels), n in expected.items() if (name, labels[0]) == ("hook_calls", server))
            assert sum(proxy.metrics.histograms["hook_call_duration_seconds", (server,)].counts) == calls
        own = proxy.metrics.histograms["call_duration_seconds", (OPERATION, "own")]
        assert sum(own.counts) == 2 * len(injections)
        agreed = counters(proxy)["calls", (OPERATION, "agreed")]
    assert len(runtime.arrived("create")) == agreed


def test_each_kind_of_bad_server_names_an_existing_alert() -> None:
    for signs in (*blast.SIGNS.values(), blast.REFUSAL):
        metric = METRICS[signs.metric].shown
        assert not signs.alert or any(name.startswith(metric) for name in metrics(ALERTS[signs.alert]["expr"]))


RESTORES = [("PreRunPodSandbox", "Fail", True), ("PreStartContainer", "Fail", False)]
RESTORES += [("PreCreateContainer", "Ignore", False), ("", "", False)]


@pytest.mark.parametrize(("point", "policy", "is_refused"), RESTORES)
async def test_restored_pod_passes_unless_it_had_to_be_hooked(
    tmp_path: Path, point: str, policy: str, is_refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """RestorePod creates and starts a whole pod in one call, at no hook point."""
    inside = ProxyInside(tmp_path)
    if point:
        inside.register("a.json", tmp_path / "hooks.sock", [point], policy=policy)
    async with FakeRuntime(str(inside.runtime)) as runtime, inside as proxy, Client(proxy.socket) as client:
        (answer,) = await asyncio.gather(client.call("RestorePod", b"request"), return_exceptions=True)
        assert [received.message for received in runtime.requests("RestorePod")] == [b"request"] * (not is_refused)
        event = next(event for event in shown_of(proxy.metrics.events) if event.get("operation") == "RestorePod")
        total = proxy.metrics.counted
        assert total("calls_passed", method="RestorePod") == (not is_refused)
    if is_refused:
        assert (answer.code(), f"'a' at {point}: unhooked: " in answer.details()) == (
            grpc.StatusCode.UNIMPLEMENTED,
            True,
        )
        found = (event["kind"], event["hookServer"], event["hook"], event["reason"])
        assert found == ("refused", "a", point, "unhooked")
        assert total("hook_fail_closed", hook_server="a", hook=point, reason="unhooked") == 1
    else:
        assert answer == b"request"
        assert (event["kind"], event["text"]) == ("unhooked", "passed without hooks")
        assert ("RestorePod passed without hooks" in caplog.text) == bool(point)
