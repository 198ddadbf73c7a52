"""Metrics are true: every counter equals what was injected, and every histogram has seen each of its calls once."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.observe.metric_table import Key
from runtimeproxy.observe.metrics import Metrics
from tests.amounts import TRUE_CALLS
from tests.fakes import hookanswers, registration
from tests.fakes.hookserver import HookServer
from tests.system.fronts import Caller, Failed, Front, Runtime
from tests.system.proxy import until
from tests.system.test_policy_exact import Failing, answering, anybodys, away, crashing, values

pytestmark = pytest.mark.slow

POINT, OPERATION = "PreCreateContainer", "CreateContainer"
RESOURCES = api_pb2.LinuxContainerResources
TIMEOUT = "4s"
"""Longer than a pause of the machine, in which an answer would be late."""
BREAKER_FAILURES = 5
COUNTED = ("calls", "hook_", "config_reloads", "fields_left_out", "internal_errors")
"""The counters of which every series is known here: their names, or how these begin."""


def plant(response: Any) -> None:
    response.container_envs["HOOKED"] = "early"


def plant_late(response: Any) -> None:
    response.container_envs["HOOKED"] = "late"


@dataclass(frozen=True)
class Injection:
    """What ``early`` does at a create: the code and the reason that are counted for it, and other series."""

    does: Failing
    code: str = "ok"
    reason: str = ""
    more: tuple[Key, ...] = ()


def status(code: grpc.StatusCode) -> Failing:
    return answering(hookanswers.status(code))


BAD_CPUSET = values(container_resources=RESOURCES(cpuset_cpus="3-1"))
REFUSAL = "refused"
INJECTIONS = {
    "nothing": Injection(answering(hookanswers.empty())),
    "change": Injection(answering(hookanswers.echo(plant)), more=(("hook_conflicts", ("early", POINT)),)),
    "refusal": Injection(status(grpc.StatusCode.PERMISSION_DENIED), REFUSAL, REFUSAL),
    "garbage": Injection(answering(hookanswers.garbage()), "bad_answer", "bad_answer"),
    "status": Injection(status(grpc.StatusCode.INTERNAL), "error_status", "error_status"),
    "crash": Injection(crashing, "broken_answer", "broken_answer"),
    "away": Injection(away, "unreachable", "unreachable"),
    "anybody's": Injection(anybodys, "untrusted_socket", "untrusted_socket"),
    "bad field": Injection(BAD_CPUSET, "ok", "bad_answer", (("hook_bad_fields", ("early", "resources.cpuset_cpus")),)),
    "hang": Injection(answering(hookanswers.hang()), "deadline", "deadline"),
}
WEIGHTS = [{"hang": 1, "away": 8, "anybody's": 8}.get(name, 24) for name in INJECTIONS]
"""Some are slow."""


def counted(injection: Injection, policy: str) -> Iterable[Key]:
    """Yield the series that a create counts once each."""
    refused = injection.reason == REFUSAL or bool(injection.reason and policy == "Fail")
    yield "calls", (OPERATION, "refused" if refused else "agreed")
    yield "hook_calls", ("early", POINT, injection.code)
    if injection.reason:
        yield "hook_failures", ("early", POINT, injection.reason)
    if injection.reason == REFUSAL:
        yield "hook_refusals", ("early", POINT)
    elif injection.reason:
        yield f"hook_fail_{'open' if policy == 'Ignore' else 'closed'}", ("early", POINT, injection.reason)
    yield from injection.more[: 0 if refused and injection.code != "ok" else None]
    if not refused:
        yield "hook_calls", ("late", POINT, "ok")
        yield "hook_fields_changed", ("late", "envs")


def found(metrics: Metrics) -> Counter[Key]:
    """Return the counters of which every series is known here."""
    passing = "calls_passed"
    known = {key: n for key, n in metrics.counters.items() if key[0].startswith(COUNTED) and key[0] != passing}
    return +Counter(known)


def observations(metrics: Metrics, name: str, *labels: str) -> int:
    return sum(metrics.histograms[name, labels].counts)


def total(expected: Counter[Key], name: str, *labels: str) -> int:
    """Return the sum of a counter's series whose labels begin so."""
    return sum(n for (counter, values), n in expected.items() if counter == name and values[: len(labels)] == labels)


@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
async def test_counters_equal_what_was_injected(front: Front, tmp_path: Path, runtime: Runtime, policy: str) -> None:
    chance = random.Random(policy)
    names = [*INJECTIONS, *chance.choices(list(INJECTIONS), WEIGHTS, k=TRUE_CALLS.now)]
    early = HookServer(str(tmp_path / "early.sock"), faulty=True, keep_calls=False)
    late = HookServer(str(tmp_path / "late.sock"), default=hookanswers.echo(plant_late), keep_calls=False)
    inside = front.inside(tmp_path)
    inside.register("early.json", early.socket_path, [POINT], policy=policy, timeout=TIMEOUT)
    inside.register("late.json", late.socket_path, [POINT])
    expected = Counter[Key]({("config_reloads", ("ok",)): 2, ("calls", ("RunPodSandbox", "agreed")): 1})
    async with early, late, inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        for name in names:
            with INJECTIONS[name].does(early):
                await tried(caller, pod_id)
            assert early.faults is not None
            early.faults.connections = [one for one in early.faults.connections if one.task and not one.task.done()]
            await tried(caller, pod_id)  # a good answer follows, so that the breaker stays closed
            for injected in (name, "nothing"):
                expected.update(counted(INJECTIONS[injected], policy))
        counters = found(proxy.metrics)
    assert counters == +expected
    for server in ("early", "late"):
        asked = total(expected, "hook_calls", server)
        assert observations(proxy.metrics, "hook_call_duration_seconds", server) == asked
    assert observations(proxy.metrics, "call_duration_seconds", OPERATION, "own") == 2 * len(names)


async def tried(caller: Caller, pod_id: str) -> None:
    try:
        await caller.create(pod_id)
    except Failed:
        pass


async def test_breaker_openings_and_calls_behind_them(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    openings, behind = 3, 4
    early = HookServer(str(tmp_path / "early.sock"), faulty=True, keep_calls=False)
    inside = front.inside(tmp_path)
    inside.register("early.json", early.socket_path, [POINT])
    async with early, inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        for _ in range(openings):
            with crashing(early):
                for _ in range(BREAKER_FAILURES + behind):
                    await tried(caller, pod_id)
            assert proxy.metrics.gauges["hook_breaker_open", ("early",)] == 1
            await early.stop()
            await early.start()
            await tried(caller, pod_id)  # a new socket is probed at once
            assert proxy.metrics.gauges["hook_breaker_open", ("early",)] == 0
        counters = proxy.metrics.counters
    assert counters["hook_breaker_openings", ("early",)] == openings
    assert counters["hook_fail_open", ("early", POINT, "breaker_open")] == openings * behind
    assert counters["hook_calls", ("early", POINT, "broken_answer")] == openings * BREAKER_FAILURES
    assert counters["hook_calls", ("early", POINT, "ok")] == openings


async def test_calls_that_end_in_other_ways(front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer) -> None:
    """The runtime fails, the client leaves while its call is held."""
    number = 5
    inside = front.inside(tmp_path)
    inside.register("slow.json", hooks.socket_path, [POINT])
    async with inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        runtime.upset("create", text="no")
        for _ in range(number):
            await tried(caller, pod_id)
        runtime.upset("create")
        hooks.default = hookanswers.hang()
        for _ in range(number):
            asked = len(hooks.calls)
            leaving = asyncio.create_task(tried(caller, pod_id))
            await until(lambda asked=asked: len(hooks.calls) > asked, "the hook server is asked")  # type: ignore[misc]
            leaving.cancel()
            await asyncio.wait({leaving})
        counters = proxy.metrics.counters
        await until(lambda: counters.get(("calls", (OPERATION, "ended"))) == number, "the calls have ended")
    assert counters["calls", (OPERATION, "failed")] == number
    assert counters["hook_calls", ("slow", POINT, "ok")] == number
    assert counters["hook_calls", ("slow", POINT, "left")] == number


async def test_reloads_by_result(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    results = ("ok", "rejected", "removed")
    async with front.inside(tmp_path) as proxy:
        for turn in range(5):
            for number, result in enumerate(results):
                text = registration.text(f"/run/{turn}.sock", [POINT]) if result == "ok" else "{"
                path = registration.write(proxy.registrations, "x.json", text)
                if result == "removed":
                    path.unlink()
                changes = len(results) * turn + number + 1
                await until(lambda changes=changes: found(proxy.metrics).total() >= changes, result)  # type: ignore[misc]
        assert found(proxy.metrics) == {("config_reloads", (result,)): 5 for result in results}


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
        await asyncio.gather(*(caller.create(pod_id) for _ in range(number)))
        times = [call for call in proxy.metrics.calls if call.operation == OPERATION]
        series = proxy.metrics.histograms
    sums = {labels[1]: s.sum for (name, labels), s in series.items() if labels[:1] == (OPERATION,)}
    whole = sum(call.done - call.held for call in times if call.done is not None)
    assert (len(times), sum(sums.values())) == (number, pytest.approx(whole, rel=0.01))
    assert sums["hooks"] >= number * hook_seconds
    assert sums["runtime"] >= number * runtime_seconds
    assert series["hook_call_duration_seconds", ("slow",)].sum == pytest.approx(sums["hooks"], rel=0.01)
