"""The doctor's checks of registration files and its calls to hook servers."""

import asyncio
from pathlib import Path

import pytest

from runtimeproxy.cli.doctor import hookservers
from runtimeproxy.cli.doctor.findings import Finding, Verdict
from runtimeproxy.plugins.disabling import Disabled, written
from tests.doctor.conftest import PATIENCE_SECONDS
from tests.doctor.made import Made
from tests.doctor.test_ours import only, told
from tests.fakes import hookanswers, registration
from tests.fakes.hookserver import HookServer

CANARY = "canary-4711"


def register(made: Made, name: str, content: str) -> None:
    made.registrations.mkdir(mode=0o755, exist_ok=True)
    registration.write(made.registrations, name, content)


async def called(made: Made) -> list[Finding]:
    return await asyncio.to_thread(lambda: list(hookservers.hook_servers(made.machine)))


def test_no_directory_means_no_hook_server(made: Made) -> None:
    assert only(hookservers.registrations, made)[0] == "ok"
    assert only(hookservers.hook_servers, made) == ("ok", "no hook server is registered")


async def test_disabled_hook_server_is_told_and_not_called(made: Made) -> None:
    for name, socket in (("a", "/run/other.sock"), ("b", "/run/nobody.sock"), ("copy", "unix:///run//other.sock")):
        register(made, f"{name}.json", registration.text(socket, policy="Fail"))
    made.mask.write(written({"a": Disabled("it hangs", "uid 0, pid 1", 0.0)}))
    disabled, copy, tried = await called(made)
    assert copy.why == "copy is disabled with a, which names the same socket, and was not called"
    assert "hook server 'b' at" in tried.why
    assert (disabled.verdict, disabled.why) == (Verdict.WARNING, "a is disabled by hand (it hangs) and was not called")
    assert (tried.verdict, "calls are refused" in tried.why) == (Verdict.FAILED, True)
    flag = f"--admin-endpoint={made.machine.config.admin_endpoint}"
    assert f"`runtimeproxy hook enable a {flag}`" in disabled.do
    assert f"`runtimeproxy hook disable b --reason=unreachable {flag}`" in tried.do


@pytest.mark.parametrize(
    ("policy", "endpoint", "command"),
    [
        ("Fail", "/run/koord-runtimeproxy/admin.sock", "`runtimeproxy hook disable a --reason=unreachable`"),
        ("Fail", "none", ""),
        ("Ignore", "/run/koord-runtimeproxy/admin.sock", ""),
    ],
)
async def test_disabling_is_suggested_only_where_it_helps(made: Made, policy: str, endpoint: str, command: str) -> None:
    register(made, "a.json", registration.text("/run/nobody.sock", policy=policy))
    made.flags["admin-endpoint"] = endpoint
    (finding,) = await called(made)
    assert (command in finding.do, "hook disable" in finding.do) == (True, bool(command))


async def test_mask_that_cannot_be_used_hides_no_hook_server(made: Made) -> None:
    register(made, "a.json", registration.text("/run/nobody.sock"))
    made.mask.write(b"{")
    mask, tried = await called(made)
    assert (mask.verdict, mask.why.partition(":")[0]) == (Verdict.WARNING, f"{made.mask.path} is not JSON")
    assert tried.why.startswith("hook server 'a' at ")


async def test_mask_is_not_looked_for_where_there_is_none(made: Made) -> None:
    register(made, "a.json", registration.text("/run/nobody.sock"))
    made.flags["state-dir"] = "none"
    assert len(await called(made)) == 1


def test_mask_that_may_not_be_read_is_unknown(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hookservers, "denied", lambda path: path == made.mask.path)
    assert [verdict for verdict, _ in told(hookservers.hook_servers(made.machine))] == ["unknown", "ok"]


FILES = [
    (registration.text("/run/x.sock"), "ok", "hookserver.d has 1 registration file"),
    ("{", "failed", "a.json: not JSON (yet?)"),
    ('{"runtime-hooks": []}', "failed", "a.json: remote-endpoint is missing"),
    (registration.text("/run/x.sock", ["PreNothing"]), "warning", "unknown hook points are ignored: 'PreNothing'"),
]


@pytest.mark.parametrize(("content", "verdict", "words"), FILES)
def test_registration_file_is_judged_as_the_proxy_does(made: Made, content: str, verdict: str, words: str) -> None:
    register(made, "a.json", content)
    first = told(hookservers.registrations(made.machine))[0]
    assert (first[0], words in first[1]) == (verdict, True)


def test_copied_registration_file_is_a_warning(made: Made) -> None:
    for name in ("koordlet.json", "copy.json"):
        register(made, name, registration.text("/run/x.sock", ["PreCreateContainer", "PreRunPodSandbox"]))
    socket = "name the same socket, which is called once, by copy.json, at PreRunPodSandbox, PreCreateContainer"
    assert only(hookservers.registrations, made) == ("warning", f"copy.json and koordlet.json {socket}")


def test_file_that_cannot_be_read_does_not_hide_the_next(made: Made) -> None:
    register(made, "b.json", "{")
    (made.registrations / "a.json").mkdir()
    found = told(hookservers.registrations(made.machine))
    assert [why.partition(":")[0] for _, why in found] == ["a.json", "b.json"]


def test_directory_that_others_can_write_in_fails(made: Made) -> None:
    register(made, "a.json", registration.text("/run/x.sock"))
    made.registrations.chmod(0o777)
    assert [verdict for verdict, _ in told(hookservers.registrations(made.machine))] == ["failed", "ok"]


@pytest.fixture
def endpoint(made: Made) -> str:
    """Return a path for a hook server's socket in a directory that only root can write in."""
    return str(made.ours.parent / "hook.sock")


@pytest.mark.parametrize("points", [registration.ALL_POINTS, ["PostStopContainer", "PreRunPodSandbox"]])
async def test_hook_server_is_called_once_at_a_pre_point(made: Made, endpoint: str, points: list[str]) -> None:
    register(made, "a.json", registration.text(endpoint, points))
    async with HookServer(endpoint) as server:
        (finding,) = await called(made)
        assert finding.verdict.value == "ok"
        (call,) = server.calls
        assert call.point.name == ("PreCreateContainer" if "PreCreateContainer" in points else "PreRunPodSandbox")
        assert finding.why.startswith(f"a: {endpoint} answered {call.point.name} in ")


async def test_post_hook_points_are_not_called(made: Made, endpoint: str) -> None:
    register(made, "a.json", registration.text(endpoint, ["PostStopContainer"]))
    assert (await called(made))[0].verdict.value == "warning"
    async with HookServer(endpoint) as server:
        (finding,) = await called(made)
        assert (finding.verdict.value, server.calls) == ("ok", [])


@pytest.mark.parametrize(("policy", "verdict"), [("Ignore", "warning"), ("Fail", "failed")])
@pytest.mark.parametrize("answer", ["fail", None])
async def test_failing_hook_server_is_judged_by_its_policy(
    made: Made, endpoint: str, policy: str, verdict: str, answer: str | None
) -> None:
    register(made, "a.json", registration.text(endpoint, policy=policy))
    if answer is None:
        (finding,) = await called(made)
    else:
        async with HookServer(endpoint, default=hookanswers.BY_NAME[answer]()):
            (finding,) = await called(made)
    assert (finding.verdict.value, bool(finding.do)) == (verdict, True)
    assert "failed as told" not in finding.why, "the hook server's own text is not repeated"


async def test_server_that_refuses_the_invented_pod_answers(made: Made, endpoint: str) -> None:
    register(made, "a.json", registration.text(endpoint, policy="Fail"))
    async with HookServer(endpoint, default=hookanswers.BY_NAME["refuse"]()):
        (finding,) = await called(made)
    assert (finding.verdict.value, finding.why.endswith("it refuses the invented pod")) == ("ok", True)


async def test_slow_answer_is_a_warning(made: Made, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    register(made, "a.json", registration.text(endpoint, timeout="3s"))
    times = iter([10.0, 12.0])
    monkeypatch.setattr(hookservers, "perf_counter", lambda: next(times))
    async with HookServer(endpoint):
        (finding,) = await called(made)
    assert finding.verdict.value == "warning"
    assert finding.why.endswith("PreCreateContainer in 2000 ms, more than half of its time limit")


@pytest.mark.parametrize(("given", "longest"), [("5s", 5.0), ("60s", PATIENCE_SECONDS)])
async def test_call_has_the_registrations_time(made: Made, endpoint: str, given: str, longest: float) -> None:
    register(made, "a.json", registration.text(endpoint, timeout=given))
    async with HookServer(endpoint) as server:
        await called(made)
    (call,) = server.calls
    assert call.deadline_seconds is not None
    assert call.deadline_seconds <= longest


async def test_hanging_hook_server_hides_no_other(made: Made, endpoint: str) -> None:
    other = f"{endpoint}.2"
    register(made, "a.json", registration.text(endpoint, timeout="100ms"))
    register(made, "b.json", registration.text(other, timeout="60s"))
    over = asyncio.Event()

    async def hang(call: hookanswers.HookCall) -> bytes:
        await over.wait()
        return b""

    async with HookServer(endpoint, default=hang), HookServer(other):
        first, second = await called(made)
        over.set()
    assert (first.verdict.value, "deadline" in first.why, second.verdict.value) == ("warning", True, "ok")


async def test_untrusted_socket_is_not_called(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "wide"
    folder.mkdir()
    folder.chmod(0o777)
    endpoint = str(folder / "hook.sock")
    register(made, "a.json", registration.text(endpoint))
    async with HookServer(endpoint) as server:
        (finding,) = await called(made)
        assert (finding.verdict.value, server.calls) == ("warning", [])
    assert "untrusted_socket" in finding.why


async def test_hook_server_without_rights_is_unknown(
    made: Made, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(made, "a.json", registration.text(endpoint))
    monkeypatch.setattr(hookservers, "denied", lambda path: path == endpoint)
    (finding,) = await called(made)
    assert (finding.verdict.value, finding.why) == ("unknown", f"a: {endpoint}: Permission denied")


def test_skip_label_is_told(made: Made) -> None:
    made.flags |= {"runtime-hook-server-key": "team/skip", "runtime-hook-server-val": "yes"}
    assert only(hookservers.skip_label, made)[1].startswith("pods with the label team/skip=yes are never handed")
