"""The docker SDK for Python through a socket in between.

Each scenario runs twice on the same daemon: directly, and through ``between``; the results must be equal.
"""

import gc
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import docker  # type: ignore[import-untyped]  # it has no types
import pytest

from tests.engines.dockerd import BUSYBOX, Dockerd

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MEGABYTE = bytes(range(256)) * 4096
SLEEP = ["sleep", "1000"]


@contextmanager
def client_of(path: str) -> Iterator[docker.DockerClient]:
    client = docker.DockerClient(base_url=f"unix://{path}", version="auto", timeout=60)
    try:
        yield client
    finally:
        client.close()
        gc.collect()  # it leaves a stream's socket to the collector: free it in this test, not in a later one


def running(client: docker.DockerClient) -> Any:
    return client.containers.run(BUSYBOX, SLEEP, name="box", detach=True)


def exec_with_half_close(client: docker.DockerClient) -> Any:
    """Send a megabyte, shut down writing, and only then read the answer."""
    box = running(client)
    answer = box.exec_run(["wc", "-c"], stdin=True, socket=True)
    connection = answer.output._sock
    connection.sendall(MEGABYTE)
    connection.shutdown(socket.SHUT_WR)
    received = b"".join(iter(lambda: connection.recv(65536), b""))
    answer.output.close()
    assert received.endswith(b"1048576\n")
    return received


def events(client: docker.DockerClient) -> Any:
    """Follow the events of a container from before its creation until it is removed."""
    stream = client.events(decode=True, filters={"type": "container"})
    running(client).remove(force=True)
    actions = []
    for event in stream:
        actions.append((event["Action"], event["Actor"]["Attributes"]))
        if event["Action"] == "destroy":
            break
    stream.close()
    assert [action for action, _ in actions] == ["create", "start", "kill", "die", "destroy"]
    return actions


# From Python 3.13 on a response is flushed that the SDK has closed below it.
@pytest.mark.filterwarnings("ignore:.* <http.client.HTTPResponse:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed .socket.socket .*family=1:ResourceWarning")
@pytest.mark.parametrize("scenario", [exec_with_half_close, events])
def test_docker_sdk_gets_same_results_through_proxy(
    dockerd: Dockerd, between: str, scenario: Callable[[docker.DockerClient], Any]
) -> None:
    results = []
    for path in (dockerd.socket, between):
        with dockerd.restored(), client_of(path) as client:
            results.append(scenario(client))
    assert results[0] == results[1]
