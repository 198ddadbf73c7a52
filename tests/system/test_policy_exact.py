"""The policy is exact (promise 2): a failed hook call ends as its policy says, and is counted once, with its reason.

Also if another user could have made the socket (fault matrix X6).
"""

import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import grpc
import pytest

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.model.hookpoints import HOOK_POINTS
from tests.amounts import HOOK_FAILURES
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime
from tests.observe.events import shown_of
from tests.system.clients import Client
from tests.system.fronts import Caller, Failed, Front, Runtime
from tests.system.proxy import ProxyInside

pytestmark = pytest.mark.slow

POINT = "PreCreateContainer"
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
def anybodys(hooks: HookServer) -> Iterator[None]:
    """Put a new socket into a folder where any user may put one."""
    folder = Path(hooks.socket_path).parent
    with dead(hooks):
        folder.chmod(0o1777)
        yield
        folder.chmod(0o700)


KINDS: list[tuple[str, Failing]] = [
    ("deadline", answering(hookanswers.hang())),
    ("error_status", answering(hookanswers.status(grpc.StatusCode.DEADLINE_EXCEEDED))),
    ("unreachable", away),
    ("unreachable", dead),
    ("untrusted_socket", anybodys),
    ("broken_answer", crashing),
    ("bad_answer", answering(hookanswers.garbage())),
    ("bad_answer", answering(hookanswers.raw(b"\x1a\x02\xff\xfe"))),
    ("bad_answer", answering(hookanswers.huge())),
    ("error_status", answering(hookanswers.status(grpc.StatusCode.INTERNAL, "no"))),
    ("error_status", answering(hookanswers.status(grpc.StatusCode.UNAVAILABLE))),
    ("error_status", answering(hookanswers.status(grpc.StatusCode.RESOURCE_EXHAUSTED))),
    ("bad_answer", values(container_envs={"A=B": "x"})),
    ("bad_answer", values(pod_cgroup_parent="../..")),
    ("bad_answer", values(container_resources=RESOURCES(cpuset_cpus="3-1"))),
    ("bad_answer", values(container_resources=RESOURCES(cpu_quota=-5, cpu_period=20_000))),
]
"""Why the hook call fails, and how."""
WEIGHTS = [1, *[24] * (len(KINDS) - 1)]
"""The first one is slow."""


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
async def test_failure_ends_as_the_policy_says_and_is_counted(
    front: Front, tmp_path: Path, runtime: Runtime, policy: str
) -> None:
    """A good answer follows each failure, so the breaker stays closed.

    At the end it opens, until there is a new socket.
    """
    chance, in_a_row = random.Random(policy), 10
    failures = [*KINDS, *chance.choices(KINDS, WEIGHTS, k=HOOK_FAILURES.now - len(KINDS))]
    chance.shuffle(failures)
    expected: list[bytes] = []
    injected: Counter[str] = Counter()
    inside = front.inside(tmp_path)
    hooks = HookServer(str(tmp_path / "hooks.sock"), faulty=True, keep_calls=False)
    # What a busy machine makes late must not count as a deadline.
    inside.register("bad.json", hooks.socket_path, [POINT], policy=policy, timeout="3s")
    async with hooks, inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        for reason, failing in failures:
            with failing(hooks):
                expected += await released(front, caller, pod_id, policy)
            injected[reason] += 1
            assert hooks.faults is not None
            # Drop the bytes of connections that have ended: some answers are long.
            hooks.faults.connections = [one for one in hooks.faults.connections if one.task and not one.task.done()]
            expected += await released(front, caller, pod_id, "Ignore")
        with crashing(hooks):
            for _ in range(in_a_row):
                expected += await released(front, caller, pod_id, policy)
        await hooks.stop()
        await hooks.start()
        expected += await released(front, caller, pod_id, "Ignore")
        assert not proxy.metrics.gauges["hook_breaker_open", ("bad",)]
        injected += {"broken_answer": 5, "breaker_open": in_a_row - 5}
        reasons = [*injected, "internal"]
        opened = injected if policy == "Ignore" else Counter()
        for name, counts in (("hook_failures", injected), ("hook_fail_open", opened)):
            found = [proxy.metrics.counted(name, hook_server="bad", hook=POINT, reason=reason) for reason in reasons]
            assert dict(zip(reasons, found, strict=True)) == {reason: counts[reason] for reason in reasons}, name
        assert proxy.metrics.total("hook_failures") == len(failures) + in_a_row
    assert runtime.asked("create") == expected


async def released(front: Front, caller: Caller, pod_id: str, policy: str) -> list[bytes]:
    """Create a container; return the request if it is to reach the runtime."""
    request = caller.create_request(pod_id)
    if policy == "Ignore":
        await caller.send("create", request)
        return [request]
    with pytest.raises(Failed) as raised:
        await caller.send("create", request)
    assert raised.value.status == front.failed
    assert f"hook server 'bad' at {POINT}: " in raised.value.text
    return []


RESTORES = [(point.name, policy) for point in HOOK_POINTS for policy in ("Fail", "Ignore")]


@pytest.mark.parametrize(("point", "policy"), [*RESTORES, ("", "")])
async def test_restored_pod_passes_unless_it_had_to_be_hooked(
    tmp_path: Path, point: str, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """RestorePod creates and starts a whole pod in one call, at no hook point."""
    async with FakeRuntime(str(tmp_path / "runtime.sock")) as runtime:
        inside = ProxyInside(tmp_path)
        if point:
            inside.register("a.json", tmp_path / "hooks.sock", [point], policy=policy)
        async with inside as proxy, Client(proxy.socket) as client:
            refused = policy == "Fail" and point in ("PreRunPodSandbox", "PreCreateContainer")
            if refused:
                with pytest.raises(grpc.aio.AioRpcError, match=f"'a' at {point}: unhooked: ") as raised:
                    await client.call("RestorePod", b"request")
                assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
            else:
                assert await client.call("RestorePod", b"request") == b"request"
            assert [received.message for received in runtime.requests("RestorePod")] == [b"request"] * (not refused)
            event = next(event for event in shown_of(proxy.metrics.events) if event.get("operation") == "RestorePod")
            counted = proxy.metrics.counted
            assert counted("calls_passed", method="RestorePod") == (not refused)
    if refused:
        assert (event["kind"], event["hookServer"], event["hook"], event["reason"]) == (
            "refused",
            "a",
            point,
            "unhooked",
        )
        assert counted("hook_fail_closed", hook_server="a", hook=point, reason="unhooked") == 1
    else:
        assert (event["kind"], event["text"]) == ("unhooked", "passed without hooks")
        assert ("RestorePod passed without hooks" in caplog.text) == bool(point)
