"""No log line holds a value of a request, and nothing heavy is loaded without need."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import grpc
import pytest

from runtimeproxy.hookapi import api_pb2
from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes import hookanswers, registration
from tests.fakes.dockershim_bodies import Container, Pod
from tests.fakes.hookserver import HookServer
from tests.system.docker_front import DOCKER
from tests.system.fronts import PARENT, Caller, Failed, Front, Runtime

pytestmark = pytest.mark.slow

CANARY = "canary-7f3a91"
RESPONSE = api_pb2.ContainerResourceHookResponse
ANSWERS: dict[str, hookanswers.Answer] = {
    "empty": hookanswers.empty(),
    "echo": hookanswers.echo(),
    "changed": hookanswers.echo(lambda response: _plant(response)),
    "refused": hookanswers.status(grpc.StatusCode.PERMISSION_DENIED, f"no {CANARY} here"),
    "error": hookanswers.status(grpc.StatusCode.INTERNAL, f"{CANARY} failed", (("x-more", CANARY),)),
    "garbage": hookanswers.raw(CANARY.encode()),
    "huge": hookanswers.huge(),
    "hang": hookanswers.hang(),
    "bad name": hookanswers.reply(RESPONSE(container_envs={f"{CANARY}=": CANARY})),
    "bad parent": hookanswers.reply(RESPONSE(pod_cgroup_parent=CANARY)),
    "bad cpuset": hookanswers.reply(RESPONSE(container_resources={"cpuset_cpus": CANARY})),
}


def _plant(response: object) -> None:
    if isinstance(response, RESPONSE):
        response.container_envs["HOOKED"] = CANARY
    else:
        assert isinstance(response, api_pb2.PodSandboxHookResponse)
        response.labels["hooked"] = CANARY


@pytest.fixture
async def runtime(front: Front, tmp_path: Path) -> AsyncIterator[Runtime]:
    async with front.runtime(str(tmp_path / "runtime.sock")) as fake:
        yield fake


@pytest.fixture
async def hooks(tmp_path: Path) -> AsyncIterator[HookServer]:
    async with HookServer(str(tmp_path / "hooks.sock")) as server:
        yield server


async def test_no_line_holds_a_value(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Every line is looked at, also those that the log's limit of lines of a kind would leave out."""
    caplog.set_level(logging.DEBUG, logger="runtimeproxy")
    proxy = front.inside(tmp_path)
    proxy.register("plugin.json", hooks.socket_path, timeout="100ms")
    async with proxy, front.caller(proxy.socket) as caller:
        await _all_there_is(caller, runtime, hooks)
        failures = proxy.recorder.total("hook_failures")
    assert failures > len(ANSWERS)
    assert caplog.text.count("'plugin'") == failures
    assert CANARY not in caplog.text


@pytest.mark.parametrize("log_format", ["text", pytest.param("json", marks=pytest.mark.slow)])
async def test_stderr_holds_no_value(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, log_format: str
) -> None:
    proxy = front.process(tmp_path, log_format=log_format)
    proxy.register("plugin.json", hooks.socket_path, timeout="100ms")
    async with proxy, front.caller(proxy.socket) as caller:
        await _all_there_is(caller, runtime, hooks)
    assert "'plugin'" in proxy.output()
    assert CANARY not in proxy.output()


async def _all_there_is(caller: Caller, runtime: Runtime, hooks: HookServer) -> None:
    """Make every held call with every answer of the hook server, and calls that fail in other ways.

    A server that failed too often is not asked for a while: each answer is that of a new one.
    """
    for name, answer in ANSWERS.items():
        hooks.default = answer
        await _life_of_a_pod(caller, name)
        await hooks.stop()
        await hooks.start()
    await caller.pass_by(CANARY)
    await _rejected_update(caller, runtime, hooks)
    await _failing_calls(caller, runtime)
    assert {call.point.name for call in hooks.calls} == set(registration.ALL_POINTS)
    assert sum(CANARY.encode() in call.message for call in hooks.calls) > len(ANSWERS)


def _pod(name: str) -> Pod:
    return Pod(name, f"{name}-uid", labels={"secret": CANARY}, annotations={"secret": CANARY}, cgroup_parent=PARENT)


CONTAINER = Container(
    "main",
    BUSYBOX_IMAGE,
    command=("/bin/sh", "-c", CANARY),
    args=(CANARY,),
    envs=(("SECRET", CANARY),),
    labels={"secret": CANARY},
    annotations={"secret": CANARY},
)


async def _life_of_a_pod(caller: Caller, name: str) -> None:
    """Make every held call, with the canary wherever a value can stand; refused ones are no end."""
    pod_id = await _tried(caller.run_pod(_pod(f"pod-{name.replace(' ', '-')}"))) or "unknown"
    container_id = await _tried(caller.create(pod_id, CONTAINER)) or "unknown"
    await _tried(caller.update(container_id, annotations={"secret": CANARY}))
    for verb in ("start", "stop", "remove"):
        await _tried(caller.act(verb, container_id))
    for verb in ("stop_pod", "remove_pod"):
        await _tried(caller.act(verb, pod_id))


async def _rejected_update(caller: Caller, runtime: Runtime, hooks: HookServer) -> None:
    """Let the runtime reject the extra update of PreStartContainer with the canary in its words."""
    hooks.default = hookanswers.reply(RESPONSE(container_resources={"cpu_shares": 77}))
    container_id = await caller.create(await caller.run_pod(_pod("rejected")), CONTAINER)
    asked = len(hooks.calls)
    runtime.upset("update", text=CANARY)
    await caller.act("start", container_id)
    assert [call.point.name for call in hooks.calls[asked:]] == ["PreStartContainer", "PostStartContainer"]
    hooks.default = hookanswers.empty()


async def _failing_calls(caller: Caller, runtime: Runtime) -> None:
    """Make calls that cannot be read, and such as the runtime answers with the canary in its own words."""
    container_id = await caller.create(await caller.run_pod(_pod("failing")), CONTAINER)
    for verb in ("run_pod", "create", "update", "start"):
        await _tried(caller.send(verb, caller.broken_request(verb, CANARY.encode())))
        runtime.upset(verb, text=CANARY)
    await _tried(caller.run_pod(_pod("other")))
    await _tried(caller.create("unknown", CONTAINER))
    await _tried(caller.update(container_id))
    await _tried(caller.act("start", container_id))


async def _tried(call: Awaitable[object]) -> str:
    """Return a call's id; "" if it failed."""
    try:
        return str(await call)
    except Failed:
        return ""


@pytest.mark.parametrize("front", [DOCKER], ids=["docker"])
async def test_no_line_holds_a_daemons_words_when_it_cannot_tell_what_a_reference_names(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="runtimeproxy")
    proxy = front.inside(tmp_path)
    proxy.register("plugin.json", hooks.socket_path, policy="Fail")
    runtime.upset("pod_status", text=CANARY)
    async with proxy, front.caller(proxy.socket) as caller:
        for reference in ("name", CANARY):
            with pytest.raises(Failed) as raised:
                await caller.act("start", reference)
            assert "PreStartContainer" in raised.value.text
    assert "the daemon answered 500" in caplog.text
    assert CANARY not in caplog.text


async def test_no_foreign_library_is_loaded_without_need(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer
) -> None:
    """They are several times the proxy's own memory: what a running proxy needs is its own relay and client.

    Docker mode reads the daemon's state with aiohttp.
    """
    proxy = front.process(tmp_path)
    proxy.register("plugin.json", hooks.socket_path)
    async with proxy, front.caller(proxy.socket) as caller:
        await _life_of_a_pod(caller, "pod")
        await _tried(caller.act("stop", "missing"))  # the runtime is asked for its state
        maps = await asyncio.to_thread(Path(f"/proc/{proxy.pid}/maps").read_text)
    assert len(hooks.calls) == 7
    assert "uvloop" in maps  # so a library's compiled part is seen in this list
    assert [library for library in front.never_loaded if library in maps] == []
