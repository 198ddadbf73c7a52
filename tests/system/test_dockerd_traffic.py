"""None of the forms that are refused is in the traffic of those who use dockerd: the CLI, the SDK, curl, dockershim."""

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engines import docker_cli
from tests.engines.dockerd import BUSYBOX, Dockerd
from tests.fakes.dockershim import CRI_DOCKERD, DOCKERSHIM, Dockershim
from tests.system.docker_steps import tar
from tests.system.proxy import ProxyInside
from tests.system.test_dockerd_clients import archives, build, client_of, exec_with_half_close, ping, run_with_output

pytestmark = [pytest.mark.engine, pytest.mark.slow]

CURL = "/usr/bin/curl"
"""Debian's, whatever else stands on the PATH."""


def by_the_cli(socket: str, engine: Dockerd) -> None:
    for command in (
        ("run", "--rm", BUSYBOX, "true"),
        ("run", "-d", "--name", "box", BUSYBOX, "sleep", "1000"),
        ("exec", "box", "echo", "word"),
        ("cp", "box:/bin/busybox", "-"),
        ("update", "--cpu-shares", "512", "box"),
        ("stop", "-t", "0", "box"),
        ("logs", "box"),
        ("rm", "-f", "box"),
        ("system", "df"),
    ):
        outcome = docker_cli.run(socket, *command)
        assert outcome.exit_code == 0, outcome
    dockerfile = tar({"Dockerfile": f"FROM {BUSYBOX}\nRUN true\n".encode()})
    for buildkit in (False, True):
        outcome = docker_cli.run(socket, "build", "--network", "none", "-", stdin=dockerfile, buildkit=buildkit)
        assert outcome.exit_code == 0, outcome


def by_the_sdk(socket: str, engine: Dockerd) -> None:
    for scenario in (ping, run_with_output, exec_with_half_close, archives, build):
        with engine.restored(), client_of(socket) as client:
            scenario(client)


JSON = ("-H", "Content-Type: application/json", "-d")
OF_CURL: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    # Rows: the status, the path, the options.
    ("200", "/_ping", ("-I",)),
    ("200", "/v1.41/containers/json?all=1&filters={%22label%22:[%22a%22]}", ("-g",)),
    ("200", "/info", ("--http1.0",)),
    ("200", "/info", ("-H", "Connection: close")),
    ("200", "/info", ("-H", "Host: docker")),
    ("201", "/v1.41/containers/create?name=box", (*JSON, f'{{"Image":"{BUSYBOX}","Cmd":["sleep","9"]}}')),
    ("204", "/v1.41/containers/box/start", ("-X", "POST")),
    ("200", "/v1.41/containers/box/update", (*JSON, '{"CpuShares":512}')),
    ("200", "/v1.41/containers/box/archive?path=/tmp", ("-T", "-")),
    ("204", "/v1.41/containers/box/stop?t=0", ("-d", "")),
    (
        "200",
        "/images/load",
        ("-H", "Content-Type: application/x-tar", "-H", "Expect: 100-continue", "--data-binary", "@-"),
    ),
    ("204", "/v1.41/containers/box?force=1", ("-X", "DELETE")),
    ("404", "/v1.41/containers/box/start", ("-X", "POST")),
)


def by_curl(socket: str, engine: Dockerd) -> None:
    archive = tar({"file": bytes(2 << 20)})
    base = (CURL, "-sS", "--unix-socket", socket, "-o", "/dev/null", "-w", "%{http_code}")
    for status, path, options in OF_CURL:
        command = [*base, *options, f"http://localhost{path}"]
        done = subprocess.run(command, input=archive, capture_output=True, check=True, timeout=60)
        assert done.stdout.decode() == status, (command, done)


def by_dockershim(socket: str, engine: Dockerd) -> None:
    for generation in (CRI_DOCKERD, DOCKERSHIM):
        with Dockershim(socket, generation) as shim:
            parent = engine.cgroup_parent("traffic")
            pod = shim.run_pod_sandbox("traffic", "traffic", cgroup_parent=parent, oom_score_adj=0)
            container = shim.create_container(pod, "main", resources={"cpu_shares": 512})
            shim.start_container(container)
            assert shim.exec_sync(container, ["echo", "word"])[1] == b"word\n"
            shim.update_container_resources(container, {"cpu_shares": 256})
            assert shim.list_containers()
            shim.stop_container(container)
            shim.stop_pod_sandbox(pod)
            shim.remove_container(container)
            shim.remove_pod_sandbox(pod)


CLIENTS: tuple[Callable[[str, Dockerd], None], ...] = (by_the_cli, by_the_sdk, by_curl, by_dockershim)


@pytest.mark.filterwarnings("ignore:unclosed .socket.socket .*family=1:ResourceWarning")
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
async def test_nothing_of_a_client_is_refused(
    dockerd: Dockerd, tmp_path: Path, client: Callable[[str, Dockerd], None]
) -> None:
    proxy = ProxyInside(tmp_path, backend_runtime_mode="Docker", remote_runtime_service_endpoint=dockerd.socket)
    async with proxy:
        with dockerd.restored():
            await asyncio.to_thread(client, str(proxy.socket), dockerd)
        assert proxy.recorder.total("connections") > 0
        assert proxy.recorder.total("requests_refused") == 0
