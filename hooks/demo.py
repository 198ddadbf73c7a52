"""The demo's hook server: GPU environment, cpuset and batch resources from Koordinator's annotations.

Owns the small policy, its server, its registration file and a log of calls (names and times, never a value).
Must not know: the proxy's inside; it speaks runtimeproxy.hookapi only.
Invariant: an answer holds the changes alone, and the same request always gets the same answer.
"""

import argparse
import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from runtimeproxy.errors import WireError
from runtimeproxy.hookapi import codec
from runtimeproxy.hookpoints import HOOK_POINTS, HookPoint, Stage, SubjectKind
from runtimeproxy.model import NO_RESOURCES, HookAnswer, HookRequest, Resources

DEVICES = "scheduling.koordinator.sh/device-allocated"
RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"
EXTENDED_RESOURCES = "node.koordinator.sh/extended-resource-spec"
QOS_CLASS = "koordinator.sh/qosClass"
BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
REGISTRATION_NAME = "demo-annotations.json"
POLICY_ERRORS = (ValueError, TypeError, KeyError, AttributeError)
"""What a malformed annotation raises on its way through the policy."""


def answer(point: HookPoint, request: HookRequest) -> HookAnswer:
    """Return what changes at a hook point; Post points change nothing.

    Raises one of POLICY_ERRORS if an annotation is malformed.
    """
    if point.stage is Stage.POST:
        return HookAnswer()
    if point.subject is SubjectKind.POD:
        return HookAnswer(resources=Resources(cpu_quota=-1) if _cpuset(request) else None)
    resources = _with_cpuset(_batch(request), _cpuset(request))
    return HookAnswer(envs=_gpu(request), resources=None if resources == NO_RESOURCES else resources)


def _annotation(request: HookRequest, name: str) -> Any:
    return json.loads(request.pod.annotations.get(name, "{}"))


def _gpu(request: HookRequest) -> dict[str, str]:
    devices = _annotation(request, DEVICES).get("gpu", [])
    return {"NVIDIA_VISIBLE_DEVICES": ",".join(str(int(device["minor"])) for device in devices)} if devices else {}


def _cpuset(request: HookRequest) -> str:
    return str(_annotation(request, RESOURCE_STATUS).get("cpuset", ""))


def _with_cpuset(resources: Resources, cpuset: str) -> Resources:
    # Exclusive CPUs need no quota: it would only throttle.
    return replace(resources, cpuset_cpus=cpuset, cpu_quota=-1) if cpuset else resources


def _batch(request: HookRequest) -> Resources:
    name = request.container.name if request.container else ""
    spec = _annotation(request, EXTENDED_RESOURCES).get("containers", {}).get(name)
    if request.pod.labels.get(QOS_CLASS) != "BE" or spec is None:
        return NO_RESOURCES
    limits = spec.get("limits", {})
    return Resources(
        cpu_shares=max(2, _amount(spec.get("requests", {}), BATCH_CPU) * 1024 // 1000),
        cpu_quota=max(1000, _amount(limits, BATCH_CPU) * 100) if BATCH_CPU in limits else -1,
        memory_limit_in_bytes=_amount(limits, BATCH_MEMORY) or -1,
    )


def _amount(amounts: Mapping[str, Any], name: str) -> int:
    text = str(amounts.get(name, 0))
    return int(text[:-2]) * UNITS[text[-2:]] if text[-2:] in UNITS else int(text)


class DemoHooks(grpc.GenericRpcHandler):
    """Serves the hook points by their paths, and appends one JSON line a call to ``call_log``."""

    def __init__(self, call_log: Path) -> None:
        self._log = call_log.open("a", buffering=1)
        self._points = {codec.method_path(point): point for point in HOOK_POINTS}

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a path, None if it is no hook point's."""
        point = self._points.get(details.method)
        return None if point is None else grpc.unary_unary_rpc_method_handler(partial(self._serve, point))

    def _serve(self, point: HookPoint, body: bytes, context: grpc.ServicerContext) -> bytes:
        began = time.monotonic()
        try:
            request = codec.decode_request(point, body)
            answered = codec.encode_answer(point, answer(point, request))
        except (WireError, *POLICY_ERRORS) as error:
            # The kind of the error alone: its text could quote the annotation's value.
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"malformed annotation ({type(error).__name__})")
        self._write_down(point, request, time.monotonic() - began)
        return answered

    def _write_down(self, point: HookPoint, request: HookRequest, took_seconds: float) -> None:
        container = request.container.name if request.container else ""
        pod = f"{request.pod.namespace}/{request.pod.name}"
        entry = {"time": time.time(), "point": point.name, "pod": pod, "container": container}
        self._log.write(json.dumps(entry | {"took_ms": round(took_seconds * 1000, 3)}) + "\n")


def register(directory: Path, endpoint: str, policy: str) -> Path:
    """Write the registration file, whole at once."""
    entry = {"remote-endpoint": endpoint, "failure-policy": policy, "runtime-hooks": [p.name for p in HOOK_POINTS]}
    beside, target = directory / f".{REGISTRATION_NAME}", directory / REGISTRATION_NAME
    beside.write_text(json.dumps(entry))
    os.replace(beside, target)
    return target


def main() -> None:
    """Serve until SIGTERM or SIGINT; the registration file is there exactly as long as the server listens."""
    parser = argparse.ArgumentParser(prog="runtimeproxy_hooks.demo", description="the demo's hook server")
    parser.add_argument("--endpoint", required=True, help="unix socket to listen on")
    parser.add_argument("--register-dir", type=Path, required=True, help="directory that the proxy watches")
    parser.add_argument("--failure-policy", choices=("Ignore", "Fail"), default="Ignore")
    parser.add_argument("--call-log", type=Path, default=Path(os.devnull), help="file to append JSON lines to")
    arguments = parser.parse_args()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    server = grpc.server(ThreadPoolExecutor(4), handlers=[DemoHooks(arguments.call_log)])
    server.add_insecure_port(f"unix:{arguments.endpoint}")
    server.start()
    registration = register(arguments.register_dir, arguments.endpoint, arguments.failure_policy)
    stopped.wait()
    registration.unlink(missing_ok=True)
    server.stop(grace=1).wait()


if __name__ == "__main__":
    main()
