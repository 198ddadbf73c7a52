"""The policy is exact (promise 2): a failed hook call ends as its policy requires, and every counter is true.

Each outcome is counted once, with its reason. That includes a socket that another user could have made (fault matrix
X6).
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
from runtimeproxy.observe.metric_table import Key
from tests.amounts import HOOK_FAILURES
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime
from tests.observe.events import shown_of
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


@dataclass(frozen=True)
class Injection:
    """What the hook server ``early`` does at a create: the code and the reason that are counted, and other series."""

    does: Failing
    code: str = "ok"
    reason: str = ""
    more: tuple[Key, ...] = ()
    is_slow: bool = False

    def is_refused(self, policy: str) -> bool:
        return self.reason == REFUSED or bool(self.reason and policy == "Fail")

    def counted(self, policy: str) -> Iterator[Key]:
        """Yield the series that a create counts once each."""
        refused = self.is_refused(policy)
        yield "calls", (OPERATION, "refused" if refused else "agreed")
        yield "hook_calls", ("early", POINT, self.code)
        if self.reason:
            yield "hook_failures", ("early", POINT, self.reason)
        if self.reason == REFUSED:
            yield "hook_refusals", ("early", POINT)
        elif self.reason:
            yield f"hook_fail_{'open' if policy == 'Ignore' else 'closed'}", ("early", POINT, self.reason)
        yield from self.more
        if not refused:
            yield "hook_calls", ("late", POINT, "ok")
            yield "hook_fields_changed", ("late", "envs")


REFUSED = "refused"
BAD_CPUSET = api_pb2.ContainerResourceHookResponse(container_resources={"cpuset_cpus": "3-1"})
BAD_FIELD = ("hook_bad_fields", ("early", "resources.cpuset_cpus"))
BAD_ANSWERS = (hookanswers.garbage(), hookanswers.raw(b"\x1a\x02\xff\xfe"), hookanswers.huge())
ERRORS = ("INTERNAL", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")
GOOD = Injection(answering(hookanswers.empty()))
INJECTIONS = (
    GOOD,
    Injection(crashing, "broken_answer", "broken_answer"),
    Injection(answering(hookanswers.echo(plant("early"))), more=(("hook_conflicts", ("early", POINT)),)),
    Injection(answering(hookanswers.status(grpc.StatusCode.PERMISSION_DENIED)), REFUSED, REFUSED),
    Injection(answering(hookanswers.hang()), "deadline", "deadline", is_slow=True),
    Injection(unavailable, "unreachable", "unreachable"),
    Injection(dead, "unreachable", "unreachable"),
    Injection(writable_by_all, "untrusted_socket", "untrusted_socket"),
    *(Injection(answering(answer), "bad_answer", "bad_answer") for answer in BAD_ANSWERS),
    *(
        Injection(answering(hookanswers.status(grpc.StatusCode[name], "no")), "error_status", "error_status")
        for name in ERRORS
    ),
    Injection(answering(hookanswers.reply(BAD_CPUSET)), "ok", "bad_answer", (BAD_FIELD,)),
)
COUNTED = ("calls", "hook_", "config_reloads", "fields_left_out", "internal_errors")
"""The counters of which every series is expected: their names, or how these begin."""


def counters(proxy: ProxyInside) -> Counter[Key]:
    found = proxy.metrics.counters
    return +Counter({key: n for key, n in found.items() if key[0].startswith(COUNTED) and key[0] != "calls_passed"})


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
async def test_failure_ends_as_the_policy_says_and_is_counted(
    front: Front, tmp_path: Path, runtime: Runtime, policy: str
) -> None:
    """A good answer follows each failure, so the breaker stays closed."""
    chance = random.Random(policy)
    fast = [each for each in INJECTIONS if not each.is_slow]
    injections = [*INJECTIONS, *chance.choices(fast, k=HOOK_FAILURES.now - len(INJECTIONS))]
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

        async def create(injection: Injection) -> None:
            """Create a container, and check the outcome of the call."""
            if not injection.is_refused(policy):
                await caller.create(pod_id)
                return
            with pytest.raises(Failed) as raised:
                await caller.create(pod_id)
            assert raised.value.status == (front.refused if injection.reason == REFUSED else front.failed)
            assert f"hook server 'early' at {POINT}: " in raised.value.text

        for injection in injections:
            with injection.does(early):
                await create(injection)
            assert early.faults is not None
            # Drop the bytes of connections that have ended: some answers are long.
            early.faults.connections = [one for one in early.faults.connections if one.is_open]
            await create(GOOD)
            for injected in (injection, GOOD):
                expected.update(injected.counted(policy))
        assert counters(proxy) == +expected
        for server in ("early", "late"):
            calls = sum(n for (name, labels), n in expected.items() if (name, labels[0]) == ("hook_calls", server))
            assert sum(proxy.metrics.histograms["hook_call_duration_seconds", (server,)].counts) == calls
        own = proxy.metrics.histograms["call_duration_seconds", (OPERATION, "own")]
        assert sum(own.counts) == 2 * len(injections)
        agreed = counters(proxy)["calls", (OPERATION, "agreed")]
    assert len(runtime.arrived("create")) == agreed


@pytest.mark.parametrize(
    ("point", "policy", "is_refused"),
    [
        ("PreRunPodSandbox", "Fail", True),
        ("PreCreateContainer", "Fail", True),
        ("PreStartContainer", "Fail", False),
        ("PreCreateContainer", "Ignore", False),
        ("", "", False),
    ],
)
async def test_restored_pod_passes_unless_it_had_to_be_hooked(
    tmp_path: Path, point: str, policy: str, is_refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """RestorePod creates and starts a whole pod in one call, at no hook point."""
    inside = ProxyInside(tmp_path)
    if point:
        inside.register("a.json", tmp_path / "hooks.sock", [point], policy=policy)
    async with FakeRuntime(str(inside.runtime)) as runtime, inside as proxy, Client(proxy.socket) as client:
        if is_refused:
            with pytest.raises(grpc.aio.AioRpcError, match=f"'a' at {point}: unhooked: ") as raised:
                await client.call("RestorePod", b"request")
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
        else:
            assert await client.call("RestorePod", b"request") == b"request"
        assert [received.message for received in runtime.requests("RestorePod")] == [b"request"] * (not is_refused)
        event = next(event for event in shown_of(proxy.metrics.events) if event.get("operation") == "RestorePod")
        total = proxy.metrics.counted
        assert total("calls_passed", method="RestorePod") == (not is_refused)
    if is_refused:
        found = (event["kind"], event["hookServer"], event["hook"], event["reason"])
        assert found == ("refused", "a", point, "unhooked")
        assert total("hook_fail_closed", hook_server="a", hook=point, reason="unhooked") == 1
    else:
        assert (event["kind"], event["text"]) == ("unhooked", "passed without hooks")
        assert ("RestorePod passed without hooks" in caplog.text) == bool(point)
