"""Pods and containers as a kubelet sends them to a real engine, what they report of themselves, fakes in threads."""

import asyncio
import os
import threading
import uuid
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runtimeproxy.hookapi import api_pb2
from tests.engines import cgroups, cri
from tests.fakes import hookanswers
from tests.fakes.cri_pb2 import ContainerConfig, HugepageLimit, LinuxContainerResources, PodSandboxConfig
from tests.system.proxy import wait_until

MIB = 1 << 20
CPU = str(min(os.sched_getaffinity(0)))
PLUGIN = "tester"
SERVER_SECONDS = 30.0
LAST_LINE = "first=done"

Values = Mapping[str, int | str]
"""Resources by name."""


@contextmanager
def serving(server: Any) -> Iterator[Any]:
    """Serve a fake in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fake server")
    thread.start()

    def run(step: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(step, loop).result(SERVER_SECONDS)

    try:
        run(server.start())
        yield server
        run(server.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def rich_pod(engine: Any, name: str = "rich") -> PodSandboxConfig:
    """Return a pod with all fields that a kubelet may set."""
    pod = plain_pod(engine, name)
    pod.metadata.attempt = 2
    pod.labels.update({"app": "web", "koordinator.sh/qosClass": "BE"})
    pod.annotations.update({"example.com/text": "line\nnext", "example.com/empty": ""})
    pod.linux.overhead.CopyFrom(LinuxContainerResources(cpu_shares=102, memory_limit_in_bytes=16 * MIB))
    # containerd only stores a pod's resources, so the two maps need no special machine.
    pod.linux.resources.CopyFrom(
        LinuxContainerResources(
            cpu_period=100000,
            cpu_quota=150000,
            cpu_shares=614,
            memory_limit_in_bytes=128 * MIB,
            hugepage_limits=[HugepageLimit(page_size="2MB", limit=4 * MIB)],
            unified={"memory.high": "100000000"},
        )
    )
    return pod


def plain_pod(engine: Any, name: str = "plain") -> PodSandboxConfig:
    """Return a pod with nothing but a name, a cgroup parent and a log directory."""
    uid = str(uuid.uuid4())
    logs = str(engine.directory(f"logs/{uid}"))
    return cri.pod_config(name, uid, cgroup_parent=engine.cgroup_parent(uid), log_directory=logs)


def skipped(pod: PodSandboxConfig) -> PodSandboxConfig:
    """Return the pod with the label of those that are never handed to hook servers."""
    pod.labels["runtimeproxy.koordinator.sh/skip-hookserver"] = "true"
    return pod


def rich_container(name: str = "main", **resources: int | str) -> ContainerConfig:
    """Return a container with all fields that a kubelet may set.

    ``resources`` are set in addition to the usual ones.
    """
    usual: Values = {"cpu_period": 100000, "cpu_quota": 50000, "cpu_shares": 512, "memory_limit_in_bytes": 64 * MIB}
    config = cri.container_config(
        name,
        command=first_act(),
        envs=[("LEVEL", b"info"), ("SENTENCE", b"two words = three"), ("EMPTY", b"")],
        resources=cri_resources({**usual, **resources}),
        labels={"io.kubernetes.container.name": name},
        annotations={"example.com/hash": "f00"},
    )
    config.metadata.attempt = 3
    return config


def first_act(settings: Sequence[str] = tuple(cgroups.SETTINGS)) -> tuple[str, ...]:
    """Return a command that first prints its environment and its cgroup files to its log."""
    files = "; ".join(f"echo {setting}=$(cat {cgroups.inside_file(setting)})" for setting in settings)
    return ("/bin/sh", "-c", f"{files}; env; echo {LAST_LINE}; sleep 3600")


def reported_by_first_act(pod: PodSandboxConfig, name: str = "main") -> dict[str, str]:
    """Wait until the container's log has all of these first lines; return them as names and values."""
    log = Path(pod.log_directory, f"{name}.log")
    wait_until(lambda: log.exists() and f"{LAST_LINE}\n" in log.read_text(), f"{name} wrote its log")
    return names_and_values(line.split(" ", 3)[3] for line in log.read_text().splitlines())


def names_and_values(texts: Iterable[str]) -> dict[str, str]:
    return dict(text.partition("=")[::2] for text in texts)


def inside(client: Any, container_id: str, setting: str) -> cgroups.Value:
    """Read a setting by ExecSync from the container's own cgroup files."""
    return cgroups.parse(setting, client.exec_sync(container_id, "cat", cgroups.inside_file(setting)).stdout.decode())


def end(client: Any, pod_id: str, *container_ids: str) -> None:
    """Stop and remove containers, then their pod, as a kubelet does."""
    for container_id in container_ids:
        client.stop(container_id)
        client.remove(container_id)
    client.stop_pod(pod_id)
    client.remove_pod(pod_id)
    assert pod_id not in [pod.id for pod in client.pods()]


# ---- resources


def resources_answer(values: Values) -> hookanswers.Answer:
    """Return an answer with these resources and nothing else."""
    resources = api_pb2.LinuxContainerResources(**values)  # type: ignore[arg-type]
    return hookanswers.reply(api_pb2.ContainerResourceHookResponse(container_resources=resources))


def cri_resources(values: Values) -> LinuxContainerResources:
    return LinuxContainerResources(**values)  # type: ignore[arg-type]


def assert_in_force(client: Any, container_id: str, parent: str, values: Values) -> None:
    """Compare what the container sees, and what the host sees of it under this cgroup parent."""
    expected = {setting: cgroups.expected(setting, value) for setting, value in values.items()}
    assert {setting: inside(client, container_id, setting) for setting in values} == expected
    assert {setting: cgroups.read(f"{parent}/{container_id}", setting) for setting in values} == expected


def assert_first_act(reported_inside: Mapping[str, str], values: Values) -> None:
    for setting, value in values.items():
        assert cgroups.parse(setting, reported_inside[setting]) == cgroups.expected(setting, value), setting
