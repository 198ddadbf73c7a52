"""The doctor's checks of registration files and its calls to hook servers."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from runtimeproxy.cli.doctor import hookservers
from runtimeproxy.cli.doctor.findings import Finding, Verdict
from runtimeproxy.plugins.disabling import Disabled, written
from tests.doctor.conftest import PATIENCE_SECONDS
from tests.doctor.made import Made
from tests.fakes import hookanswers, registration
from tests.fakes.hookserver import HookServer


async def called(made: Made) -> list[Finding]:
    return await asyncio.to_thread(lambda: list(hookservers.hook_servers(made.machine)))


@pytest.fixture
def endpoint(made: Made) -> str:
    """Return a path for a hook server's socket in a directory that only root can write in."""
    return str(made.ours.parent / "hook.sock")


async def test_disabled_hook_server_is_reported_and_not_called(made: Made) -> None:
    for name, socket in (("a", "/run/other.sock"), ("b", "/run/nobody.sock"), ("copy", "unix:///run//other.sock")):
        made.register(f"{name}.json", registration.text(socket, policy="Fail"))
    made.mask.write(written({"a": Disabled("it hangs", "uid 0, pid 1", 0.0)}))
    disabled, copy, tried = await called(made)
    assert copy.why == "copy is disabled with a, which names the same socket, and was not called"
    assert "hook server 'b' at" in tried.why
    assert (disabled.verdict, disabled.why) == (Verdict.WARNING, "a is disabled by hand (it hangs) and was not called")
    assert (tried.verdict, "calls are refused" in tried.why) == (Verdict.FAILED, True)
    flag = f"--admin-endpoint={made.machine.config.admin_endpoint}"
    assert f"`runtimeproxy hook enable a {flag}`" in disabled.do
    assert f"`runtimeproxy hook disable b --reason=unreachable {flag}`" in tried.do


@pytest.mark.parametrize(("policy", "helps"), [("Fail", "/run/koord-runtimeproxy/admin.sock"), ("Ignore", "")])
async def test_disabling_is_suggested_only_where_it_helps(made: Made, policy: str, helps: str) -> None:
    made.register("a.json", registration.text("/run/nobody.sock", policy=policy))
    for made.flags["admin-endpoint"] in ("/run/koord-runtimeproxy/admin.sock", "none"):
        (finding,) = await called(made)
        suggested = "`runtimeproxy hook disable a --reason=unreachable`" in finding.do
        assert suggested == (made.flags["admin-endpoint"] == helps) == ("hook disable" in finding.do)


async def test_mask_that_cannot_be_used_hides_no_hook_server(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.register("a.json", registration.text("/run/nobody.sock"))
    made.mask.write(b"{")
    mask, tried = await called(made)
    assert (mask.verdict, mask.why.partition(":")[0]) == (Verdict.WARNING, f"{made.mask.path} is not JSON")
    assert tried.why.startswith("hook server 'a' at ")
    with monkeypatch.context() as without_rights:
        without_rights.setattr(hookservers, "denied", lambda path: path == made.mask.path)
        mask, tried = await called(made)
        assert (mask.verdict, tried.why[:15]) == (Verdict.UNKNOWN, "hook server 'a'")
    made.flags["state-dir"] = "none"
    assert len(await called(made)) == 1


POINTS = [
    (registration.ALL_POINTS, "5s", "PreCreateContainer", 5.0),
    (["PostStopContainer", "PreRunPodSandbox"], "60s", "PreRunPodSandbox", PATIENCE_SECONDS),
]


@pytest.mark.parametrize(("points", "given", "point", "longest"), POINTS)
async def test_hook_server_is_called_once_at_a_pre_point(
    made: Made, endpoint: str, points: list[str], given: str, point: str, longest: float
) -> None:
    made.register("a.json", registration.text(endpoint, points, timeout=given))
    made.register("b.json", registration.text(f"{endpoint}.post", ["PostStopContainer"]))
    assert (await called(made))[1].verdict.value == "warning"
    async with HookServer(endpoint) as server, HookServer(f"{endpoint}.post") as post:
        finding, other = await called(made)
    assert (finding.verdict.value, other.verdict.value, post.calls) == ("ok", "ok", [])
    assert finding.why.startswith(f"a: {endpoint} answered {point} in ")
    (call,) = server.calls
    assert call.point.name == point
    assert call.deadline_seconds is not None
    assert call.deadline_seconds <= longest


ANSWERS = [("Ignore", "fail", "warning", ""), ("Fail", "fail", "failed", ""), ("Ignore", "", "warning", "")]
ANSWERS += [("Fail", "", "failed", ""), ("Fail", "refuse", "ok", "it refuses the invented pod")]


@pytest.mark.parametrize(("policy", "answer", "verdict", "words"), ANSWERS)
async def test_failing_hook_server_is_judged_by_its_policy(
    made: Made, endpoint: str, policy: str, answer: str, verdict: str, words: str
) -> None:
    made.register("a.json", registration.text(endpoint, policy=policy))
    async with AsyncExitStack() as stack:
        if answer:
            await stack.enter_async_context(HookServer(endpoint, default=hookanswers.BY_NAME[answer]()))
        (finding,) = await called(made)
    assert (finding.verdict.value, bool(finding.do), finding.why.endswith(words)) == (verdict, verdict != "ok", True)
    assert "failed as requested" not in finding.why, "the hook server's own text is not repeated"


async def test_slow_answer_is_a_warning(made: Made, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made.register("a.json", registration.text(endpoint, timeout="3s"))
    times = iter([10.0, 12.0])
    monkeypatch.setattr(hookservers, "perf_counter", lambda: next(times))
    async with HookServer(endpoint):
        (finding,) = await called(made)
    assert finding.verdict.value == "warning"
    assert finding.why.endswith("PreCreateContainer in 2000 ms, more than half of its time limit")


async def test_hanging_hook_server_hides_no_other(made: Made, endpoint: str) -> None:
    other = f"{endpoint}.2"
    made.register("a.json", registration.text(endpoint, timeout="100ms"))
    made.register("b.json", registration.text(other, timeout="60s"))
    over = asyncio.Event()

    async def hang(call: hookanswers.HookCall) -> bytes:
        await over.wait()
        return b""

    async with HookServer(endpoint, default=hang), HookServer(other):
        first, second = await called(made)
        over.set()
    assert (first.verdict.value, "deadline" in first.why, second.verdict.value) == ("warning", True, "ok")


async def test_untrusted_socket_is_not_called(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wide").mkdir()
    (tmp_path / "wide").chmod(0o777)
    endpoint = str(tmp_path / "wide" / "hook.sock")
    made.register("a.json", registration.text(endpoint))
    async with HookServer(endpoint) as server:
        (finding,) = await called(made)
        assert (finding.verdict.value, "untrusted_socket" in finding.why) == ("warning", True)
        monkeypatch.setattr(hookservers, "denied", lambda path: path == endpoint)
        (finding,) = await called(made)
        assert (finding.verdict.value, finding.why) == ("unknown", f"a: {endpoint}: Permission denied")
        assert server.calls == []
