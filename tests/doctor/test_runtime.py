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
Inspect = Callable[[Machine], Iterable[Finding]]
V1, V1ALPHA2 = "/runtime.v1.RuntimeService/Version", "/runtime.v1alpha2.RuntimeService/Version"


async def looked(made: Made, inspect: Inspect = runtime.runtime) -> tuple[str, str]:
    return await asyncio.to_thread(only, inspect, made)


UNKNOWN_METHOD = Injection(code=grpc.StatusCode.UNIMPLEMENTED)
BROKEN = Injection(code=grpc.StatusCode.INTERNAL, details=CANARY)
OFFERED = [
    ((), UNKNOWN_METHOD, "ok", ", CRI v1 and v1alpha2"),
    ((V1ALPHA2,), UNKNOWN_METHOD, "ok", "CRI v1"),
    ((V1,), UNKNOWN_METHOD, "warning", "CRI v1alpha2 only"),
    ((V1, V1ALPHA2), UNKNOWN_METHOD, "failed", "speaks no CRI version"),
    (("Version",), BROKEN, "failed", ": gRPC status 13"),
]


@pytest.mark.parametrize(("methods", "answer", "verdict", "words"), OFFERED)
async def test_cri_version_is_judged(
    made: Made, methods: tuple[str, ...], answer: Injection, verdict: str, words: str
) -> None:
    async with FakeRuntime(str(made.runtime)) as fake:
        for path in methods:
            fake.inject(path, answer)
        found = await looked(made)
    assert (found[0], found[1].endswith(words)) == (verdict, True)
    assert (found[1].startswith(str(made.runtime)), "containerd" in found[1]) == (True, verdict != "failed")


HANGING = [(runtime.runtime, "Containerd", ""), (runtime.runtime, "Docker", "")]
HANGING += [(runtime.proxy, "Containerd", "no answer through ")]


@pytest.mark.parametrize(("check", "mode", "words"), HANGING)
def test_socket_that_never_answers_fails_in_time(
    made: Made, check: Inspect, mode: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "CALL_SECONDS", 0.05)
    made.flags["backend-runtime-mode"] = mode
    made.proxy()
    if check is runtime.runtime:
        assert only(check, made) == ("failed", f"{made.runtime}: No such file or directory")
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
async def test_mode_that_differs_from_the_flag_fails(made: Made, inspect: Inspect, given: str, other: str) -> None:
    made.flags["backend-runtime-mode"] = given
    made.proxy()
    path, who = (made.ours, "the proxy") if inspect is runtime.proxy else (made.runtime, "the runtime")
    async with FakeDockerd(str(path)) if other == "Docker" else FakeRuntime(str(path)):
        finding = await looked(made, inspect)
    why = f"the modes differ: {who} at {path} answers in mode {other}, and --backend-runtime-mode is {given}"
    assert finding == ("failed", why)


NOT_DOCKERD = "its answer is not dockerd's"
WRONG = [(reply(b"canary-4711"), NOT_DOCKERD), (reply(b"{}", 500), "GET /version: status 500")]
WRONG += [(reply(b"[]"), NOT_DOCKERD), (b"\x00\x01canary-4711\r\n\r\n", NOT_DOCKERD)]


@pytest.mark.parametrize(("answer", "words"), WRONG)
async def test_wrong_answer_of_docker_is_reported_in_our_words(made: Made, answer: bytes, words: str) -> None:
    made.flags["backend-runtime-mode"] = "Docker"
    async with Daemon(str(made.runtime)) as daemon:
        daemon.script("/version", answer)
        assert await looked(made) == ("failed", f"{made.runtime}: {words}")


@pytest.mark.parametrize("inspect", [runtime.runtime, runtime.proxy])
async def test_socket_without_rights_is_unknown(made: Made, inspect: Inspect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "denied", lambda path: True)
    verdict, why = await looked(made, inspect)
    assert (verdict, why.endswith(".sock: Permission denied")) == ("unknown", True)


async def test_proxy_is_called_on_its_own_socket(made: Made) -> None:
    async with FakeRuntime(str(made.ours)) as fake:
        assert (await looked(made, runtime.proxy))[0] == "unknown", "no proxy listens there"
        assert not fake.received
        made.proxy()
        assert await looked(made, runtime.proxy) == ("ok", f"the runtime answers through {made.ours}")
    verdict, why = await looked(made, runtime.proxy)
    assert (verdict, why.startswith(f"no answer through {made.ours}: ")) == ("failed", True)
