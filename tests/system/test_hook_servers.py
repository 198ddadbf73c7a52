"""The cost of a call when a hook server hangs, is unavailable, replaced, disabled, or hostile; and the policy is exact.

hook-api, "Failures"; promises 1, 2, 14 and 21; fault matrix C1 to C3, H1, H2, H6, H9, H10, H13, X6. Elsewhere: the
budget of a call (tests/core/test_lifecycle.py), each kind of file, and disable periods (tests/plugins).
docs/security.rst lists what a hostile hook server, pod or image can change.
"""

import asyncio
import os
import random
import re
import shutil
import socket
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any

import grpc
import pytest

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.model.hookpoints import BY_NAME
from runtimeproxy.observe.events import event_object
from runtimeproxy.observe.metric_table import METRICS, Key
from runtimeproxy.plugins import client as hook_client
from tests.amounts import HANGS, HOOK_FAILURES, SWAPS, Amount
from tests.control import call
from tests.deploy.files import ALERTS, metrics
from tests.docs import DOCS
from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes import hookanswers, registration
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.faults import full_backlog
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime
from tests.observe.events import shown_of
from tests.system.fronts import CONTAINER, POD, SKIP, Caller, Client, Failed, Front, Runtime
from tests.system.proxy import FEW_TIMES, Process, ProxyInside, in_time, until

pytestmark = pytest.mark.slow

CREATE = "PreCreateContainer"
TIMEOUT_SECONDS = 0.2


async def seconds_of_a_create(caller: Caller, pod_id: str) -> float:
    started_at = time.monotonic()
    await caller.create(pod_id)
    return time.monotonic() - started_at


@asynccontextmanager
async def stopped(path: str) -> AsyncIterator[None]:
    """Listen without accepting, like a stopped process (SIGSTOP). A server that never answers looks the same."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        yield


@pytest.mark.parametrize("hanging", [full_backlog, stopped])
async def test_hanging_hook_delays_call_by_its_timeout(
    front: Front, tmp_path: Path, runtime: Runtime, hanging: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_client, "FAILURES_IN_A_ROW", 10**9)  # the breaker stays closed
    inside, path = front.inside(tmp_path), str(tmp_path / "hooks.sock")
    inside.register("hangs.json", path, [CREATE], timeout=f"{TIMEOUT_SECONDS}s")
    async with hanging(path), inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()

        async def some_together() -> Sequence[float]:
            durations = await asyncio.gather(*(seconds_of_a_create(caller, pod_id) for _ in range(5)))
            return [seconds - TIMEOUT_SECONDS for seconds in durations]

        await in_time(0.100, HANGS, some_together)
        passed = proxy.metrics.counted("hook_fail_open", hook_server="hangs", hook=CREATE, reason="deadline")
    assert passed == len(runtime.arrived("create")) >= HANGS.now


COSTS = {
    "down": (0.005, ": unreachable: "),
    "missing": (0.005, ": unreachable: "),
    "open breaker": (0.001, "hook server bad keeps failing: calls suspended for 30 s"),
}
"""Reason why a hook server is not called -> maximum delay of a call in seconds, and the log line."""


@pytest.mark.parametrize("why", COSTS)
async def test_uncalled_hook_server_costs_little(front: Front, tmp_path: Path, runtime: Runtime, why: str) -> None:
    path, (seconds, line) = str(tmp_path / "hooks.sock"), COSTS[why]
    hooks, proxy = HookServer(path, default=hookanswers.hang()), front.process(tmp_path)
    proxy.register("bad.json", path, [CREATE], timeout="20ms")
    if why == "down":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(path)
    async with hooks if why == "open breaker" else nullcontext(), proxy, front.caller(proxy.socket) as caller:
        hooked, skipped = await caller.run_pod(), await caller.run_pod(replace(POD, labels=SKIP))

        async def median_of_creates(pod_id: str, calls: int = 40) -> float:
            return statistics.median([await seconds_of_a_create(caller, pod_id) for _ in range(calls)])

        async def more() -> list[float]:
            usual = await median_of_creates(skipped)
            return [await median_of_creates(hooked) - usual]

        await median_of_creates(hooked, calls=10)
        await in_time(seconds, Amount(1, 10), more)
        assert len(hooks.calls) <= 5, "none since the breaker is open"
    assert line in proxy.output()


async def test_huge_answer_costs_at_most_three_times_limit(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    cap, proxy = 2 << 20, front.process(tmp_path, hook_answer_limit="2MiB")
    proxy.register("huge.json", hooks.socket_path, [CREATE])
    async with proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        await caller.create(pod_id)
        process = Process(proxy.pid)
        before = process.start_peak()
        hooks.default = hookanswers.huge(40 << 20)
        for _ in range(3):
            await caller.create(pod_id)
        assert process.peak() - before <= 3 * cap
    assert f"bad_answer: the answer is longer than {cap} bytes; let it answer less" in proxy.output()
    assert len(hooks.calls_of(CREATE)) == len(runtime.arrived("create")) == 4


POST_STOP = "PostStopPodSandbox"
BROKEN = ("", '{"remote-endpoint": ', "\0" * 9, "[" * (2 << 20))
HOOKED = hookanswers.reply(api_pb2.ContainerResourceHookResponse(container_envs={"HOOKED": "yes"}))


def renamed_over(folder: Path, number: int, content: str) -> None:
    registration.write(folder, "plugin.json", content)


def link_swapped(folder: Path, number: int, content: str) -> None:
    """Replace like a ConfigMap's volume: ``..data`` is a link to a folder, replaced by a rename."""
    before = folder / os.readlink(folder / "..data") if (folder / "..data").is_symlink() else None
    data = folder / f"..version-{number}"
    data.mkdir()
    (data / "plugin.json").write_text(content)
    (folder / "..data.new").symlink_to(data.name)
    (folder / "..data.new").rename(folder / "..data")
    if before is None:
        (folder / "plugin.json").symlink_to("..data/plugin.json")
    else:
        shutil.rmtree(before)


@pytest.mark.parametrize("swap", [renamed_over, link_swapped])
async def test_no_call_is_unhooked_while_file_is_replaced(
    front: Front, tmp_path: Path, runtime: Runtime, swap: Callable[[Path, int, str], None]
) -> None:
    """Each text names the other hook server, or another timeout for the same one.

    At the end the file becomes invalid, then its directory is replaced, then both hook servers at their sockets.
    """
    servers = [HookServer(str(tmp_path / f"{name}.sock"), default=HOOKED) for name in ("first", "second")]
    contents = cycle((server.socket_path, float(seconds)) for server in servers for seconds in (20, 21))
    inside, numbers, rounds, end = front.inside(tmp_path), count(), count(), asyncio.Event()

    def swapped() -> list[tuple[str, float]]:
        endpoint, seconds = next(contents)
        swap(inside.registrations, next(numbers), registration.text(endpoint, [CREATE], timeout=f"{seconds}s"))
        return [(endpoint, seconds)]

    def registered() -> list[tuple[str, float]]:
        return [(plugin.endpoint, plugin.timeout_seconds) for plugin in inside.app.manager.plugins_for(BY_NAME[CREATE])]

    async def effect() -> list[float]:
        if next(rounds) % 2:
            swapped()  # the next one follows immediately
        started_at, expected = time.monotonic(), swapped()
        await until(lambda: registered() == expected, "it has effect")
        return [time.monotonic() - started_at]

    async def create_until_the_end() -> int:
        for made in count(1):
            await caller.create(pod_id)
            if end.is_set():
                return made
        return 0

    swapped()
    async with servers[0], servers[1], inside as proxy, front.caller(proxy.socket) as caller:
        pod_id = await caller.run_pod()
        async with asyncio.TaskGroup() as load:
            creating = [load.create_task(create_until_the_end()) for _ in range(4)]
            await in_time(0.5, SWAPS, effect)
            end.set()
        expected = registered()
        for number, content in enumerate(BROKEN):
            swap(proxy.registrations, next(numbers), content)
            proxy.register(f"later-{number}.json", f"/run/{number}.sock", [POST_STOP])
            later = BY_NAME[POST_STOP]
            await until(lambda: len(proxy.app.manager.plugins_for(later)) > number, "it is read")  # noqa: B023
            assert registered() == expected
        proxy.registrations.rename(tmp_path / "aside")
        proxy.registrations.mkdir()
        expected = swapped()
        await until(lambda: registered() == expected, "the new directory is read")
        for server in servers:
            await server.stop()
            await server.start()
        started_at = time.monotonic()
        await caller.create(pod_id)
        assert time.monotonic() - started_at < FEW_TIMES * 0.1
        assert proxy.metrics.total("hook_failures") == 0
    creates = runtime.arrived("create")
    assert sum(len(server.calls) for server in servers) == len(creates) == 1 + sum(task.result() for task in creating)
    assert all(b"HOOKED" in request for request in creates)
    assert all(server.calls for server in servers)


async def test_disabled_server_gets_no_call_after_proxy_kills(front: Front, tmp_path: Path, runtime: Runtime) -> None:
    """An operator disables it by the admin endpoint while it holds a create."""
    proxy, path = front.process(tmp_path), str(tmp_path / "hooks.sock")

    async def create() -> None:
        async with front.caller(proxy.socket) as caller:
            await caller.create(await caller.run_pod())

    async def admin(method: str, **params: str) -> Any:
        return await asyncio.to_thread(call, proxy.admin, method, **params)

    proxy.register("hangs.json", path, [CREATE], policy="Fail", timeout="10s")
    async with HookServer(path, default=hookanswers.hang()) as hooks, proxy:
        held = asyncio.ensure_future(create())
        await hooks.wait_for_calls(CREATE)
        answer = await admin("disable", name="hangs", reason="it hangs")
        await held
        assert (answer["state"], answer["disabled"]["reason"]) == ("disabled", "it hangs")
        files = tmp_path / "state"
        await until(lambda: any(files.glob("*.json")), "the state is written, which may be after the answer")
        for number in range(1, 3):
            proxy.kill()
            await asyncio.to_thread(proxy.start)
            assert proxy.output().count(f"hook server hangs is disabled (by uid {os.getuid()}, pid ") == number
            proxy.register("hangs.json", path, [CREATE], policy="Fail", timeout=f"{number}s")
            changed = f"registration hangs.json changed: endpoint {path}, policy Fail, points {CREATE}; it is disabled"
            await asyncio.to_thread(proxy.wait_for_log, changed, number)
            await create()
        disabled = {"name": "disabled_plugins", "state": "degraded", "reason": "disabled by hand: hangs"}
        assert disabled in (await admin("readyz"))["checks"]
        assert len(hooks.calls) == 1
        assert (await admin("enable", name="hangs"))["disabled"] is None
        hooks.default = hookanswers.empty()
        await create()
        assert len(hooks.calls) == 2


async def test_only_label_of_pod_skips_hook_servers(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    """Not of a container or image, also after a restart, where dockerd reports the image's labels as the container's.

    A hook server may set it, as it is trusted like the runtime: the others skip the pod, also under Fail.
    """
    if isinstance(runtime, FakeDockerd):
        runtime.state.images.add(BUSYBOX_IMAGE, SKIP)
    for number in range(2):
        proxy = front.inside(tmp_path / str(number), remote_runtime_service_endpoint=runtime.socket_path)
        proxy.register("plugin.json", hooks.socket_path, policy="Fail")
        async with proxy, front.caller(proxy.socket) as caller:
            if number == 0:
                marked = replace(CONTAINER, labels=SKIP, annotations=SKIP)
                container_id = await caller.create(await caller.run_pod(), marked)
            await caller.update(container_id)
    hooks.on("PreRunPodSandbox", hookanswers.reply(api_pb2.PodSandboxHookResponse(labels=SKIP)))
    proxy = front.inside(tmp_path / "set", remote_runtime_service_endpoint=runtime.socket_path)
    proxy.register("plugin.json", hooks.socket_path)
    proxy.register("required.json", "/run/none.sock", [CREATE], policy="Fail")
    async with proxy, front.caller(proxy.socket) as caller:
        await caller.create(await caller.run_pod())
    updates = ["PreUpdateContainerResources"] * 2
    assert [call.point.name for call in hooks.calls] == ["PreRunPodSandbox", CREATE, *updates, "PreRunPodSandbox"]
    assert len(runtime.arrived("create")) == 2


# ---- the policy, exactly

HOOK_POINT, OPERATION = "PreCreateContainer", "CreateContainer"
Failing = Callable[[HookServer], AbstractContextManager[None]]


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


RESTORES = [("PreRunPodSandbox", "Fail"), ("PreStartContainer", "Fail"), ("PreCreateContainer", "Ignore"), ("", "")]


@pytest.mark.parametrize(("hook_point", "policy"), RESTORES)
async def test_restored_pod_passes_unless_hook_was_required(
    tmp_path: Path, hook_point: str, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """RestorePod creates and starts a pod in one call, without a hook point."""
    inside, is_refused = ProxyInside(tmp_path), (hook_point, policy) == RESTORES[0]
    if hook_point:
        inside.register("a.json", tmp_path / "hooks.sock", [hook_point], policy=policy)
    async with FakeRuntime(str(inside.runtime)) as runtime, inside as proxy, Client(proxy.socket) as client:
        answer: Any = (await asyncio.gather(client.call("RestorePod", b"request"), return_exceptions=True))[0]
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
