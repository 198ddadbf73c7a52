"""koordlet's answers, whole: odd forms are taken, a bad field costs itself, what is answered at once takes nobody out.

The rows are those of issue 19.
"""

import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.model import Resources
from tests.amounts import Amount
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.fronts import CONTAINER, POD, Caller, Failed, Front, Runtime
from tests.system.proxy import ProxyInside

CREATE, UPDATE = "PreCreateContainer", "PreUpdateContainerResources"
RESPONSE, RESOURCES = api_pb2.ContainerResourceHookResponse, api_pb2.LinuxContainerResources
POLICIES = pytest.mark.parametrize("policy", ["Ignore", "Fail"])
WORDS = "plugin GPUEnvInject: device-allocated is no JSON"
GPU = {"NVIDIA_VISIBLE_DEVICES": "0"}


def answer(**resources: Any) -> hookanswers.Answer:
    """Set a GPU variable and these resources."""
    return hookanswers.reply(RESPONSE(container_envs=GPU, container_resources=RESOURCES(**resources)))


@pytest.fixture
async def hooks(tmp_path: Path) -> AsyncIterator[HookServer]:
    async with HookServer(str(tmp_path / "hooks.sock"), keep_calls=False) as server:
        yield server


@pytest.fixture
async def proxy(
    front: Front, tmp_path: Path, runtime: Runtime, hooks: HookServer, policy: str
) -> AsyncIterator[ProxyInside]:
    inside = front.inside(tmp_path)
    inside.register("koordlet.json", hooks.socket_path, [CREATE, UPDATE], policy=policy)
    async with inside as started:
        yield started


@pytest.fixture
async def caller(front: Front, proxy: ProxyInside) -> AsyncIterator[Caller]:
    async with front.caller(proxy.socket) as made:
        yield made


def resources_of(proxy: ProxyInside, container_id: str) -> Resources:
    """Return what a container has, as it was told to the runtime."""
    record = proxy.store.container(container_id)
    assert record is not None
    assert record.effective.resources is not None
    return record.effective.resources


# -- what is answered at once (row 14) -------------------------------------------------------------------------------

PODS = Amount(1_000, 10_000)
KINDS: dict[str, hookanswers.Answer] = {
    "good": answer(cpu_shares=5),
    "bad_answer, a field": answer(cpu_quota=-7),
    "bad_answer, all of it": hookanswers.reply(RESPONSE(pod_cgroup_parent="../..")),
    "bad_answer, no message": hookanswers.garbage(),
    "error_status": hookanswers.status(grpc.StatusCode.UNKNOWN, WORDS),
    "refused": hookanswers.status(grpc.StatusCode.PERMISSION_DENIED, "not here"),
}


@pytest.mark.slow
@POLICIES
async def test_a_server_that_answers_hooks_every_pod_that_it_answers_well(
    front: Front, runtime: Runtime, hooks: HookServer, proxy: ProxyInside, caller: Caller, policy: str
) -> None:
    chosen = random.Random(policy).choices([*KINDS], k=PODS.now)
    hooked: list[bool] = []
    for number, kind in enumerate(chosen):
        hooks.default = KINDS[kind]
        pod_id = await caller.run_pod(replace(POD, name=f"pod-{number}", uid=f"uid-{number}"))
        try:
            await caller.create(pod_id)
        except Failed:
            assert kind == "refused" or (policy == "Fail" and kind != "good"), kind
            continue
        assert kind == "good" or (policy == "Ignore" and kind != "refused"), kind
        hooked.append(kind in ("good", "bad_answer, a field"))
    assert [b"NVIDIA_VISIBLE_DEVICES" in request for request in runtime.asked("create")] == hooked
    assert proxy.recorder.total("hook_breaker_openings") == 0
    expected = Counter(kind.partition(",")[0] for kind in chosen if kind != "good")
    for reason in (*expected, "breaker_open"):
        counted = proxy.recorder.counted("hook_failures", plugin="koordlet", hook=CREATE, reason=reason)
        assert counted == expected[reason], reason


# -- a bad field, and what koordlet says (rows 16 and 17) ------------------------------------------------------------


@POLICIES
@pytest.mark.parametrize(("name", "value"), [("cpu_quota", -7), ("cpuset_cpus", "a-b"), ("cpu_period", 5)])
async def test_a_gpu_pod_has_its_variables_whatever_else_is_bad(
    runtime: Runtime, hooks: HookServer, proxy: ProxyInside, caller: Caller, policy: str, name: str, value: int | str
) -> None:
    hooks.default = answer(**{name: value, "memory_limit_in_bytes": 1 << 27})
    pod_id = await caller.run_pod()
    if policy == "Fail":
        with pytest.raises(Failed, match=f"'koordlet' at {CREATE}: bad_answer: resources.{name}: must be "):
            await caller.create(pod_id)
        assert runtime.asked("create") == []
        return
    resources = resources_of(proxy, await caller.create(pod_id))
    assert set(runtime.envs()) == {*CONTAINER.envs, *GPU.items()}
    sent = (CONTAINER.resources["cpu_period"], CONTAINER.resources["cpu_quota"], "")
    assert (resources.cpu_period, resources.cpu_quota, resources.cpuset_cpus) == sent
    assert resources.memory_limit_in_bytes == 1 << 27


@pytest.mark.parametrize("policy", ["Fail"])
async def test_the_kubelet_reads_what_koordlet_says(hooks: HookServer, caller: Caller) -> None:
    hooks.default = KINDS["error_status"]
    pod_id = await caller.run_pod()
    with pytest.raises(Failed) as raised:
        await caller.create(pod_id)
    assert f"'koordlet' at {CREATE}: error_status: gRPC status 2: {WORDS}" in raised.value.text


# -- odd forms (rows 4, 5, 15 and 18) --------------------------------------------------------------------------------

ODD: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"cpuset_cpus": "0-1,"}, {"cpuset_cpus": "0-1"}),
    ({"cpuset_cpus": ",0-1"}, {"cpuset_cpus": "0-1"}),
    ({"cpuset_cpus": "0, 1"}, {"cpuset_cpus": "0,1"}),
    ({"cpuset_cpus": ","}, {"cpuset_cpus": "0"}),
    ({"cpu_quota": 834}, {"cpu_quota": 1000}),
]
"""What koordlet makes of a cpuset "0" and a quota, and what the runtime gets."""


@POLICIES
@pytest.mark.parametrize(("said", "set_"), ODD)
async def test_an_odd_form_reaches_the_runtime_as_it_is_meant(
    runtime: Runtime, hooks: HookServer, proxy: ProxyInside, caller: Caller, said: dict[str, Any], set_: dict[str, Any]
) -> None:
    asked = {"cpuset_cpus": "0", "cpu_quota": 20_000}
    hooks.default = hookanswers.koordlet(**said)
    container = replace(CONTAINER, resources={**CONTAINER.resources, **asked})
    created = await caller.create(await caller.run_pod(), container)
    assert resources_of(proxy, created) == replace(
        Resources(**container.resources),
        memory_swap_limit_in_bytes=resources_of(proxy, created).memory_swap_limit_in_bytes,  # Docker mode's own
        **set_,
    )
    await caller.update(created, asked)
    (update,) = runtime.asked("update")
    assert all(str(value).encode() in update for value in set_.values() if isinstance(value, str))
    resources = resources_of(proxy, created)
    assert {name: getattr(resources, name) for name in asked} == {**asked, **set_}
    assert proxy.recorder.total("hook_failures") == 0
