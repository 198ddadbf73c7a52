"""The doctor's calls to runtimes: the fakes, and what answers wrongly."""

import asyncio
import socket
from collections.abc import Callable, Iterable

import grpc
import pytest

from runtimeproxy.cli.doctor import runtime
from runtimeproxy.cli.doctor.findings import Finding
from runtimeproxy.cli.doctor.machine import Machine
from tests.docker.daemon import Daemon, reply
from tests.doctor.made import Made, only
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.runtime import FakeRuntime, Injection

CANARY = "canary-4711"
V1, V1ALPHA2 = "/runtime.v1.RuntimeService/Version", "/runtime.v1alpha2.RuntimeService/Version"


async def looked(made: Made, inspect: Callable[[Machine], Iterable[Finding]] = runtime.runtime) -> tuple[str, str]:
    return await asyncio.to_thread(only, inspect, made)


async def test_cri_versions_are_reported(made: Made) -> None:
    async with FakeRuntime(str(made.runtime)):
        verdict, why = await looked(made)
    assert verdict == "ok"
    assert why.startswith(f"{made.runtime}: containerd")
    assert why.endswith(", CRI v1 and v1alpha2")


UNKNOWN_METHOD = Injection(code=grpc.StatusCode.UNIMPLEMENTED)
OFFERED = [
    ((V1ALPHA2,), "ok", "CRI v1"),
    ((V1,), "warning", "CRI v1alpha2 only"),
    ((V1, V1ALPHA2), "failed", "speaks no CRI version"),
]


@pytest.mark.parametrize(("missing", "verdict", "words"), OFFERED)
async def test_missing_cri_version_is_judged(made: Made, missing: tuple[str, ...], verdict: str, words: str) -> None:
    async with FakeRuntime(str(made.runtime)) as fake:
        for path in missing:
            fake.inject(path, UNKNOWN_METHOD)
        found = await looked(made)
    assert (found[0], found[1].endswith(words)) == (verdict, True)


async def test_error_of_the_runtime_is_reported_without_its_text(made: Made) -> None:
    async with FakeRuntime(str(made.runtime)) as fake:
        fake.inject("Version", Injection(code=grpc.StatusCode.INTERNAL, details=CANARY))
        assert await looked(made) == ("failed", f"{made.runtime}: gRPC status 13")


@pytest.mark.parametrize("mode", ["Containerd", "Docker"])
def test_runtime_that_is_away_fails(made: Made, mode: str) -> None:
    made.flags["backend-runtime-mode"] = mode
    assert only(runtime.runtime, made) == ("failed", f"{made.runtime}: No such file or directory")


HANGING = [(runtime.runtime, mode, "") for mode in ("Containerd", "Docker")]
HANGING += [(runtime.proxy, "Containerd", "no answer through ")]


@pytest.mark.parametrize(("check", "mode", "words"), HANGING)
def test_socket_that_never_answers_fails_in_time(
    made: Made,
    check: Callable[[Machine], Iterable[Finding]],
    mode: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "CALL_SECONDS", 0.05)
    made.flags["backend-runtime-mode"] = mode
    made.proxy()
    path = str(made.ours if check is runtime.proxy else made.runtime)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        assert only(check, made) == ("failed", f"{words}{path}: no answer in time")


async def test_docker_reports_api_versions_and_cgroup_driver(made: Made) -> None:
    made.flags["backend-runtime-mode"] = "Docker"
    async with FakeDockerd(str(made.runtime), cgroup_driver="systemd") as fake:
        verdict, why = await looked(made)
        text = f"API {fake.minimum} to {fake.api}, cgroup driver systemd, cgroup v1"
        assert (verdict, why) == ("ok", f"{made.runtime}: dockerd {fake.engine.version}, {text}")


@pytest.mark.parametrize("inspect", [runtime.runtime, runtime.proxy])
@pytest.mark.parametrize(("given", "other"), [("Containerd", "Docker"), ("Docker", "Containerd")])
async def test_mode_that_differs_from_the_flag_fails(
    made: Made, inspect: Callable[[Machine], Iterable[Finding]], given: str, other: str
) -> None:
    made.flags["backend-runtime-mode"] = given
    made.proxy()
    path, who = (made.ours, "the proxy") if inspect is runtime.proxy else (made.runtime, "the runtime")
    async with FakeDockerd(str(path)) if other == "Docker" else FakeRuntime(str(path)):
        finding = await looked(made, inspect)
    why = f"the modes differ: {who} at {path} answers in mode {other}, and --backend-runtime-mode is {given}"
    assert finding == ("failed", why)


WRONG = [
    (reply(b"[]"), "its answer is not dockerd's"),
    (reply(b"canary-4711"), "its answer is not dockerd's"),
    (reply(b"{}", 500), "GET /version: status 500"),
    (b"\x00\x01canary-4711\r\n\r\n", "its answer is not dockerd's"),
]


@pytest.mark.parametrize(("answer", "words"), WRONG)
async def test_wrong_answer_of_docker_is_reported_in_our_words(made: Made, answer: bytes, words: str) -> None:
    made.flags["backend-runtime-mode"] = "Docker"
    async with Daemon(str(made.runtime)) as daemon:
        daemon.script("/version", answer)
        assert await looked(made) == ("failed", f"{made.runtime}: {words}")


@pytest.mark.parametrize("inspect", [runtime.runtime, runtime.proxy])
async def test_socket_without_rights_is_unknown(
    made: Made, inspect: Callable[[Machine], Iterable[Finding]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "denied", lambda path: True)
    verdict, why = await looked(made, inspect)
    assert (verdict, why.endswith(".sock: Permission denied")) == ("unknown", True)


async def test_proxy_is_called_on_its_own_socket(made: Made) -> None:
    made.proxy()
    async with FakeRuntime(str(made.ours)):
        assert await looked(made, runtime.proxy) == ("ok", f"the runtime answers through {made.ours}")
    verdict, why = await looked(made, runtime.proxy)
    assert (verdict, why.startswith(f"no answer through {made.ours}: ")) == ("failed", True)


async def test_socket_without_a_proxy_is_not_called(made: Made) -> None:
    async with FakeRuntime(str(made.ours)) as fake:
        assert (await looked(made, runtime.proxy))[0] == "unknown"
        assert not fake.received
