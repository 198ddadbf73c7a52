"""The policy is exact (promise 2): a failed hook call ends as its policy requires, and every counter is true.

Each outcome is counted once, with its reason, and each histogram has seen each of its calls once. That includes a
socket that another user could have made (fault matrix X6).
"""

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

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.model.hookpoints import HOOK_POINTS
from runtimeproxy.observe.metric_table import Key
from tests.amounts import HOOK_FAILURES
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime
from tests.observe.events import shown_of
from tests.system.clients import Client
from tests.system.fronts import Caller, Failed, Front, Runtime
from tests.system.proxy import ProxyInside

pytestmark = pytest.mark.slow

POINT, OPERATION = "PreCreateContainer", "CreateContainer"
RESPONSE, RESOURCES = api_pb2.ContainerResourceHookResponse, api_pb2.LinuxContainerResources
Failing = Callable[[HookServer], AbstractContextManager[None]]
"""Makes a hook server fail for a moment."""


def answering(answer: hookanswers.Answer) -> Failing:
    @contextmanager
    def failing(hooks: HookServer) -> Iterator[None]:
        hooks.default = answer
        yield
        hooks.default = hookanswers.empty()

    return failing


def status(code: grpc.StatusCode, text: str = "") -> Failing:
    return answering(hookanswers.status(code, text))


def values(**fields: object) -> Failing:
    return answering(hookanswers.reply(RESPONSE(**fields)))  # type: ignore[arg-type]


@contextmanager
def crashing(hooks: HookServer) -> Iterator[None]:
    """Drop the connection in the middle of the answer."""
    faults = hooks.faults
    assert faults is not None

    async def answer(call: hookanswers.HookCall) -> bytes:
        faults.to_client.cut_after_bytes = len(faults.connections[-1].to_client) + 20
        return await hookanswers.echo()(call)

    with answering(answer)(hooks):
        yield
    faults.to_client.cut_after_bytes = None


@contextmanager
def away(hooks: HookServer) -> Iterator[None]:
    path = Path(hooks.socket_path)
    aside = path.rename(path.with_suffix(".aside"))
    yield
    aside.rename(path)


@contextmanager
def dead(hooks: HookServer) -> Iterator[None]:
    with away(hooks), socket.socket(socket.AF_UNIX) as nobody:
        nobody.bind(hooks.socket_path)
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


@dataclass(frozen=True)
class Injection:
    """What the hook server ``early`` does at a create: the code and the reason that are counted, and other series."""

    does: Failing
    code: str = "ok"
    reason: str = ""
    more: tuple[Key, ...] = ()
    weight: int = 24


REFUSED = "refused"
BAD_FIELD = ("hook_bad_fields", ("early", "resources.cpuset_cpus"))
INJECTIONS = (
    Injection(answering(hookanswers.empty())),
    Injection(answering(hookanswers.echo(plant("early"))), more=(("hook_conflicts", ("early", POINT)),)),
    Injection(status(grpc.StatusCode.PERMISSION_DENIED), REFUSED, REFUSED),
    Injection(answering(hookanswers.hang()), "deadline", "deadline", weight=1),  # slow
    Injection(away, "unreachable", "unreachable", weight=8),
    Injection(dead, "unreachable", "unreachable", weight=8),
    Injection(writable_by_all, "untrusted_socket", "untrusted_socket", weight=8),
    Injection(crashing, "broken_answer", "broken_answer"),
    *(
        Injection(answering(answer), "bad_answer", "bad_answer")
        for answer in (hookanswers.garbage(), hookanswers.raw(b"\x1a\x02\xff\xfe"), hookanswers.huge())
    ),
    *(
        Injection(status(code, "no"), "error_status", "error_status")
        for code in (
            grpc.StatusCode.INTERNAL,
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )
    ),
    Injection(values(container_resources=RESOURCES(cpuset_cpus="3-1")), "ok", "bad_answer", (BAD_FIELD,)),
)


def counted(injection: Injection, policy: str) -> Iterator[Key]:
    """Yield the series that a create counts once each."""
    refused = injection.reason == REFUSED or bool(injection.reason and policy == "Fail")
    yield "calls", (OPERATION, "refused" if refused else "agreed")
    yield "hook_calls", ("early", POINT, injection.code)
    if injection.reason:
        yield "hook_failures", ("early", POINT, injection.reason)
    if injection.reason == REFUSED:
        yield "hook_refusals", ("early", POINT)
    elif injection.reason:
        yield f"hook_fail_{'open' if policy == 'Ignore' else 'closed'}", ("early", POINT, injection.reason)
    yield from injection.more
    if not refused:
        yield "hook_calls", ("late", POINT, "ok")
        yield "hook_fields_changed", ("late", "envs")


COUNTED = ("calls", "hook_", "config_reloads", "fields_left_out", "internal_errors")
"""The counters of which every series is known here: their names, or how these begin."""


def known(proxy: ProxyInside) -> Counter[Key]:
    counters = proxy.metrics.counters
    return +Counter({key: n for key, n in counters.items() if key[0].startswith(COUNTED) and key[0] != "calls_passed"})


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
async def test_failure_ends_as_the_policy_says_and_is_counted(
    front: Front, tmp_path: Path, runtime: Runtime, policy: str
) -> None:
    """A good answer follows each failure, so the breaker stays closed. At the end it opens, until there is a new
    socket."""
    chance, in_a_row, opens_after = random.Random(policy), 10, 5
    weights = [each.weight for each in INJECTIONS]
    injections = [*INJECTIONS, *chance.choices(INJECTIONS, weights, k=HOOK_FAILURES.now - len(INJECTIONS))]
    chance.shuffle(injections)
    early = HookServer(str(tmp_path / "early.sock"), faulty=True, keep_calls=False)
    late = HookServer(str(tmp_path / "late.sock"), default=hookanswers.echo(plant("late")), keep_calls=False)
    inside = front.inside(tmp_path)
    # What a busy machine delays must not count as a deadline.
    inside.register("early.json", early.socket_path, [POINT], policy=policy, timeout="4s")
    inside.register("late.json", late.socket_path, [POINT])
    expected = Counter[Key]({("config_reloads", ("ok",)): 2, ("calls", ("RunPodSandbox", "agreed")): 1})
    async with early, late, inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        for injection in injections:
            with injection.does(early):
                await create(front, caller, pod_id, injection, policy)
            assert early.faults is not None
            # Drop the bytes of connections that have ended: some answers are long.
            early.faults.connections = [one for one in early.faults.connections if one.task and not one.task.done()]
            await create(front, caller, pod_id, INJECTIONS[0], policy)
            for injected in (injection, INJECTIONS[0]):
                expected.update(counted(injected, policy))
        assert known(proxy) == +expected
        for server in ("early", "late"):
            calls = sum(n for (name, labels), n in expected.items() if (name, labels[0]) == ("hook_calls", server))
            assert sum(proxy.metrics.histograms["hook_call_duration_seconds", (server,)].counts) == calls
        own = proxy.metrics.histograms["call_duration_seconds", (OPERATION, "own")]
        assert sum(own.counts) == 2 * len(injections)
        broken = next(each for each in INJECTIONS if each.does is crashing)
        with crashing(early):
            for _ in range(in_a_row):
                await create(front, caller, pod_id, broken, policy)
        assert proxy.metrics.gauges["hook_breaker_open", ("early",)] == 1
        await early.stop()
        await early.start()
        await create(front, caller, pod_id, INJECTIONS[0], policy)
        assert proxy.metrics.gauges["hook_breaker_open", ("early",)] == 0
        found = known(proxy) - expected
        outcome = "hook_fail_open" if policy == "Ignore" else "hook_fail_closed"
        assert found[outcome, ("early", POINT, "breaker_open")] == in_a_row - opens_after
        assert found["hook_calls", ("early", POINT, "broken_answer")] == opens_after
        assert proxy.metrics.counted("hook_breaker_openings", hook_server="early") == 1
        agreed = known(proxy)["calls", (OPERATION, "agreed")]
    assert len(runtime.asked("create")) == agreed


async def create(front: Front, caller: Caller, pod_id: str, injection: Injection, policy: str) -> None:
    """Create a container, and check the outcome of the call."""
    if injection.reason != REFUSED and not (injection.reason and policy == "Fail"):
        await caller.create(pod_id)
        return
    with pytest.raises(Failed) as raised:
        await caller.create(pod_id)
    assert raised.value.status == (front.refused if injection.reason == REFUSED else front.failed)
    assert f"hook server 'early' at {POINT}: " in raised.value.text


async def test_parts_add_up_to_the_time_of_the_calls(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    """Within 1 %: of the calls' whole time, and of what the hook server and the runtime took."""
    number, hook_seconds, runtime_seconds = 20, 0.1, 0.05
    hooks.default = hookanswers.after(hook_seconds)
    runtime.upset("create", delay_seconds=runtime_seconds)
    inside = front.inside(tmp_path)
    inside.register("slow.json", hooks.socket_path, [POINT, "PostStartContainer"])
    async with inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        for _ in range(number):
            await caller.create(pod_id)
        times = [call for call in proxy.metrics.calls if call.operation == OPERATION]
        series = proxy.metrics.histograms
    sums = {labels[1]: s.sum for (name, labels), s in series.items() if labels[:1] == (OPERATION,)}
    whole = sum(call.done - call.held for call in times if call.done is not None)
    assert (len(times), sum(sums.values())) == (number, pytest.approx(whole, rel=0.01))
    assert sums["hooks"] >= number * hook_seconds
    assert sums["runtime"] >= number * runtime_seconds
    assert series["hook_call_duration_seconds", ("slow",)].sum == pytest.approx(sums["hooks"], rel=0.01)


RESTORES = [(point.name, policy) for point in HOOK_POINTS for policy in ("Fail", "Ignore")]


@pytest.mark.parametrize(("point", "policy"), [*RESTORES, ("", "")])
async def test_restored_pod_passes_unless_it_had_to_be_hooked(
    tmp_path: Path, point: str, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """RestorePod creates and starts a whole pod in one call, at no hook point."""
    refused = policy == "Fail" and point in ("PreRunPodSandbox", "PreCreateContainer")
    inside = ProxyInside(tmp_path)
    if point:
        inside.register("a.json", tmp_path / "hooks.sock", [point], policy=policy)
    async with FakeRuntime(str(inside.runtime)) as runtime, inside as proxy, Client(proxy.socket) as client:
        if refused:
            with pytest.raises(grpc.aio.AioRpcError, match=f"'a' at {point}: unhooked: ") as raised:
                await client.call("RestorePod", b"request")
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
        else:
            assert await client.call("RestorePod", b"request") == b"request"
        assert [received.message for received in runtime.requests("RestorePod")] == [b"request"] * (not refused)
        event = next(event for event in shown_of(proxy.metrics.events) if event.get("operation") == "RestorePod")
        total = proxy.metrics.counted
        assert total("calls_passed", method="RestorePod") == (not refused)
    if refused:
        found = (event["kind"], event["hookServer"], event["hook"], event["reason"])
        assert found == ("refused", "a", point, "unhooked")
        assert total("hook_fail_closed", hook_server="a", hook=point, reason="unhooked") == 1
    else:
        assert (event["kind"], event["text"]) == ("unhooked", "passed without hooks")
        assert ("RestorePod passed without hooks" in caplog.text) == bool(point)
