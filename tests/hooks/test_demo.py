"""The demo's hook server: its policy by table, and its process as the demo runs it."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from hooks import demo
from runtimeproxy.hookapi import codec
from runtimeproxy.hookpoints import BY_NAME, HOOK_POINTS
from runtimeproxy.model import ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources

GPU = {demo.DEVICES: json.dumps({"gpu": [{"minor": 2}, {"minor": 0}]})}
CPUSET = {demo.RESOURCE_STATUS: json.dumps({"cpuset": "0-1"})}
BATCH = {
    demo.EXTENDED_RESOURCES: json.dumps(
        {"containers": {"main": {"requests": {demo.BATCH_CPU: 500}, "limits": {demo.BATCH_MEMORY: "1Gi"}}}}
    )
}
LIMITED = {
    demo.EXTENDED_RESOURCES: json.dumps(
        {"containers": {"main": {"limits": {demo.BATCH_CPU: "500", demo.BATCH_MEMORY: "5000"}}}}
    )
}
BE = {demo.QOS_CLASS: "BE"}


def request(annotations: dict[str, str], labels: dict[str, str] | None = None, name: str = "main") -> HookRequest:
    pod = PodInfo(name="pod", namespace="default", annotations=annotations, labels=labels or {})
    return HookRequest(pod, ContainerInfo(name=name))


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (request({}), HookAnswer()),
        (request(GPU), HookAnswer(envs={"NVIDIA_VISIBLE_DEVICES": "2,0"})),
        (request(CPUSET), HookAnswer(resources=Resources(cpuset_cpus="0-1", cpu_quota=-1))),
        (request(BATCH), HookAnswer()),
        (request(BATCH, BE, "other"), HookAnswer()),
        (
            request(BATCH, BE),
            HookAnswer(resources=Resources(cpu_shares=512, cpu_quota=-1, memory_limit_in_bytes=1 << 30)),
        ),
        (
            request(LIMITED, BE),
            HookAnswer(resources=Resources(cpu_shares=2, cpu_quota=50000, memory_limit_in_bytes=5000)),
        ),
        (
            request(LIMITED | CPUSET, BE),
            HookAnswer(resources=Resources(cpu_shares=2, cpu_quota=-1, memory_limit_in_bytes=5000, cpuset_cpus="0-1")),
        ),
    ],
)
def test_container_points_follow_the_annotations(asked: HookRequest, answered: HookAnswer) -> None:
    for name in ("PreCreateContainer", "PreStartContainer", "PreUpdateContainerResources"):
        assert demo.answer(BY_NAME[name], asked) == answered
    assert demo.answer(BY_NAME["PostStartContainer"], asked) == HookAnswer()


def test_a_pod_with_exclusive_cpus_has_no_quota() -> None:
    point = BY_NAME["PreRunPodSandbox"]
    assert demo.answer(point, HookRequest(request(CPUSET).pod)) == HookAnswer(resources=Resources(cpu_quota=-1))
    assert demo.answer(point, HookRequest(request(GPU).pod)) == HookAnswer()


@pytest.mark.parametrize("text", ["{", "[]", '{"gpu": [{}]}', '{"gpu": [{"minor": "x"}]}', '{"gpu": 3}'])
def test_a_malformed_annotation_is_an_error_of_the_policy(text: str) -> None:
    with pytest.raises(demo.POLICY_ERRORS):
        demo.answer(BY_NAME["PreCreateContainer"], request({demo.DEVICES: text}))


def test_the_server_registers_serves_logs_names_only_and_leaves(tmp_path: Path) -> None:
    endpoint, calls = tmp_path / "hooks.sock", tmp_path / "calls.jsonl"
    command = [sys.executable, "-m", "hooks.demo", f"--endpoint={endpoint}", f"--register-dir={tmp_path}"]
    process = subprocess.Popen([*command, f"--call-log={calls}"])
    registration = tmp_path / demo.REGISTRATION_NAME
    try:
        deadline = time.monotonic() + 20
        while not registration.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        entry = json.loads(registration.read_text())
        assert entry == {
            "remote-endpoint": str(endpoint),
            "failure-policy": "Ignore",
            "runtime-hooks": [point.name for point in HOOK_POINTS],
        }
        point = BY_NAME["PreCreateContainer"]
        with grpc.insecure_channel(f"unix:{endpoint}") as channel:
            hook: Any = channel.unary_unary(codec.method_path(point))
            answered = codec.decode(point, hook(codec.encode(point, request(GPU)), timeout=10))
            assert answered == HookAnswer(envs={"NVIDIA_VISIBLE_DEVICES": "2,0"})
            with pytest.raises(grpc.RpcError) as caught:
                hook(codec.encode(point, request({demo.DEVICES: "canary"})), timeout=10)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "canary" not in str(caught.value)
        [line] = [json.loads(text) for text in calls.read_text().splitlines()]
        assert (line["point"], line["pod"], line["container"]) == ("PreCreateContainer", "default/pod", "main")
        assert set(line) == {"time", "point", "pod", "container", "took_ms"}
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert not registration.exists()
