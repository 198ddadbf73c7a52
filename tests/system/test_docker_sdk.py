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
TALK = "for i in 1 2 3; do echo $i; sleep 0.05; done; exec sleep 1000"
"""Followed up to its last line, and ended then: a client that follows a log that ends with that line may miss it."""


@contextmanager
def client_of(path: str) -> Iterator[docker.DockerClient]:
    client = docker.DockerClient(base_url=f"unix://{path}", version="auto", timeout=60)
    try:
        yield client
    finally:
        client.close()
        gc.collect()  # it leaves a stream's socket to the collector: free it in this test, not in a later one


def running(client: docker.DockerClient, command: list[str] = SLEEP, **more: Any) -> Any:
    return client.containers.run(BUSYBOX, command, name="box", detach=True, **more)


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


def attach(client: docker.DockerClient) -> Any:
    box = client.containers.create(BUSYBOX, ["sh", "-c", "read line; echo got $line"], stdin_open=True, name="box")
    attached = box.attach_socket(params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
    box.start()
    attached._sock.sendall(b"a word\n")
    received = b"".join(iter(lambda: attached._sock.recv(65536), b""))
    attached.close()
    assert received.endswith(b"got a word\n")
    return received, box.wait()


def logs(client: docker.DockerClient) -> Any:
    box = running(client, ["sh", "-c", TALK])
    followed = b""
    for section in box.logs(stream=True, follow=True):
        followed += section
        if followed.endswith(b"3\n"):
            box.kill()
    assert followed == b"1\n2\n3\n"
    return followed, box.logs(tail=1)


def events(client: docker.DockerClient) -> Any:
    """Follow the events of a container from before its creation until it is removed."""
    stream = client.events(decode=True, filters={"type": "container"})
    running(client).remove(force=True)
    seen = []
    for event in stream:
        seen.append((event["Action"], event["Actor"]["Attributes"]))
        if event["Action"] == "destroy":
            break
    stream.close()
    assert [action for action, _ in seen] == ["create", "start", "kill", "die", "destroy"]
    return seen


SDK = (exec_with_half_close, attach, logs, events)
"""Features that it uses differently from the docker CLI."""


# From Python 3.13 on a response is flushed that the SDK has closed below it.
@pytest.mark.filterwarnings("ignore:.* <http.client.HTTPResponse:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed .socket.socket .*family=1:ResourceWarning")
@pytest.mark.parametrize("scenario", SDK, ids=lambda scenario: scenario.__name__)
def test_the_sdk_for_python(dockerd: Dockerd, between: str, scenario: Callable[[docker.DockerClient], Any]) -> None:
    seen = []
    for path in (dockerd.socket, between):
        with dockerd.restored(), client_of(path) as client:
            seen.append(scenario(client))
    assert seen[0] == seen[1]
