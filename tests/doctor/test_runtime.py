"""The doctor's calls to runtimes and hook servers, to fakes and to peers with invalid answers."""

import asyncio
import socket
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path

import grpc
import pytest

from runtimeproxy.cli.doctor import hookservers, runtime
from runtimeproxy.cli.doctor.findings import Finding, Verdict
from runtimeproxy.cli.doctor.machine import Machine
from runtimeproxy.plugins.disabling import Disabled, encode
from tests.docker.daemon import Daemon, reply
from tests.doctor.conftest import CANARY, PATIENCE_SECONDS, Made, only
from tests.fakes import hookanswers, registration
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.hookserver import HookServer
from tests.fakes.runtime import FakeRuntime, Injection

Inspect = Callable[[Machine], Iterable[Finding]]
V1, V1ALPHA2 = "/runtime.v1.RuntimeService/Version", "/runtime.v1alpha2.RuntimeService/Version"
MODE = "backend-runtime-mode"


async def inspected(made: Made, inspect: Inspect = runtime.runtime) -> tuple[str, str]:
    return await asyncio.to_thread(only, inspect, made)


UNKNOWN_METHOD = Injection(code=grpc.StatusCode.UNIMPLEMENTED)
BROKEN = Injection(code=grpc.StatusCode.INTERNAL, details=CANARY)
OFFERED: list[tuple[dict[str, Injection], str, str]] = [
    ({}, "ok", ", CRI v1 and v1alpha2"),
    ({V1ALPHA2: UNKNOWN_METHOD}, "ok", "CRI v1"),
    ({V1: UNKNOWN_METHOD}, "warning", "CRI v1alpha2 only"),
    ({V1: UNKNOWN_METHOD, V1ALPHA2: UNKNOWN_METHOD}, "failed", "speaks no CRI version"),
    ({"Version": BROKEN}, "failed", ": gRPC status 13"),
]


@pytest.mark.parametrize("mode", ["Containerd", "Docker"])
def test_silent_socket_fails_within_time_limit(made: Made, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "CALL_SECONDS", 0.05)
    made.flags[MODE] = mode
    made.proxy()
    assert only(runtime.runtime, made) == ("failed", f"{made.runtime}: No such file or directory")
    for check, path, words in ((runtime.runtime, made.runtime, ""), (runtime.proxy, made.ours, "no answer through ")):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            assert only(check, made) == ("failed", f"{words}{path}: no answer in time")


async def test_runtime_versions_and_mode_are_judged(made: Made) -> None:
    not_dockerd = "its answer is not dockerd's"
    wrong = [(reply(b"canary-4711"), not_dockerd), (reply(b"{}", 500), "GET /version: status 500")]
    wrong += [(reply(b"[]"), not_dockerd), (b"\x00\x01canary-4711\r\n\r\n", not_dockerd)]
    for answers, verdict, words in OFFERED:
        async with FakeRuntime(str(made.runtime)) as fake:
            for path, answer in answers.items():
                fake.inject(path, answer)
            found = await inspected(made)
        assert (found[0], found[1].endswith(words)) == (verdict, True)
        assert (found[1].startswith(str(made.runtime)), "containerd" in found[1]) == (True, verdict != "failed")
    made.flags[MODE] = "Docker"
    async with FakeDockerd(str(made.runtime), cgroup_driver="systemd") as fake:
        text = f"API {fake.minimum} to {fake.api}, cgroup driver systemd, cgroup v1"
        assert await inspected(made) == ("ok", f"{made.runtime}: dockerd {fake.engine.version}, {text}")
    for body, words in wrong:
        async with Daemon(str(made.runtime)) as daemon:
            daemon.script("/version", body)
            assert await inspected(made) == ("failed", f"{made.runtime}: {words}")
    made.proxy()
    checks = ((runtime.proxy, made.ours, "the proxy"), (runtime.runtime, made.runtime, "the runtime"))
    for (given, actual), (inspect, path, who) in product((("Containerd", "Docker"), ("Docker", "Containerd")), checks):
        made.flags[MODE] = given
        async with FakeDockerd(str(path)) if actual == "Docker" else FakeRuntime(str(path)):
            finding = await inspected(made, inspect)
        why = f"the modes differ: {who} at {path} answers in mode {actual}, and --backend-runtime-mode is {given}"
        assert finding == ("failed", why)


async def test_proxy_is_called_on_its_own_socket(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeRuntime(str(made.ours)) as fake:
        assert (await inspected(made, runtime.proxy))[0] == "unknown", "no proxy listens there"
        assert not fake.received
        made.proxy()
        assert await inspected(made, runtime.proxy) == ("ok", f"the runtime answers through {made.ours}")
    verdict, why = await inspected(made, runtime.proxy)
    assert (verdict, why.startswith(f"no answer through {made.ours}: ")) == ("failed", True)
    monkeypatch.setattr(runtime, "is_denied", lambda path: True)
    for inspect in (runtime.proxy, runtime.runtime):
        verdict, why = await inspected(made, inspect)
        assert (verdict, why.endswith(".sock: Permission denied")) == ("unknown", True)


async def called(made: Made) -> list[Finding]:
    return await asyncio.to_thread(lambda: list(hookservers.hook_servers(made.machine)))


@pytest.fixture
def endpoint(made: Made) -> str:
    """Return a path for a hook server's socket in a directory that only root can write in."""
    return str(made.ours.parent / "hook.sock")


async def test_disabled_hook_server_is_reported_and_not_called(made: Made) -> None:
    for name, path in (("a", "/run/other.sock"), ("b", "/run/nobody.sock"), ("copy", "unix:///run//other.sock")):
        made.register(f"{name}.json", registration.text(path, policy="Fail"))
    made.mask.write(encode({"a": Disabled("it hangs", "uid 0, pid 1", 0.0)}))
    disabled, copy, tried = await called(made)
    assert copy.why == "copy is disabled with a, which names the same socket, and was not called"
    assert (disabled.verdict, disabled.why) == (Verdict.WARNING, "a is disabled by hand (it hangs) and was not called")
    assert (tried.verdict, tried.why.startswith("hook server 'b' at ")) == (Verdict.FAILED, True)
    assert "calls are refused" in tried.why
    flag = f"--admin-endpoint={made.machine.config.admin_endpoint}"
    assert f"`runtimeproxy hook enable a {flag}`" in disabled.do
    assert f"`runtimeproxy hook disable b --reason=unreachable {flag}`" in tried.do
    for made.flags["admin-endpoint"], helps in (("/run/koord-runtimeproxy/admin.sock", True), ("none", False)):
        *_, tried = await called(made)
        assert ("`runtimeproxy hook disable b --reason=unreachable`" in tried.do) == helps
        assert ("hook disable" in tried.do) == helps


async def test_unusable_mask_hides_no_hook_server(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.register("a.json", registration.text("/run/nobody.sock"))
    made.mask.write(b"{")
    mask, tried = await called(made)
    assert (mask.verdict, mask.why.partition(":")[0]) == (Verdict.WARNING, f"{made.mask.path} is not JSON")
    assert (tried.why.startswith("hook server 'a' at "), "hook disable" in tried.do) == (True, False)
    with monkeypatch.context() as without_rights:
        without_rights.setattr(hookservers, "is_denied", lambda path: path == made.mask.path)
        mask, tried = await called(made)
        assert (mask.verdict, tried.why[:15]) == (Verdict.UNKNOWN, "hook server 'a'")
    made.flags["state-dir"] = "none"
    assert len(await called(made)) == 1


async def test_hook_server_is_called_once_and_judged_by_policy(made: Made, endpoint: str) -> None:
    hook_point_cases = [
        (registration.ALL_POINTS, "5s", "PreCreateContainer", 5.0),
        (["PostStopContainer", "PreRunPodSandbox"], "60s", "PreRunPodSandbox", PATIENCE_SECONDS),
    ]
    judged = [("Ignore", "fail", "warning", ""), ("Fail", "fail", "failed", ""), ("Ignore", "", "warning", "")]
    judged += [("Fail", "", "failed", ""), ("Fail", "refuse", "ok", "it refuses the invented pod")]
    for policy, answer, verdict, words in judged:
        made.register("a.json", registration.text(endpoint, policy=policy))
        async with AsyncExitStack() as stack:
            if answer:
                await stack.enter_async_context(HookServer(endpoint, default=hookanswers.BY_NAME[answer]()))
            (finding,) = await called(made)
        assert (finding.verdict.value, bool(finding.do), finding.why.endswith(words)) == (
            verdict,
            verdict != "ok",
            True,
        )
        assert "failed as requested" not in finding.why, "the hook server's own text is not repeated"
    made.register("b.json", registration.text(f"{endpoint}.post", ["PostStopContainer"]))
    for hook_points, given, called_point, longest in hook_point_cases:
        made.register("a.json", registration.text(endpoint, hook_points, timeout=given))
        assert (await called(made))[1].verdict.value == "warning"
        async with HookServer(endpoint) as server, HookServer(f"{endpoint}.post") as post:
            finding, other = await called(made)
        assert (finding.verdict.value, other.verdict.value, post.calls) == ("ok", "ok", [])
        assert finding.why.startswith(f"a: {endpoint} answered {called_point} in ")
        (call,) = server.calls
        assert (call.point.name, 0 < (call.deadline_seconds or 0) <= longest) == (called_point, True)


async def test_slow_or_hanging_server_is_warning(made: Made, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    over = asyncio.Event()

    async def hang(call: hookanswers.HookCall) -> bytes:
        await over.wait()
        return b""

    made.register("a.json", registration.text(endpoint, timeout="100ms"))
    made.register("b.json", registration.text(f"{endpoint}.2", timeout="3s"))
    times = iter([10.0, 10.0, 12.0])
    monkeypatch.setattr(hookservers, "perf_counter", lambda: next(times))
    async with HookServer(endpoint, default=hang), HookServer(f"{endpoint}.2"):
        hanging, slow = await called(made)
        over.set()
    assert (hanging.verdict.value, "deadline" in hanging.why) == ("warning", True)
    assert slow.verdict.value == "warning"
    assert slow.why.endswith(" in 2000 ms, more than half of its time limit")


async def test_untrusted_socket_is_not_called(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wide").mkdir()
    (tmp_path / "wide").chmod(0o777)
    endpoint = str(tmp_path / "wide" / "hook.sock")
    made.register("a.json", registration.text(endpoint))
    async with HookServer(endpoint) as server:
        (finding,) = await called(made)
        assert (finding.verdict.value, "untrusted_socket" in finding.why) == ("warning", True)
        monkeypatch.setattr(hookservers, "is_denied", lambda path: path == endpoint)
        (finding,) = await called(made)
        assert (finding.verdict.value, finding.why) == ("unknown", f"a: {endpoint}: Permission denied")
        assert server.calls == []
